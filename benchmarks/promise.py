"""What closed jobs give at hospital sizes: the same models as without a policy, or the refusal.

Every learner is fitted twice on the same training rows, under
``policy="sums"`` with ``exact_training`` and without a policy, over ten seeds. Claims: coefficients
of FedLinear (full batch), FedGLM, FedHEONN, FedScaler and pipelines of them within 1e-6; networks
within .01 in mean score on the rows set aside; FedGLM equal to statsmodels on the pooled rows to
1e-6. Trees have cells that data made, which are told in groups or with noise: boosting of depth 3
and ID3 on four bins within .01 in mean score. Data that are not at hand (``SOLERA_DATA``) are left
out by name.

    python benchmarks/promise.py [DATA …]
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_wine

import solera as so
from sizes import sized
from solera.core.component import describe_fitted
from solera.core.errors import DataError, SoleraError

SEEDS, ROUNDS, TREES = sized((10, 30, 100), tiny=(1, 3, 3))
CLUSTERS = (3, 8)
POLICY = {"policy": "sums", "exact_training": True}
Parts = list[tuple[Any, Any]]


def file_of(name: str) -> Path:
    """A file of real data, where the folder is there."""
    file = Path(os.environ.get("SOLERA_DATA", "")) / name
    if not file.is_file():
        raise DataError(f"{name} is not in the folder $SOLERA_DATA")
    return file


def hospitals(seed: int) -> Parts:
    """The four centres of the UCI heart disease data, without columns that three of them lack."""
    table = pd.read_csv(file_of("heart_four_centres.csv.gz"))
    table = table.drop(columns=["slope", "ca", "thal"])
    return [split_target(rows.drop(columns="center"), "num") for _, rows in table.groupby("center")]


def cleveland(seed: int) -> Parts:
    """Cleveland's complete rows, dealt to four owners: 57 to 60 of each are trained on."""
    table = pd.read_csv(file_of("heart_cleveland.csv.gz")).dropna()
    return dealt(*split_target(table, "num"), owners=4, rows=len(table) // 4, seed=seed)


def covariates(seed: int) -> Parts:
    """Nine clinical covariates and a two-valued outcome, four owners of 75 rows trained on."""
    rng = np.random.default_rng(2026)
    X = rng.normal(size=(376, 9)) @ (np.eye(9) + rng.normal(scale=0.3, size=(9, 9)))
    X[:, 6:] = X[:, 6:] > 0.5
    effects = np.array([0.8, -0.5, 0.3, 0.0, 0.6, -0.2, 0.7, -0.4, 0.2])
    y = rng.random(376) < 1 / (1 + np.exp(-(X @ effects) / 2))
    return dealt(X, y.astype(int), owners=4, rows=94, seed=seed)


def adult(seed: int) -> Parts:
    """Adult, four owners of 500 rows trained on: numbers, and three two-valued columns."""
    table = pd.read_csv(file_of("adult.csv.gz"))
    X = table[["age", "education-num", "hours-per-week"]].astype(float)
    X["married"] = table["marital-status"].eq("Married-civ-spouse").astype(float)
    X["male"] = table["sex"].eq("Male").astype(float)
    X["gain"] = table["capital-gain"].gt(0).astype(float)
    return dealt(X.to_numpy(), table["class"].eq(">50K").to_numpy(int), 4, 625, seed)


def digits(seed: int) -> Parts:
    """Scikit-learn's digits, ten owners of 135 rows trained on."""
    X, y, X_test, y_test = so.datasets.digits()
    return dealt(np.concatenate([X, X_test]) / 16, np.concatenate([y, y_test]), 10, 169, seed)


def wine(seed: int) -> Parts:
    """Scikit-learn's wine, five owners."""
    return dealt(*load_wine(return_X_y=True), owners=5, rows=35, seed=seed)


def split_target(table: pd.DataFrame, target: str) -> tuple[Any, Any]:
    """The columns but the target, and whether that is above 0."""
    return table.drop(columns=target).to_numpy(float), table[target].gt(0).to_numpy(int)


def dealt(X: Any, y: Any, owners: int, rows: int, seed: int) -> Parts:
    """So many rows to each owner, drawn anew for every seed."""
    order = np.random.default_rng(seed).permutation(len(X))[: owners * rows]
    return [(X[part], y[part]) for part in np.split(order, owners)]


DATA: dict[str, Callable[[int], Parts]] = {
    "hospitals": hospitals,
    "cleveland": cleveland,
    "covariates": covariates,
    "adult": adult,
    "digits": digits,
    "wine": wine,
}


def learners(width: int, classes: int, gaps: bool) -> Iterator[tuple[str, Any]]:
    """What is fitted, by name."""
    first = (so.FedImputer(),) if gaps else ()

    def scaled(*last: Any) -> Any:
        return so.Pipeline(*first, so.FedScaler(), *last)

    yield "FedScaler", so.FedScaler()
    yield "FedLinear", scaled(so.FedLinear(rounds=ROUNDS, batch_size=None))
    if classes == 2:
        yield "FedGLM", scaled(so.FedGLM("binomial"))
    yield "FedHEONN", scaled(so.FedHEONN(lam=0.1))
    network = so.nn.mlp(width, 16, classes)
    yield "FedAvg", scaled(so.FedAvg(network, rounds=ROUNDS, batch_size=16))
    yield "boosting", so.FedHistGBDT(rounds=TREES, max_depth=3)
    yield "ID3", so.Pipeline(so.FedBins(4), so.FedID3())


GROWN = ("boosting", "ID3")
"""Learners whose cells data made: what they learn differs, their scores may not."""


def run_clusters(name: str) -> None:
    """Print how much larger the inertia of k-means is than without a policy, for some k."""
    for k in CLUSTERS:
        ratios = []
        for seed in range(SEEDS):
            under = so.simulate(DATA[name](seed), seed=seed % 10, policy="sums", test=0.2)
            free = so.simulate(under.data, seed=seed % 10)
            gaps = bool(np.isnan(under.data.X).any())
            steps = [*((so.FedImputer(),) if gaps else ()), so.FedScaler()]
            try:
                closed = so.Pipeline(*steps, so.FedKMeans(k, init="atoms")).fit(under)
            except DataError as error:
                print(f"{name:11} k-means, k={k} seed {seed} refused: {error.message}")
                continue
            plain = so.Pipeline(*steps, so.FedKMeans(k, init="k-means++")).fit(free)
            ratios.append(closed.steps_[-1].inertia_ / plain.steps_[-1].inertia_)
        if ratios:
            print(
                f"{name:11} k-means, k={k} {len(ratios):2} seeds  inertia x {np.mean(ratios):.3f} "
                f"of no policy, at most x {max(ratios):.3f}"
            )


def numbers_of(tree: Any) -> Iterator[Any]:
    """Every array of numbers in what a fitted model is saved as."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from numbers_of(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from numbers_of(value)
    elif isinstance(tree, np.ndarray | float) and np.asarray(tree).dtype.kind == "f":
        yield np.asarray(tree)


def difference(one: Any, other: Any) -> float:
    """The largest difference of a number of two fitted models."""
    pairs = zip(
        numbers_of(describe_fitted(one)["learned"]),
        numbers_of(describe_fitted(other)["learned"]),
        strict=True,
    )
    return max(float(np.abs(a - b).max(initial=0.0)) for a, b in pairs)


def statsmodels_difference(model: Any, federation: Any) -> float:
    """How far the estimates of FedGLM are from statsmodels' on the pooled training rows."""
    import statsmodels.api as sm

    *before, glm = model.steps_
    rows = federation.data.segments(federation.clients, "train").joined()
    X = rows.X
    for step in before:
        X = step.transform(X)
    pooled = sm.GLM(rows.y, sm.add_constant(X), family=sm.families.Binomial()).fit(tol=1e-12)
    return float(np.abs(pooled.params - glm.params_).max())


def run(name: str) -> None:
    """Print one line for every learner on one data set."""
    outcomes: dict[str, list[tuple[float, float, float, float]]] = {}
    refusals: dict[str, str] = {}
    for seed in range(SEEDS):
        parts = DATA[name](seed)
        under = so.simulate(parts, seed=seed % 10, policy=POLICY, test=0.2)
        free = so.simulate(under.data, seed=seed % 10)
        X = under.data.X
        classes = len(np.unique(np.concatenate([y for _, y in parts])))
        held_out = under.data.segments(under.clients, "test").joined()
        for label, learner in learners(X.shape[1], classes, bool(np.isnan(X).any())):
            try:
                closed = learner.clone().fit(under)
            except SoleraError as error:
                refusals[label] = str(error)
                continue
            plain = learner.clone().fit(free)
            score = [0.0, 0.0]
            if closed.predicts:
                score = [model.score(held_out.X, held_out.y) for model in (closed, plain)]
            pooled = statsmodels_difference(closed, under) if label == "FedGLM" else np.nan
            apart = np.nan if label in GROWN else difference(closed, plain)
            outcome = (apart, *score, pooled)
            outcomes.setdefault(label, []).append(outcome)
    for label, rows in outcomes.items():
        apart, closed, plain, pooled = np.array(rows).T
        scores = f"{closed.mean():.4f} {plain.mean():.4f} {closed.mean() - plain.mean():+.4f}"
        print(
            f"{name:11} {label:10} {len(rows):2} seeds  apart {apart.max():8.1e}  "
            f"score {'-' if label == 'FedScaler' else scores:22}"
            + (f"  statsmodels {pooled.max():.1e}" if label == "FedGLM" else "")
        )
    for label, why in refusals.items():
        print(f"{name:11} {label:10} refused: {why}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for chosen in sys.argv[1:] or DATA:
        try:
            run(chosen)
            run_clusters(chosen)
        except DataError as error:
            print(f"{chosen:11} not at hand: {error}")
