"""The command line: what it prints, how it fails, and that Ctrl-C loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import solera as so
import solera.cli
from solera.cli.app import app
from solera.cli.output import interrupted
from solera.core.component import Component
from solera.core.federation import Federation, UnsentAsk
from solera.learn.base import Learner

pytestmark = pytest.mark.usefixtures("unrendered")

SOURCE = str(Path(solera.cli.__file__).parents[2])
SPEC = """\
seeds = [0, 1]
[data]
name = "wine"
clients = 4
client_test = 0.25
[learner]
kind = "FedLinear"
rounds = 3
lr = 1e-5
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wine.toml").write_text(SPEC)


def solera_(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments), prog_name="solera")
    assert result.exit_code == code, result.output
    return result


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """The real command in a process of its own."""
    path = os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "solera.cli.app", *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_help_says_how_it_ends() -> None:
    text = " ".join(solera_("--help").output.split())
    for word in ("demo", "data", "run", "tasks", "--install-completion", "130 interrupted"):
        assert word in text
    assert "Example:" in solera_("data", "partition", "--help").output
    assert solera_("--version").output.startswith("solera ")


def test_data_list() -> None:
    listed = json.loads(solera_("data", "list", "--json").stdout)
    digits = next(entry for entry in listed if entry["name"] == "digits")
    assert (digits["rows"], digits["features"], digits["outputs"]) == (1797, 64, 10)
    assert digits["at_hand"]
    text = solera_("data", "list").stdout
    assert all(entry["name"] in text for entry in listed)


def test_data_show() -> None:
    assert "1,348 to train" in solera_("data", "show", "digits").stdout
    shown = json.loads(solera_("data", "show", "breast_cancer", "--json").stdout)
    assert shown["rows"] + shown["test_rows"] == 569
    assert shown["classes"] == ["malignant", "benign"]
    assert len(shown["features"]) == 30


def test_data_show_counts_unknown_labels(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("x,A,B\n1,1,0\n2,,1\n3,-1,0\n4,0,1\n")
    told = solera_("data", "show", str(tmp_path / "rows.csv"), "--target", "A", "--target", "B")
    lines = [line.split() for line in told.stdout.splitlines()]
    assert ["A", "target", "2"] in lines
    assert ["B", "target", "0"] in lines


def test_data_partition() -> None:
    command = ["data", "partition", "wine", "--clients", "6", "--kind", "Dirichlet"]
    command += ["--param", "alpha=0.5", "--param", "min_rows=2"]
    text = solera_(*command, "--plot", "pictures/wine.svg").stdout
    assert "Dirichlet(alpha=0.5, min_rows=2)" in text
    assert "distance from IID" in text
    assert "█" in text
    assert Path("pictures/wine.svg").read_text().startswith("<?xml")
    one = json.loads(solera_(*command, "--json").stdout)
    assert one["clients"] == len(one["sizes"]) == len(one["class_counts"]) == 6
    assert [sum(row) for row in one["class_counts"]] == one["sizes"]
    assert json.loads(solera_(*command, "--json").stdout) == one
    assert json.loads(solera_(*command, "--json", "--seed", "1").stdout)["sizes"] != one["sizes"]


def test_partition_of_numbers_and_of_many_clients() -> None:
    assert "rows per client" in solera_("data", "partition", "diabetes", "--clients", "3").stdout
    text = solera_("data", "partition", "digits", "--clients", "200").stdout
    assert "25 of 200 clients" in text


def test_values_of_parameters_are_toml() -> None:
    command = ["data", "partition", "wine", "--clients", "4", "--json", "--kind"]
    shown = solera_(*command, "LabelsPerClient", "--param", "labels=[1, 2]").stdout
    assert json.loads(shown)["partition"] == "LabelsPerClient(labels=[1, 2])"
    nested = 'partition={ kind = "Dirichlet", alpha = 1.0 }'
    shown = solera_(*command, "Overlap", "--param", nested).stdout
    assert json.loads(shown)["rows"] > 134


def test_tasks() -> None:
    listed = json.loads(solera_("tasks", "--json").stdout)
    names = [task["name"] for task in listed]
    assert {"linear.train", "learner.evaluate", "data.describe"} <= set(names)
    assert names == sorted(names)
    ours = [task for task in listed if task["name"].split(".")[0] in ("data", "linear", "learner")]
    assert all(isinstance(task["version"], int) and task["does"] for task in ours)
    assert "linear.train" in solera_("tasks").stdout
    one = solera_("tasks", "linear.train").stdout
    assert "version   3" in one
    assert "How far some epochs of mini-batch gradient descent" in one
    assert "did you mean 'linear.train'?" in solera_("tasks", "linear.trian", code=1).stderr


def test_run() -> None:
    result = solera_("run", "wine.toml")
    assert "accuracy" in result.stdout
    assert "report: runs/wine/report.html" in result.stdout
    assert "seed 0: 3 rounds" in result.stderr
    assert Path("runs/wine/report.html").exists()
    again = solera_("run", "wine.toml", "--json")
    shown = json.loads(again.stdout)
    assert shown["folder"] == "runs/wine"
    assert [r["seed"] for r in shown["results"]] == [0, 1]
    for result in shown["results"]:
        stored = json.loads(Path("runs/wine/cells", f"{result['cell']}.json").read_text())
        assert result == stored["labels"] | stored["result"]
    assert again.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["run", "absent.toml"], "no file absent.toml", "solera demo"),
        (["data", "show", "digist"], "no data set 'digist'", "'digits'"),
        (["data", "partition", "wine", "--kind", "Iid"], "no partition 'Iid'", "'IID'"),
        (
            ["data", "partition", "wine", "--kind", "Dirichlet", "--param", "alhpa=1"],
            "Dirichlet has no 'alhpa'",
            "'alpha'",
        ),
        (
            ["data", "partition", "wine", "--clients", "2", "--plot", "x.doc"],
            "cannot save a picture as x.doc",
            "png",
        ),
        (["run", "."], "directory", ""),
    ],
)
def test_errors_are_one_line_and_a_hint(arguments: list[str], message: str, hint: str) -> None:
    result = solera_(*arguments, code=1)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert len(lines) == 1 + bool(hint)
    assert not hint or (lines[1].startswith("hint: ") and hint in lines[1])


