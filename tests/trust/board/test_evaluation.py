"""Scores of closed jobs: figures within their bounds, one scoring a part, no small exact cell."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas
import pytest
from board_owners import EXACT
from sklearn.metrics import average_precision_score, roc_auc_score

import solera as so
from solera.core.errors import DataError
from solera.evaluation import noised
from solera.evaluation.counts import class_metrics
from solera.evaluation.figure import figures, plain
from solera.evaluation.noised import NoisedScores, NoisedTables, first_cell, settled, table_bounds
from solera.learn.base import MissingRows
from solera.simulate.owners import SimulatedOwners
from solera.trust.board.engine import NotClosed

LEAST = 5


def rows_of(rng: np.random.Generator, rows: int, classes: int = 2) -> tuple[Any, Any]:
    X = rng.normal(size=(rows, 4))
    edges = np.linspace(-1, 1, classes + 1)[1:-1]
    return X, np.digitize(X[:, 0] + 0.4 * rng.normal(size=rows), edges)


def owners(X: Any, y: Any, **options: Any) -> Any:
    return so.simulate(X, y, **{"clients": 4, "seed": 1, "policy": EXACT, "test": 0.2, **options})


def fitted(fed: Any) -> Any:
    learner = so.FedLinear(rounds=5) if fed.schema.target == "labels" else so.FedHEONN()
    return learner.fit(fed, progress=False)


def pooled(fed: Any) -> Any:
    return fed.data.segments(np.arange(4), "test").joined()


def truth_of(model: Any, rows: Any) -> Any:
    return model.evaluate(rows.X, y=rows.y, scores=so.metrics.ScoreGrid(bins=2000))


def lies_within(figure: Any, value: float, reach: float = 1e-9) -> bool:
    low, high = figure.between or (float(figure),) * 2
    assert low <= figure <= high
    return bool(low - reach <= value <= high + reach)


# --- bounds ---

DRAWS = 400


@pytest.mark.parametrize(("rows", "k", "known"), [(76, 2, True), (76, 2, False), (228, 4, False)])
def test_metrics_of_classes_are_within_bounds(rows: int, k: int, known: bool) -> None:
    rng = np.random.default_rng(rows + k)
    outside: dict[str, int] = {}
    for _ in range(DRAWS):
        truth = rng.integers(0, k, rows)
        guess = np.where(rng.random(rows) < 0.85, truth, rng.integers(0, k, rows))
        table = np.zeros((k, k), dtype=int)
        np.add.at(table, (truth, guess), 1)
        told = table + rng.normal(size=table.shape)
        if known:
            tables = NoisedTables(settled(told, table.sum(axis=1))[None], k)
        else:
            tables = NoisedTables(settled(told.ravel(), rows).reshape(1, k, k), k * k)
        exact = {name: float(value[0]) for name, value in class_metrics(table[None]).items()}
        bounds = table_bounds(tables, "classes")
        hits = first_cell([np.trace(told), rows - np.trace(table) + rng.normal()], rows)
        bounds["accuracy"] = hits[0] / rows, hits[2] / rows
        assert bounds.keys() == exact.keys()
        for name, (low, high) in bounds.items():
            missed = not low - 1e-9 <= exact[name] <= high + 1e-9
            outside[name] = outside.get(name, 0) + missed
    outside.pop("accuracy")  # whose cells are others, with noise of their own
    assert max(outside.values()) <= DRAWS / 100, outside


@pytest.mark.parametrize(("rows", "area", "exact"), [(76, 0.9, True), (228, 0.97, False)])
def test_areas_are_within_bounds(rows: int, area: float, exact: bool) -> None:
    rng = np.random.default_rng(rows)
    outside = {"auroc": 0, "auprc": 0}
    for _ in range(DRAWS):
        y = np.arange(rows) % 2 == 0
        score = rng.normal(size=rows) + 4 * (area - 0.5) * y
        bins = rows // 12
        cell = np.argsort(np.argsort(score)) * bins // rows
        counts = np.stack([np.bincount(cell[y == c], minlength=bins) for c in (False, True)])
        told = counts + rng.normal(size=counts.shape)
        told = settled(told, counts.sum(axis=1)) if exact else told
        more: Any = {"means": [np.zeros(bins)], "exact": exact}
        scores = NoisedScores(("1",), [np.empty(0)], [told], 0.0, 0.0, 0, **more)
        truth = {"auroc": roc_auc_score(y, score), "auprc": average_precision_score(y, score)}
        likely = scores.metrics()
        for name, (low, high) in scores.ranges().items():
            assert low <= likely[name] <= high
            outside[name] += not low <= truth[name] <= high
    assert max(outside.values()) <= DRAWS / 100, outside


@pytest.mark.parametrize("kind", ["two", "four", "labels"])
def test_a_scoring_is_within_its_bounds(kind: str) -> None:
    """Of eight draws none of some ten figures is outside; the benchmark takes 400."""
    noisy = 0
    for draw in range(8):
        rng = np.random.default_rng(draw)
        X, y = rows_of(rng, 400, 4 if kind == "four" else 2)
        if kind == "labels":
            y = X[:, :3] + 0.5 * rng.normal(size=(400, 3)) > [0.0, 0.5, 1.0]
            y = np.where(rng.random((400, 3)) < 0.03, -1, y)
        fed = owners(X, y, seed=draw)
        model = fitted(fed)
        told, truth = model.evaluate(fed, scores=True), truth_of(model, pooled(fed))
        assert set(truth.metrics) - set(told.metrics) <= {"ece"}
        for name, figure in told.metrics.items():
            assert lies_within(figure, truth[name], truth.bounds.get(name, 0.0) + 1e-9), name
            noisy += figure.between is not None
        assert told["brier"].rows == len(pooled(fed))
    assert noisy > 40


def test_what_holds_enough_persons_is_exact() -> None:
    X, y = rows_of(np.random.default_rng(3), 3000)
    fed = owners(X, y)
    model = fitted(fed)
    told, truth = model.evaluate(fed), truth_of(model, pooled(fed))
    assert not told.notes
    for name, figure in told.metrics.items():
        assert figure.between is None
        assert figure == pytest.approx(truth[name], abs=1e-12)
    assert told["accuracy"].interval is not None
    area = model.evaluate(fed, scores=True)["auroc"]
    assert area.between is not None, "scores are never counted exactly"
    assert area.between[1] - area.between[0] < 0.08


def test_numbers_are_exact_sums() -> None:
    X, _ = rows_of(np.random.default_rng(4), 300)
    fed = owners(X, X[:, 0] + 0.2 * X[:, 1] ** 2 + 50)
    model = so.FedGLM().fit(fed)
    told, truth = model.evaluate(fed, scores=True), truth_of(model, pooled(fed))
    assert told.metrics.keys() == truth.metrics.keys()
    for name, figure in told.metrics.items():
        assert figure.between is None
        assert figure == pytest.approx(truth[name], rel=1e-6)
    with pytest.raises(NotClosed, match=r"scores one part.*rows of train, test") as refused:
        model.score(fed)
    assert 'model.evaluate(federation, "test")["r2"]' in str(refused.value)


# --- one scoring ---


@pytest.fixture
def totals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Every task of which something was added up, and what it came to."""
    total, done = SimulatedOwners.total, []

    def noted(self: Any, question: bytes, ask: Any, aggregation: Any) -> Any:
        done.append((ask.task, total(self, question, ask, aggregation)))
        return done[-1][1]

    monkeypatch.setattr(SimulatedOwners, "total", noted)
    return done


