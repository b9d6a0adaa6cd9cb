"""FedHEONN under encryption: the same weights, and nothing readable at the coordinator."""

from __future__ import annotations

import logging

import numpy as np
import pytest

pytest.importorskip("tenseal", reason="the extra 'he' (tenseal) is not installed")

import solera as so
from solera.core.component import describe_fitted
from solera.core.errors import NotEnoughReplies, UsageError
from solera.core.payload import encode
from solera.engines.local import LocalEngine
from solera.privacy.he import keys
from solera.privacy.he.keys import WrongKey

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 6)) * [1, 1, 10, 0.1, 1, 0] + [0, 0, 5, 0, 0, 0]
Y = (X[:, :4] @ rng.normal(size=(4, 3)) + rng.normal(size=(120, 3))).argmax(axis=1)
NUMBERS = X @ rng.normal(size=(6, 2))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One key store with a pair of each kind, as all clients of the simulation have it."""
    folder = tmp_path_factory.mktemp("home") / "keys"
    for name in ("CLIENT", "COORDINATOR", "COMPAT", "SMALL", "SMALL_CLIENT"):
        keys.create(folder, name.lower(), getattr(keys, name))
    return folder


@pytest.fixture(autouse=True)
def _here(store, monkeypatch):
    monkeypatch.setenv("SOLERA_KEYS", str(store))


class Listening(LocalEngine):
    """A coordinator that writes down every byte it receives."""

    def __init__(self, source):
        super().__init__(source)
        self.heard = b""

    def run(self, ask, aggregation):
        for block in super().run(ask, None):
            for reply in block.batch:
                self.heard += encode(reply.payload)
        yield from super().run(ask, aggregation)


def fed(y=Y, sizes=(50, 40, 30), **options):
    data = so.data.FederatedData(X, y, np.concatenate([[0], np.cumsum(sizes)]))
    return so.simulate(data, **options)


MODES = [
    ("client", "client", 1e-6),
    ("small_client", "client", 1e-6),
    ("coordinator", "coordinator", 1e-6),
    ("coordinator", "client", 1e-6),
    ("compat", "compat", 1e-6),
    ("small", "coordinator", 1e-4),  # the small ring, labelled less precise
    ("small", "client", 1e-4),
]
PATCHES = so.RandomPatches(5, rows=0.8)
VARIANTS = {
    "classes": ({}, Y),
    "numbers": ({"activation": "linear"}, NUMBERS),
    "ensemble": ({"ensemble": PATCHES}, Y),
    "labels": ({}, (NUMBERS > 0).astype(np.uint8)),
    "hidden": ({"features": "random_layer", "hidden": 12}, Y),
}


@pytest.mark.parametrize(("key", "finish", "tolerance"), MODES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_encrypted_equals_plain(key, finish, tolerance, variant):
    options, y = VARIANTS[variant]
    plain = so.FedHEONN(**options, lam=0.1).fit(fed(y))
    hidden = so.FedHEONN(**options, lam=0.1, encrypt=so.Encryption(key, finish=finish)).fit(fed(y))
    error = np.linalg.norm(hidden.weights_ - plain.weights_) / np.linalg.norm(plain.weights_)
    assert error < tolerance
    assert np.mean(hidden.predict(X) == plain.predict(X)) > 0.99 or variant == "numbers"


@pytest.mark.parametrize("finish", ["client", "coordinator"])
def test_late_clients_and_other_engines(finish):
    encrypt = so.Encryption(finish, finish=finish)
    plain = so.FedHEONN().fit(fed())
    late = so.FedHEONN(encrypt=encrypt).partial_fit(fed(), clients=[0, 2])
    late.partial_fit(fed(), clients=[1])
    np.testing.assert_allclose(late.weights_, plain.weights_, rtol=1e-5, atol=1e-8)
    with so.simulate(fed().data, engine="processes", workers=2) as workers:
        there = so.FedHEONN(encrypt=encrypt).fit(workers)
    np.testing.assert_allclose(there.weights_, plain.weights_, rtol=1e-5, atol=1e-8)


def test_save_load_and_evaluate_where_the_key_is(tmp_path):
    federation = so.simulate(fed().data.split(test=0.2))
    model = so.FedHEONN(encrypt=so.Encryption("client")).fit(federation)
    model.save(tmp_path / "m.sol")
    assert np.array_equal(so.load(tmp_path / "m.sol").predict(X), model.predict(X))
    plain = so.FedHEONN().fit(federation)
    assert model.evaluate(federation).metrics == plain.evaluate(federation).metrics


@pytest.mark.parametrize(("key", "finish"), [(m[0], m[1]) for m in MODES])
def test_no_plaintext_and_no_secret_reaches_the_coordinator(key, finish, store, monkeypatch):
    engine = Listening(fed().data)
    model = so.FedHEONN(encrypt=so.Encryption(key, finish=finish)).fit(so.Federation(engine))
    stored = encode(describe_fitted(model))
    moments = so.FedHEONN().fit(fed()).statistics_["moments"]
    each = [so.FedHEONN().fit(so.Federation(LocalEngine(_part(k)))) for k in range(3)]
    secret = keys.load(store, key)
    numbers = [moments, *(m.statistics_["moments"] for m in each)]
    markers = [array.tobytes() for array in numbers]
    markers += [np.float64(v).tobytes() for array in numbers for v in array.ravel() if v]
    pieces = [secret.to_bytes()[200 + i : 232 + i] for i in range(0, 4000, 500)]
    pieces += [secret._data[64:128], secret._data[-64:]]
    for heard in (engine.heard, stored):
        assert not any(marker in heard for marker in markers)
        assert not any(piece in heard for piece in pieces)
    assert len(engine.heard) > 10_000
    monkeypatch.setenv("SOLERA_KEYS", str(store / "nothing-here"))
    blind = so.FedHEONN(encrypt=so.Encryption(key, finish=finish))
    blind.set_state(model.get_state())
    with pytest.raises(UsageError, match="does not hold the key"):
        blind.predict(X)


def _part(k):
    data = fed().data
    rows = data.segments(np.array([k]))[0]
    return so.data.FederatedData(rows.X, rows.y, np.array([0, len(rows)]), schema=data.schema)


def test_the_plaintext_marker_would_be_found():
    """The test above can fail: without encryption the markers are there."""
    engine = Listening(fed().data)
    model = so.FedHEONN().fit(so.Federation(engine))
    moments = np.concatenate([r["moments"].ravel() for r in _replies(engine, model)])
    assert all(np.float64(v).tobytes() in engine.heard for v in moments if v)


def _replies(engine, model):
    return so.Federation(LocalEngine(engine.source)).ask("heonn.statistics", model._plan())


def test_weak_or_unfit_keys_are_refused():
    with pytest.raises(UsageError, match="128-bit"):
        keys.generate(keys.CLIENT.__class__(4096, (60, 60), scale_bits=40))
    with pytest.raises(UsageError, match="allows 0 products, 1 are needed"):
        so.FedHEONN(encrypt=so.Encryption("client", finish="coordinator")).fit(fed())
    with pytest.raises(UsageError, match="finish"):
        so.FedHEONN(encrypt=so.Encryption("client", finish="nobody")).fit(fed())
    with pytest.raises(NotEnoughReplies, match="nowhere"):
        so.FedHEONN(encrypt=so.Encryption("nowhere")).fit(fed())
    with pytest.raises(UsageError, match="in the clear"):
        so.FedHEONN(lam=[0.1, 1], encrypt=so.Encryption("client")).fit(fed())
    with pytest.raises(UsageError, match="encrypted"):
        so.FedHEONN(encrypt=so.Encryption("client")).fit(fed()).path([1.0])


@pytest.mark.parametrize("options", [{"derivative": "thesis"}, {"activation": "softplus"}])
def test_settings_in_which_gram_matrices_tell_the_moments_are_refused(options):
    """With one Gram matrix per class its first row is the sum of the rows of that class."""
    plain = so.FedHEONN(**options).fit(fed())
    sums = plain.statistics_["shape"]["grams"][0, :, :7]
    assert np.allclose(sums[1, 1:], X[Y == 1].sum(axis=0))
    with pytest.raises(UsageError, match="hides nothing"):
        so.FedHEONN(**options, encrypt=so.Encryption("client")).fit(fed())


def test_larger_clients_may_come_later_within_the_spare_bits():
    sizes = (8, 112)
    for spare, fails in ((6, False), (0, True)):
        model = so.FedHEONN(encrypt=so.Encryption("client", spare_bits=spare))
        model.partial_fit(fed(sizes=sizes), clients=[0])
        if fails:
            with pytest.raises(NotEnoughReplies, match="spare_bits"):
                model.partial_fit(fed(sizes=sizes), clients=[1])
        else:
            model.partial_fit(fed(sizes=sizes), clients=[1])
            plain = so.FedHEONN().fit(fed(sizes=sizes))
            np.testing.assert_allclose(model.weights_, plain.weights_, rtol=1e-5, atol=1e-8)


def test_clients_receive_neither_statistics_nor_rotation_keys():
    secret = so.Encryption("coordinator", finish="coordinator")
    model = so.FedHEONN(ensemble=PATCHES, encrypt=secret).fit(fed())
    assert len(encode(describe_fitted(model))) > 1_000_000
    assert len(encode(describe_fitted(model.for_prediction()))) < 1_000_000
    pipe = so.Pipeline(so.FedScaler(), so.FedHEONN()).fit(fed())
    assert "statistics_" not in pipe.for_prediction().steps_[-1].get_state()
    assert np.array_equal(pipe.for_prediction().predict(X), pipe.predict(X))


def test_a_changed_key_is_noticed(store):
    model = so.FedHEONN(encrypt=so.Encryption("client")).fit(fed())
    original = keys.load(store, "client")
    try:
        keys.create(store, "client", keys.CLIENT, overwrite=True)
        with pytest.raises(NotEnoughReplies, match="not the one the clients agreed on"):
            model.partial_fit(fed())
        other = so.FedHEONN(encrypt=so.Encryption("client"))
        other.set_state(model.get_state())
        with pytest.raises(WrongKey):
            other.predict(X)
    finally:
        keys.store(store, "client", original, overwrite=True)


class Meddling(LocalEngine):
    """A network on which one client's ciphertext is damaged."""

    def run(self, ask, aggregation):
        original = self._runner._one_by_one

        def damaged(task, ask, clients, *rest):
            batch, failures = original(task, ask, clients, *rest)
            for reply in batch:
                if task.name == "heonn.statistics" and reply.client == 1:
                    block = bytearray(reply.payload["moments"]["blocks"][0])
                    block[len(block) // 2] ^= 1
                    reply.payload["moments"]["blocks"][0] = bytes(block)
            return batch, failures

        self._runner._one_by_one = damaged
        yield from super().run(ask, aggregation)
        self._runner._one_by_one = original


def test_a_damaged_ciphertext_costs_its_client_only(caplog):
    with caplog.at_level(logging.WARNING, logger="solera"):
        model = so.FedHEONN(encrypt=so.Encryption("client")).fit(
            so.Federation(Meddling(fed().data))
        )
    assert "client 1 invalid: damaged ciphertext" in caplog.text
    without = so.FedHEONN().partial_fit(fed(), clients=[0, 2])
    np.testing.assert_allclose(model.weights_, without.weights_, rtol=1e-5, atol=1e-8)


# --- through a key holder ---

THROUGH = [
    ("coordinator", "coordinator", "classes"),
    ("coordinator", "coordinator", "numbers"),
    ("coordinator", "coordinator", "ensemble"),
    ("coordinator", "coordinator", "labels"),
    ("coordinator", "coordinator", "hidden"),
    ("compat", "compat", "classes"),
]


@pytest.mark.parametrize(("key", "finish", "variant"), THROUGH)
def test_who_holds_no_key_predicts_through_one_who_does(key, finish, variant):
    options, y = VARIANTS[variant]
    plain = so.FedHEONN(**options, lam=0.1).fit(fed(y))
    model = so.FedHEONN(**options, lam=0.1, encrypt=so.Encryption(key, finish=finish)).fit(fed(y))
    rows = X[:17]  # more than the columns: several products
    found = model.predict_through(fed(y), rows, holder=2)
    assert "_unsealed" not in vars(model)  # no weight was decrypted on the way
    if variant == "numbers":
        np.testing.assert_allclose(found, plain.predict(rows), rtol=1e-5, atol=1e-6)
    else:
        assert np.array_equal(found, plain.predict(rows))


def test_the_driver_needs_no_key_to_predict_through_a_holder(store, monkeypatch):
    encrypt = so.Encryption("coordinator", finish="coordinator")
    with so.simulate(fed().data, engine="processes", workers=2) as workers:
        model = so.FedHEONN(encrypt=encrypt).fit(workers)
        monkeypatch.setenv("SOLERA_KEYS", str(store / "nothing-here"))  # of this process alone
        with pytest.raises(UsageError, match="does not hold the key"):
            model.predict(X)
        assert np.array_equal(
            model.predict_through(workers, X[:9], holder=1), so.FedHEONN().fit(fed()).predict(X[:9])
        )


def test_what_the_key_holder_and_the_driver_see(monkeypatch):
    """Ciphertexts go up and z comes back: neither rows nor weights are in what travels."""
    engine = Listening(fed().data)
    model = so.FedHEONN(encrypt=so.Encryption("coordinator", finish="coordinator"))
    model.fit(so.Federation(engine))
    engine.heard, asked = b"", []
    run = engine.run
    monkeypatch.setattr(
        engine, "run", lambda ask, by: (asked.append(encode(ask.payload)), run(ask, by))[1]
    )
    model.predict_through(so.Federation(engine), X[:3])
    (sent,) = asked
    for row in X[:3]:
        assert not any(np.float64(v).tobytes() in sent for v in row if v)
    weights = so.FedHEONN().fit(fed()).weights_
    assert not any(np.float64(v).tobytes() in engine.heard for v in weights.ravel() if v)
    assert len(engine.heard) < 2000  # z of seven rows, six of them padding, and two outputs


def test_who_cannot_predict_through_a_holder():
    model = so.FedHEONN(encrypt=so.Encryption("client")).fit(fed())
    with pytest.raises(UsageError, match="finish='client'"):
        model.predict_through(fed(), X)
    model = so.FedHEONN(encrypt=so.Encryption("coordinator", finish="coordinator")).fit(fed())
    with pytest.raises(UsageError, match="for_prediction"):
        model.for_prediction().predict_through(fed(), X)
    with pytest.raises(UsageError, match="not encrypted"):
        so.FedHEONN().fit(fed()).predict_through(fed(), X)


def test_a_key_holder_decrypts_for_whom_its_policy_trusts_alone():
    model = so.FedHEONN(encrypt=so.Encryption("coordinator", finish="coordinator")).fit(fed())
    wanted = model.predict(X[:4])
    assert np.array_equal(model.predict_through(fed(policy="trusted"), X[:4]), wanted)
    with pytest.raises(NotEnoughReplies, match="nothing says which rows"):
        model.predict_through(fed(policy="noise"), X[:4])
