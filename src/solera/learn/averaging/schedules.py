"""How a learning rate changes from round to round."""

from __future__ import annotations

import math
from abc import abstractmethod

from solera.core.component import Component
from solera.core.constraints import Count, Fraction, Positive


class Schedule(Component, abstract=True):
    """A factor for the learning rate of every round."""

    @abstractmethod
    def scale(self, round: int, rounds: int) -> float:
        """The factor of round 0, 1, … of ``rounds``."""


class StepDecay(Schedule):
    """Multiply by ``factor`` after every ``every`` rounds."""

    def __init__(self, factor: Positive = 0.5, *, every: Count = 1) -> None:
        self.factor = factor
        self.every = every

    def scale(self, round: int, rounds: int) -> float:
        return float(self.factor ** (round // self.every))


class CosineDecay(Schedule):
    """Fall from 1 to ``floor`` along half a cosine (Loshchilov & Hutter 2017)."""

    def __init__(self, floor: Fraction = 0.0) -> None:
        self.floor = floor

    def scale(self, round: int, rounds: int) -> float:
        wave = 0.5 * (1 + math.cos(math.pi * round / rounds))
        return self.floor + (1 - self.floor) * wave
