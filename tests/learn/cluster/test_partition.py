"""k-means in a closed job: what its sums tell, by brute force, and how good the clusters are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.errors import DataError, UsageError
from solera.learn.cluster import partition
from solera.simulate.owners import SimulatedOwners
from solera.trust.board.engine import NotClosed
from solera.trust.merging import Neighbours

pytestmark = pytest.mark.filterwarnings("ignore::solera.simulate.epochs.DraftedDictionary")
LEAST = 12
WHOLE = ("board.persons", "epoch.atoms", "preprocess.moments", "kmeans.products")
"""Tasks whose sums are of all rows, or carry noise."""
POLICY = {"policy": "sums", "min_count": LEAST}


def clouds(rows: int, seed: int, centres: Any = ((0, 0, 0), (5, 0, 1), (0, 6, -2))) -> Any:
    draw = np.random.default_rng(seed)
    which = draw.integers(len(centres), size=rows)
    return np.round(np.array(centres, dtype=float)[which] + draw.normal(size=(rows, 3)), 2)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every ask of a closed job, what all come to, and what of it is absent."""
    asks: list[Any] = []
    total = SimulatedOwners.total

    def recorded(self: Any, question: bytes, ask: Any, aggregation: Any) -> Any:
        result = total(self, question, ask, aggregation)
        asks.append((ask.task, ask.payload, result.partial, result.absent))
        return result

    monkeypatch.setattr(SimulatedOwners, "total", recorded)
    return asks


def told_sets(asks: list[Any], X: Any) -> list[Any]:
    """The rows in every half that is told, by a walk of one row at a time."""
    sets = []
    for task, order, total, absent in asks:
        if task != "kmeans.halves":
            assert task in WHOLE
            continue
        cells: dict[tuple[int, int], list[int]] = {}
        for i, x in enumerate(X):
            node = 0
            while (child := order["child"][node]) >= 0:
                node = child + int(x[order["column"][node]] >= order["edge"][node])
            side = int(x[order["column"][node]] >= order["edge"][node])
            cells.setdefault((int(order["place"][node]), side), []).append(i)
        marks = absent.get("halves", np.zeros(total["halves"].shape))
        for cell, rows in cells.items():
            if cell[0] < 0 or marks[cell].any():
                continue
            whole = marks[cell[0], 0].any()  # the other half is in this sum
            rows = rows + cells.get((cell[0], 0), []) if whole else rows
            assert total["halves"][cell][0] == len(rows)
            sets.append(np.isin(np.arange(len(X)), rows))
    return sets


def fewest_apart(sets: list[Any], persons: Any) -> int:
    """The fewest persons in a group of rows that no sum, and no combination of sums, parts."""
    patterns = np.unique(np.array(sets).T, axis=0, return_inverse=True)[1]
    return min(len(np.unique(persons[patterns == p])) for p in np.unique(patterns))


@pytest.mark.parametrize("seed", range(6))
def test_no_sum_and_no_combination_of_sums_is_of_few_persons(told: Any, seed: int) -> None:
    """Whatever is worked out from all sums of a fit, it treats the rows of a group alike."""
    X = clouds(240, seed)
    fed = so.simulate(X, clients=4, policy=POLICY, seed=seed)
    so.FedKMeans(3, init="atoms").fit(fed)
    told.pop()  # inertia, of all rows
    rows = fed.data.segments(fed.clients, "train").joined().X
    sets = [np.ones(len(rows), dtype=bool), *told_sets(told, rows)]
    assert len(sets) > 6
    assert fewest_apart(sets, np.arange(len(rows))) >= LEAST


def test_persons_with_several_rows_count_once(told: Any) -> None:
    import pandas as pd

    X = np.repeat(clouds(120, 1), 3, axis=0)
    frame = pd.DataFrame(X, columns=list("abc")).assign(person=np.repeat(np.arange(120), 3))
    agreed = so.epochs.draft(frame, identifier="person")
    owners = so.partitions.ByGroup(frame.person % 4)
    fed = so.simulate(frame, clients=4, partition=owners, dictionary=agreed, policy=POLICY)
    so.FedKMeans(2, init="atoms").fit(fed)
    told.pop()
    rows = fed.data.segments(fed.clients, "train").joined().X
    sets = told_sets(told, rows)
    assert len(sets) > 2
    assert fewest_apart(sets, fed.data.persons) >= LEAST


