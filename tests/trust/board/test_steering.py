"""A stated limit, with its figures: an owner that lies steers what is asked next, and reads rows.

Sums of a job of several rounds follow each other. An owner that posts false numbers chooses the
model of the next round, and with it of which rows the others' sums are. Nothing here prevents it:
owners are trusted to answer truthfully (sentence 3 of what an owner reads), and only noise helps.
"""

from __future__ import annotations

import json
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from board_owners import EXACT

import solera as so
from solera.core.errors import SoleraError
from solera.engines.owner import OwnerWorker
from solera.trust.board.sums import SUPPORTS, TERMS
from solera.trust.board.words import numbers_of, words_of
from solera.trust.members import packed, symmetric

draw = np.random.default_rng(7)
ROWS, COLUMNS = 75, 9
X = draw.normal(size=(4 * ROWS, COLUMNS))
Y = (X[:, 0] + draw.normal(size=len(X)) > 0).astype(int)
PARTS = [(X[i : i + ROWS], Y[i : i + ROWS]) for i in range(0, len(X), ROWS)]
OTHERS = X[: 3 * ROWS]
"""What the fourth owner, which lies, should know sums of only."""
HUGE = 1e9


class Liar:
    """The fourth owner: posts what it likes, and sees the total of the others."""

    truthful = False

    def __init__(self, worker: OwnerWorker) -> None:
        self.worker = worker
        self.read: list[Any] = []
        self.sums = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    def answer(self, question: bytes, ask: Any, aggregation: Any, **more: Any) -> Any:
        answer = self.worker.answer(question, ask, aggregation, **more)
        if ask.task not in ("glm.step", "averaging.train"):
            return answer
        if self.truthful or not self.sums:
            self.truth = answer.first()[0][TERMS]
        lie = self.lie(ask.payload, self.truth)
        answer.first = lambda: ({TERMS: lie}, b"")
        answer.conclude = lambda _: self.see(ask.payload, self.others(lie))
        self.sums += 1
        return answer

    def others(self, lie: Any) -> Any:
        """What the others added, exactly: the words of the total without the own."""
        words, form = seen[-1]
        rest = words - words_of({TERMS: lie}, len(PARTS))[0]
        wide = json.loads(json.dumps(form).replace("float32", "float64"))
        return numbers_of(rest, wide, len(PARTS))[TERMS]

    def lie(self, payload: Any, truth: Any) -> Any:
        raise NotImplementedError

    def see(self, payload: Any, others: Any) -> None:
        raise NotImplementedError


seen: list[Any] = []


