"""Names of errors."""

from __future__ import annotations

import pytest

import solera as so


def test_a_refusal_of_the_gate_is_one_of_the_policy():
    with pytest.warns(DeprecationWarning, match="PolicyRefusal"):
        assert so.errors.GateRefusal is so.errors.PolicyRefusal
    with pytest.raises(AttributeError, match="has no attribute 'GateRefusals'"):
        so.errors.GateRefusals  # noqa: B018
