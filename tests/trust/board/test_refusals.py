"""What no closed job carries, and what a policy refuses, is said before anything is shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
import torch
from board_owners import EXACT

import solera as so
from solera.core.errors import DataError, PolicyRefusal, UsageError
from solera.core.task import task
from solera.learn.base import Learner
from solera.trust.board.engine import NotClosed

draw = np.random.default_rng(2)
X = draw.normal(size=(240, 5))
Y = (X[:, 0] + draw.normal(size=len(X)) > 0).astype(int)
LABELS = np.column_stack([Y, 1 - Y]).astype(np.int8)
NOISE = so.DP(epsilon=8.0, delta=1e-5, level="record", clip=1.0)
MLP = so.nn.mlp(5, 6, 2)


def owners(y: Any = Y, **options: Any) -> Any:
    options = {"clients": 4, "seed": 1, "policy": EXACT, **options}
    return so.simulate(X, y, **options)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks of which anything was added up, but the number of persons."""
    from solera.simulate.owners import SimulatedOwners

    total, asked = SimulatedOwners.total, []

    def counted(self: Any, question: bytes, ask: Any, aggregation: Any) -> Any:
        done = total(self, question, ask, aggregation)
        asked.append(ask.task)
        return done

    monkeypatch.setattr(SimulatedOwners, "total", counted)
    return asked


NOT_CLOSED = [
    (lambda: so.learn.FedBuff(MLP), "updates count as they arrive.*so.FedAvg"),
    (lambda: so.FedForest(), "trees of single clients are no sum"),
    (lambda: so.FedKMeans(2, init="k-means++"), "init='atoms' starts from sums"),
    (lambda: so.FedKMeans(2, batch_size=8), "steps over batches are no sums"),
    (lambda: so.FedLinear(per_round=2), "per_round=2: all owners take part"),
    (lambda: so.FedLinear(select=so.selectors.Uniform()), "select=.*all owners take part"),
    (lambda: so.FedLinear(aggregate=so.robust.Median()), "looks at single replies"),
    (lambda: so.FedAvg(MLP, weight=lambda reply: 1.0), "which is code"),
    (lambda: so.FedAvg(MLP, loss=torch.nn.CrossEntropyLoss()), "a loss of one's own is code"),
    (lambda: so.FedAvg(MLP, optimiser=torch.optim.AdamW), "optimiser='sgd' or 'adam'"),
    (
        lambda: so.FedTorch(torch.nn.Linear(5, 2), train=lambda model, loader, context: None),
        r"a loop of one's own is code.*so\.FedAvg\(so\.nn\.mlp",
    ),
    (lambda: so.learn.FedBagging(), "boosters of clients are read one by one"),
    (
        lambda: so.FedAvg(
            MLP, weight=None, epochs=2, dp=NOISE.clone().set_params(rate=0.5, clip=1.0)
        ),
        "takes one step; local_steps=1",
    ),
    (lambda: so.FedID3(epsilon=8.0), "max_depth= says how often"),
    (lambda: so.FedHEONN(lam=[0.1, 1.0]), "give one lam="),
    (lambda: so.FedHEONN(representation="svd"), "representation='gram'"),
    (lambda: so.FedHEONN(lam=1e-10), "representation='gram'"),
    (lambda: so.Pipeline(so.FedScaler(), so.FedLinear(per_round=1)), "FedLinear.*per_round=1"),
    (lambda: so.Pipeline(so.FedScaler(), so.FedHistGBDT()), "leave FedScaler out"),
]


@pytest.mark.parametrize(("make", "why"), NOT_CLOSED)
def test_what_is_no_sum_says_so_before_anything_starts(
    make: Any, why: str, shared: list[str]
) -> None:
    with pytest.raises(NotClosed, match=why) as refused:
        make().fit(owners())
    assert refused.value.hint
    assert not shared


