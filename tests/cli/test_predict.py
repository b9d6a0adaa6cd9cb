"""``solera predict`` and ``solera model``."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

import solera as so
from solera.cli.app import app

pd = pytest.importorskip("pandas")


def made(rows: int, seed: int):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 90, rows),
            "smokes": rng.choice(["never", "daily", None], rows),
            "admitted": [f"2024-0{m}-11" for m in rng.integers(1, 9, rows)],
        }
    )
    return frame.assign(outcome=np.where(frame.age > 55, "relapse", "healthy"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    federation = so.simulate(made(200, 1), target="outcome", clients=3)
    steps = (so.FedEncoder(), so.FedImputer(), so.FedScaler(), so.FedHEONN())
    fitted = so.Pipeline(*steps).fit(federation)
    return fitted, fitted.save(tmp_path_factory.mktemp("models") / "model.sol")


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_is_read_by_the_schema_of_the_model(model, tmp_path, ending):
    fitted, path = model
    new = made(30, 2)[["smokes", "admitted", "age"]]  # no target, another order
    new.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "made" / f"answers.{ending}"
    done = run("predict", path, tmp_path / "new.csv", "--out", out, "--proba")
    assert done.exit_code == 0, done.output
    found = pd.read_csv(out) if ending == "csv" else pd.read_parquet(out)
    assert list(found.columns) == ["prediction", "probability healthy", "probability relapse"]
    assert found["prediction"].tolist() == fitted.predict(new).tolist()
    assert set(found["prediction"]) == {"healthy", "relapse"}
    assert np.allclose(found.iloc[:, 1:], fitted.predict_proba(new), atol=1e-12)


def test_without_out_it_goes_to_stdout(model, tmp_path):
    fitted, path = model
    new = made(4, 3)
    new.to_csv(tmp_path / "new.csv", index=False)
    lines = run("predict", path, tmp_path / "new.csv").stdout.split()
    assert lines == ["prediction", *fitted.predict(new)]


def test_numbers_have_no_probabilities(tmp_path):
    frame = made(60, 1).drop(columns="outcome").assign(cost=lambda f: f.age * 1.5)
    federation = so.simulate(frame[["age", "cost"]], target="cost", clients=2)
    path = so.FedHEONN("linear").fit(federation).save(tmp_path / "model.sol")
    frame.to_csv(tmp_path / "new.csv", index=False)
    done = run("predict", path, tmp_path / "new.csv", "--proba")
    assert done.exit_code == 1
    assert "predicts no classes" in done.output


def test_what_is_wrong_is_named(model, tmp_path):
    _, path = model
    made(4, 3).drop(columns="age").to_csv(tmp_path / "new.csv", index=False)
    done = run("predict", path, tmp_path / "new.csv")
    assert done.exit_code == 1
    assert "there is no column 'age'" in done.output
    made(4, 3).assign(smokes="a pipe").to_csv(tmp_path / "new.csv", index=False)
    assert "'a pipe', which was not there" in run("predict", path, tmp_path / "new.csv").output
    done = run("predict", path, tmp_path / "new.csv", "--out", "answers.xls")
    assert "no .csv or .parquet" in done.output


def test_the_card_and_the_graph_of_a_file(model, tmp_path):
    fitted, path = model
    assert run("model", "card", path).stdout == fitted.card()
    run("model", "card", path, "--out", tmp_path / "card.md")
    assert (tmp_path / "card.md").read_text(encoding="utf-8") == fitted.card()
    pytest.importorskip("onnx")
    done = run("model", "export", path, tmp_path / "model.onnx")
    assert done.exit_code == 0, done.output
    same = fitted.export(tmp_path / "same.onnx").read_bytes()
    assert (tmp_path / "model.onnx").read_bytes() == same
