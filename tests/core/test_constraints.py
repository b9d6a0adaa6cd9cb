"""Parameters are compared with the annotations of the constructors that take them."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from solera.core.component import Component, build, describe, installed_components
from solera.core.constraints import (
    Count,
    Fraction,
    Positive,
    ProperFraction,
    declared_types,
    violation,
)
from solera.core.errors import UsageError


class _Part(Component):
    def __init__(self, *, alpha: Positive = 1.0) -> None:
        self.alpha = alpha


class _Whole(Component):
    def __init__(
        self,
        *parts: _Part,
        rounds: Count = 1,
        share: ProperFraction = 0.0,
        mode: Literal["min", "max"] = "min",
        per_round: Count | None = None,
        rate: Positive | Literal["auto"] = "auto",
    ) -> None:
        self.parts = parts
        self.rounds = rounds
        self.share = share
        self.mode = mode
        self.per_round = per_round
        self.rate = rate


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"rounds": 0}, "_Whole(rounds=0): rounds must be a whole number of at least 1"),
        ({"rounds": 1.5}, "rounds must be a whole number of at least 1"),
        ({"rounds": True}, "rounds must be a whole number of at least 1"),
        ({"rounds": "ten"}, "rounds must be a whole number of at least 1"),
        ({"share": 1}, "share must be a number in [0, 1)"),
        ({"share": float("nan")}, "share must be a number in [0, 1)"),
        ({"mode": "mean"}, "mode must be 'min' or 'max'"),
        ({"per_round": 0}, "per_round must be a whole number of at least 1 or None"),
        ({"rate": -1.0}, "rate must be a number > 0 or 'auto'"),
    ],
)
def test_what_a_parameter_must_be_is_said(params: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        _Whole(**params)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_every_part_of_a_list_is_compared() -> None:
    with pytest.raises(UsageError, match="parts must be a list, each a _Part"):
        _Whole(_Part(), 3)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    whole = _Whole(rounds=np.int64(3), share=np.float32(0.5))  # type: ignore[arg-type]
    assert whole.rounds == 3


def test_what_was_changed_later_is_compared_before_use() -> None:
    whole = _Whole().set_params(rounds=0)
    with pytest.raises(UsageError, match="rounds must be"):
        whole.check_params()
    with pytest.raises(UsageError, match="rounds must be"):
        whole.clone()


def test_a_description_from_outside_is_compared() -> None:
    class Described(_Part): ...

    description = describe(Described())
    description["params"]["alpha"] = -1.0
    with pytest.raises(UsageError, match="alpha must be a number > 0"):
        build(description)


def test_the_annotations_of_every_component_can_be_read() -> None:
    for cls in installed_components().values():
        declared_types(cls)


@pytest.mark.parametrize("value", [0, 1, 0.3, np.float64(1)])
def test_a_fraction_includes_both_ends(value: float) -> None:
    assert violation(value, Fraction) is None
