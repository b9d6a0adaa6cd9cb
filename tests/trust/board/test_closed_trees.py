"""Trees as closed jobs: what is told of persons, bins of atoms, and splits between what is told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from board_owners import EXACT

import solera as so
from solera.core.errors import GateRefusal
from solera.learn.conditions import Condition, edge_text
from solera.learn.trees.boosting.histograms import HistBins, Units
from solera.simulate.owners import SimulatedOwners
from solera.trust.board.engine import NotClosed

LEAST = 5
Rows = frozenset[int]


# --- every told cell of a run, as a set of persons, by an oracle of its own ---


@dataclass(frozen=True)
class ToldCell:
    """The persons of a cell that was told, in which tree, node and column."""

    tree: tuple[int, int]
    node: int
    column: int
    persons: Rows


class Spy:
    """What owners were asked for, and what was absent of the totals."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asks: list[tuple[Any, Any]] = []
        total = SimulatedOwners.total

        def seen(exchange: Any, question: bytes, ask: Any, aggregation: Any) -> Any:
            answer = total(exchange, question, ask, aggregation)
            self.asks.append((ask, (answer.partial, answer.absent)))
            return answer

        monkeypatch.setattr(SimulatedOwners, "total", seen)

    def of(self, task: str) -> Iterator[tuple[Any, Any, Any]]:
        """Payload, numbers and marks of every ask of a task."""
        for ask, (numbers, absent) in self.asks:
            if ask.task == task:
                yield ask.payload, numbers, absent


def training(federation: Any) -> tuple[Any, Any, Any]:
    """The training rows of all owners, and whose they are."""
    rows = federation.data.segments(federation.clients, "train").joined()
    persons = federation.data.persons
    if persons is None:
        return rows.X, rows.y, np.arange(len(rows.X))
    ids = np.split(persons, federation.data.offsets[1:-1])
    sizes = federation.data.sizes("train")
    return rows.X, rows.y, np.concatenate([p[:n] for p, n in zip(ids, sizes, strict=True)])


def by_hand(X: Any, edges: Any) -> Any:
    """The bin of every value, the one after the last for a missing one."""
    return np.array(
        [
            [
                len(e) + 1 if np.isnan(x) else int((x > e).sum())
                for x, e in zip(row, edges, strict=True)
            ]
            for row in X
        ]
    )


def told_cells(spy: Spy, model: Any, federation: Any) -> list[ToldCell]:
    """The cells of all histograms of a fit."""
    X, _, persons = training(federation)
    bins = by_hand(X, model.bins_.edges_)
    starts = model.bins_.starts_
    at: Any = None
    found = []
    round = -1
    for ask, numbers, absent in spy.of("trees.histograms"):
        trees = len(ask["wanted"])
        _, level, *units = ask["step"].tolist()
        if level == 0:
            round += 1
            at = np.zeros((trees, len(X)), dtype=int)
        else:
            for k, splits in enumerate(ask["splits"]):
                at[k] = [
                    follow(node, row, splits, starts) for node, row in zip(at[k], bins, strict=True)
                ]
        sums, marks = iter(numbers["trees"]), iter(absent["trees"])
        for k, wanted in enumerate(ask["wanted"]):
            if not len(wanted):
                continue
            told = np.asarray(next(marks))[..., 0] == 0
            rows = Units(*units).unpacked(np.moveaxis(next(sums), -1, 0))[2]
            for node, of_node, number in zip(wanted.tolist(), told, rows, strict=True):
                for column in range(X.shape[1]):
                    ends = np.flatnonzero(of_node[starts[column] : starts[column + 1]])
                    first = 0
                    for end in ends.tolist():
                        inside = (
                            (at[k] == node) & (first <= bins[:, column]) & (bins[:, column] <= end)
                        )
                        first = end + 1
                        assert number[starts[column] + end] == inside.sum(), "told, as by hand"
                        cell = ToldCell(
                            (round, k), node, column, frozenset(persons[inside].tolist())
                        )
                        found.append(cell)
    return found


def follow(node: int, row: Any, splits: Any, starts: Any) -> int:
    """The node that a row reaches by one more split."""
    column, cut, missing_left, child = (
        splits[:, node].tolist() if node < splits.shape[1] else [-1] * 4
    )
    if column < 0:
        return node
    missing = starts[column + 1] - starts[column] - 1
    left = missing_left if row[column] == missing else starts[column] + row[column] <= cut
    return child + (not left)