def test_a_part_is_scored_once(totals: list[Any]) -> None:
    fed = owners(*rows_of(np.random.default_rng(5), 380))
    model = fitted(fed)
    first = model.evaluate(fed)
    done = len(totals)
    again = model.evaluate(fed, scores=True)
    same = so.FedHEONN().fit(fed, progress=False)
    fits = len(totals) - done
    assert same.evaluate(fed).metrics == first.metrics
    assert len(totals) == done + fits, "nothing is asked again"
    assert "auroc" in again.metrics
    assert "auroc" not in first.metrics
    assert all(again[name] == figure for name, figure in first.metrics.items())
    other = so.FedGLM("binomial").fit(fed)
    done = len(totals)
    other.evaluate(fed)
    assert len(totals) > done


def test_a_later_metric_of_ones_own_is_not_given() -> None:
    @so.metrics.row_metric("closed_cost")
    def cost(y: Any, predicted: Any) -> Any:
        return 5.0 * (y > predicted) + (y < predicted)

    fed = owners(*rows_of(np.random.default_rng(5), 380))
    model = fitted(fed)
    rows = pooled(fed)
    told = model.evaluate(fed, metrics=["closed_cost"])["closed_cost"]
    assert told == pytest.approx(cost(rows.y, model.predict(rows.X)).mean())
    other = so.FedGLM("binomial").fit(fed)
    other.evaluate(fed)
    with pytest.raises(DataError, match="scored once by this model, without closed_cost"):
        other.evaluate(fed, metrics=["closed_cost"])["closed_cost"]


def test_a_grid_of_scores_is_refused() -> None:
    fed = owners(*rows_of(np.random.default_rng(5), 380))
    model = fitted(fed)
    with pytest.raises(NotClosed, match="bins of scores follow from persons") as refused:
        model.evaluate(fed, scores=so.metrics.ScoreGrid())
    assert "scores=True" in str(refused.value)


# --- words ---


def test_no_figure_is_shown_without_its_bounds() -> None:
    fed = owners(*rows_of(np.random.default_rng(6), 380))
    model = fitted(fed)
    told = model.evaluate(fed, scores=True)
    for name in ("macro_f1", "auroc"):
        figure = told[name]
        low, high = figure.between
        words = f"about {figure:.3g}, between {low:.3g} and {high:.3g}"
        surfaces = [repr(told), told._repr_html_(), str(figure), figure.marked, figure.words]
        assert all(words in surface for surface in surfaces)
        assert figures({name: plain(figure)})[name].between == figure.between
    assert "rows of 4 clients" in str(told["macro_f1"])
    assert "noise" in repr(told)
    assert "bins of scores" in told.scores.plot()._suptitle.get_text()
    few = owners(*rows_of(np.random.default_rng(6), 60), test=0.0)
    with pytest.warns(MissingRows, match="about .* between"):
        model.score(few)


