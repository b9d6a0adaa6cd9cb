"""How a learning rate changes from round to round."""

from __future__ import annotations

import math
from abc import abstractmethod

from solera.core.component import Component
from solera.core.errors import UsageError


class Schedule(Component, abstract=True):
    """A factor for the learning rate of every round."""

    @abstractmethod
    def scale(self, round: int, rounds: int) -> float:
        """The factor of round 0, 1, … of ``rounds``."""


class StepDecay(Schedule):
    """Multiply by ``factor`` after every ``every`` rounds."""

    def __init__(self, factor: float = 0.5, *, every: int = 1) -> None:
        self.factor = factor
        self.every = every

    def scale(self, round: int, rounds: int) -> float:
        if self.every < 1:
            raise UsageError.of(self, "every", self.every, "must be at least 1")
        if not self.factor > 0:
            raise UsageError.of(self, "factor", self.factor, "must be > 0")
        return float(self.factor ** (round // self.every))


class CosineDecay(Schedule):
    """Fall from 1 to ``floor`` along half a cosine (Loshchilov & Hutter 2017)."""

    def __init__(self, floor: float = 0.0) -> None:
        self.floor = floor

    def scale(self, round: int, rounds: int) -> float:
        if not 0 <= self.floor <= 1:
            raise UsageError.of(self, "floor", self.floor, "must be in [0, 1]")
        wave = 0.5 * (1 + math.cos(math.pi * round / rounds))
        return self.floor + (1 - self.floor) * wave
