"""Counts, quantiles, clusters, evaluations and reports: what honest asks get, and what attacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gate.measure import REFUSED, Hostile, Owner, table

import solera as so
from solera.core.component import describe_fitted
from solera.core.disclosure.cumulative import intervals
from solera.core.disclosure.evidence import Persons
from solera.core.errors import DataError, NotEnoughReplies, SoleraError
from solera.core.schema import Feature, Schema, class_codes, infer
from solera.trust.gate import find_limits

RNG = np.random.default_rng(11)
ROWS = 60
X = np.stack([RNG.normal(size=ROWS) * 10, np.exp(2 * RNG.normal(size=ROWS))], axis=1)
Y = (X[:, 0] + RNG.normal(size=ROWS) > 0).astype(np.int64)
TRAINING = find_limits("training")


def owner(X: Any = X, y: Any = Y, policy: Any = TRAINING, schema: Schema | None = None) -> Owner:
    return Owner(table(X, y, schema), find_limits(policy))


# --- quantiles ---


def edges_of(edges: Any, columns: int = 2) -> dict[str, Any]:
    return {"edges": np.broadcast_to(edges, (columns, len(edges))).copy()}


def test_no_grid_of_edges_tells_a_value():
    """Wherever counts step, at least five rows of the client are in the interval around it."""
    one = owner()
    for column in (0, 1):
        grid = np.linspace(X[:, column].min() - 1, X[:, column].max() + 1, 20_001)
        below = one.ask("preprocess.count", edges_of(grid))["below"][column]
        found = intervals(X[:, column], 5, Persons())
        assert np.bincount(found.own).min() >= 5
        for low, high in list(zip(found.low, found.high, strict=True))[1:-1]:
            assert ((X[:, column] > low) & (X[:, column] <= high)).sum() >= 5
        steps = grid[1:][np.diff(below) > 0]
        places = np.searchsorted(found.high, steps)
        assert len(np.unique(places)) <= ROWS // 5
        nearest = np.abs(np.sort(X[:, column])[:, None] - steps).min(axis=1)
        width = (found.high - found.low)[found.own]
        assert np.median(nearest / width[np.argsort(X[:, column])]) > 1e-3


def test_bisecting_an_edge_finds_the_end_of_an_interval_and_no_value():
    one = owner()
    low, high = X[:, 0].min() - 1, X[:, 0].max() + 1
    for _ in range(50):
        middle = (low + high) / 2
        enough = one.ask("preprocess.count", edges_of([middle]))["below"][0, 0] >= 5
        low, high = (low, middle) if enough else (middle, high)
    assert np.abs(X[:, 0] - high).min() > 1e-4


def test_counts_below_edges_rest_on_many_rows():
    hostile = Hostile(X, Y, "training")
    rng = np.random.default_rng(3)
    for _ in range(4):
        hostile.ask("preprocess.count", edges_of(rng.choice(X[:, 0], 30) + 1e-9))
    assert hostile.leak().rows >= 5
    assert hostile.asks == len(hostile.answers)


def intervals_of(values):
    """What the intervals of a column tell: their ends, and how many rows count in each."""
    table = intervals(values, 5, Persons())
    counts = np.bincount(table.own[table.own >= 0], minlength=len(table.high))
    return table.low.tolist(), table.high.tolist(), table.reach.tolist(), counts.tolist()


@pytest.mark.parametrize("rows", [12, 23, 40, 75])
def test_rows_of_an_interval_change_all_intervals_alike(rows):
    """So nothing that follows from intervals rests on fewer than five rows, whatever it is."""
    rng = np.random.default_rng(rows)
    for values in (rng.normal(size=rows), np.exp(2 * rng.normal(size=rows)), rng.poisson(3, rows)):
        values = values.astype(float)
        own = intervals(values, 5, Persons()).own
        for interval in range(int(own.max(initial=-1)) + 1):
            members = np.flatnonzero(own == interval)
            assert len(members) >= 5
            first, *others = (intervals_of(np.delete(values, i)) for i in members)
            assert all(other == first for other in others)


@pytest.mark.parametrize("rows", [5, 12, 23, 40, 300])
def test_no_value_is_beyond_the_reach_of_its_interval(rows):
    rng = np.random.default_rng(rows)
    for values in (rng.normal(size=rows), np.exp(2 * rng.normal(size=rows)), rng.poisson(3, rows)):
        table = intervals(values.astype(float), 5, Persons())
        reach = np.concatenate([[-np.inf], table.reach])
        assert (reach[table.own] < values).all()
        assert (values <= reach[table.own + 1]).all()


def test_persons_and_not_rows_fill_an_interval():
    values = np.repeat(np.arange(20.0), 3)
    rows = intervals(values, 5, Persons())
    people = intervals(values, 5, Persons(np.repeat(np.arange(20), 3)))
    assert len(people.high) < len(rows.high)
    assert min(len(np.unique(np.flatnonzero(people.own == i) // 3)) for i in range(2)) >= 5


@pytest.mark.parametrize(("clients", "error"), [(5, 0.01), (50, 0.04)])
def test_quantiles_are_close_behind_the_gate(clients, error):
    rng = np.random.default_rng(0)
    values = np.stack(
        [rng.normal(size=2000) * 100 + 1000, rng.integers(0, 2, 2000).astype(float)], axis=1
    )
    fed = so.simulate(values, clients=clients, policy="training")
    edges = so.FedBins(8).fit(fed).edges_
    share = (values[:, 0, None] <= edges[0]).mean(axis=0)
    assert np.abs(share - np.arange(1, 8) / 8).max() < error
    np.testing.assert_array_equal(edges[1], [0.0, 1.0])
    median = so.FedImputer("median").fit(fed).fill_
    assert abs((values[:, 0] <= median[0]).mean() - 0.5) < error


def test_a_few_missing_values_are_not_told():
    few, many = X.copy(), X.copy()
    few[:2, 0], many[:8, 0] = np.nan, np.nan
    for rows, known in ((few, ROWS), (many, ROWS - 8)):
        one = owner(rows)
        assert one.ask("preprocess.count", edges_of([0.0]))["rows"][0] == known
        described = one.ask("data.describe", None)
        assert described["gaps"] == ([] if known == ROWS else [0])
        assert bool(one.ask("data.flaws", None)["gaps"]) == (known < ROWS)


def test_missing_values_are_a_clear_error_all_the_same():
    few, many = X.copy(), X.copy()
    few[:2, 0], many[:, 0] = np.nan, np.nan
    for rows in (few, many):
        fed = so.simulate(rows, Y, clients=2, policy="training")
        with pytest.raises(SoleraError, match="missing or infinite values in x0"):
            so.FedLinear(rounds=1).fit(fed)


# --- categories and classes ---

CATEGORIES = Schema(
    (Feature("u"), Feature("v", "categorical", ("p", "q", "r", "rare"))),
    "classes",
    np.array(["a", "b", "zz"]),
    3,
)


def with_rare() -> tuple[Any, Any]:
    codes = np.resize([0.0, 1.0, 2.0], 40)
    codes[0] = 3.0
    return np.stack([X[:40, 0], codes], axis=1), np.array(["a"] * 20 + ["b"] * 18 + ["zz"] * 2)


def test_rare_categories_and_classes_are_not_named():
    described = owner(*with_rare(), schema=CATEGORIES).ask("data.describe", None)
    assert described["features"][1] == ["v", "categorical", ["p", "q", "r"]]
    assert described["classes"].tolist() == ["a", "b"]
    assert described["outputs"] == 2
    assert described["rows"] == 40


def test_listed_categories_and_classes_are_named():
    limits = replace(TRAINING, listed={"v": ["rare"], "": ["zz"]})
    described = owner(*with_rare(), policy=limits, schema=CATEGORIES).ask("data.describe", None)
    assert described["features"][1][2] == ["p", "q", "r", "rare"]
    assert described["classes"].tolist() == ["a", "b", "zz"]


def test_too_many_categories_are_refused():
    names = tuple(f"c{i}" for i in range(50))
    schema = Schema((Feature("v", "categorical", names),), "none")
    one = owner(np.resize(np.arange(50.0), (300, 1)), np.zeros(300, np.int64), schema=schema)
    assert one.ask("data.describe", None) == REFUSED
    assert "more than 40 categories" in one.why


def test_small_categories_are_withheld_with_another():
    (counts,) = owner(*with_rare(), schema=CATEGORIES).ask(
        "preprocess.count_categories", {"sizes": [0, 4]}
    )[1:]
    assert counts[3] == 0
    assert (counts[:3] == 0).sum() == 1


def test_every_column_withholds_enough_rows_of_its_own():
    rows, y = with_rare()
    rows[:, 0] = np.resize([0.0, 1.0], 40)
    rows[:14, 0] = 0.0
    schema = replace(
        CATEGORIES, features=(Feature("u", "categorical", ("x", "y")), CATEGORIES.features[1])
    )
    counts = owner(rows, y, schema=schema).ask("preprocess.count_categories", {"sizes": [2, 4]})
    hidden = [40 - column.sum() for column in counts]
    assert hidden[0] == 0
    assert hidden[1] >= 5


def test_an_unknown_class_is_not_quoted():
    with pytest.raises(DataError) as error:
        class_codes(np.array(["secret diagnosis"]), np.array(["a", "b"]))
    assert "secret" not in str(error.value)


# --- clusters ---


def update(centroids: Any, **more: Any) -> dict[str, Any]:
    return {"centroids": centroids, "epochs": 1, "batch_size": None, "rate": 1.0, **more}


def test_two_asks_subtracted_do_not_tell_a_row():
    """The middle between two centroids is moved across one row."""
    rows = np.random.default_rng(4).normal(size=(ROWS, 3))
    cuts = np.sort(rows[:, 0])[29:31] + 1e-9
    hostile = Hostile(rows, Y, "training")
    for cut in cuts:
        ends = np.array([[cut - 1000.0, 0.0, 0.0], [cut + 1000.0, 0.0, 0.0]])
        for task, ask in (("kmeans.update", update(ends)), ("kmeans.cost", {"centroids": ends})):
            assert hostile.ask(task, ask) != REFUSED
    assert hostile.leak().rows >= 5


def test_sums_whose_difference_is_one_row_stand_still():
    """Six rows change their cluster, five of them with nothing in the second column."""
    rows = np.random.default_rng(4).normal(size=(ROWS, 3))
    order = np.argsort(rows[:, 0])
    rows[order[30:35], 1] = 0.0
    hostile = Hostile(rows, Y, "training")
    for place in (29, 35):
        cut = rows[order[place], 0] + 1e-9
        ends = np.array([[cut - 1000.0, 7.0, 0.0], [cut + 1000.0, 7.0, 0.0]])
        reply = hostile.ask("kmeans.update", update(ends))
    np.testing.assert_array_equal(reply["sums"][:, 1], 7.0 * reply["counts"])
    assert hostile.leak().rows >= 5


def test_sums_leave_with_the_count_of_their_own_rows_or_not_at_all():
    """The counts were told before, of other rows: those of the sums would give a mean of both."""
    cuts = np.sort(X[:, 0])[29:31] + 1e-9
    first, second = (np.array([[cut - 1000.0, 7.0], [cut + 1000.0, 7.0]]) for cut in cuts)
    one = owner()
    before = one.ask("kmeans.cost", {"centroids": first})
    after = one.ask("kmeans.update", update(second))
    np.testing.assert_array_equal(after["counts"], before["counts"])
    np.testing.assert_array_equal(after["sums"], after["counts"][:, None] * second)


def test_a_cluster_of_few_rows_does_not_move_its_centroid():
    start = np.array([X.mean(axis=0), X[np.argmax(X[:, 1])]])
    reply = owner().ask("kmeans.update", update(start))
    np.testing.assert_array_equal(reply["sums"], reply["counts"][:, None] * start)


def test_several_steps_need_trust():
    start = X[:2].copy()
    for more in ({"epochs": 2}, {"batch_size": 7}, {"rate": 0.5}):
        assert owner().ask("kmeans.update", update(start, **more)) == REFUSED
        assert owner(policy="trusted").ask("kmeans.update", update(start, **more)) != REFUSED


def test_clusters_are_found_behind_the_gate():
    rng = np.random.default_rng(2)
    centres = np.array([[0.0, 0], [8, 8], [-8, 8]])
    rows = np.concatenate([rng.normal(size=(200, 2)) + centre for centre in centres])
    rng.shuffle(rows)
    fed = so.simulate(rows, clients=5, policy="training")
    model = so.FedKMeans(3).fit(fed)
    apart = np.linalg.norm(model.centroids_[:, None] - centres, axis=2)
    assert apart.min(axis=0).max() < 0.3
    assert model.silhouette(fed) > 0.8
    with pytest.raises(NotEnoughReplies, match="needs noise or the policy 'trusted'"):
        so.FedKMeans(3, init="k-means++").fit(fed)


@pytest.mark.parametrize(
    "centroids", [np.zeros((2, 3)), np.zeros((20_000, 2)), np.full((2, 2), np.nan), np.zeros(2)]
)
def test_centroids_of_other_shapes_are_refused(centroids):
    for task, ask in (
        ("kmeans.update", update(centroids)),
        ("kmeans.cost", {"centroids": centroids}),
        ("kmeans.candidates", {"centroids": centroids, "rate": 1.0}),
    ):
        assert owner().ask(task, ask) == REFUSED


# --- evaluation ---


def model_of(X: Any, y: Any, **learned: Any) -> dict[str, Any]:
    """A linear model whose state the driver chose."""
    schema = infer(X, y)
    model = so.FedLinear()
    model.schema_ = schema
    model.coef_ = np.zeros((schema.width, schema.outputs))
    model.intercept_ = np.zeros(schema.outputs)
    for name, value in learned.items():
        setattr(model, name, value)
    return describe_fitted(model)


def singling_out(row: int, outputs: int) -> dict[str, Any]:
    """Weights that answer otherwise for the rows with the largest values than for all others."""
    order = np.sort(X[:, 0])
    coef = np.zeros((2, outputs))
    coef[0, -1] = 1e6
    return {"coef_": coef, "intercept_": np.r_[np.zeros(outputs - 1), -1e6 * order[-row]]}


TARGETS = {
    "classes": Y,
    "labels": np.stack([Y, X[:, 1] > 1], axis=1).astype(np.int64),
    "numbers": Y.astype(float),
}


@pytest.mark.parametrize("target", TARGETS)
def test_models_that_single_out_rows_get_nothing(target):
    y = TARGETS[target]
    outputs = infer(X, y).outputs
    hostile = Hostile(X, y, "evaluation")
    for row in (1, 2, 3):
        ask = {"model": model_of(X, y, **singling_out(row, outputs)), "part": "train"}
        assert hostile.ask("learner.evaluate", ask) != REFUSED
    assert hostile.leak().rows >= 5


def test_the_error_of_a_model_that_is_half_but_at_one_row_is_withheld():
    """Where y is 0 or 1, every other row adds ½, which the driver knows."""
    y = Y.astype(float)
    coef = np.zeros((2, 1))
    far = int(np.argmax(X[:, 1]))
    coef[1, 0] = 1e-3
    rows = X.copy()
    rows[np.arange(ROWS) != far, 1] = 0.0
    model = model_of(rows, y, coef_=coef, intercept_=np.array([0.5]))
    reply = owner(rows, y).ask("learner.evaluate", {"model": model, "part": "train"})
    assert reply["error"] == 0
    assert reply["error2"] == 0


@pytest.mark.parametrize(
    "learned",
    [
        {"intercept_": np.zeros((ROWS, 2))},
        {"coef_": np.zeros((2, 30_000)), "intercept_": np.zeros(30_000)},
        {"coef_": np.full((2, 2), np.nan)},
        {"more_": np.zeros(3)},
    ],
)
def test_models_of_other_shapes_are_refused(learned):
    ask = {"model": model_of(X, Y, **learned), "part": "train"}
    assert owner().ask("learner.evaluate", ask) == REFUSED
    assert owner().ask("select.value", {"model": ask["model"], "power": 1.0}) == REFUSED


def test_margins_do_not_give_a_small_cell_back():
    """Of each true class at least five rows are withheld, or none."""
    ask = {"model": model_of(X, Y, **singling_out(3, 2)), "part": "train"}
    confusion = owner().ask("learner.evaluate", ask)["confusion"]
    hidden = np.bincount(Y) - confusion.sum(axis=1)
    assert ((hidden == 0) | (hidden >= 5)).all()
    assert hidden.any()


def test_an_evaluation_behind_the_gate_is_nearly_that_without():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1000, 3))
    y = (rows[:, 0] + 0.5 * rng.normal(size=1000) > 0).astype(np.int64)
    found = []
    for policy in (None, "training"):
        fed = so.simulate(rows, y, clients=5, test=0.3, policy=policy)
        found.append(so.FedLinear(rounds=5).fit(fed).evaluate(fed)["accuracy"])
    assert abs(found[0] - found[1]) < 0.03


# --- fitted transformers ---


def fitted(step: Any, rows: Any = X) -> Any:
    return step.fit(so.simulate(rows, Y, clients=2))


def test_states_of_transformers_are_compared_with_the_rows():
    imputer, bins = fitted(so.FedImputer()), fitted(so.FedBins(4))
    one = owner()
    assert one.ask("preprocess.moments", None, [imputer, bins]) != REFUSED
    imputer.fill_ = np.zeros((ROWS, 2))
    assert owner().ask("preprocess.moments", None, [imputer]) == REFUSED
    for edges in ([np.zeros(1)], [np.array([2.0, 1.0]), np.zeros(1)], [np.zeros((2, 2))] * 2):
        bins.edges_ = edges
        assert owner().ask("preprocess.moments", None, [bins]) == REFUSED


def test_an_encoder_of_other_columns_is_refused():
    encoder = fitted(so.FedEncoder())
    assert owner().ask("preprocess.moments", None, [encoder]) != REFUSED
    encoder.schema_ = replace(
        encoder.schema_, features=(Feature("x0", "categorical", ("a",)), Feature("x1"))
    )
    assert owner().ask("preprocess.moments", None, [encoder]) == REFUSED


def test_every_step_of_a_pipeline_is_compared():
    pipeline = so.Pipeline(so.FedBins(4), so.FedEncoder(), so.FedLinear(rounds=1))
    pipeline.fit(so.simulate(X, Y, clients=2))
    ask = {"model": describe_fitted(pipeline), "part": "train"}
    assert owner().ask("learner.evaluate", ask) != REFUSED
    pipeline.steps_[2].intercept_ = np.zeros((ROWS, 2))
    ask = {"model": describe_fitted(pipeline), "part": "train"}
    assert owner().ask("learner.evaluate", ask) == REFUSED
    pipeline.steps_ = pipeline.steps_[:1]
    ask = {"model": describe_fitted(pipeline), "part": "train"}
    assert owner().ask("learner.evaluate", ask) == REFUSED


# --- reports to selectors ---


def test_losses_of_models_that_differ_at_one_row_do_not_tell_it():
    hostile = Hostile(X, Y, "training")
    for row in (1, 2):
        model = model_of(X, Y, **singling_out(row, 2))
        for power in (0.0, 0.5, 1.0):
            assert hostile.ask("select.value", {"model": model, "power": power}) != REFUSED
        states = [{"intercept_": np.zeros(2)}, {"intercept_": model["learned"]["intercept_"]}]
        ask = {"learner": model, "states": states, "part": "train"}
        assert hostile.ask("select.losses", ask) != REFUSED
    assert hostile.leak().rows >= 5


def test_states_of_losses_are_compared_with_the_rows():
    ask = {"learner": model_of(X, Y), "states": [{"intercept_": np.zeros(ROWS)}], "part": "train"}
    one = owner()
    assert one.ask("select.losses", ask) == REFUSED
    assert "states[0]" in one.why


def test_rows_are_uploaded_under_no_other_policy():
    ask = {"classes": np.array([0, 1]), "first": np.zeros(2, int), "take": np.ones(2, int)}
    for policy in ("statistics", "evaluation", "training", "trusted"):
        one = owner(policy=policy)
        assert one.ask("select.upload", ask) == REFUSED
        assert "which is not allowed" in one.why


def test_classes_of_resources_are_counted_as_cells(monkeypatch, tmp_path):
    stated = tmp_path / "resources.toml"
    stated.write_text("samples_per_second = 10\nbits_per_second = 100\n")
    monkeypatch.setenv("SOLERA_RESOURCES", str(stated))
    y = np.array([0] * 40 + [1] * 17 + [2] * 3)
    reply = owner(y=y).ask("select.resources", {"classes": np.arange(3)})
    assert reply["rows"] == ROWS
    assert reply["counts"].tolist() == [40, 0, 0]
    numbers = owner(y=X[:, 0].copy())
    assert numbers.ask("select.resources", {"classes": np.array([0, 1])}) == REFUSED
