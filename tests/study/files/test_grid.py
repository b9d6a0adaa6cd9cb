"""Study files: what they multiply to, and what they say when something is wrong."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solera.core.errors import UsageError
from solera.core.grids import span
from solera.green.energy import EnergyOptions
from solera.learn.heonn.learner import FedHEONN
from solera.learn.linear import FedLinear
from solera.learn.preprocess.pipeline import Pipeline
from solera.study.files.reader import Study, parse, read
from solera.study.files.tables import BudgetSpec, SearchSpec

BASE = """\
seeds = [0, 1]
[data]
name = "wine"
clients = 4
[learner]
kind = "FedLinear"
rounds = 3
"""


def study_of(text: str) -> Study:
    return parse(text, file="study.toml", name="study")


def test_a_run_is_a_study_of_one_variant() -> None:
    assert study_of(BASE).is_run
    assert len(study_of(BASE).variants()) == 1
    several = ('schemes = ["alone", "federated"]', "folds = 2")
    assert not any(study_of(f"{line}\n{BASE}").is_run for line in several)
    assert not study_of(BASE + "lr = [0.1, 0.2]\n").is_run


def test_a_whole_file() -> None:
    study = study_of(
        """\
name = "all"
seeds = { from = 3, to = 5 }
schemes = ["alone", "centralised"]
metrics = ["macro_f1", "accuracy"]
folds = 5
[data]
name = ["wine", "digits"]
clients = [2, 4]
[[partition]]
kind = "IID"
[[partition]]
kind = "Dirichlet"
alpha = [0.1, 1.0, 10.0]
[[learner]]
kind = "FedLinear"
lr = { from = 1e-4, to = 1e-2, steps = 3, scale = "log" }
rounds = { from = 10, to = 20, step = 5 }
[[learner]]
kind = "Pipeline"
steps = [{ kind = "FedScaler" }, { kind = "FedHEONN", lam = { values = [0.1, [0.1, 1.0]] } }]
[search]
kind = "random"
draws = 7
[budget]
cells = 50
wh = 5
"""
    )
    assert (study.name, study.seeds, study.folds) == ("all", (3, 4, 5), 5)
    assert study.schemes == ("alone", "centralised")
    assert study.metrics == ("macro_f1", "accuracy")
    assert study.search == SearchSpec("random", 7)
    assert study.budget == BudgetSpec(cells=50, wh=5)
    assert study.energy == EnergyOptions()
    points = study.variants()
    assert len(points) == (2 * 2) * (1 + 3) * (3 * 3 + 2)
    assert len({repr((p.data, p.partition, p.learner)) for p in points}) == len(points)
    first, last = points[0], points[-1]
    assert first.learner == FedLinear(rounds=10, lr=1e-4)
    assert first.params == {"data.clients": 2, "learner.lr": 1e-4, "learner.rounds": 10}
    assert isinstance(last.learner, Pipeline)
    assert last.learner.steps[1] == FedHEONN(lam=[0.1, 1.0])
    assert last.data.name == "digits"
    assert {p.params["learner.lr"] for p in points[:9]} == {1e-4, 1e-3, 1e-2}


def test_lists_where_one_value_is_wanted() -> None:
    both = BASE.replace('"FedLinear"\nrounds = 3', '["FedLinear", "FedHEONN"]')
    kinds = study_of(both)
    assert [type(p.learner) for p in kinds.variants()] == [FedLinear, FedHEONN]
    select = 'select = [{ kind = "Uniform" }]\nper_round = [1, 2]\n'
    study = study_of(BASE + select)
    assert [p.params["learner.per_round"] for p in study.variants()] == [1, 2]
    assert study.variants()[0].params["learner.select"] == "Uniform()"


def test_a_list_that_a_parameter_takes_is_one_value() -> None:
    text = BASE.replace('kind = "FedLinear"\nrounds = 3', 'kind = "FedHEONN"\nlam = [0.1, 1.0]')
    (variant,) = study_of(text).variants()
    assert variant.learner == FedHEONN(lam=[0.1, 1.0])


def test_read_names_the_study_after_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(BASE + "lr = [0.1, 0.2]\n")
    assert read(tmp_path / "mine.toml").name == "mine"


WRONG = [
    # added at the top, added to the learner, line, message, hint
    ('schemes = ["federatd"]', "", 1, "no 'federatd'", "'federated'"),
    ('metrics = ["acuracy"]', "", 1, "no 'acuracy'", "'accuracy'"),
    ("schemes = []", "", 1, "at least one", ""),
    ('schemes = ["alone", "alone"]', "", 1, "each once", ""),
    ("folds = 1", "", 1, "folds = 1", ""),
    ('folds = "two"', "", 1, "not a whole number", ""),
    ("shemes = [1]", "lr = [0.1, 0.2]", 1, "'shemes'", "'schemes'"),
    ("", "lr = []", 8, "a grid without points", ""),
    ("", "lr = [0.1, 'x']", 8, "lr = 'x' is not a number", ""),
    ("", "lrr = [0.1, 0.2]", 8, "FedLinear has no 'lrr'", "'lr'"),
    ("", "lr = { values = [] }", 8, "something in it", ""),
    ("", "lr = { values = [1.0], to = 2 }", 8, "no list of values", "values"),
    ("", "lr = { from = 1, to = 0.1, steps = 3 }", 8, "from nowhere", "below"),
    ("", 'lr = { from = 0, to = 1, steps = 3, scale = "log" }', 8, "no place", ""),
    ("", "lr = { from = 0.1, to = 1 }", 8, "makes no grid", "random"),
    ("", "lr = { from = 0.1, to = 1, steps = 1 }", 8, "at least 2", ""),
    ("", "lr = { from = 0.1, to = 1, step = 0 }", 8, "must be > 0", ""),
    ("", "lr = { form = 0.1, to = 1 }", 8, "no list of values", ""),
    ("", "epochs = { from = 1, to = 3000 }\nbatch_size = { from = 1, to = 999 }", 1, "points", ""),
    ("", "[search]\nkind = 'bayes'", 9, "'bayes' is not 'grid', 'random' or", ""),
    ("", "[search]\nkind = 'random'", 8, "number of draws", "draws"),
    ("", "[search]\nkind = 'halving'", 8, "validation rows", "folds"),
    ("", "[search]\nfactor = 1", 9, "of at least 2", ""),
    ("folds = 2", "[search]\nkind = 'halving'\nresource = 'lr'", 11, "whole number 'lr'", "seeds"),
    ("", "[budget]\nwatts = 3", 9, "'watts'", ""),
    ("", "[budget]\nwh = 0", 9, "> 0", ""),
    ("", "[energy]\nsource = 'guess'", 9, "'guess' is not 'auto'", ""),
]  # fmt: skip


@pytest.mark.parametrize(("top", "end", "line", "message", "hint"), WRONG)
def test_errors_name_line_key_and_the_way_out(
    top: str, end: str, line: int, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse((f"{top}\n" if top else "") + BASE + end, file="study.toml", name="study")
    assert message in caught.value.message
    assert caught.value.message.startswith(f"study.toml:{line}: ")
    assert hint in (caught.value.hint or "")


def test_errors_inside_arrays_of_tables() -> None:
    text = BASE.replace("[learner]", "[[learner]]") + '[[learner]]\nkind = "FedHEON"\n'
    with pytest.raises(UsageError, match=r"study.toml:9: there is no learner 'FedHEON'.*FedHEONN"):
        parse(text, file="study.toml", name="study")
    with pytest.raises(UsageError, match=r"study.toml:1: .*needs data.*add \[data\]"):
        parse("folds = 2\n[learner]\nkind = 'FedLinear'\n", file="study.toml", name="study")


@given(
    low=st.integers(-100, 100),
    width=st.integers(1, 200),
    step=st.integers(1, 50),
)
def test_steps_reach_from_one_end_to_the_other(low: int, width: int, step: int) -> None:
    values = span({"from": low, "to": low + width, "step": step}, ("x",), whole=True)
    assert values == tuple(range(low, low + width + 1, step))


@given(steps=st.integers(2, 40), low=st.floats(1e-6, 1.0), factor=st.floats(1.5, 1e6))
def test_log_ranges_grow_by_one_factor(steps: int, low: float, factor: float) -> None:
    table = {"from": low, "to": low * factor, "steps": steps, "scale": "log"}
    values = span(table, ("x",), whole=False)
    assert isinstance(values, tuple)
    assert len(values) == steps
    assert values[0] == pytest.approx(low)
    assert values[-1] == pytest.approx(low * factor)
    ratios = [b / a for a, b in pairwise(values)]
    assert ratios == pytest.approx([factor ** (1 / (steps - 1))] * (steps - 1), rel=1e-6)
