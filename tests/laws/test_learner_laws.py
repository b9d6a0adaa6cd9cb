"""Every registered learner on every engine: same result, exact resume, save, clone, bad input."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import sklearn.base
from cases import (
    ENGINES,
    NOT_SUMS,
    averaging_module,
    federation,
    federation_over,
    learner_cases,
    rows,
    small_transformer,
)

import solera as so
from solera.core.clients import ClientGroup, Draws
from solera.core.component import describe_fitted
from solera.core.errors import DataError, NotFitted, SoleraError, UsageError
from solera.core.payload import encode, encoded_size
from solera.core.task import find_task, installed_tasks
from solera.engines.local import LocalEngine
from solera.learn.averaging.lora import base_name
from solera.learn.averaging.models import described
from solera.trust.joined import run_on_joined_rows
from solera.trust.open_asks import numbers_of

CASES = {name: (make, target) for name, make, target in learner_cases()}
SECURE = list(
    {
        **{name.partition("-")[0]: name for name in reversed(CASES)},
        "FedKMeans": "FedKMeans-random-classes",  # others begin with rows of clients
        "FedHEONN": "FedHEONN-ensemble-labels",
    }.values()
)
"""An example of every learner, to be folded in secret."""


class Case:
    """A learner and the kind of target it is tested on."""

    def __init__(self, make, target, engines):
        self.make, self.target = make, target
        self._engines, self._fitted = engines, {}

    def fit(self, engine="local", learner=None, **options):
        """A new learner, or the one given, after a fit."""
        learner = learner or self.make()
        key = engine, self.target
        if key not in self._engines:
            self._engines[key] = ENGINES[engine](rows(self.target))
        return learner.fit(federation_over(self._engines[key], learner), **options)

    def fitted(self, engine="local"):
        """What the laws compare with, the same object for all of them: not to be changed."""
        if engine not in self._fitted:
            self._fitted[engine] = self.fit(engine)
        return self._fitted[engine]


@pytest.fixture(scope="module")
def engines():
    """By name and target, for one fit after the other: worker processes are slow to start."""
    base_name(small_transformer())
    described(averaging_module().model)  # workers know the networks that were there before them
    found = {}
    yield found
    for engine in found.values():
        engine.close()


@pytest.fixture(scope="module", params=CASES)
def case(request, engines):
    return Case(*CASES[request.param], engines)


def learned(model):
    return encode([describe_fitted(model), kept(model)])


def kept(model):
    """What clients keep of their own models."""
    return None if model._client_parts is None else model._client_parts.to_payload()["parts"]


def rows_model(model):
    """What answers rows: where every client has its own model, the first of these."""
    return model.at(min(model._client_parts.parts)) if model.is_personal else model


def outcome(model, X):
    model = rows_model(model)
    result = model.transform(X) if isinstance(model, so.learn.Transformer) else model.predict(X)
    return np.asarray(result, dtype=float)


def numbers(state):
    """All numbers of a state, in order."""
    if isinstance(state, dict):
        return np.concatenate([numbers(v) for _, v in sorted(state.items())] or [np.empty(0)])
    if isinstance(state, list | tuple):
        return np.concatenate([numbers(v) for v in state] or [np.empty(0)])
    if isinstance(state, str | bytes) or state is None:
        return np.empty(0)
    array = np.asarray(state)
    return np.ravel(array).astype(float) if array.dtype.kind in "biuf" else np.empty(0)


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "local"])
def test_engines_agree(case, engine):
    here, there = case.fitted(), case.fitted(engine)
    a, b = (numbers([model.get_state(), kept(model)]) for model in (here, there))
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", SECURE, indirect=True)
def test_secure_sums_give_the_same_model(case):
    """To the precision of fixed point; what does not add up is an error that says so."""
    learner = case.make()
    engine = ENGINES["local"](rows(case.target))
    fed = so.Federation(engine, seed=11, secure=True)
    if isinstance(learner, NOT_SUMS):
        with pytest.raises(UsageError, match=r"no sum|PeerToPeer needs"):
            learner.fit(fed)
        return
    model = learner.fit(fed)
    found = numbers(model.get_state())
    np.testing.assert_allclose(found, numbers(case.fitted().get_state()), rtol=1e-8, atol=1e-10)
    asked = [record.task for record in fed.meter.records]
    assert sum(not find_task(name).alone for name in asked) == asked.count("secure.keys")


def test_worker_count_changes_no_bit(case):
    assert learned(case.fitted("processes-1")) == learned(case.fitted("processes-3"))


def test_save_and_load(case, tmp_path):
    model = case.fitted()
    model.save(tmp_path / "model.sol")
    back = so.load(tmp_path / "model.sol")
    assert learned(back) == learned(model)
    X = rows(case.target).X
    assert np.array_equal(outcome(back, X), outcome(model, X), equal_nan=True)
    back.save(tmp_path / "again.sol")
    assert (tmp_path / "again.sol").read_bytes() == (tmp_path / "model.sol").read_bytes()


def test_clone_learns_the_same_from_scratch(case):
    model = case.fitted()
    copy = model.clone()
    for each in (copy, sklearn.base.clone(model)):
        assert each == model
        assert not any(name.endswith("_") for name in vars(each))
    assert learned(case.fit(learner=copy)) == learned(model)


def test_same_seed_same_bytes_and_fitting_again_forgets(case):
    model = case.fit()
    assert learned(model) == learned(case.fitted())
    assert learned(case.fit(learner=model)) == learned(case.fitted())


@pytest.mark.parametrize("engine", ["local", "processes-1"])
def test_a_fit_starts_fresh(case, engine):
    """On a federation that nobody fitted anything to before, and on one that others were."""
    source = ENGINES[engine](rows(case.target))
    try:
        first, second = (case.make().fit(federation_over(source, case.make())) for _ in range(2))
    finally:
        source.close()
    assert learned(first) == learned(second) == learned(case.fitted(engine))


class Interrupt(so.callbacks.Callback):
    def __init__(self, at):
        self.at = at

    def on_round(self, learner, round):
        if round.index == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("engine", ["local", "processes-3"])
def test_interrupted_and_resumed_is_the_same(case, engine, tmp_path):
    """After every round; in processes, which know of no rounds, in the middle."""
    plain = case.fitted(engine)
    rounds = range(len(plain.history_))
    if engine != "local":
        rounds = rounds[(len(rounds) - 1) // 2 :][:1]
    for at in rounds:
        file = tmp_path / f"{at}.checkpoint"
        with pytest.raises(KeyboardInterrupt):
            case.fit(engine, checkpoint=file, callbacks=[Interrupt(at)])
        resumed = case.fit(engine, checkpoint=file)
        assert learned(resumed) == learned(plain)
        assert resumed.history_ == plain.history_


def test_constructor_stores_its_arguments(case):
    model = case.make()
    cls = type(model)
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    assert all(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters[1:])
    for name, value in model.get_params(deep=False).items():
        assert getattr(model, cls.stored_as.get(name, name)) is value
    assert repr(model).startswith(cls.__name__ + "(")


def test_bad_input_is_a_named_error(case):
    model = case.make()
    X = rows(case.target).X
    with pytest.raises(NotFitted, match="fit"):
        outcome(model, X)
    with pytest.raises(NotFitted):
        model.save("nowhere.sol")
    with pytest.raises(UsageError, match="federation"):
        model.fit(X)
    model = case.fitted()
    with pytest.raises(DataError, match=r"columns"):
        outcome(model, X[:, :3])
    with pytest.raises(DataError, match=r"dimension"):
        outcome(model, X[0])


@pytest.mark.parametrize("engine", ["local", "local-undeclared"])
def test_missing_values_are_learned_from_or_named(case, engine):
    data = rows(case.target)
    data.X[:8, 1] = np.nan
    model = case.make()
    with federation(engine, data, model) as fed:
        last = model.steps[-1] if isinstance(model, so.Pipeline) else model
        if last.allows_missing:
            model.fit(fed)
            return
        with pytest.raises(SoleraError, match=r"client 0 .*x1"):
            model.fit(fed)


def test_one_class_and_tiny_clients_do_no_harm(case):
    data = rows(case.target)
    if case.target == "classes":
        first, second = data.offsets[:2]
        data.y[first:second] = 0
    data = so.data.FederatedData(data.X, data.y, np.array([0, 60, 61, 160]), schema=data.schema)
    with federation("local", data, case.make()) as fed:
        model = case.make().fit(fed)
    assert np.isfinite(numbers(model.get_state())).all()


# --- tasks: every ask that any learner sends is answered the same one by one and together ---


class Recording(LocalEngine):
    def __init__(self, source):
        super().__init__(source)
        self.asks = []

    def run(self, ask, aggregation):
        self.asks.append(ask)
        return super().run(ask, aggregation)


def recorded_asks():
    for make, target in CASES.values():
        engine = Recording(rows(target))
        topology = so.simulation.Peers("parallel") if isinstance(make(), so.PeerToPeer) else None
        fed = so.Federation(engine, seed=11, topology=topology)
        model = make().fit(fed)
        if isinstance(model, so.learn.Predictor):
            model.evaluate(fed, scores=target == "classes" and isinstance(model, so.FedLinear))
        yield from ((engine, ask) for ask in engine.asks)


def test_many_equals_one_by_one():
    checked = set()
    kept = {}
    for engine, ask in recorded_asks():
        task = find_task(ask.task)
        if task.many is None or not engine._runner._at_once(task, ask):
            continue
        many = run_on_joined_rows(task) if task.many is True else task.many
        checked.add(task.name)
        source = engine._runner._source_for(ask)
        draws = Draws(ask.seed, ask.task, ask.round)
        ids = np.arange(engine.clients)
        fresh = tuple([{} for _ in ids] for _ in range(2))
        joint, single = kept.setdefault(engine, fresh)  # what clients keep from ask to ask
        together = many(ClientGroup(ids, source, draws, joint), ask.payload)
        for client, reply in zip(ClientGroup(ids, source, draws, single), together,
                                 strict=True):  # fmt: skip
            alone = numbers_of(task, client, ask.payload, task.one(client, ask.payload))
            assert reply.keys() == alone.keys()
            assert encoded_size(reply) == encoded_size(alone)
            np.testing.assert_allclose(numbers(reply), numbers(alone), rtol=1e-9, atol=1e-12)
    with_many = {name for name, task in installed_tasks().items() if task.many is not None}
    ours = {n for n in with_many if installed_tasks()[n].one.__module__.startswith("solera.")}
    assert checked == ours, "a task with many= that no learner's law test ever asks"
