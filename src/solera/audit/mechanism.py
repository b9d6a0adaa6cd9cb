"""Auditing a mechanism: can what it releases with and without one secret be told apart?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.audit.epsilon import epsilon_of_scores, roc
from solera.audit.result import Result, told
from solera.core.clients import FloatArray
from solera.core.errors import UsageError

Release = Callable[[Any], Any]
"""data → what is released, with fresh randomness at every call."""


@dataclass(frozen=True)
class Distinguished(Result):
    """How well releases from neighbouring data can be told apart; ``epsilon`` is a lower bound."""

    trials: int
    auc: float
    epsilon: float
    delta: float
    confidence: float
    claimed: float | None
    title = "Distinguishing neighbouring data"

    @property
    def holds(self) -> bool | None:
        """Whether the claim survived; None without one."""
        return None if self.claimed is None else self.epsilon <= self.claimed

    def facts(self) -> list[tuple[str, str]]:
        facts = [
            ("releases", f"{self.trials:,} with the secret and as many without"),
            ("AUC", f"{self.auc:.3f} (0.5 is guessing)"),
            told(self.epsilon, self.delta, self.confidence),
        ]
        if self.claimed is not None:
            verdict = "not refuted" if self.holds else "REFUTED"
            facts.append(("claimed", f"ε = {self.claimed:g}: {verdict}"))
        return facts


def mechanism(
    release: Release,
    with_secret: Any,
    without_secret: Any,
    *,
    difference: Any = None,
    trials: int = 1000,
    delta: float = 0.0,
    claimed: float | None = None,
    confidence: float = 0.95,
) -> Distinguished:
    """Run a mechanism on two neighbouring data sets and try to tell the releases apart.

    The data sets differ by the secret: a canary row, or a canary client whose update is as long as
    clipping allows. Half of the releases teach the attacker the direction in which they
    differ, scaled by the noise in each number (Fisher's discriminant, the best test for
    Gaussian noise); the projections of the other half are counted. An attacker that knows the
    secret is stronger: ``difference`` is what it adds to a release without noise.
    """
    if trials < 20:
        raise UsageError(f"mechanism(trials={trials}): at least 20 are needed to count")
    inside = np.stack([_flat(release(with_secret)) for _ in range(2 * trials)])
    outside = np.stack([_flat(release(without_secret)) for _ in range(2 * trials)])
    known = None if difference is None else _flat(difference)
    direction = _direction(inside[:trials], outside[:trials], known)
    present, absent = inside[trials:] @ direction, outside[trials:] @ direction
    area, _ = roc(present, absent)
    bound = epsilon_of_scores(present, absent, delta=delta, confidence=confidence)
    return Distinguished(trials, area, bound, delta, confidence, claimed)


def _direction(inside: FloatArray, outside: FloatArray, known: FloatArray | None) -> FloatArray:
    gap = inside.mean(axis=0) - outside.mean(axis=0) if known is None else known
    spread = (inside.var(axis=0) + outside.var(axis=0)) / 2
    floor = 1e-12 * (1 + spread.max(initial=0.0))
    return np.asarray(gap / (spread + floor))


def _flat(released: Any) -> FloatArray:
    if isinstance(released, dict):
        return np.concatenate([_flat(released[name]) for name in sorted(released)])
    return np.ravel(np.asarray(released, dtype=np.float64))