@pytest.fixture(autouse=True)
def words_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every owner reads the words of every total."""
    seen.clear()

    def read(words: Any, form: Any, owners: int) -> Any:
        seen.append((words.copy(), form))
        return numbers_of(words, form, owners)

    monkeypatch.setattr(import_module("solera.simulate.owners"), "numbers_of", read)


def steered(learner: Any, liar: type[Liar]) -> Liar:
    fed = so.simulate(PARTS, seed=1, policy=EXACT)
    owners = fed.closed_job(type(learner).__name__).engine.exchange.workers
    owners[3] = liar(owners[3])
    with suppress(SoleraError):  # such steps of a GLM are those of a fit that separates
        learner.fit(fed, progress=False)
    return owners[3]  # type: ignore[no-any-return]


def recovered(read: list[Any]) -> int:
    """How many rows of the others are among what was read."""
    found = set()
    for row in read:
        apart = np.abs(OTHERS - row).max(axis=1)
        if apart.min() < 0.01:
            found.add(int(apart.argmin()))
    return len(found)


class OfGLM(Liar):
    """Chooses β so that one row of the others outweighs all: w = μ (1 − μ) ≈ exp(s (dᵀx − t)).

    A gram c·I and a moment c (β* − β) with a huge c make β* the next coefficients: the row farthest
    along a direction d is read where the cut t, a guess, is little beyond it.
    """

    steepness = 40.0

    def __init__(self, worker: OwnerWorker) -> None:
        super().__init__(worker)
        self.draw = np.random.default_rng(0)
        self._turn()

    def _turn(self) -> None:
        direction = self.draw.normal(size=COLUMNS)
        self.direction = direction / np.linalg.norm(direction)
        self.cut = 3.1

    @property
    def wanted(self) -> Any:
        return self.steepness * np.concatenate([[-self.cut], self.direction])

    def lie(self, payload: Any, truth: Any) -> Any:
        width = COLUMNS + 1
        moment = HUGE * (self.wanted - payload["coef"])
        return {**truth, "gram": packed(HUGE * np.eye(width)), "moment": moment[:, None]}

    def see(self, payload: Any, others: Any) -> None:
        gram = symmetric(others["gram"])
        weight = gram[0, 0]
        if not payload["start"] and weight > 1e-13:
            self.read.append(gram[0, 1:] / weight)
        self._turn()


class OfFedAvg(Liar):
    """Chooses a first layer of equal directions and rising thresholds (Fowl et al. 2022).

    The gradient of a unit is a sum over the rows beyond its threshold; neighbours differ by the
    rows between, often one: Δ ∂L/∂W over Δ ∂L/∂b is the row.
    """

    hidden = 32

    def __init__(self, worker: OwnerWorker) -> None:
        super().__init__(worker)
        self.draw = np.random.default_rng(0)

    def lie(self, payload: Any, truth: Any) -> Any:
        direction = self.draw.normal(size=COLUMNS)
        self.trap = self._weights(direction / np.linalg.norm(direction))
        change = HUGE * (self.trap - payload["weights"])
        return {**truth, "weight": HUGE, "sums": {**truth["sums"], "update": change}}

    def _weights(self, direction: Any) -> Any:
        cuts = np.linspace(-2.5, 2.5, self.hidden)
        first = np.tile(direction, (self.hidden, 1))
        second = np.stack([np.full(self.hidden, 0.01), np.full(self.hidden, -0.01)])
        parts = [first.ravel(), -cuts, second.ravel(), np.zeros(2)]
        return np.concatenate(parts).astype(np.float32)

    def see(self, payload: Any, others: Any) -> None:
        if self.sums < 2:
            return  # the model was not chosen yet
        gradient = others["sums"]["update"]
        first = gradient[: self.hidden * COLUMNS].reshape(self.hidden, COLUMNS)
        bias = gradient[self.hidden * COLUMNS :][: self.hidden]
        within, beside = -np.diff(first, axis=0), -np.diff(bias)
        some = np.abs(beside) > 1e-6
        self.read += list(within[some] / beside[some, None])


class OfKMeans(Liar):
    """Chooses how all rows are halved, and says that every half holds many persons.

    A huge number of rows at t along one column makes that the column and t the cut, up to the next
    edge of an atom. A half with one row of the others tells it.
    """

    def __init__(self, worker: OwnerWorker) -> None:
        super().__init__(worker)
        self.draw = np.random.default_rng(0)

    def answer(self, question: bytes, ask: Any, aggregation: Any, **more: Any) -> Any:
        answer = self.worker.answer(question, ask, aggregation, **more)
        if ask.task != "kmeans.halves":
            return answer
        first, told = answer.first, answer.told
        self.sums += 1

        def supports() -> Any:
            entries, state = first()
            more = 0 if self.truthful else HUGE
            return {SUPPORTS: {"halves": entries[SUPPORTS]["halves"] + more}}, state

        def lie(supports: Any) -> Any:
            self.posted, state = told(supports)
            halves = self.posted[TERMS]["halves"]
            for half in () if self.truthful else halves.reshape(-1, halves.shape[-1]):
                column, cut = self.draw.integers(COLUMNS), 0.9 * self.draw.normal()
                half[0] += HUGE
                half[1 + column] += HUGE * cut
                half[1 + COLUMNS + column] += HUGE * (cut**2 + 1)
            return self.posted, state

        def read(_: Any) -> None:
            words, form = seen[-1]
            rest = words - words_of(self.posted, len(PARTS))[0]
            halves = numbers_of(rest, form, len(PARTS))[TERMS]["halves"].reshape(
                -1, 1 + 2 * COLUMNS
            )
            alone = halves[np.abs(halves[:, 0] - 1) < 0.5]
            self.read += list(alone[:, 1 : 1 + COLUMNS] + ask.payload["centre"])

        answer.first, answer.told, answer.conclude = supports, lie, read
        return answer


def test_an_owner_that_lies_reads_rows_through_k_means() -> None:
    """17 of the others' 225 rows in 7 chosen sums: the levels of a tree with 96 groups."""
    liar = steered(so.FedKMeans(3, init="atoms"), OfKMeans)
    assert liar.sums == 7
    assert recovered(liar.read) == 17


def test_an_owner_that_lies_reads_rows_through_a_glm() -> None:
    """8 of the others' 225 rows in 12 chosen sums: then the fit ends as one that separates."""
    liar = steered(so.FedGLM("binomial", rounds=50), OfGLM)
    assert liar.sums == 13
    assert recovered(liar.read) == 8


def test_an_owner_that_lies_reads_rows_through_fedavg() -> None:
    """46 of the others' 225 rows in 19 chosen sums of a network of 32 hidden units."""
    learner = so.FedAvg(so.nn.mlp(COLUMNS, 32, 2), rounds=20, batch_size=None, lr=1.0)
    liar = steered(learner, OfFedAvg)
    assert liar.sums == 20
    assert recovered(liar.read) == pytest.approx(46, abs=2)


@pytest.mark.parametrize("liar", [OfGLM, OfFedAvg, OfKMeans])
def test_who_tells_the_truth_reads_no_row(
    liar: type[Liar], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same reading of sums that were not steered finds nothing."""
    monkeypatch.setattr(liar, "truthful", True)
    monkeypatch.setattr(liar, "lie", lambda self, payload, truth: truth)
    learner = so.FedGLM("binomial")
    if liar is OfFedAvg:
        learner = so.FedAvg(so.nn.mlp(COLUMNS, 32, 2), rounds=5, batch_size=None)
    if liar is OfKMeans:
        learner = so.FedKMeans(3, init="atoms")
    honest = steered(learner, liar)
    assert recovered(honest.read) == 0
