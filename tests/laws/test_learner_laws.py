"""Every registered learner on every engine: same result, exact resume, save, clone, bad input."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import sklearn.base
from cases import ENGINES, federation, learner_cases, rows

import solera as so
from solera.core.clients import ClientGroup, Draws
from solera.core.component import describe_fitted
from solera.core.errors import DataError, NotFitted, SoleraError, UsageError
from solera.core.payload import encode, encoded_size
from solera.core.task import find_task, installed_tasks
from solera.engines.local import LocalEngine

CASES = {name: (make, target) for name, make, target in learner_cases()}
case = pytest.mark.parametrize(("make", "target"), CASES.values(), ids=CASES.keys())


def fitted(make, target, engine="local", **options):
    with federation(engine, rows(target), make()) as fed:
        return make().fit(fed, **options)


def learned(model):
    return encode(describe_fitted(model))


def outcome(model, X):
    result = model.transform(X) if isinstance(model, so.Transformer) else model.predict(X)
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


@case
@pytest.mark.parametrize("engine", ENGINES)
def test_engines_agree(make, target, engine):
    here, there = fitted(make, target), fitted(make, target, engine)
    np.testing.assert_allclose(
        numbers(here.get_state()), numbers(there.get_state()), rtol=1e-9, atol=1e-12
    )


@case
def test_same_seed_same_bytes(make, target):
    assert learned(fitted(make, target)) == learned(fitted(make, target))


@case
def test_worker_count_changes_no_bit(make, target):
    one, three = (fitted(make, target, f"processes-{n}") for n in (1, 3))
    assert learned(one) == learned(three)


@case
def test_save_and_load(make, target, tmp_path):
    model = fitted(make, target)
    model.save(tmp_path / "model.sol")
    back = so.load(tmp_path / "model.sol")
    assert learned(back) == learned(model)
    X = rows(target).X
    assert np.array_equal(outcome(back, X), outcome(model, X), equal_nan=True)
    back.save(tmp_path / "again.sol")
    assert (tmp_path / "again.sol").read_bytes() == (tmp_path / "model.sol").read_bytes()


@case
def test_clone_learns_the_same_from_scratch(make, target):
    model = fitted(make, target)
    for copy in (model.clone(), sklearn.base.clone(model)):
        assert copy == model
        assert not any(name.endswith("_") for name in vars(copy))
        with federation("local", rows(target), make()) as fed:
            assert learned(copy.fit(fed)) == learned(model)


@case
def test_fitting_again_forgets(make, target):
    model = fitted(make, target)
    before = learned(model)
    with federation("local", rows(target), make()) as fed:
        assert learned(model.fit(fed)) == before


class Interrupt(so.Callback):
    def __init__(self, at):
        self.at = at

    def on_round(self, learner, round):
        if round.index == self.at:
            raise KeyboardInterrupt


@case
@pytest.mark.parametrize("engine", ["local", "processes-3"])
def test_interrupted_and_resumed_is_the_same(make, target, engine, tmp_path):
    plain = fitted(make, target, engine)
    for at in range(len(plain.history_)):
        file = tmp_path / f"{at}.checkpoint"
        with pytest.raises(KeyboardInterrupt):
            fitted(make, target, engine, checkpoint=file, callbacks=[Interrupt(at)])
        resumed = fitted(make, target, engine, checkpoint=file)
        assert learned(resumed) == learned(plain)
        assert resumed.history_ == plain.history_


@case
def test_constructor_stores_its_arguments(make, target):
    model = make()
    cls = type(model)
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    assert all(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters[1:])
    for name, value in model.get_params(deep=False).items():
        assert getattr(model, name) is value
    assert repr(model).startswith(cls.__name__ + "(")


@case
def test_bad_input_is_a_named_error(make, target):
    model = make()
    X = rows(target).X
    with pytest.raises(NotFitted, match="fit"):
        outcome(model, X)
    with pytest.raises(NotFitted):
        model.save("nowhere.sol")
    with pytest.raises(UsageError, match="federation"):
        model.fit(X)
    model = fitted(make, target)
    with pytest.raises(DataError, match=r"columns"):
        outcome(model, X[:, :3])
    with pytest.raises(DataError, match=r"dimension"):
        outcome(model, X[0])


@case
@pytest.mark.parametrize("engine", ["local", "local-undeclared"])
def test_missing_values_are_learned_from_or_named(make, target, engine):
    data = rows(target)
    data.X[:8, 1] = np.nan
    with federation(engine, data, make()) as fed:
        model = make()
        last = model.steps[-1] if isinstance(model, so.Pipeline) else model
        if last.uses_gaps:
            model.fit(fed)
            return
        with pytest.raises(SoleraError, match=r"client 0 .*x1"):
            model.fit(fed)


@case
def test_one_class_and_tiny_clients_do_no_harm(make, target):
    data = rows(target)
    if target == "classes":
        first, second = data.offsets[:2]
        data.y[first:second] = 0
    data = so.FederatedData(data.X, data.y, np.array([0, 60, 61, 160]), schema=data.schema)
    with federation("local", data, make()) as fed:
        model = make().fit(fed)
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
        topology = so.Peers("parallel") if isinstance(make(), so.PeerToPeer) else None
        fed = so.Federation(engine, seed=11, topology=topology)
        model = make().fit(fed)
        if isinstance(model, so.Predictor):
            model.evaluate(fed)
        yield from ((engine, ask) for ask in engine.asks)


def test_many_equals_one_by_one():
    checked = set()
    kept = {}
    for engine, ask in recorded_asks():
        task = find_task(ask.task)
        if task.many is None:
            continue
        checked.add(task.name)
        source = engine._runner._source_for(ask)
        draws = Draws(ask.seed, ask.task, ask.round)
        ids = np.arange(engine.clients)
        fresh = tuple([{} for _ in ids] for _ in range(2))
        joint, single = kept.setdefault(engine, fresh)  # what clients keep from ask to ask
        together = task.many(ClientGroup(ids, source, draws, joint), ask.payload)
        for client, reply in zip(ClientGroup(ids, source, draws, single), together,
                                 strict=True):  # fmt: skip
            alone = task.one(client, ask.payload)
            assert reply.keys() == alone.keys()
            assert encoded_size(reply) == encoded_size(alone)
            np.testing.assert_allclose(numbers(reply), numbers(alone), rtol=1e-9, atol=1e-12)
    with_many = {name for name, task in installed_tasks().items() if task.many is not None}
    ours = {n for n in with_many if installed_tasks()[n].one.__module__.startswith("solera.")}
    assert checked == ours, "a task with many= that no learner's law test ever asks"