def differences(cells: list[ToldCell]) -> Iterator[Rows]:
    """What is left of a cell without others of its tree and column: parent, children, merges."""
    lines: dict[Any, list[Rows]] = {}
    for cell in cells:
        lines.setdefault((cell.tree, cell.column), []).append(cell.persons)
    for sets in lines.values():
        for whole in sets:
            inside = [part for part in sets if part < whole]
            for part in inside:
                yield whole - part
            for part in inside:
                for other in inside:
                    if not part & other and part | other < whole:
                        yield whole - part - other


def drawn(
    seed: int, rows: int = 260, several: bool = False, target: str = "classes", policy: Any = EXACT
) -> Any:
    """Four owners; one column of few values, one with gaps, one of categories with rare ones."""
    draw = np.random.default_rng(seed)
    score = draw.normal(size=rows)
    frame = pandas.DataFrame(
        {
            "age": np.round(50 + 12 * draw.normal(size=rows)),
            "length": np.where(draw.random(rows) < 0.15, np.nan, score + draw.normal(size=rows)),
            "visits": draw.poisson(1.5, rows).astype(float),
            "ward": draw.choice(list("abcdef"), rows, p=[0.4, 0.3, 0.02, 0.2, 0.02, 0.06]),
        }
    )
    outcome = score + (frame["ward"] == "b") + (frame["age"] > 55) > 0.5
    frame["died"] = score * 10 if target == "numbers" else np.where(outcome, "yes", "no")
    whose = draw.integers(0, rows // 2, rows) if several else np.arange(rows)
    frame["patient"] = [f"p{i}" for i in whose]
    frame["owner"] = [f"o{i % 4}" for i in whose]
    dictionary = so.epochs.draft(frame.drop(columns="owner"), target="died", identifier="patient")
    more = {"dictionary": dictionary, "policy": policy, "seed": seed % 10}
    return so.simulate(frame, group="owner", **more)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", ["classes", "numbers", "several"])
def test_no_told_cell_and_no_difference_in_a_tree_is_of_few_persons(
    seed: int, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = "numbers" if case == "numbers" else "classes"
    federation = drawn(seed, several=case == "several", target=target)
    spy = Spy(monkeypatch)
    model = so.FedHistGBDT(rounds=6, max_depth=4, min_rows=2).fit(federation, progress=False)
    cells = told_cells(spy, model, federation)
    assert len({cell.node for cell in cells}) > 6
    assert min(len(cell.persons) for cell in cells) >= LEAST
    left = [len(difference) for difference in differences(cells)]
    assert len(left) > 200
    assert min(left) >= LEAST


# --- bins and splits ---


def outer_edges(federation: Any, name: str) -> set[float]:
    """Where a column may be cut so that a value at the cut goes left."""
    return set(np.nextafter(federation.atoms.edges(name), -np.inf).tolist())


@pytest.mark.parametrize("seed", range(3))
def test_bins_are_unions_of_atoms_with_enough_persons(seed: int) -> None:
    federation = drawn(seed)
    X, _, _ = training(federation)
    for bins in (3, 255):
        hist, fed_bins = HistBins(bins).fit(federation), so.FedBins(bins).fit(federation)
        for j, name in enumerate(["age", "length", "visits"]):
            for edges in (hist.edges_[j], fed_bins.edges_[j]):
                assert len(edges) < bins
                assert set(edges.tolist()) <= outer_edges(federation, name)
                counts = np.bincount(np.searchsorted(edges, X[:, j][~np.isnan(X[:, j])]))
                assert counts.min() >= LEAST
                if bins == 3 and name != "visits":
                    assert counts.min() > len(X) / 6
        wards, groups = hist.edges_[3], federation.atoms.groups("ward")
        assert len(set(groups.tolist())) < len(groups), "rare wards are one atom"
        left = [set(groups[: int(cut) + 1].tolist()) for cut in wards]
        right = [set(groups[int(cut) + 1 :].tolist()) for cut in wards]
        assert not any(one & other for one, other in zip(left, right, strict=True))
        assert not len(fed_bins.edges_[3])


def test_cuts_between_atoms_are_said_as_they_are() -> None:
    federation = drawn(0)
    bins = so.FedBins(3).fit(federation)
    names = bins.transform_schema(federation.schema).features[0].categories
    edges = [float(edge) for edge in np.nextafter(bins.edges_[0], np.inf)]
    assert [name.rpartition(", ")[2] for name in names[:-1]] == [f"{edge:g})" for edge in edges]
    assert [name.partition(", ")[0] for name in names[1:]] == [f"[{edge:g}" for edge in edges]
    model = so.FedHistGBDT(rounds=1, max_depth=1).fit(federation)
    tree = model.trees_[0][0]
    edge = float(np.nextafter(tree.threshold[0], np.inf))
    feature = federation.schema.features[int(tree.feature[0])]
    condition = Condition.on(feature, 0, -np.inf, tree.threshold[0], missing=False)
    assert condition.predicate == f"< {edge:.6g}"
    assert edge_text(feature, float(np.nextafter(0.0, -1.0))) == ("0", True)


def test_splits_are_the_best_between_told_cells_and_leaves_are_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first tree's splits, from sums over the told row sets by definition."""
    federation = drawn(1, rows=400)
    X, y, _ = training(federation)
    spy = Spy(monkeypatch)
    rows_of_cells = told_rows(spy, federation, so.FedHistGBDT(rounds=1, max_depth=3, lr=0.5))
    model, cells = rows_of_cells
    tree = model.trees_[0][0]
    p = 1 / (1 + np.exp(-model.initial_[0]))
    g, h = p - (y == "yes"), np.full(len(y), p * (1 - p))
    reached = paths(tree, X)
    weight = lambda rows: g[rows].sum() ** 2 / h[rows].sum()  # noqa: E731
    split = 0
    for node in range(len(tree)):
        inside = reached[node]
        value = -0.5 * g[inside].sum() / h[inside].sum()
        assert tree.value[node, 0] == pytest.approx(value, abs=1e-6)
        if tree.feature[node] < 0:
            continue
        best = max(
            weight(left) + weight(inside & ~left)
            for left in candidates(cells, node, X, inside)
            if min(left.sum(), (inside & ~left).sum()) >= 20
        )
        children = [reached[child] for _, child in tree.children(node)]
        assert sum(map(weight, children)) == pytest.approx(best, rel=1e-6)
        split += 1
    assert split >= 3


def told_rows(spy: Spy, federation: Any, learner: Any) -> tuple[Any, list[ToldCell]]:
    model = learner.fit(federation, progress=False)
    return model, told_cells(spy, model, federation)


def paths(tree: Any, X: Any) -> Any:
    """Which rows pass every node."""
    reached = np.zeros((len(tree), len(X)), dtype=bool)
    reached[0] = True
    for node in range(len(tree)):
        if tree.feature[node] < 0:
            continue
        x = X[:, tree.feature[node]]
        left = np.where(np.isnan(x), tree.missing_left[node], x <= tree.threshold[node])
        for (_, child), side in zip(tree.children(node), (left, ~left), strict=True):
            reached[child] = reached[node] & side
    return reached


def candidates(cells: list[ToldCell], node: int, X: Any, inside: Any) -> Iterator[Any]:
    """The left sides between told cells: first cells of a column, with missing ones or without."""
    for column in range(X.shape[1]):
        told = [cell for cell in cells if cell.node == node and cell.column == column]
        parts = [np.isin(np.arange(len(X)), list(cell.persons)) for cell in told]
        missing = np.isnan(X[:, column]) & inside
        alone = bool(parts) and np.array_equal(parts[-1], missing) and missing.any()
        known = parts[:-1] if alone else parts
        left = np.zeros(len(X), dtype=bool)
        for part in known:
            left = left | part
            yield left
            if alone:
                yield left | missing


def test_missing_values_with_a_cell_of_their_own_may_go_left() -> None:
    draw = np.random.default_rng(3)
    x = np.where(draw.random(600) < 0.3, np.nan, draw.normal(size=600))
    y = (np.isnan(x) | (x < -0.2)).astype(int)
    X = np.stack([x, draw.normal(size=600)], axis=1)
    model = so.FedHistGBDT(rounds=5, max_depth=2).fit(so.simulate(X, y, clients=4, policy=EXACT))
    tree = model.trees_[0][0]
    assert tree.feature[0] == 0
    assert tree.missing_left[0]
    assert model.score(X, y) > 0.95


# --- stumps, switches, refusals ---


def test_stumps_need_no_switch_within_the_sixth() -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(200, 8))
    federation = so.simulate(X, (X[:, 0] > 0).astype(int), clients=4, policy="sums")
    with pytest.raises(GateRefusal, match=r"more parameters .* \(bins=(\d+)\)") as refused:
        so.FedHistGBDT(rounds=3, max_depth=1).fit(federation)
    bins = int(str(refused.value).rpartition("bins=")[2].rstrip(")"))
    so.FedHistGBDT(rounds=3, max_depth=1, bins=bins).fit(federation)
    with pytest.raises(GateRefusal, match="more parameters"):
        so.FedHistGBDT(rounds=3, max_depth=1, bins=bins + 1).fit(federation)
    wide = so.simulate(draw.normal(size=(80, 20)), np.arange(80) % 2, clients=4, policy="sums")
    with pytest.raises(GateRefusal, match="FedSelect"):
        so.FedHistGBDT(max_depth=1).fit(wide)


@pytest.mark.parametrize(
    "learner", [so.FedHistGBDT(max_depth=2), so.Pipeline(so.FedBins(4), so.FedID3())]
)
def test_deeper_trees_need_exact_training(learner: Any) -> None:
    with pytest.raises(GateRefusal, match="exact_training = true"):
        learner.fit(drawn(0, policy="sums"))


@pytest.mark.parametrize("last", [so.FedHistGBDT(), so.FedBins(4), so.FedID3()])
def test_columns_are_cut_before_their_values_change(last: Any) -> None:
    for before in (so.FedImputer(), so.FedScaler()):
        with pytest.raises(NotClosed, match=f"leave {type(before).__name__} out"):
            so.Pipeline(before, so.Pipeline(last)).fit(drawn(0))


def test_a_model_to_start_from_has_bins_of_the_same_atoms() -> None:
    federation = drawn(0)
    first = so.FedHistGBDT(rounds=3, max_depth=2).fit(federation)
    more = so.FedHistGBDT(rounds=2, max_depth=2).fit(federation, start=first)
    whole = so.FedHistGBDT(rounds=5, max_depth=2).fit(federation)
    assert len(more.trees_) == 5
    X, _, _ = training(federation)
    np.testing.assert_allclose(more.scores(X), whole.scores(X), atol=1e-6)
    plain = so.FedHistGBDT(rounds=3, max_depth=2).fit(so.simulate(federation.data))
    with pytest.raises(NotClosed, match="divide atoms"):
        so.FedHistGBDT(rounds=2, max_depth=2).fit(federation, start=plain)


# --- ID3 ---


def test_id3_is_told_no_exact_count_and_cuts_no_atom(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = drawn(2)
    spy = Spy(monkeypatch)
    model = so.Pipeline(so.FedBins(4), so.FedID3(max_depth=3)).fit(federation, progress=False)
    tree = model.steps_[-1].tree_
    numbers = np.concatenate([n["counts"].ravel() for _, n, _ in spy.of("trees.count")])
    assert (np.abs(numbers - np.rint(numbers)) < 1e-9).mean() < 0.01
    assert len(list(spy.of("trees.count"))) <= 3, "the last level tells nothing that is needed"
    groups = federation.atoms.groups("ward")
    rare = [code for code in range(6) if (groups == groups[code]).sum() > 1]
    assert len(rare) >= 2
    for node in np.flatnonzero(tree.feature == 3).tolist():
        assert not {way for way, _ in tree.children(node)} & set(rare)


def test_id3_counts_persons_who_have_several_rows() -> None:
    model = so.Pipeline(so.FedBins(4), so.FedID3()).fit(drawn(0, rows=500, several=True))
    assert (model.steps_[-1].tree_.feature >= 0).any()


# --- a stated limit, with its figures ---


def determined(cells: list[ToldCell], persons: int) -> int:
    """Of how many persons the target follows from its sums over told cells.

    Whoever knows all columns knows every p of g = p − y, so that Σ g tells Σ y: a person is singled
    out where its indicator lies in the span of those of the cells.
    """
    sets = list({cell.persons for cell in cells})
    marks = np.zeros((len(sets), persons))
    for mark, inside in zip(marks, sets, strict=True):
        mark[list(inside)] = 1
    gram = marks.T @ marks
    values, vectors = np.linalg.eigh(gram)
    span = vectors[:, values > 1e-9 * values[-1]]
    return int(((span**2).sum(axis=1) > 1 - 1e-7).sum())


@pytest.mark.slow
@pytest.mark.data
def test_targets_follow_from_exact_trees_for_whoever_knows_all_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the owner's page says: twenty exact trees tell all of them, ten and stumps none."""
    frame = pandas.read_csv(Path(os.environ["SOLERA_DATA"]) / "heart_cleveland.csv.gz").dropna()
    X, y = frame.drop(columns="num").to_numpy(float), (frame["num"] > 0).to_numpy(int)
    federation = so.simulate(X, y, clients=4, policy=EXACT)
    spy = Spy(monkeypatch)
    model = so.FedHistGBDT(rounds=100, max_depth=3).fit(federation, progress=False)
    cells = told_cells(spy, model, federation)
    figures = {}
    for trees in (1, 10, 20, 100):
        some = [cell for cell in cells if cell.tree[0] < trees]
        figures[trees] = determined(some, len(X))
    spy.asks.clear()
    stumps = so.FedHistGBDT(rounds=100, max_depth=1, bins=4).fit(federation, progress=False)
    figures["stumps"] = determined(told_cells(spy, stumps, federation), len(X))
    assert figures == {1: 0, 10: 0, 20: 297, 100: 297, "stumps": 0}
