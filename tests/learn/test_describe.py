"""``so.describe``: what it says of rows, of every client."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import solera as so
from solera.cli.app import app
from solera.core.schema import Feature, Schema

CLIENTS = 20


@pytest.fixture(
    scope="module", params=["made", pytest.param("adult", marks=pytest.mark.data("adult"))]
)
def people(request: Any) -> Any:
    """Rows with many rare categories, values and gaps: made ones, and those of Adult."""
    return so.datasets.load("adult") if request.param == "adult" else made_people()


def made_people(rows: int = 6000) -> Any:
    draw = np.random.default_rng(5)
    numbers = [
        draw.normal(45, 14, rows).round(),
        np.where(draw.random(rows) < 0.9, 0, draw.exponential(4000, rows)),
        draw.normal(40, 12, rows),
    ]
    often = 1 / np.arange(1, 41) ** 1.3
    codes = [draw.choice(40, rows, p=often / often.sum()) for _ in range(4)]
    X = np.column_stack([*numbers, *codes]).astype(float)
    X[draw.random(rows) < 0.02, 4] = np.nan
    features = [
        *(Feature(name) for name in ("age", "gain", "hours")),
        *(
            Feature(name, "categorical", tuple(f"{name} {code}" for code in range(40)))
            for name in ("work", "town", "trade", "origin")
        ),
    ]
    y = (X[:, 0] + X[:, 2] + draw.normal(0, 20, rows) > 100).astype(int)
    return SimpleNamespace(X=X, y=y, schema=Schema(tuple(features), "classes", np.arange(2), 2))


def simulated(people: Any, rows: int = 6000) -> Any:
    X, y = people.X[:rows], people.y[:rows]
    return so.simulate(X, y, schema=people.schema, clients=CLIENTS, seed=1)


def rows_of(fed: Any) -> list[Any]:
    return [fed.data.segments(np.array([i]), "train")[0] for i in range(len(fed))]


def test_it_says_what_the_rows_are(people):
    fed = simulated(people)
    found = so.describe(fed)
    X, y = (np.concatenate([getattr(r, name) for r in rows_of(fed)]) for name in ("X", "y"))
    assert found.rows.tolist() == [len(r.y) for r in rows_of(fed)]
    np.testing.assert_array_equal(found.missing.sum(axis=0), (~np.isfinite(X)).sum(axis=0))
    np.testing.assert_array_equal(found.classes.sum(axis=0), np.bincount(y))
    numbers = found.numbers
    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    expected = np.quantile(X[:, numbers], levels, axis=0, method="inverted_cdf")
    np.testing.assert_allclose(found.quantiles[numbers], expected.T, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.correlations, np.corrcoef(X[:, numbers].T), atol=1e-9)
    for j, feature in enumerate(found.schema.features):
        if feature.kind == "categorical":
            codes = [people.schema.features[j].categories.index(c) for c in feature.categories]
            total = np.bincount(X[np.isfinite(X[:, j]), j].astype(int), minlength=100)[codes]
            np.testing.assert_array_equal(found.categories[j].sum(axis=0), total)


def test_a_column_that_does_not_vary_has_no_correlation():
    X = np.column_stack([np.arange(12.0), np.full(12, 7.0), np.arange(12.0) ** 2])
    found = so.describe(so.simulate(X, clients=2))
    np.testing.assert_array_equal(np.isnan(found.correlations[1]), [True] * 3)
    assert found.correlations[0, 2] == pytest.approx(np.corrcoef(X[:, 0], X[:, 2])[0, 1])
    assert found.to_dict()["correlations"][0][1] is None


def test_drift_names_the_client_that_differs():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(100, 2)), rng.integers(0, 2, 100)) for _ in range(4)]
    pairs[2][0][:, 0] += 3
    found = so.describe(so.simulate(pairs))
    drift = found.drift()
    assert drift[:, 0].argmax() == 2
    assert drift[2, 0] > 0.5 > drift[:, 1].max()
    assert len(found.class_drift()) == 4


def test_gaps_leave_whole_rows_out_of_correlations():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    X[:, 1] += X[:, 0]
    X[::7, 2] = np.nan
    found = so.describe(so.simulate(X, rng.integers(0, 2, 300), clients=3, seed=0))
    whole = np.isfinite(X).all(axis=1)
    np.testing.assert_allclose(found.correlations, np.corrcoef(X[whole].T), atol=1e-9)


def test_one_picture(people):
    found = so.describe(simulated(people))
    titles = [ax.get_title() for ax in found.plot().axes]
    first = ["training rows of clients", "missing", "drift from all clients", "correlations"]
    assert titles[:4] == first
    assert "age" in titles


def test_it_says_that_rows_set_aside_are_not_in_it():
    X = np.random.default_rng(0).normal(size=(200, 2))
    fed = so.simulate(X, (X[:, 0] > 0).astype(int), clients=4, test=0.3, validation=0.1)
    found = so.describe(fed)
    assert found.rows.sum() == fed.data.sizes("train").sum() < 200
    said = f"4 clients, {found.rows.sum()} training rows"
    assert str(found).startswith(said)
    assert said in found._repr_html_()
    assert found.to_dict()["part"] == "train"
    assert found.plot().axes[0].get_title() == "training rows of clients"


def test_the_command_describes_a_file(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["age,town,out,clinic"]
    for i in range(240):
        town = "Nowhere" if i == 17 else ("Vigo", "Lugo")[i % 2]
        lines.append(f"{rng.integers(20, 80)},{town},{('no', 'yes')[i % 3 == 0]},c{i % 4}")
    file, picture = tmp_path / "patients.csv", tmp_path / "look.png"
    file.write_text("\n".join(lines))
    asked = ["describe", str(file), "--target", "out", "--group", "clinic"]
    shown = CliRunner().invoke(app, [*asked, "--plot", str(picture)])
    assert shown.exit_code == 0, shown.output
    assert "4 clients, 240 training rows" in shown.output
    assert "Vigo" in shown.output
    assert "Nowhere" in shown.output
    assert picture.stat().st_size > 10_000
    told = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert [c["rows"] for c in told["clients"]] == [60] * 4
    assert told["columns"][1]["categories"]["Nowhere"] == 1


def test_labels_are_columns_that_miss_where_they_are_unknown():
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, (60, 2))
    y[:20, 0] = -1
    names = so.partitions.Explicit([range(20), range(20, 60)])
    fed = so.simulate(draw.normal(size=(60, 1)), y, partition=names)
    found = so.describe(fed)
    first, second = found.schema.features[1:]
    assert (first.name, second.name) == ("0", "1")
    assert found.missing[:, 1:].tolist() == [[20, 0], [0, 0]]
    assert found.categories[1][1].tolist() == [(y[20:, 0] == 0).sum(), (y[20:, 0] == 1).sum()]
    assert found.categories[2].sum(axis=0).tolist() == np.bincount(y[:, 1]).tolist()
    assert found.drift()[0, 1] == 0  # a client that does not know a label is not apart
    assert f"absent: {(y[:, 0] == 0).sum()}" in str(found)
    assert "classes" not in str(found)
    found.plot()
    noised = so.describe(fed, dp=so.DP(level="record", epsilon=50.0, delta=1e-5))
    assert abs(int(noised.missing[0, 1]) - 20) < 10