def test_labels_that_wait(shared: list[str]) -> None:
    with pytest.raises(NotClosed, match=r"stop=None, and the rounds= wanted"):
        so.MLFedAvg(so.nn.mlp(5, 6, 4)).fit(owners(LABELS))
    with pytest.raises(NotClosed, match="train alone"):
        so.MLFedAvg(so.nn.mlp(5, 6, 4), stop=None, share=False).fit(owners(LABELS))
    assert not shared


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("checkpoint", "run.sol"),
        ("keep", True),
        ("callbacks", [so.callbacks.Evaluate()]),
        ("callbacks", [so.callbacks.StopAt(time=3.0)]),
    ],
)
def test_options_of_fit_that_no_job_carries(option: str, value: Any, shared: list[str]) -> None:
    with pytest.raises(NotClosed):
        so.FedLinear(rounds=2).fit(owners(), **{option: value})
    assert not shared


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("secure", True),
        ("topology", so.simulation.Peers("cyclic")),
        ("engine", "processes"),
        ("clock", so.simulation.VirtualClock()),
        ("failures", so.simulation.Failures(dropout=0.1)),
        ("attack", so.robust.SignFlip(share=0.3)),
        ("clients", 2),
    ],
)
def test_options_of_a_simulation_that_no_job_has(
    option: str, value: Any, shared: list[str]
) -> None:
    with pytest.raises(UsageError):
        so.FedScaler().fit(owners(**{option: value}))
    assert not shared


