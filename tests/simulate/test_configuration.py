"""What is derived from a federation is configured as it is; all its rows are the federation."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score

import solera as so
from solera.core.component import describe_fitted
from solera.core.errors import DataError, SoleraError, UsageError
from solera.core.payload import encode

draw = np.random.default_rng(4)
X = draw.normal(size=(120, 4))
Y = (X @ draw.normal(size=(4, 3))).argmax(axis=1)
NAMES = tuple("abcdef")
ROWS = {
    *("X", "y", "clients", "partition", "validation", "test", "target", "group", "columns"),
    *("kinds", "unknown", "features", "schema", "labels", "classes"),
    *("dictionary", "secrets", "population"),
}
"""What says which rows there are; all other parameters of ``simulate`` configure a federation."""
OPTIONS = {
    "seed": 5,
    "engine": "processes",
    "workers": 1,
    "engine_options": {"start": "spawn"},
    "failures": so.simulation.Failures(dropout=0.2),
    "attack": so.robust.SignFlip(share=0.3, factor=2.0),
    "clock": so.simulation.VirtualClock(deadline=50.0),
    "topology": so.simulation.Hierarchy(2),
    "memory": 1 << 16,
    "limits": so.messages.Limits(size=1 << 20),
    "policy": "trusted",
    "secure": True,
    "positive": 1,
}
NEEDS = {"engine_options": {"engine": "processes"}}
AGAINST = [("attack", "secure")]
"""Options that exclude each other."""


def simulated(**options):
    return so.simulate(X, Y, clients=list(NAMES), validation=0.1, test=0.2, **options)


def half(fed):
    return np.arange(0, fed.shape[0], 2)


SCALER = so.FedScaler().fit(simulated())
FOLDS = so.simulation.FoldsInClients(2)
DERIVED = {
    "all rows": lambda fed: fed[np.arange(fed.shape[0])],
    "some rows": lambda fed: fed[half(fed)],
    "a mask": lambda fed: fed[np.arange(fed.shape[0]) % 3 == 0],
    "a slice": lambda fed: fed[:40],
    "the rows of two clients": lambda fed: fed[-20:],
    "rows of rows": lambda fed: fed[half(fed)][:12],
    "a fold": lambda fed: fed[next(FOLDS.split(fed))[0]],
    "a client less": lambda fed: fed.without("b"),
    "rows of a client less": lambda fed: fed.without("b")[::2],
    "prepared": lambda fed: fed.prepared(SCALER),
    "prepared rows": lambda fed: fed.prepared(SCALER)[half(fed)],
    "prepared, a client less": lambda fed: fed.without("b").prepared(SCALER),
    "over its engine": lambda fed: fed.over(fed.engine),
    "a copy": copy.copy,
}


def observed(fed):
    """All that can be seen of a configuration, in the federation and in its engine."""
    engine = fed.engine
    return {
        "seed": fed.seed,
        "topology": fed.topology,
        "limits": fed.limits,
        "secure": fed.secure,
        "clock": fed.clock,
        "resources": engine.source.resources,
        "names": fed.names,
        "positive": fed.configuration.positive,
        "attackers": list(getattr(fed, "attackers", [])),
        "engine": type(engine),
        "attack": vars(engine).get("_attack"),
        "failures": engine._runner.fault_model,
        "policy": engine._runner.policy,
        "memory": engine._runner.memory,
        "workers": engine.workers,
        "start": getattr(engine, "start", None),
    }


def test_every_option_of_simulate_is_looked_at():
    parameters = set(inspect.signature(so.simulate).parameters)
    assert parameters - ROWS == set(OPTIONS)


@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED)
@pytest.mark.parametrize("option", OPTIONS)
def test_what_is_derived_is_configured_alike(option, derive):
    fed = simulated(**{option: OPTIONS[option]}, **NEEDS.get(option, {}))
    assert observed(derive(fed)) == observed(fed) != observed(simulated())


@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED)
@pytest.mark.parametrize("left_out", ["attack", "secure"])
def test_options_together_are_kept_together(left_out, derive):
    options = {name: value for name, value in OPTIONS.items() if name != left_out}
    fed = simulated(**options)
    derived = derive(fed)
    assert observed(derived) == observed(fed)
    assert derived.configuration == fed.configuration


@pytest.mark.parametrize("option", [o for o in OPTIONS if o not in ("engine", *NEEDS)])
def test_a_copy_for_another_process_is_configured_alike(option):
    """As scikit-learn makes them for ``n_jobs``."""
    fed = simulated(**{option: OPTIONS[option]})
    there = pickle.loads(pickle.dumps(fed))  # noqa: S301
    assert there.configuration == fed.configuration
    assert observed(there)["attackers"] == observed(fed)["attackers"]
    assert type(there.engine) is type(fed.engine)


def test_a_copy_for_another_process_has_what_clients_keep():
    fed = simulated()
    net = so.FedPer(so.nn.mlp(4, 3, 3), rounds=1).fit(fed)
    there, model = pickle.loads(pickle.dumps((fed, net)))  # noqa: S301
    assert model.evaluate(there).clients == net.evaluate(fed).clients


def test_a_configuration_cannot_be_changed():
    fed = simulated()
    with pytest.raises(AttributeError):
        fed.configuration.seed = 3
    with pytest.raises(AttributeError):
        fed.topology = so.simulation.Hierarchy(2)


def test_replies_read_one_by_one_are_not_folded_in_secret_and_all_else_stays():
    fed = simulated(**{n: v for n, v in OPTIONS.items() if n != "attack"})
    seen = observed(fed.prepared(SCALER).unprepared())
    assert seen == observed(fed) | {"secure": None}


# --- all rows are the federation ---

CONFIGURATIONS = {
    "plain": {},
    "attacked updates": {"attack": so.robust.SignFlip(share=0.4, factor=3.0)},
    "attacked rows": {"attack": so.robust.LabelFlip(share=0.4)},
    "noisy rows": {"attack": so.robust.NoisyLabels(share=0.5, rate=0.6)},
    "failures": {"failures": so.simulation.Failures(dropout=0.3)},
    "clock": {"clock": so.simulation.VirtualClock(deadline=9.0)},
    "policy": {"policy": "trusted"},
    "processes": {"engine": "processes", "workers": 1},
    "attacked processes": {
        "engine": "processes",
        "workers": 1,
        "attack": so.robust.SignFlip(share=0.4, factor=3.0),
    },
}


def learner():
    return so.FedLinear(rounds=3, per_round=4, lr=0.5)


def learned(fed):
    return encode(describe_fitted(learner().fit(fed)))


def parts(model, fed):
    return [model.evaluate(fed, part).metrics for part in ("train", "validation", "test")]


@pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_all_rows_of_a_federation_are_the_federation(options):
    with simulated(seed=2, **options) as fed, fed[np.arange(fed.shape[0])] as same:
        assert observed(same) == observed(fed)
        assert np.array_equal(same.data.X, fed.data.X)
        assert np.array_equal(same.data.y, fed.data.y)
        for part in ("train", "validation", "test"):
            assert np.array_equal(same.data.sizes(part), fed.data.sizes(part))
        assert same.shape == fed.shape
        assert learned(same) == learned(fed)
        model = so.FedHEONN().fit(simulated(seed=2))
        assert parts(model, same) == parts(model, fed)
        assert model.score(same) == model.score(fed)


def test_the_rows_of_other_clients_are_a_federation_without_one():
    """Who loses all rows is left out; the others keep their ids, draws, names and attackers."""
    fed = simulated(seed=2, attack=so.robust.SignFlip(share=0.5, factor=3.0))
    gone = "c"
    owner = np.repeat(np.arange(6), fed.data.sizes("train"))
    some = fed[owner != fed.find_client(gone)]
    rest = fed.without(gone)
    assert some.clients.tolist() == rest.clients.tolist() == [0, 1, 3, 4, 5]
    assert some.shape == rest.shape
    assert learned(some) == learned(rest) != learned(fed)
    assert some.attackers.tolist() == fed.attackers.tolist()
    assert np.array_equal(rest[np.arange(rest.shape[0])].data.X, some.data.X)
    with pytest.raises(UsageError, match="left out"):
        some.ask("data.describe", to=[2])


def test_folds_over_clients_are_the_federation_without_some():
    fed = simulated(attack=so.robust.SignFlip(share=0.5, factor=3.0))
    for train, judged in so.simulation.FoldsOverClients(3).split(fed):
        gone = fed[judged].clients
        assert len(gone) == 2
        assert learned(fed[train]) == learned(fed.without(*gone.tolist()))


def test_an_attacker_lies_in_every_fold():
    """One that flips labels flips them once: rows that were flipped are not flipped back."""
    fed = simulated(attack=so.robust.LabelFlip(share=0.5))
    honest = simulated()
    assert len(fed.attackers) == 3
    for train, _ in so.simulation.FoldsInClients(3).split(fed):
        for client in range(6):
            now, then = (
                f[train].data.segments(np.array([client]), "train")[0].y for f in (fed, honest)
            )
            flipped = fed.attackers.tolist().count(client) == 1
            assert np.array_equal(now, 2 - then if flipped else then)


def test_rows_set_aside_stay_reachable_and_do_not_judge_a_fold():
    fed = simulated()
    model = so.FedHEONN().fit(fed)
    some = fed[half(fed)]
    assert model.evaluate(some, "test").metrics == model.evaluate(fed, "test").metrics
    assert some.data.sizes("validation").tolist() == fed.data.sizes("validation").tolist()
    only = model.evaluate(some, "train")["accuracy"]
    everything = model.score(fed)
    assert model.score(some) == only != everything


def test_what_is_known_of_rows_goes_with_them():
    data = so.data.FederatedData(X, Y, np.array([0, 40, 80, 120]), names=("a", "b", "c"))
    data.persons = np.arange(120) // 2
    data.identifiers = np.arange(120).astype(str)
    data.labelled = np.arange(120) % 5 > 0
    data.resources = so.simulation.VirtualClock().model()
    data.X = np.arange(120.0)[:, None]
    taken = {
        "split": data.split(test=0.25, seed=1),
        "fold": data.fold(1, 3, seed=1),
        "some rows": data.split(test=0.25, seed=1).some_rows(np.arange(3, 60), np.arange(3)),
        "other rows": data.with_rows(data.X, data.y),
        "one client": data.only(1),
    }
    for name, view in taken.items():
        rows = view.X[:, 0].astype(int)
        assert np.array_equal(view.persons, data.persons[rows]), name
        assert np.array_equal(view.identifiers, data.identifiers[rows]), name
        assert np.array_equal(view.labelled, data.labelled[rows]), name
        assert view.resources is data.resources, name


def test_rows_that_cannot_be_chosen_are_refused():
    fed = simulated()
    with pytest.raises(DataError, match="no row is chosen"):
        fed[np.zeros(0, dtype=int)]
    with pytest.raises(IndexError):
        fed[[10_000]]
    lazy = so.data.LazyData(lambda client, rng: (rng.normal(size=(5, 2)), None), clients=3)
    with pytest.raises(UsageError, match="some rows of LazyData"):
        so.simulate(lazy)[[0]]


# --- cross-validation ---


def test_cross_validation_is_under_the_policy():
    rows = draw.normal(size=(900, 2))
    fed = so.simulate(rows, rows[:, 0] > 0, clients=4, policy="sums")
    network = so.FedAvg(so.nn.mlp(2, 64, 2), rounds=1)
    for cv in (so.simulation.FoldsInClients(2), so.simulation.FoldsOverClients(2), 2):
        with pytest.raises(SoleraError, match="exact sums"):
            cross_val_score(network, fed, cv=cv, error_score="raise")


def test_searches_and_scores_train_with_the_attackers():
    honest, fed = simulated(), simulated(attack=so.robust.SignFlip(share=0.3, factor=50.0))
    model, cv = so.FedLinear(rounds=4, lr=0.5), so.simulation.FoldsInClients(3)
    assert cross_val_score(model, honest, cv=cv).min() > 0.6
    assert cross_val_score(model, fed, cv=cv).max() < 0.5
    search = GridSearchCV(model, {"l2": [0.0, 0.1]}, cv=cv).fit(fed)
    assert search.best_score_ < 0.5