def test_wrong_usage() -> None:
    solera_("nonsense", code=2)
    solera_("data", "partition", "wine", "--param", "alpha", code=2)
    solera_("data", "partition", "wine", "--clients", "0", code=2)


def test_bugs_are_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Component, "registry", dict(Component.registry))

    class Faulty(Learner):
        def train(self, federation: Federation) -> None:
            raise ZeroDivisionError("division\nby zero")

    Path("faulty.toml").write_text('[data]\nname = "wine"\n[learner]\nkind = "Faulty"\n')
    lines = solera_("run", "faulty.toml", code=1).stderr.splitlines()
    assert lines[0].startswith("error: 1 of 1 cells failed")
    assert lines[0].endswith("ZeroDivisionError: division by zero")
    assert "SOLERA_TRACEBACK=1" in lines[1]
    monkeypatch.setenv("SOLERA_TRACEBACK", "1")
    result = CliRunner().invoke(app, ["run", "faulty.toml"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_real_process() -> None:
    Path("wrong.toml").write_text(SPEC.replace("rounds", "ruonds"))
    with start("run", "wrong.toml") as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert out == ""
    assert err == ("error: wrong.toml:8: FedLinear has no 'ruonds'\nhint: did you mean 'rounds'?\n")
    with start("run", "wrong.toml", SOLERA_TRACEBACK="1") as process:
        _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "Traceback" in err


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX systems")
def test_interrupt_and_go_on() -> None:
    Path("long.toml").write_text(SPEC.replace("rounds = 3", "rounds = 200"))
    checkpoints = Path("runs/long/checkpoints")
    with start("run", "long.toml") as process:
        patience = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < patience:
            if list(checkpoints.glob("*-seed0.sol")):
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-2:] == [
        "error: interrupted; 0 cells are finished, all is kept in runs/long",
        "hint: go on with: solera run long.toml",
    ]
    assert "Traceback" not in err
    solera_("run", "long.toml")
    solera_("run", "long.toml", "--folder", "runs/undisturbed")
    models = sorted(Path("runs/undisturbed/models").glob("*.sol"))
    assert [path.stem.partition("-")[2] for path in models] == [
        "federated-seed0",
        "federated-seed1",
    ]
    for path in models:
        assert Path("runs/long/models", path.name).read_bytes() == path.read_bytes()


def test_demo() -> None:
    result = solera_("demo", "--folder", "shown")
    for word in ("alone", "federated", "centralised", "shown/report.html", "solera run"):
        assert word in result.stdout
    accuracy = {
        line.split()[0]: float(line.split()[1])
        for line in result.stdout.splitlines()
        if line.startswith(("alone ", "federated ", "centralised "))
    }
    assert accuracy["alone"] + 0.2 < accuracy["federated"] <= accuracy["centralised"] + 0.02
    assert Path("shown/partition.png").read_bytes().startswith(b"\x89PNG")
    page = Path("shown/report.html").read_text()
    assert all(f'<th scope="row">{scheme}</th>' in page for scheme in accuracy)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("solera data show dig", "digits"),
        ("solera data partition wine --kind Dir", "Dirichlet"),
        ("solera data partition wine --kind Dirichlet --param al", "alpha="),
    ],
)
def test_completion(words: str, completed: str) -> None:
    environment = {
        "_SOLERA_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    result = CliRunner().invoke(app, [], prog_name="solera", env=environment)
    assert result.stdout.split() == [completed]


def test_help_loads_little() -> None:
    check = (
        "import sys, solera.cli.app; "
        "print([m for m in ('matplotlib', 'sklearn', 'pandas', 'torch') if m in sys.modules])"
    )
    path = os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")])
    shown = subprocess.run(
        [sys.executable, "-c", check],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "[]\n"


STUDY = SPEC.replace("lr = 1e-5", "lr = [1e-5, 1e-4]")


def test_run_a_study() -> None:
    Path("grid.toml").write_text(STUDY)
    shown = json.loads(solera_("run", "grid.toml", "--json", "--workers", "2").stdout)
    assert (shown["cells"], shown["finished"], shown["failures"]) == (4, 4, {})
    assert [row["method"] for row in shown["table"]] == [
        "FedLinear lr=1e-05",
        "FedLinear lr=0.0001",
    ]
    text = solera_("run", "grid.toml", "--resume").stdout
    assert text.count(" *") >= 1  # the best
    assert "report: runs/grid/report.html" in text
    limited = STUDY.replace("seeds = [0, 1]", "seeds = [0, 1, 2]") + "[budget]\ncells = 1\n"
    Path("grid.toml").write_text(limited)
    stopped = solera_("run", "grid.toml")
    assert "stopped after 5 of 6 cells: the budget of 1 cells" in stopped.stderr


def test_seeds_side_by_side() -> None:
    wrong = solera_("run", "wine.toml", "--resume", code=1)
    assert "nothing to go on with in runs/wine" in wrong.stderr
    assert not Path("runs/wine").exists()
    one = json.loads(solera_("run", "wine.toml", "--json").stdout)
    two = json.loads(
        solera_("run", "wine.toml", "--json", "--workers", "2", "--folder", "two").stdout
    )
    for left, right in zip(one["results"], two["results"], strict=True):
        assert left["metrics"] == right["metrics"]
        assert left["client_metrics"] == right["client_metrics"]


def test_cells_that_fail_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Component, "registry", dict(Component.registry))

    class Failing(Learner):
        def __init__(self, after: int = 1) -> None:
            self.after = after

        def train(self, federation: Federation) -> None:
            raise ZeroDivisionError("no way")

    text = '[data]\nname = "wine"\n[learner]\nkind = "Failing"\nafter = [1, 2]\n'
    Path("failing.toml").write_text(text)
    result = solera_("run", "failing.toml", code=1)
    assert "2 of 2 cells failed" in result.stderr
    assert "ZeroDivisionError: no way" in result.stderr


def test_energy_of_any_run() -> None:
    shown = json.loads(solera_("run", "wine.toml", "--energy", "--country", "ESP", "--json").stdout)
    for result in shown["results"]:
        use = result["energy"]
        assert use["kwh"] > 0
        assert sum(use["tasks"].values()) == pytest.approx(use["kwh"])
        assert "linear.train" in use["tasks"]
    assert "Wh" in solera_("run", "wine.toml").stdout
    assert "<h2>Energy</h2>" in Path("runs/wine/report.html").read_text()
    Path("grid.toml").write_text(STUDY)
    assert "Wh" in solera_("run", "grid.toml", "--energy").stdout
    wrong = solera_("run", "grid.toml", "--country", "Spain", "--fresh", code=1)
    assert "Spain" in wrong.stderr


def test_an_ask_cut_off_by_an_interrupt_is_not_complained_about():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        federation = so.simulate(np.eye(4), np.arange(4), clients=2)
        federation.ask("select.rows")
        assert [w.category for w in seen] == [UnsentAsk]
        stop = interrupted("interrupted")
        federation.ask("select.rows")
        assert len(seen) == 1
    assert stop.exit_code == 130