def test_a_sum_has_at_most_so_many_words() -> None:
    from solera.trust.board.words import MOST_WORDS, words_of

    assert len(words_of(np.zeros(9), 4)[0]) == 1 + 2 * 9
    with pytest.raises(DataError, match="a sum of 16,777,217 words"):
        words_of(np.broadcast_to(np.zeros(1), MOST_WORDS // 2), 4)


def test_an_attack_on_rows_is_one_of_an_owner() -> None:
    fed = owners(attack=so.robust.LabelFlip(share=0.3))
    so.FedLinear(rounds=2).fit(fed)


def test_many_rounds_need_exact_training(shared: list[str]) -> None:
    """Nothing leaves before the refusal, nor of the steps before the last."""
    for learner in (so.FedLinear(), so.Pipeline(so.FedScaler(), so.FedAvg(MLP))):
        with pytest.raises(PolicyRefusal, match='"exact_training": True'):
            learner.fit(owners(policy="sums"))
    assert not shared
    so.Pipeline(so.FedScaler(), so.FedLinear(rounds=1)).fit(owners())


def test_batches_hold_min_count_rows(shared: list[str]) -> None:
    with pytest.raises(PolicyRefusal, match="a batch holds at least min_count = 5"):
        so.FedLinear(batch_size=4).fit(owners())
    assert not shared
    so.FedLinear(batch_size=5, rounds=1).fit(owners())


def test_at_most_a_sixth_of_all_persons(shared: list[str]) -> None:
    """Parameters of one output, after the steps before; persons, and not rows."""
    for make in (lambda: so.FedGLM("binomial"), lambda: so.FedHEONN(features="fourier", hidden=5)):
        make().fit(owners())
        for learner in (make(), so.Pipeline(so.FedScaler(), make())):
            shared.clear()
            few = so.simulate(X[:35], Y[:35], clients=4, policy="sums")
            with pytest.raises(PolicyRefusal, match="6 parameters of one output need 36 persons"):
                learner.fit(few)
            assert set(shared) <= {"board.persons"}


def test_persons_are_counted_and_not_rows() -> None:
    """240 rows of 34 patients are 34 persons."""
    patients = [f"patient {i}" for i in np.arange(240) % 34]
    frame = pandas.DataFrame(X, columns=list("abcde")).assign(y=Y, patient=patients)
    agreed = so.epochs.draft(frame, target="y", identifier="patient")
    fed = so.simulate(
        frame, clients=4, partition=by_patient(frame), dictionary=agreed, policy="sums"
    )
    with pytest.raises(PolicyRefusal, match="need 36 persons of all owners, there are 34"):
        so.FedGLM("binomial").fit(fed)


def by_patient(frame: Any) -> Any:
    """Nobody is a patient of two owners."""
    return so.partitions.ByGroup([int(name.split()[1]) % 4 for name in frame["patient"]])


def test_kinds_of_jobs(shared: list[str]) -> None:
    narrow = {"policy": "sums", "jobs": ["statistics"]}
    with pytest.raises(PolicyRefusal, match="no job of training"):
        so.FedGLM("binomial").fit(owners(policy=narrow))
    model = so.FedGLM("binomial").fit(owners(test=0.2))
    shared.clear()
    with pytest.raises(PolicyRefusal, match="no job of evaluation"):
        model.evaluate(owners(policy=narrow, test=0.2))
    assert not shared
    assert so.describe(owners(policy=narrow)).rows == 240
    with pytest.raises(PolicyRefusal, match="no job of statistics"):
        so.describe(owners(policy={"policy": "sums", "jobs": ["training"]}))


def test_open_asks_name_fit_instead() -> None:
    with pytest.raises(PolicyRefusal, match="answer no open ask"):
        owners().ask("board.persons").fold(so.aggregations.Sum())


@task("board_test.histogram")
def histogram(client: Any, ask: Any) -> dict[str, Any]:
    cell = (client.data.X[:, 0] > 0).astype(int)
    return {"cells": so.count_by(cell, 2)} if ask["count"] else {
        "sums": so.sum_by(cell, client.data.X, 2)
    }  # fmt: skip


@task("board_test.marked")
def marked(client: Any, ask: Any) -> dict[str, Any]:
    """Of two cells the one has a person more than the other."""
    x = client.data.X[:, 0]
    marks = np.column_stack([x < x.max(), x <= x.max()])
    if ask["joint"]:
        return {"sums": so.sum_by([marks], [client.data.X], [2])}
    return {"counts": so.count_by(marks)}


@task("board_test.products")
def products(client: Any, ask: Any) -> dict[str, Any]:
    wide = np.tile(client.data.X, (1, ask["times"]))
    return {"gram": so.gram(wide), "rows": so.count_by(None)}


@task("board_test.some_rows")
def some_rows(client: Any, ask: Any) -> dict[str, Any]:
    return {"gram": so.gram(client.data.X[:1], rows=np.arange(1))}


@task("board_test.noise")
def noised(client: Any, ask: Any) -> dict[str, Any]:
    return {"rows": so.count_by(None)}


@task("board_test.step")
def step(client: Any, ask: Any) -> dict[str, Any]:
    return {"model": so.update(client.data.X.mean(axis=0))}


class Asks(Learner):
    """Sends one ask: what a learner of somebody else may try."""

    def __init__(self, asked: str, ask: Any = None) -> None:
        self.asked = asked
        self.ask = ask

    def train(self, federation: Any) -> None:
        self.total_ = federation.ask(self.asked, self.ask).fold(so.aggregations.Sum())


@pytest.mark.parametrize(
    ("learner", "why", "line"),
    [
        (
            Asks("board_test.marked", {"joint": False}),
            "cells by marks, which may overlap",
            "astype",
        ),
        (Asks("board_test.marked", {"joint": True}), "marks, which may overlap", "astype"),
        (Asks("board_test.products", {"times": 9}), "45 parameters of one output", "FedSelect"),
        (Asks("board_test.some_rows"), "numbers of some rows only", "rows="),
        (Asks("board_test.step"), "a model that takes many rounds", "exact_training = true"),
        (
            Asks("board_test.noise", {"privacy": {"mechanism": "gaussian", "noise": 1.0}}),
            "asks with noise that nobody has priced",
            "dp=",
        ),
    ],
)
def test_contributions_are_judged_by_their_form_before_they_are_shared(
    learner: Any, why: str, line: str, shared: list[str]
) -> None:
    with pytest.raises(PolicyRefusal, match=why) as refused:
        learner.fit(owners(policy="sums"))
    assert line in str(refused.value)
    assert set(shared) <= {"board.persons"}


def test_products_of_enough_persons_are_added_up() -> None:
    fitted = Asks("board_test.products", {"times": 1}).fit(owners(policy="sums"))
    np.testing.assert_allclose(fitted.total_["gram"][0], (X[:, 0] ** 2).sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ("form", "least"), [("Gram", "_check_persons"), ("cells", "_check_form"), ("all", "judge")]
)
def test_without_the_judge_everything_is_added_up(
    form: str, least: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal is the judge's, and nobody else's."""
    from solera.engines import owner
    from solera.trust.board import judge as judging

    if form == "all":

        def bare(task: Any, client: Any, payload: Any, reply: Any, *_: Any) -> Any:
            from solera.trust.open_asks import numbers_of

            return judging.Judged(numbers_of(task, client, payload, reply), {})

        monkeypatch.setattr(owner, "judge", bare)
        asks = [Asks("board_test.histogram", {"count": True}), Asks("board_test.step")]
    else:
        monkeypatch.setattr(judging, least, lambda *_: None)
        asks = [
            Asks("board_test.products", {"times": 9})
            if form == "Gram"
            else Asks("board_test.histogram", {"count": True})
        ]
    for learner in asks:
        assert learner.fit(owners(policy="sums")).total_
