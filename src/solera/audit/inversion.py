"""Gradient inversion: does the update of a batch tell its rows?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from solera.audit.epsilon import epsilon_of_scores
from solera.audit.result import Result, told
from solera.core.clients import Array, FloatArray
from solera.core.errors import UsageError
from solera.core.rng import generator
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.losses import row_losses, targets_of
from solera.learn.rows import dense

_ALIKE = 0.95
Protect = Callable[[list[Array]], Sequence[Array]]
"""The gradient, parameter by parameter, as it leaves the client."""


@dataclass(frozen=True)
class Inversion(Result):
    """Rows read from a gradient.

    ``rows`` are the guesses, one for every true row; ``similarity`` is the cosine between the two
    after the mean of the batch, if it has several rows, is taken off both; ``recovered`` how many
    are above 0.95.
    """

    attack: str
    rows: FloatArray
    similarity: FloatArray
    epsilon: float | None
    delta: float
    confidence: float
    title = "Gradient inversion"

    @property
    def recovered(self) -> int:
        return int((self.similarity > _ALIKE).sum())

    def facts(self) -> list[tuple[str, str]]:
        return [
            ("attack", self.attack),
            ("recovered", f"{self.recovered} of {len(self.rows)} rows (similarity > {_ALIKE})"),
            ("similarity", f"{self.similarity.mean():.3f} on average"),
            told(self.epsilon, self.delta, self.confidence),
        ]


def inversion(
    model: Any,
    X: Any,
    y: Any,
    *,
    attack: Literal["analytic", "optimise"] = "analytic",
    protect: Protect | None = None,
    decoys: Any = None,
    steps: int = 300,
    delta: float = 0.0,
    confidence: float = 0.95,
    seed: int = 0,
) -> Inversion:
    """Compute the gradient that a client with these rows would send, and read rows from it.

    Parameters
    ----------
    model: a fitted network (FedAvg and relatives) or FedLinear.
    attack: ``"analytic"`` divides the gradient of every unit of the first layer by that of its
        bias, which is the row itself where one row moves the unit (Phong et al. 2018, section 3;
        Boenisch et al. 2023). ``"optimise"`` looks for rows whose gradient points the same way
        (Zhu, Liu & Han 2019; Geiping et al. 2020, Eq. 4), with the classes known.
    protect: what is done to the gradient before it leaves, such as clipping and noise.
    decoys: rows that are not in the batch; with them the attack bounds ε.
    """
    rows, targets = _numbers(model, X), np.asarray(y)
    network, loss, classes = _network(model)
    sent = _gradient(network, rows, targets, loss, classes)
    sent = [np.array(g) for g in sent] if protect is None else list(protect(sent))
    if attack == "analytic":
        guesses = _analytic(sent, rows.shape[1])
        words = "analytic, first layer"
    else:
        guesses = _optimised(network, sent, rows.shape, targets, loss, classes, steps, seed)
        words = f"optimisation, {steps} steps"
    centre = rows.mean(axis=0) if len(rows) > 1 else np.zeros(rows.shape[1])
    likeness = _cosines(rows - centre, guesses - centre)
    best = likeness.argmax(axis=1)
    bound = None
    if decoys is not None:
        others = _cosines(_numbers(model, decoys) - centre, guesses - centre).max(axis=1)
        bound = epsilon_of_scores(likeness.max(axis=1), others, delta=delta, confidence=confidence)
    return Inversion(words, guesses[best], likeness.max(axis=1), bound, delta, confidence)


def _numbers(model: Any, X: Any) -> FloatArray:
    return np.asarray(dense(model.check_rows(X)), dtype=np.float64)


def _network(model: Any) -> tuple[Any, str, Array]:
    """The model as a PyTorch module in double precision, with its loss and classes."""
    t = torch()
    if hasattr(model, "coef_") and hasattr(model, "intercept_"):
        layer = t.nn.Linear(*model.coef_.shape).double()
        with t.no_grad():
            layer.weight.copy_(t.from_numpy(np.array(model.coef_.T, dtype=np.float64)))
            layer.bias.copy_(t.from_numpy(np.array(model.intercept_, dtype=np.float64)))
        return t.nn.Sequential(layer), model.loss_of_target(), model.schema_.classes
    if not hasattr(model, "module"):
        raise UsageError(
            f"inversion reads gradients; {type(model).__name__} sends none",
            hint="so.audit.reconstruction reads Gram sums",
        )
    return model.module().double().eval(), model._loss, model.schema_.classes


def _gradient(network: Any, X: Any, y: Array, loss: str, classes: Array) -> list[Array]:
    rows = torch().as_tensor(X)
    return [g.detach().numpy() for g in _gradients(network, rows, y, loss, classes)]


def _gradients(
    network: Any, rows: Any, y: Array, loss: str, classes: Array, create: bool = False
) -> Any:
    t = torch()
    target = t.from_numpy(np.asarray(targets_of(y, loss, classes, np.dtype(np.float64))))
    mean = row_losses(network(rows), target, loss).mean()
    return t.autograd.grad(mean, list(network.parameters()), create_graph=create)


def _analytic(sent: Sequence[Array], width: int) -> FloatArray:
    """∂L/∂Wᵤ / ∂L/∂bᵤ of every unit u of the first layer that moved."""
    weight, bias = sent[0], sent[1] if len(sent) > 1 else None
    if weight.ndim != 2 or weight.shape[1] != width or bias is None or bias.ndim != 1:
        raise UsageError(
            "the first layer is not dense with a bias", hint="use attack='optimise' instead"
        )
    moved = np.abs(bias) > 1e-12 * (1 + np.abs(bias).max())
    if not moved.any():
        return np.zeros((1, width))
    return np.asarray(weight[moved] / bias[moved, None], dtype=np.float64)


def _optimised(
    network: Any,
    sent: Sequence[Array],
    shape: tuple[int, ...],
    y: Array,
    loss: str,
    classes: Array,
    steps: int,
    seed: int,
) -> FloatArray:
    """argmin over rows of 1 − cos(their gradient, the one that was sent), by L-BFGS."""
    t = torch()
    wanted = t.cat([t.from_numpy(np.asarray(g, dtype=np.float64)).ravel() for g in sent])
    start = generator(seed, "audit.inversion").normal(size=shape)
    rows = t.from_numpy(start).requires_grad_(True)
    search = t.optim.LBFGS([rows], lr=0.5, max_iter=20, line_search_fn="strong_wolfe")

    def cost() -> Any:
        search.zero_grad()
        found = t.cat([g.ravel() for g in _gradients(network, rows, y, loss, classes, True)])
        apart = 1 - (found @ wanted) / (found.norm() * wanted.norm() + 1e-30)
        distance = ((found - wanted) ** 2).sum() / (wanted @ wanted + 1e-30)
        total = apart + distance
        total.backward()
        return total

    for _ in range(max(1, steps // 20)):
        search.step(cost)
    return np.asarray(rows.detach().numpy())


def _cosines(a: FloatArray, b: FloatArray) -> FloatArray:
    lengths = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)[None]
    return np.asarray((a @ b.T) / np.maximum(lengths, 1e-30))