def test_rows_of_one_person_are_no_cells() -> None:
    """Counts of rows carry no noise of persons, so that small ones are absent."""
    X, y = rows_of(np.random.default_rng(7), 600)
    table = pandas.DataFrame(X, columns=list("abcd")).assign(
        y=y, patient=[f"p{i % 150}" for i in range(600)]
    )
    agreed = so.epochs.draft(table, target="y", identifier="patient")
    partition = so.partitions.ByGroup([i % 150 % 4 for i in range(600)])
    fed = so.simulate(
        table, clients=4, partition=partition, dictionary=agreed, policy=EXACT, test=0.2
    )
    model = fitted(fed)
    told = model.evaluate(fed, scores=True)
    assert "auroc" not in told.metrics
    assert "several rows of one" in repr(told)
    assert told["log_loss"] > 0
    with pytest.raises(DataError, match="several rows of one"):
        told["auroc"]


# --- attack ---


def exact_sets(rows: Any, model: Any, noised: Any) -> list[Any]:
    """The sets of rows whose exact number one scoring tells."""
    truth, guess = rows.y == 1, model.predict(rows.X) == 1
    tables = {
        "classes": [~truth, truth],
        "right": [truth == guess, truth != guess],
        "confusion": [~truth & ~guess, ~truth & guess, truth & ~guess, truth & guess],
    }
    told = [cells for name, cells in tables.items() if name not in noised]
    return [np.ones(len(truth), bool), *itertools.chain(*told)]


def smallest_difference(sets: list[Any]) -> int:
    """The fewest rows whose number follows by adding and subtracting exact ones."""
    indicators = np.stack(sets).astype(np.int8)
    signs = np.array(list(itertools.product((-1, 0, 1), repeat=len(sets))), dtype=np.int8)
    sums = signs @ indicators
    times = sums.max(axis=1, keepdims=True)
    is_set = (times[:, 0] > 0) & ((sums == 0) | (sums == times)).all(axis=1)
    return int((sums[is_set] > 0).sum(axis=1).min())


@pytest.mark.parametrize("rows", [380, 1140])
def test_no_exact_number_is_of_few_persons_nor_by_subtraction(
    rows: int, totals: list[tuple[str, Any]]
) -> None:
    """Of 100 models on one test part, every sum and difference of what each tells exactly."""
    rng = np.random.default_rng(rows)
    X, y = rows_of(rng, rows)
    fed = owners(X, y)
    test = pooled(fed)
    fewest, exact = len(test), 0
    for _ in range(100):
        kept = rng.random(4) < 0.6
        labels = np.where(rng.random(rows) < 0.1, 1 - y, y)
        model = fitted(so.simulate(X * kept, labels, clients=1))
        totals.clear()
        model.evaluate(fed)
        told = dict(totals)
        sets = exact_sets(test, model, told["evaluation.tables"].noised)
        exact += len(sets) > 1
        fewest = min(fewest, smallest_difference(sets))
        partial = told["evaluation.score_cells"].partial
        bins = partial.get("solera.value", partial)["persons"]
        assert (bins % 1 > 0).all(), "persons of a bin of scores are never told exactly"
    assert exact > 50
    assert fewest >= LEAST


def test_many_models_on_one_part_give_targets_away_to_who_knows_the_columns() -> None:
    """A stated limit: every Brier score and every loss is one equation in the targets.

    Σ(p − y)² = Σp² + Σ(1 − 2p)y, and all p are known to somebody who knows all other columns. Half
    as many models as there are persons are enough.
    """
    rng = np.random.default_rng(11)
    X, y = rows_of(rng, 150)
    fed = owners(X, y)
    rows = pooled(fed)
    weights, totals = [], []
    for _ in range(len(rows) // 2 + 1):
        labels = np.where(rng.random(len(y)) < 0.2, 1 - y, y)
        model = so.FedGLM("binomial").fit(so.simulate(X, labels, clients=1), progress=False)
        told = model.evaluate(fed, scores=True)
        p = model.predict_proba(rows.X)[:, 1]
        weights += [1 - 2 * p, np.log(1 - p) - np.log(p)]
        brier, loss = (len(rows) * float(told[name]) for name in ("brier", "log_loss"))
        totals += [brier - (p**2).sum(), loss + np.log(1 - p).sum()]
    solved = np.linalg.lstsq(np.array(weights), np.array(totals), rcond=1e-12)[0]
    assert ((solved > 0.5) == rows.y).mean() > 0.9


def test_bounds_leave_room_for_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one deviation in place of three the figures are outside their bounds."""
    monkeypatch.setattr(noised, "DEVIATIONS", 1.0)
    with pytest.raises(AssertionError):
        test_metrics_of_classes_are_within_bounds(76, 2, True)
