"""Conditions on columns, as trees and rules have them, in a person's words."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from solera.core.schema import Feature

HUGE = 1e300
"""A bound beyond this is no bound."""
_SHORTER = 3
"""So many digits less has the number that an edge lies just before."""
_MANY = 5  # categories that a condition does not list any more


def edge_text(feature: Feature, edge: float) -> tuple[str, bool]:
    """An edge of a column in words, and whether it is the last number before the one that is named.

    Atoms are a ≤ x < b, and bins of them end at the last number before b.
    """
    following = float(np.nextafter(edge, np.inf)) + 0.0  # and no −0
    is_last = len(repr(following)) + _SHORTER < len(repr(float(edge)))
    return feature.text(following if is_last else edge), is_last


@dataclass(frozen=True)
class Condition:
    """One condition on a column: "age ≤ 32.5", "job = clerk", "job is missing"."""

    feature: str
    column: int
    lower: float
    upper: float
    category: str | None = None
    missing: bool = False
    """Whether a missing value satisfies it."""
    negated: bool = False
    """Whether what lies between the bounds does not satisfy it, and all else does."""
    of: Feature | None = field(default=None, repr=False, compare=False)
    """The column, whose categories and dates are shown as such."""

    @classmethod
    def on(
        cls, feature: Feature, column: int, lower: float, upper: float, missing: bool
    ) -> Condition:
        """The condition (lower, upper] of a column; one that a single category satisfies names it.

        Bounds one apart hold a single code; with ``lower ≥ upper`` only a missing value is left.
        """
        single = 0 <= upper < len(feature.categories) and upper - lower == 1
        category = feature.categories[int(upper)] if single else None
        return cls(feature.name, column, lower, upper, category, missing, of=feature)

    def holds(self, value: float) -> bool:
        """Whether a value, a code for a category, satisfies the condition."""
        inside = bool(self.lower < value <= self.upper) if np.isfinite(value) else self.missing
        return inside != self.negated

    def within(self, other: Condition) -> Condition:
        """Both conditions on one column as one."""
        assert self.of is not None
        lower, upper = max(self.lower, other.lower), min(self.upper, other.upper)
        missing = self.missing and other.missing
        return self.on(self.of, self.column, lower, upper, missing)

    def at(self, value: float) -> Self:
        """What is left of it for a value that is missing."""
        if np.isfinite(value):
            return self
        return replace(self, lower=0.0, upper=0.0, category=None, missing=True, negated=False)

    @property
    def predicate(self) -> str:
        """The condition without its column: "≤ 32.5", "= clerk", "is missing"."""
        feature = Feature(self.feature) if self.of is None else self.of
        if self.lower >= self.upper:
            return "is missing"
        if self.category is not None:
            return f"{'is not' if self.negated else '='} {self.category}"
        if self.lower <= -HUGE and self.upper >= HUGE:
            return "is known"
        every = feature.categories
        if names := [name for code, name in enumerate(every) if self.lower < code <= self.upper]:
            if len(names) == len(every):
                return "is known"
            if len(names) < _MANY:
                return f"= {' or '.join(names)}"
            return f"from {names[0]} to {names[-1]} ({len(names)} of {len(every)})"
        low, from_low = edge_text(feature, self.lower)
        high, below_high = edge_text(feature, self.upper)
        if self.lower <= -HUGE:
            return f"{'<' if below_high else '≤'} {high}"
        if self.upper >= HUGE:
            return f"{'≥' if from_low else '>'} {low}"
        return f"in {'[' if from_low else '('}{low}, {high}{')' if below_high else ']'}"

    def __str__(self) -> str:
        return f"{self.feature} {self.predicate}"
