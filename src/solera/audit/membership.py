"""Membership: does a model tell whether it was trained on a row?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from solera.audit.epsilon import epsilon_of_scores, roc
from solera.audit.result import Result, told
from solera.core.clients import Array, BoolArray, FloatArray
from solera.core.errors import UsageError
from solera.core.rng import generator
from solera.simulate.simulation import simulate

_LEAST = 1e-12
Train = Callable[[Any, Any, int], Any]
"""(X, y, seed) → a model trained as the one that is audited was."""


@dataclass(frozen=True)
class Membership(Result):
    """How well members can be told from others.

    ``auc`` is 0.5 for guessing, ``tpr`` the members found at each rate of false alarms; ``epsilon``
    a lower bound that the attack proves, if inclusion was random.
    """

    attack: str
    auc: float
    tpr: dict[float, float]
    advantage: float
    epsilon: float
    delta: float
    confidence: float
    member_scores: FloatArray
    other_scores: FloatArray
    title = "Membership inference"

    def facts(self) -> list[tuple[str, str]]:
        rates = ", ".join(f"{tpr:.1%} at {fpr:.1%}" for fpr, tpr in self.tpr.items())
        return [
            ("attack", self.attack),
            ("rows", f"{len(self.member_scores):,} members, {len(self.other_scores):,} others"),
            ("AUC", f"{self.auc:.3f} (0.5 is guessing)"),
            ("advantage", f"{self.advantage:.3f} = largest TPR − FPR"),
            ("found", f"{rates} false alarms"),
            told(self.epsilon, self.delta, self.confidence),
        ]


def membership(
    model: Any,
    members: tuple[Any, Any],
    non_members: tuple[Any, Any],
    *,
    attack: Literal["loss", "lira"] = "loss",
    shadows: int = 16,
    train: Train | None = None,
    delta: float = 0.0,
    confidence: float = 0.95,
    seed: int = 0,
) -> Membership:
    """Try to tell the rows a model was trained on from others like them.

    Parameters
    ----------
    members, non_members: (X, y) that the model was trained on, and that it was not.
    attack: ``"loss"`` guesses that rows with a small loss are members (Yeom et al. 2018);
        ``"lira"`` compares the loss of every row with that under ``shadows`` models trained with
        and without it (Carlini et al. 2022, "Membership inference attacks from first principles",
        Algorithm 1).
    train: for ``"lira"``: (X, y, seed) → a model like the audited one. By default a copy of the
        model is fitted to the rows as to one client's.
    """
    X_in, y_in = (np.asarray(part) for part in members)
    X_out, y_out = (np.asarray(part) for part in non_members)
    if not len(X_in) or not len(X_out):
        raise UsageError("membership needs rows of both kinds")
    X, y = np.concatenate([X_in, X_out]), np.concatenate([y_in, y_out])
    if attack == "loss":
        scores = -np.asarray(model.losses(X, y))
    else:
        fit = _like(model) if train is None else train
        scores = _likelihood_ratios(model, fit, X, y, shadows, seed)
    inside, outside = scores[: len(X_in)], scores[len(X_in) :]
    draw = generator(seed, "audit.order")
    inside, outside = draw.permutation(inside), draw.permutation(outside)
    area, tpr = roc(inside, outside)
    cuts = np.unique(scores)
    below = [np.searchsorted(np.sort(part), cuts) / len(part) for part in (outside, inside)]
    bound = epsilon_of_scores(inside, outside, delta=delta, confidence=confidence)
    return Membership(
        "loss threshold" if attack == "loss" else f"likelihood ratio, {shadows} shadow models",
        area,
        tpr,
        float(np.max(below[0] - below[1])),
        bound,
        delta,
        confidence,
        inside,
        outside,
    )


def _like(model: Any) -> Train:
    def train(X: Any, y: Any, seed: int) -> Any:
        return model.clone().fit(simulate(X, y, clients=1, seed=seed), progress=False)

    return train


def _likelihood_ratios(
    model: Any, train: Train, X: Array, y: Array, shadows: int, seed: int
) -> FloatArray:
    """ln p(φ | in) − ln p(φ | out) for every row, φ = ln(p/(1 − p)) of its class, both normal."""
    if shadows < 4:
        raise UsageError(f"membership(shadows={shadows}): at least 4 are needed")
    trained = _halves(len(X), shadows, seed)
    known = np.stack(
        [_logits(train(X[inside], y[inside], seed + 1 + k), X, y)
         for k, inside in enumerate(trained)]
    )  # fmt: skip
    observed = _logits(model, X, y)
    ratio = np.zeros(len(X))
    for sign, inside in ((1, trained), (-1, ~trained)):
        counts = inside.sum(axis=0)
        mean = (known * inside).sum(axis=0) / counts
        spread = np.sqrt(((known - mean) ** 2 * inside).sum() / inside.sum()) + _LEAST
        ratio += sign * (-0.5 * ((observed - mean) / spread) ** 2 - np.log(spread))
    return ratio


def _halves(rows: int, shadows: int, seed: int) -> BoolArray:
    """Shadow models × rows: every row is in half of the models, every model has about half."""
    draw = generator(seed, "audit.shadows")
    order = np.argsort(draw.random((shadows, rows)), axis=0)
    return np.asarray(order < shadows // 2)


def _logits(model: Any, X: Array, y: Array) -> FloatArray:
    p = np.clip(np.exp(-np.asarray(model.losses(X, y), dtype=float)), _LEAST, 1 - 1e-7)
    return np.asarray(np.log(p) - np.log1p(-p))
