"""What cells that data made tell: supports with noise by cell, merges, and what stays absent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from board_owners import EXACT, Job

import solera as so
from solera.core.errors import GateRefusal
from solera.core.task import task
from solera.learn.closed import count_all_persons
from solera.learn.learner import Learner
from solera.trust.board.cell_keys import keyed_sums, shares
from solera.trust.cells import Behind, Indexed, Marks, OneCell
from solera.trust.contributions import Counts, Sums
from solera.trust.merging import Neighbours, least_support, withheld

SECRET = b"s" * 32
LEAST = 5


def support(cells: Any, rows: int, keys: Any, **more: Any) -> Any:
    behind = Behind(rows, **more)
    return shares(SECRET, keyed_sums(Counts(cells, None, "train"), behind, keys), 4)


def test_the_same_persons_give_the_same_noise_however_they_are_asked_for() -> None:
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 1 << 52, 60)
    inside = rng.random(60) < 0.4
    marks = Marks(inside[:, None])
    first = support(marks, 60, keys)[0]
    for _ in range(50):
        order = rng.permutation(60)
        width = int(rng.integers(2, 9))
        index = np.where(inside[order], rng.integers(width), -1)
        counted = support(Indexed(index, (width,)), 60, keys[order])
        assert counted[index[index >= 0][0]] == first
    twice = np.repeat(np.arange(60), 2)
    both = support(Marks(inside[twice][:, None]), 120, keys[twice], units=twice)
    assert both[0] == first, "two rows of a person count once"
    other = inside.copy()
    other[np.flatnonzero(~inside)[0]] = True
    assert support(Marks(other[:, None]), 60, keys)[0] - 1 != first


def test_the_noise_of_all_owners_together_has_deviation_one() -> None:
    rng = np.random.default_rng(1)
    total = np.zeros(4000)
    for owner in range(4):
        keys = rng.integers(0, 1 << 52, 4000)
        sums = keyed_sums(Counts(Indexed(np.arange(4000), (4000,)), None, "train"),
                          Behind(4000), keys)  # fmt: skip
        total += shares(bytes([owner]) * 32, sums, 4) - 1
    assert total.mean() == pytest.approx(0, abs=0.06)
    assert total.std() == pytest.approx(1, abs=0.04)


def test_halves_of_keys_add_up_without_rounding() -> None:
    keys = np.full(100_000, (1 << 52) - 1)
    sums = keyed_sums(Sums(OneCell(), np.ones((100_000, 2)), None, None, None, "train"),
                      Behind(100_000), keys)  # fmt: skip
    assert sums.shape == (2, 3)
    assert sums[0].tolist() == [100_000, 100_000 * ((1 << 26) - 1), 100_000 * ((1 << 26) - 1)]


def test_what_is_left_of_a_list_has_enough_persons() -> None:
    rng = np.random.default_rng(2)
    for _ in range(500):
        sizes = rng.poisson(rng.choice([1, 6, 12, 40]), rng.integers(2, 9)).astype(float)
        kept = withheld(sizes, LEAST)
        assert not (sizes[~kept] < least_support(LEAST)).any()
        left = sizes[kept].sum()
        assert not kept.any() or kept.all() or left >= least_support(LEAST, kept.sum())


def merged_slowly(sizes: Any, ends: Any, lines: Any) -> Any:
    """One merge at a time, of one line after the other: sizes are siblings × cells."""
    told = np.zeros(sizes.shape[1], dtype=bool)
    for line in np.unique(lines):
        groups = [[sizes[:, i], 1, i] for i in np.flatnonzero(lines == line) if ends[i]]
        while True:
            few = [g for g in groups if g[0].min() < LEAST + 5 * g[1] ** 0.5]
            if not few or len(groups) == 1:
                break
            smallest = min(g[0].min() for g in few)
            at = next(i for i, g in enumerate(groups) if g[0].min() == smallest)
            beside = [i for i in (at - 1, at + 1) if 0 <= i < len(groups)]
            other = min(beside, key=lambda i: groups[i][0].min())
            a, b = sorted((at, other))
            groups[a : b + 1] = [
                [groups[a][0] + groups[b][0], groups[a][1] + groups[b][1], groups[b][2]]
            ]
        told[[g[2] for g in groups if g[0].min() >= LEAST + 5 * g[1] ** 0.5]] = True
    return told


@pytest.mark.parametrize("siblings", [1, 2])
def test_all_lines_are_merged_as_one_after_the_other(siblings: int) -> None:
    rng = np.random.default_rng(siblings)
    for _ in range(60):
        lines = np.repeat(np.arange(4), rng.integers(1, 9, 4))
        width, groupings = len(lines), 3
        groups = np.sort(rng.integers(0, width, (groupings, width)), axis=1)
        shape = (groupings * siblings, width)
        cells = Neighbours(
            Indexed(np.zeros((1, 1), dtype=np.int64), shape), lines, siblings=siblings,
            groups=groups,
        )  # fmt: skip
        sizes = rng.poisson(rng.choice([2, 8, 20]), shape) + rng.normal(size=shape)
        sizes[~np.repeat(cells.ends, siblings, axis=0)] = 0
        told = cells.told(sizes, LEAST)
        by_grouping = sizes.reshape(groupings, siblings, width)
        for k in range(groupings):
            expected = merged_slowly(by_grouping[k], cells.ends[k], lines)
            for sibling in range(siblings):
                np.testing.assert_array_equal(told[k * siblings + sibling], expected)
            assert (cells.ends[k] | ~expected).all(), "groups of the parent are not taken apart"


@task("supports_test.tables")
def tables(client: Any, ask: Any) -> dict[str, Any]:
    X = client.data.X
    edges = np.linspace(-2, 2, 25)
    return {
        "rows": so.count_by(None),
        "merged": so.count_by(Neighbours(so.intervals(X, np.tile(edges, (X.shape[1], 1))))),
        "sums": so.sum_by(Neighbours(so.intervals(X[:, 0], edges)), X),
        "by": so.sum_by(np.clip(X[:, 1] * 3 + 3, 0, 5).astype(int), np.ones((len(X), 1)), 6),
        "table": so.count_by((X[:, 0] > 0, X[:, 1] > ask["cut"]), cells=(2, 2)),
    }


class Tables(Learner):
    """Asks for tables of all kinds."""

    def __init__(self, cut: float = 0.0) -> None:
        self.cut = cut

    def train(self, federation: Any) -> None:
        replies = federation.ask(tables, {"cut": self.cut})
        self.total_ = replies.fold(so.aggregations.Sum())
        self.absent_ = dict(replies.absent)
        self.noised_ = sorted(replies.noised)


def rows(seed: int, count: int = 300) -> Any:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 3)), rng.integers(0, 2, count)


def test_no_told_cell_has_fewer_persons_than_min_count() -> None:
    told = 0
    for seed in range(12):
        X, y = rows(seed)
        fed = so.simulate(X, y, clients=4, seed=seed, policy="sums")
        fitted = Tables().fit(fed)
        total, absent = fitted.total_, fitted.absent_
        merged = total["merged"]
        assert merged.sum(axis=1).tolist() == [300] * 3, "merging loses nobody"
        for name in ("merged", "by"):
            cells = total[name][absent.get(name, 0 * total[name]) == 0]
            assert (cells >= LEAST).all()
            told += len(cells)
        left = 300 - total["by"].sum()
        assert left == 0 or left >= LEAST, "nor what is left when told cells are subtracted"
        edges = np.linspace(-2, 2, 25)
        sums = np.zeros(X.shape[1])
        for end in np.flatnonzero(absent["sums"][:, 0] == 0):
            sums += total["sums"][end]
            below = X[:, 0] < (edges[end] if end < len(edges) else np.inf)
            np.testing.assert_allclose(sums, X[below].sum(axis=0), atol=1e-9)
    assert told > 100


def table_of(X: Any, cut: float) -> Any:
    high = X[:, 0] > 0
    above = X[:, 1] > cut
    return [[int(((high == a) & (above == b)).sum()) for b in (0, 1)] for a in (0, 1)]


def test_counts_are_exact_where_every_cell_passes_and_noised_otherwise() -> None:
    X, y = rows(3)
    fed = so.simulate(X, y, clients=4, seed=0, policy="sums")
    exact = Tables(0.0).fit(fed)
    truth = table_of(X, 0.0)
    assert exact.noised_ == []
    assert exact.total_["table"].tolist() == truth
    few = Tables(2.2).fit(fed)
    assert few.noised_ == ["table"]
    truth = table_of(X, 2.2)
    apart = few.total_["table"] - truth
    assert apart.dtype == float
    assert (apart != 0).all()
    assert (abs(apart) < 5).all()
    again = Tables(2.2).fit(fed)
    np.testing.assert_array_equal(again.total_["table"], few.total_["table"])


def test_persons_with_several_rows_leave_a_small_table_absent() -> None:
    X, y = rows(4, 150)
    twice = [np.repeat(np.arange(owner, 150, 4), 2) for owner in range(4)]
    fed = so.simulate([(X[own], y[own]) for own in twice], seed=0, policy="sums")
    few = Tables(2.2).fit(fed)
    assert few.noised_ == []
    assert (few.absent_["table"] == 4).all()
    assert (few.total_["table"] == 0).all()


def test_a_board_tells_what_the_simulation_does() -> None:
    X, y = rows(5)
    job = Job(Tables(2.2), so.simulate(X, y, clients=4, seed=3, policy=EXACT))
    expected = job.simulated()
    ends = job.run()
    assert {end.closed.result for end in ends if end.closed} == {expected}
    assert [end.sums for end in ends] == [4] * 4, "persons and the tables, each in two sums"


def test_rows_and_persons_are_counted_before_anything_else() -> None:
    X, y = rows(6)
    closed = so.simulate(X, y, clients=4, policy=EXACT).closed_job("Tables")
    persons = count_all_persons(closed)
    assert persons["train"] == persons["rows"]["train"] == 300


def test_cells_without_anybody_do_not_pass_together() -> None:
    passed = 0
    for seed in range(200):
        total = np.zeros(100)
        for owner in range(4):
            keys = np.arange(0)
            empty = Counts(Indexed(keys, (100,)), None, "train")
            total += shares(bytes([seed, owner]) * 16, keyed_sums(empty, Behind(0), keys), 4)
        assert len(set(total.tolist())) == 100, "nor are they known by equal noise"
        cells = Neighbours(Indexed(np.arange(0), (100,)))
        passed += int(cells.told(total, LEAST).any())
    assert passed == 0


def test_a_class_of_few_persons_is_refused_by_name() -> None:
    X, _ = rows(7)
    y = np.array(["common", "usual", "rare"])[np.r_[np.arange(296) % 2, [2] * 4]]
    fed = so.simulate(X, y, clients=4, seed=0, policy="sums")
    with pytest.raises(GateRefusal, match="too few persons of all owners are of class 'rare'"):
        so.FedHEONN().fit(fed)
    so.FedScaler().fit(fed)
    marks = np.column_stack([X[:, 0] > 0, np.arange(300) < 297]).astype(np.uint8)
    several = so.simulate(X, marks, clients=4, seed=0, policy="sums")
    with pytest.raises(GateRefusal, match="are of class 'y1'"):
        so.FedHEONN().fit(several)
