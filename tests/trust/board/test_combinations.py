"""What many jobs of one epoch tell together: persons that combinations of exact cells single out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import Recorder, singled_out

import solera as so

LEAST = 5


def test_a_person_in_the_span_of_sets_is_singled_out() -> None:
    sets = [frozenset(one) for one in ({1, 2, 3, 4}, {1, 2, 3}, {5, 6}, {5, 6, 1}, {7, 8, 9})]
    assert sorted(singled_out(sets)) == [1, 4]
    ring = [frozenset({i, (i + 1) % 5}) for i in range(5)]
    assert sorted(singled_out(ring)) == [0, 1, 2, 3, 4], "an odd ring of pairs can be solved"
    assert singled_out([frozenset({i, (i + 1) % 6}) for i in range(6)]) == []