def test_without_supports_groups_of_few_persons_would_be_told(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack above, with the mechanism taken out."""
    monkeypatch.setattr(Neighbours, "told", lambda self, support, least: np.ones(self.shape, bool))
    monkeypatch.setattr(partition, "_FEWEST", 1)
    fed = so.simulate(clouds(240, 0), clients=4, policy=POLICY)
    so.FedKMeans(3, init="atoms").fit(fed)
    told.pop()
    rows = fed.data.segments(fed.clients, "train").joined().X
    assert fewest_apart(told_sets(told, rows), np.arange(len(rows))) == 1


@pytest.mark.parametrize("policy", ["sums", None])
def test_groups_find_the_clusters(policy: Any) -> None:
    X = clouds(600, 0)
    fed = so.simulate(X, clients=5, policy=policy, seed=1)
    model = so.FedKMeans(3, init="atoms").fit(fed)
    plain = so.FedKMeans(3, init="k-means++").fit(so.simulate(X, clients=5, seed=1))
    assert model.inertia_ == pytest.approx(plain.inertia_, rel=0.02)
    apart = np.linalg.norm(model.centroids_[:, None] - plain.centroids_, axis=2).min(axis=1)
    assert apart.max() < 0.25
    assert model.counts_.sum() == len(X)
    squared = model.losses(X)
    assert model.inertia_ == pytest.approx(squared.sum())
    silhouettes = [one.silhouette(fed) for one in (model, plain)]
    assert silhouettes[0] == pytest.approx(silhouettes[1], abs=0.02)


def test_halves_lie_at_edges_of_atoms_as_rows_are_prepared(told: Any) -> None:
    X = clouds(400, 3) * [1, 10, 100]
    fed = so.simulate(X, clients=4, policy="sums", seed=0)
    model = so.Pipeline(so.FedScaler(), so.FedKMeans(3, init="atoms")).fit(fed)
    scaler = model.steps_[0]
    orders = [order for task, order, *_ in told if task == "kmeans.halves"]
    chosen = np.flatnonzero(orders[-1]["child"] >= 0)
    for node in chosen.tolist():
        j = orders[-1]["column"][node]
        edges = (fed.atoms.edges(f"x{j}") - scaler.mean_[j]) / scaler.scale_[j]
        assert orders[-1]["edge"][node] in edges
    assert len(chosen) > 5


def test_the_default_start_becomes_sums_and_says_so() -> None:
    X = clouds(200, 0)
    default = so.FedKMeans(3).fit(so.simulate(X, clients=4, policy="sums"))
    asked = so.FedKMeans(3, init="atoms").fit(so.simulate(X, clients=4, policy="sums"))
    np.testing.assert_array_equal(default.centroids_, asked.centroids_)
    (warning,) = default._trained_with["warnings"]
    assert "init='atoms'" in warning
    assert "warnings" not in asked._trained_with


def test_centroids_of_ones_own_move_over_the_groups() -> None:
    X = clouds(300, 0)
    fed = so.simulate(X, clients=4, policy="sums")
    own = so.FedKMeans(3, init=[[0, 0, 0], [5, 0, 1], [0, 6, -2]]).fit(fed)
    model = so.FedKMeans(3, init="atoms").fit(fed)
    assert own.inertia_ == pytest.approx(model.inertia_, rel=0.01)
    again = so.FedKMeans(3).fit(fed, start=own)
    np.testing.assert_allclose(again.centroids_, own.centroids_)
    drawn = so.FedKMeans(3, init="random").fit(fed)
    assert np.isfinite(drawn.centroids_).all()


def test_what_is_no_sum_is_refused_by_name() -> None:
    fed = so.simulate(clouds(60, 0), clients=4, policy="sums")
    with pytest.raises(NotClosed, match="init='atoms' starts from sums"):
        so.FedKMeans(3, init="k-means++").fit(fed)
    with pytest.raises(NotClosed, match="leave epochs="):
        so.FedKMeans(3, epochs=2).fit(fed)
    with pytest.raises(DataError, match="groups of enough persons"):
        so.FedKMeans(20).fit(fed)
    with pytest.raises(UsageError, match="must be 'k-means"):
        so.FedKMeans(3, init="atom").fit(fed)


def test_a_start_from_groups_is_a_secure_sum() -> None:
    X = clouds(200, 0)
    secure = so.FedKMeans(3, init="atoms").fit(so.simulate(X, clients=4, secure=True))
    plain = so.FedKMeans(3, init="atoms").fit(so.simulate(X, clients=4))
    np.testing.assert_allclose(secure.centroids_, plain.centroids_, rtol=1e-6)


def test_noise_inside_the_sum_needs_no_groups() -> None:
    X = clouds(900, 0)
    policy = {"policy": "sums", "exact_training": True, "privacy": {"epsilon": 9, "delta": 1e-4}}
    fed = so.simulate(X, clients=4, policy=policy, seed=1)
    dp = so.DP(epsilon=8.0, delta=1e-5, level="record", clip=10.0)
    start = [[0, 0, 0], [4, 1, 1], [1, 5, -1]]
    model = so.FedKMeans(3, init=start, rounds=5, dp=dp).fit(fed)
    assert model.epsilon_ == pytest.approx(8.0, rel=1e-3)
    plain = so.FedKMeans(3, init=start).fit(so.simulate(X, clients=4, seed=1))
    assert model.losses(X).sum() < 1.1 * plain.inertia_
