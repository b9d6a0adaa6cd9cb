"""Nothing without effect: attacks, topologies and selectors work, or say that they do not."""

from __future__ import annotations

import numpy as np
import pytest
from cases import learner_cases, registered, rows

import solera as so
from solera.core.errors import NotEnoughReplies, UsageError
from solera.core.payload import encode
from solera.robust.attacks import UpdateAttack

CASES = {}
for name, make, target in learner_cases():
    if not name.startswith("FedLoRA"):  # it averages as FedAvg does, and takes five seconds
        CASES.setdefault(name.partition("-")[0], (make, target))
UNATTACKED = (
    *(
        "FedBagging",
        "FedCox",
        "FedForest",
        "FedGLM",
        "FedHEONN",
        "FedHistGBDT",
        "FedID3",
        "FedKMeans",
    ),
    *("FederatedTree", "SimFL"),
)
"""Learners that no update of a model reaches."""
every_learner = pytest.mark.parametrize("name", CASES)
ATTACKS = {cls.__name__: cls for cls in registered(UpdateAttack)}
SELECTORS = {cls.__name__: cls for cls in registered(so.selectors.Selector)}


def fit(name, **options):
    make, target = CASES[name]
    if isinstance(make(), so.PeerToPeer):
        options.setdefault("topology", so.simulation.Peers("parallel"))
    federation = so.simulate(rows(target), seed=11, **options)
    return federation, make().fit(federation)


@every_learner
def test_an_attack_changes_what_is_learned_or_is_refused(name):
    _, honest = fit(name)
    attack = so.robust.SignFlip(0.4, factor=3.0)
    if name in UNATTACKED:
        with pytest.raises(UsageError, match="nothing would be attacked") as refused:
            fit(name, attack=attack)
        assert repr(attack) in refused.value.message
        assert type(honest).__name__ in refused.value.message
        assert "so.robust.LabelFlip(share=0.2)" in refused.value.hint
    else:
        _, attacked = fit(name, attack=attack)
        changed = encode(attacked.get_state()) != encode(honest.get_state())
        assert changed != isinstance(honest, so.learn.Transformer)


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_on_updates_is_refused_where_there_are_none(attack):
    with pytest.raises(UsageError, match=f"{attack}.*FedHEONN asks for none"):
        fit("FedHEONN", attack=ATTACKS[attack](0.4))


def test_an_attack_is_refused_before_anything_is_asked():
    federation = so.simulate(rows("classes"), attack=so.robust.SignFlip(0.4))
    with pytest.raises(UsageError, match="Pipeline asks for none"):
        so.Pipeline(so.FedScaler(), so.FedHEONN()).fit(federation)
    assert not federation.meter.records


def test_rows_are_prepared_for_a_learner_that_is_attacked():
    federation = so.simulate(rows("classes"), attack=so.robust.SignFlip(0.4))
    prepared = federation.prepared(so.FedScaler().fit(federation))
    model = so.FedLinear(rounds=2).fit(prepared)
    assert model.evaluate(federation.prepared(so.FedScaler().fit(federation)), "train")


@pytest.mark.parametrize("name", [name for name in CASES if name != "PeerToPeer"])
def test_aggregators_fold_for_every_learner(name):
    federation, model = fit(name, topology=so.simulation.Hierarchy(2))
    assert federation.meter.relayed > 0
    assert "warnings" not in model._trained_with


@every_learner
def test_who_needs_a_server_among_peers_says_so(name):
    _, model = fit(name, topology=so.simulation.Peers("parallel"))
    warnings = model._trained_with.get("warnings", [])
    assert all("as in a star: Peers(exchange='parallel') had no effect" in w for w in warnings)
    assert bool(warnings) == (name != "PeerToPeer")
    assert all(warning in model.card() for warning in warnings)


def bare(**options):
    """A federation that knows neither a clock nor rows set aside."""
    X = np.random.default_rng(0).normal(size=(90, 4))
    return so.simulate(X, (X[:, 0] > 0).astype(int), clients=5, seed=0, **options)


NEEDS_A_CLOCK = ("FedCS", "HybridFL", "DynHybridFL")
NEEDS_VALIDATION = ("GreedyShapley", "ShapleyUCB", "ShapleySoftmax")


@pytest.mark.parametrize("name", SELECTORS)
def test_a_selector_that_lacks_what_it_needs_is_an_error(name):
    learner = so.FedLinear(rounds=3, per_round=2, select=SELECTORS[name]())
    if name in NEEDS_A_CLOCK:
        with pytest.raises(UsageError, match=r"clock=so\.simulation\.VirtualClock"):
            learner.fit(bare())
        learner.fit(bare(clock=so.simulation.VirtualClock()))
    elif name in NEEDS_VALIDATION:
        with pytest.raises(NotEnoughReplies, match="no validation rows"):
            learner.fit(bare())
        learner.fit(bare(validation=0.3))
    else:
        learner.fit(bare())
    assert any(entry["clients"] for entry in learner.history_)


PRIVATE = {
    "client": lambda select: so.FedAvg(
        so.nn.mlp(4, 4, 2),
        rounds=2,
        per_round=2,
        select=select,
        weight=None,
        dp=so.DP(noise_multiplier=1.0, delta=1e-5, clip=1.0),
    ),
    "record": lambda select: so.FedAvg(
        so.nn.mlp(4, 4, 2),
        rounds=2,
        per_round=2,
        select=select,
        weight=None,
        dp=so.DP(level="record", rate=0.1, noise_multiplier=1.0, delta=1e-5, clip=1.0),
    ),
    "k-means": lambda select: so.FedKMeans(
        2,
        init=np.zeros((2, 4)),
        select=select,
        dp=so.DP(level="record", noise_multiplier=1.0, delta=1e-5, clip=1.0),
    ),
}
BLIND = ("Uniform", "Poisson", "RoundRobin")
"""Selectors that nobody tells anything."""


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize("learner", PRIVATE)
def test_selectors_are_told_nothing_beside_the_noise(learner, name):
    pytest.importorskip("dp_accounting", reason="the extra 'dp' is not installed")
    make, selector = PRIVATE[learner], SELECTORS[name]()
    if name in BLIND:
        make(selector).check_params()
    else:
        with pytest.raises(UsageError, match=rf"select={name}\(.*without noise") as refused:
            make(selector)
        assert "so.selectors.RoundRobin()" in refused.value.hint
