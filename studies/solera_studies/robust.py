"""Robust rules against attacks: accuracy for every rule, attack and share of attackers.

No thesis has this table; the rules and attacks are those of :mod:`solera.robust`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import solera as so
from solera.core.pictures import new_figure
from solera.study.run.progress import SILENT, Progress
from solera_studies.rows import OURS, Rows, quiet, row
from solera_studies.theses import Cell

TITLE = "Robust rules against attacks"
TABLES = ()
SCALE_DOWN = (
    "Digits, 20 clients, logistic regression by averaging, 12 rounds, 10 % and 20 % attackers. "
    "--full: MNIST, 20 clients, 10 % to 40 %."
)
DIFFERS = "every row is ours: no thesis has such a table"
ERRATA = (
    "At 20 % of 20 clients the z of Baruch et al. is 0.16: the mean moves by a thirtieth of the "
    "clients' spread, which costs it next to nothing. Rows with z = 10 show the attack at work.",
)
SIZES = {False: "digits instead of MNIST", True: "10,000 of 60,000 images"}
LEFT_OUT: dict[str, str] = {}
_R = so.robust


def planned(full: bool) -> list[Cell]:
    """No cell of a thesis."""
    return []


def attacks(share: float) -> dict[str, Any]:
    """What a share of the clients does."""
    return {
        "sign flip × 5": _R.SignFlip(share, factor=5),
        "Gaussian": _R.Gaussian(share),
        "ALIE": _R.ALittleIsEnough(share),
        "ALIE z = 10": _R.ALittleIsEnough(share, z=10.0),
        "inner product": _R.InnerProduct(share, factor=2),
        "label flip": _R.LabelFlip(share),
        "NaN": _R.Broken(share, kind="nan"),
    }


def rules(share: float) -> dict[str, Any]:
    """What takes the place of the mean, for this share of attackers."""
    return {
        "mean": None,
        "median": _R.Median(),
        "trimmed mean": _R.TrimmedMean(share),
        "Krum": _R.Krum(share),
        "multi-Krum": _R.MultiKrum(share),
        "Bulyan": _R.Bulyan(min(share, 0.1)),
        "geometric median": _R.GeometricMedian(),
        "centred clipping": _R.CentredClipping(),
        "norm bound": _R.NormBound(),
        "bucketed median": _R.Buckets(_R.Median(), buckets=10),
    }


@quiet()
def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """Accuracy in per cent, and what the rule found out about the attackers."""
    X, y, X_test, y_test = _data(full)
    partition = so.Dirichlet(1.0) if full else so.partitions.IID()

    def fit(attack: Any, rule: Any) -> tuple[float, str]:
        fed = so.simulate(X, y, clients=20, partition=partition, seed=1, attack=attack)
        model = so.FedLinear(rounds=12, lr=0.2 if full else 0.5, epochs=2, aggregate=rule)
        try:
            model.fit(fed, progress=False)
        except so.errors.NotEnoughReplies as problem:
            return float("nan"), str(problem)
        return 100 * model.score(X_test, y_test), detection(model.history_, fed.attackers)

    clean, _ = fit(None, None)
    rows = [row("no attack, mean", None, clean, protocol=OURS, form=".2f")]
    for share in (0.1, 0.2, 0.3, 0.4) if full else (0.1, 0.2):
        for name, attack in attacks(share).items():
            progress.stage(f"{name}, {share:.0%}")
            for rule, made in rules(share).items():
                score, found = fit(attack, made)
                label = f"{name}, {share:.0%}, {rule}"
                measured = None if np.isnan(score) else score
                rows.append(row(label, None, measured, protocol=OURS, form=".2f", note=found))
    return rows


def detection(history: list[dict[str, Any]], attackers: Any) -> str:
    """Who was down-weighted or excluded in how many rounds, in words."""
    told = []
    for entry, word in (("down_weighted", "down-weighted"), ("excluded", "excluded")):
        named = [client for line in history for client, *_ in line.get(entry, [])]
        ids = [client for client in named if isinstance(client, int)]
        if not named:
            continue
        if not ids:
            told.append(f"{len(named)} buckets {word}")
            continue
        hits = int(np.isin(ids, attackers).sum())
        possible = len(attackers) * len(history)
        told.append(f"{word}: {hits} of {possible} lies, {len(ids) - hits} honest updates")
    return "; ".join(told)


def _data(full: bool) -> Any:
    if full:
        X, y, X_test, y_test = so.datasets.mnist()
        return X[:10_000], y[:10_000], X_test, y_test
    X, y, X_test, y_test = so.datasets.digits()
    return X / 16, y, X_test / 16, y_test


def figures(rows: Rows) -> Iterator[tuple[str, Any]]:
    """A heat map of rules and attacks for every share of attackers."""
    parts = [(*r["label"].split(", "), r["measured"]) for r in rows[1:]]
    for share in dict.fromkeys(part[1] for part in parts):
        here = [part for part in parts if part[1] == share]
        names = list(dict.fromkeys(part[0] for part in here))
        kinds = list(dict.fromkeys(part[2] for part in here))
        values = np.full((len(kinds), len(names)), np.nan)
        for name, _, kind, score in here:
            values[kinds.index(kind), names.index(name)] = np.nan if score is None else score
        figure = new_figure(figsize=(8, 4.5))
        axes = figure.subplots()
        axes.imshow(values, vmin=0, vmax=100, cmap="viridis", aspect="auto")
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axes.set_yticks(range(len(kinds)), kinds)
        for i, j in np.ndindex(values.shape):
            text = "–" if np.isnan(values[i, j]) else f"{values[i, j]:.0f}"
            colour = "black" if values[i, j] > 60 else "white"
            axes.text(j, i, text, ha="center", va="center", color=colour)
        yield f"Accuracy in per cent, {share} attackers", figure
