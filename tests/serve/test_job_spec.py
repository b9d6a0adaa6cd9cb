"""A job file says what a coordinator shall run; what is wrong in it is named with its line."""

from __future__ import annotations

import pytest

import solera as so
from solera.core.errors import UsageError
from solera.serve.job_spec import parse_job

LEARNER = '\n[learner]\nkind = "FedHEONN"\nlam = 0.5\n'
HEAD = 'name = "risk"\nfederation = "cardio"\n'


def test_a_job_file_is_read():
    spec = parse_job(HEAD + 'seed = 3\ndeadline = 5\nevaluate = "test"\nstanding = true' + LEARNER)
    assert (spec.name, spec.federation, spec.seed, spec.deadline) == ("risk", "cardio", 3, 5)
    assert (spec.standing, spec.evaluate, spec.clients, spec.owner) == (True, "test", 1, "")
    assert spec.learner.lam == 0.5
    assert parse_job(f'federation = "cardio"{LEARNER}', name="file").name == "file"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sede = 3", "job:3: a job has no 'sede' (did you mean 'seed'?)"),
        ("seed = -1", "job:3: a job: seed = -1 is not a whole number of at least 0"),
        ('seed = "x"', "job:3: a job: seed = 'x' is not a whole number of at least 0"),
        ("clients = 0", "job:3: a job: clients = 0 is not a whole number of at least 1"),
        ("clients = true", "job:3: a job: clients = True is not a whole number of at least 1"),
        ("deadline = nan", "job:3: a job: deadline = nan is not a number of at least 0"),
        ('evaluate = "all"', "job:3: a job: evaluate = 'all' is not '', 'train' or 'test'"),
        ("standing = 1", "job:3: a job: standing = 1 is not true or false"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(line, said):
    with pytest.raises(UsageError) as error:
        parse_job(HEAD + line + LEARNER)
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LEARNER, "a job needs federation"),
        (f'federation = "a/b"{LEARNER}', "'a/b' is not a name"),
        (f'federation = "a\\n"{LEARNER}', "is not a name"),
        (HEAD, "a job needs learner"),
        (f"{HEAD}learner = 3", "learner = 3 is not a table"),
        (f"{HEAD}standing = true\n[learner]\nkind = 'FedLinear'", "FedLinear cannot stand"),
        ("x =", "this is not TOML"),
    ],
)
def test_a_file_that_lacks_something_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        parse_job(text, name="job")


@pytest.mark.parametrize(
    ("lines", "kind", "asked"),
    [
        ('evaluate = "test"\nscores = true', "FedLinear", True),
        ('evaluate = "test"', "FedLinear", False),
        ("scores = true", "FedLinear", False),  # nobody judges the model
        ('evaluate = "test"\nscores = true', "FedKMeans", False),  # it predicts no target
        ('evaluate = "test"\nscores = true', "SplitNN", False),  # its label owner counts no scores
    ],
)
def test_scores_are_counted_where_a_model_is_judged_that_gives_them(lines, kind, asked):
    spec = parse_job(HEAD + lines + f'\n[learner]\nkind = "{kind}"\n')
    assert spec.counts_scores == asked


def test_a_grid_is_lists_or_several_learners():
    lists = '[learner]\nkind = "FedLinear"\nlr = [0.1, 0.2]\nrounds = { from = 1, to = 2 }\n'
    one = '[[learner]]\nkind = "FedGLM"\n'
    points = parse_job(HEAD + lists.replace("[learner]", "[[learner]]") + one).grid
    assert [(p.lr, p.rounds) for p in points[:4]] == [(0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2)]
    assert points[4:] == (so.FedGLM(),)
    assert parse_job(HEAD + lists).grid == points[:4]
    assert parse_job(HEAD + one).grid == ()
    layers = '[learner]\nkind = "FedAvg"\n[learner.model]\nkind = "MLP"\nsizes = [4, 5, 2]\n'
    assert parse_job(HEAD + layers).grid == (), "a list where one is wanted is no grid"


@pytest.mark.parametrize(
    ("learner", "says"),
    [
        ('[[learner]]\nkind = "FedGLM"\n[[learner]]\nkind = "FedScaler"', "predicts nothing"),
        ('[learner]\nkind = "FedLinear"\nlr = []', "grid without points"),
        ('[learner]\nkind = "FedLinear"\nlr = { from = 1e-4, to = 1 }', "makes no grid"),
        ('[[learner]]\nkind = "FedLinear"\n[[learner]]\nlr = 0.1', "has no kind"),
    ],
)
def test_what_makes_no_grid_is_refused_with_its_line(learner, says):
    with pytest.raises(UsageError, match=says) as refused:
        parse_job(HEAD + learner, name="job", file="job.toml")
    assert str(refused.value).startswith("job.toml:")


def test_who_trusts_the_coordinator_runs_one_learner_a_job():
    text = HEAD + '[learner]\nkind = "FedLinear"\nlr = [0.1, 0.2]\n'
    with pytest.raises(UsageError, match="one learner a job, this file has 2"):
        parse_job(text).describe(text)
