"""What models and messages give away: attacks against protections.

No thesis has this table; the attacks are those of :mod:`solera.audit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import solera as so
from solera.core.rng import generator
from solera.study.run.progress import SILENT, Progress
from solera_studies.rows import OURS, Row, Rows, quiet, row
from solera_studies.theses import Cell

TITLE = "Leakage: attacks against protections"
TABLES = ()
SCALE_DOWN = (
    "Digits; 150 members and as many others for membership, batches of 1 to 64 for gradients. "
    "--full: more shadow models, steps and trials."
)
DIFFERS = "every row is ours: no thesis has such a table"
ERRATA = ()
SIZES = {
    False: "16 of 64 shadow models, 400 of 2,000 trials",
    True: "64 shadow models, 2,000 trials",
}
LEFT_OUT: dict[str, str] = {}
_A = so.audit


def planned(full: bool) -> list[Cell]:
    """No cell of a thesis."""
    return []


@quiet()
def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """AUC of membership, rows recovered, and the ε that each attack proves."""
    rows: Rows = []
    for name, part in (
        ("membership", _membership),
        ("inversion", _inversion),
        ("reconstruction", _reconstruction),
        ("noisy sums", _sums),
    ):
        progress.stage(name)
        rows += part(full)
    return rows


def _row(label: str, measured: float, note: str) -> Row:
    return row(label, None, measured, protocol=OURS, form=".3f", note=note)


def _bound(epsilon: float | None) -> str:
    return "" if epsilon is None else f"ε ≥ {epsilon:.2f}"


def _membership(full: bool) -> Iterator[Row]:
    """Few rows and many columns, which can be learned by heart."""
    draw = generator(0, "leakage")
    X = draw.normal(size=(300, 130))
    y = np.where(draw.random(300) < 0.5, draw.integers(0, 2, 300), X[:, 0] > 0).astype(int)
    members, others = (X[:150], y[:150]), (X[150:], y[150:])
    for words, lam in (("λ = 1e-6", 1e-6), ("λ = 10", 10.0), ("λ = 1000", 1000.0)):
        model = so.FedHEONN("linear", lam=lam).fit(*members)
        for attack in ("loss", "lira"):
            more: dict[str, Any] = {"attack": attack, "shadows": 64 if full else 16}
            found = _A.membership(model, members, others, **more)
            label = f"membership by {attack}, AUC, FedHEONN {words}"
            yield _row(label, found.auc, _bound(found.epsilon))


def _inversion(full: bool) -> Iterator[Row]:
    """The gradient of a batch, as it is, clipped, and with noise."""
    X, y, _, _ = so.datasets.digits()
    X = X / 16
    fed = so.simulate(X, y, clients=4, seed=0)
    model = so.FedLinear(rounds=1, lr=0.1).fit(fed, progress=False)
    draw = generator(1, "leakage")

    def clipped(gradient: list[Any], noise: float = 0.0) -> list[Any]:
        norm = np.sqrt(sum(float(np.sum(g**2)) for g in gradient))
        scale = min(1.0, 1 / max(norm, 1e-30))
        return [g * scale + draw.normal(0, noise, g.shape) for g in gradient]

    protections: dict[str, Any] = {
        "nothing": None,
        "clipping to 1": clipped,
        "clipping and noise 0.01": lambda g: clipped(g, 0.01),
        "clipping and noise 1": lambda g: clipped(g, 1.0),
    }
    for batch in (1, 8, 64):
        for words, protect in protections.items():
            found = _A.inversion(model, X[:batch], y[:batch], protect=protect)
            label = f"rows recovered from a gradient, batch of {batch}, {words}"
            yield _row(label, found.recovered / batch, f"similarity {found.similarity.mean():.2f}")


def _reconstruction(full: bool) -> Iterator[Row]:
    """The Gram matrix of one client, and of a sum over clients."""
    X, _, _, _ = so.datasets.digits()
    X = X[:, X.std(axis=0) > 2] / 16  # the rim of the pictures is empty
    for count in (1, 20, 200):
        decoys = X[-200:] if count > 3 else None
        found = _A.reconstruction(_gram(X[:count]), rows=X[:count], decoys=decoys)
        words = f"rows inside the space known, Gram sums of {count} rows of a client"
        yield _row(words, _inside(found), _bound(found.epsilon))
    found = _A.reconstruction(_gram(X[:400]), rows=X[:20], decoys=X[-200:])
    words = "rows inside the space known, secure sum of 20 clients of 20 rows"
    yield _row(words, _inside(found), _bound(found.epsilon))


def _gram(X: Any) -> Any:
    Z = np.concatenate([np.ones((len(X), 1)), X], axis=1)
    return Z.T @ Z


def _inside(found: Any) -> float:
    return float((found.residual < 1e-6).mean())


def _sums(full: bool) -> Iterator[Row]:
    """A canary client in sums with Gaussian noise, calibrated to ε = 1, δ = 1e-5."""
    draw = generator(2, "leakage")
    rows = draw.normal(size=(30, 5)) / 10
    with_canary = np.concatenate([rows, [[1.0, 0, 0, 0, 0]]])
    for words, share in (("all of its noise", 1.0), ("a tenth of its noise", 0.1)):
        deviation = 3.7303 * share  # Balle & Wang 2018, for sensitivity 1

        def release(data: Any, deviation: float = deviation) -> Any:
            return data.sum(axis=0) + draw.normal(0, deviation, data.shape[1])

        more: dict[str, Any] = {"delta": 1e-5, "claimed": 1.0}
        found = _A.mechanism(release, with_canary, rows, trials=2000 if full else 400, **more)
        verdict = "not refuted" if found.holds else "refuted"
        label = f"ε proved against a claim of 1, {words}"
        yield _row(label, found.epsilon, f"AUC {found.auc:.2f}, {verdict}")
