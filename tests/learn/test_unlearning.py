"""A client that is forgotten was never there: the same bytes, a receipt, and named limits."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pytest

import solera as so
from solera.core.errors import CannotForget
from solera.core.payload import encode
from solera.learn.base import from_bytes
from solera.learn.unlearning import check_receipt

GONE = 3


def pairs(target="classes", seed=1):
    """Ten clients of 12 to 30 rows each."""
    draw = np.random.default_rng(seed)
    w = draw.normal(size=(6, 3))
    found = []
    for size in draw.integers(12, 31, 10):
        X = draw.normal(size=(size, 6))
        y = (X @ w).argmax(axis=1) if target == "classes" else X @ w[:, 0] + draw.normal(size=size)
        if target == "counts":
            y = draw.poisson(np.exp(0.3 * X[:, 0])).astype(float)
        found.append((X, y))
    return found


def simulated(target="classes", without=(), **options):
    rows = [pair for i, pair in enumerate(pairs(target)) if i not in without]
    return so.simulate(rows, seed=4, **options)


FOLDS = {
    "heonn": (lambda: so.FedHEONN(), "classes"),
    "svd": (lambda: so.FedHEONN("linear", representation="svd", lam=1e-10), "numbers"),
    "lams": (lambda: so.FedHEONN("linear", lam=[0.01, 1.0]), "classes"),
    "hidden": (lambda: so.FedHEONN("linear", features="fourier", hidden=12), "classes"),
    "ensemble": (lambda: so.FedHEONN(ensemble=so.RandomPatches(4, rows=0.8)), "classes"),
    "imputer": (lambda: so.FedImputer(), "classes"),
}


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("engine", ["local", "undeclared"])
def test_folds_forget_to_the_bit_without_asking_anybody(name, engine):
    make, target = FOLDS[name]
    options = {} if engine == "local" else {"schema": None}
    fed = simulated(target, **options)
    if engine == "undeclared":
        fed = fed.over(_Undeclared(fed.engine))
    never = make().fit(fed.without(GONE))
    model = make().fit(fed, keep=True)
    assert model.to_bytes() == make().fit(fed).to_bytes(), "keeping changes nothing"
    asked = len(fed.meter.records)
    assert model.forget(GONE) is model
    assert len(fed.meter.records) == asked
    assert model.to_bytes() == never.to_bytes()
    if name not in ("ensemble", "hidden"):  # whose draws follow the clients' numbers
        other = make().fit(simulated(target, without=[GONE]))
        assert same(model, other), "a federation that never had the client gives the same"


def same(a, b):
    """Whether two learners know the same, to the bit."""
    return encode(a.get_state()) == encode(b.get_state())


class _Undeclared:
    """An engine that, like a real network, does not know what the rows look like."""

    schema = None

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def sizes(self, part):
        return None

    def is_complete(self):
        return False


def test_several_are_forgotten_one_after_the_other_and_by_name():
    rows = pairs()
    X, y = (np.concatenate(part) for part in zip(*rows, strict=True))
    owners = np.repeat([f"clinic {i}" for i in range(10)], [len(part) for part, _ in rows])
    fed = so.simulate(X, y, partition=so.partitions.ByGroup(owners), seed=4)
    model = so.FedHEONN().fit(fed, keep=True).forget("clinic 2").forget("clinic 7")
    never = so.FedHEONN().fit(fed.without("clinic 2", "clinic 7"))
    assert model.to_bytes() == never.to_bytes()
    with pytest.raises(so.errors.UsageError, match="no client 'clinic 77'"):
        model.forget("clinic 77")


def test_what_was_kept_lies_in_a_file_for_its_owner_and_not_in_the_model(tmp_path):
    fed = simulated()
    path = tmp_path / "replies.sol"
    model = so.FedHEONN().fit(fed, keep=path)
    assert path.stat().st_mode & 0o077 == 0
    loaded = so.load(model.save(tmp_path / "model.sol"))
    assert (tmp_path / "model.sol").stat().st_size < path.stat().st_size
    with pytest.raises(CannotForget, match="nothing was kept"):
        loaded.forget(GONE)
    loaded.forget(GONE, kept=path)
    assert loaded.to_bytes() == so.FedHEONN().fit(fed.without(GONE)).to_bytes()


def test_a_class_that_only_the_forgotten_client_had_is_gone():
    rows = pairs()
    rows[GONE] = (rows[GONE][0], np.full(len(rows[GONE][1]), 9))
    fed = so.simulate(rows, seed=4)
    fed = fed.over(_Undeclared(fed.engine))
    model = so.FedHEONN().fit(fed, keep=True)
    assert 9 in model.classes_
    known = model.to_bytes()
    with pytest.raises(CannotForget, match=r"heonn\.statistics"):
        model.forget(GONE)
    assert model.to_bytes() == known
    model = so.FedHEONN().fit(fed, keep=True).forget(GONE, fed)
    assert 9 not in model.classes_
    assert model.to_bytes() == so.FedHEONN().fit(fed.without(GONE)).to_bytes()


REFITS = {
    "scaler": (lambda: so.FedScaler(), "classes"),
    "bins": (lambda: so.FedBins(4), "classes"),
    "pipeline": (lambda: so.Pipeline(so.FedScaler(), so.FedHEONN()), "classes"),
    "glm": (lambda: so.FedGLM("poisson", rounds=20), "counts"),
    "gaussian": (lambda: so.FedGLM("gaussian", rounds=6), "numbers"),
    "tree": (lambda: so.FederatedTree(max_depth=3), "classes"),
    "tree on columns": (
        lambda: so.Pipeline(so.FedEncoder(), so.FederatedTree(max_depth=3)),
        "classes",
    ),
    "forest": (lambda: so.FedForest(trees=2, per_client=1), "classes"),
    "kmeans": (lambda: so.FedKMeans(2, rounds=3), "classes"),
}


@pytest.mark.parametrize("name", REFITS)
def test_others_ask_again_what_depends_on_the_client_and_are_exact(name):
    make, target = REFITS[name]
    fed = simulated(target)
    never = make().fit(fed.without(GONE), progress=False)
    model = make().fit(fed, keep=True, progress=False).forget(GONE, fed, progress=False)
    assert model.to_bytes() == never.to_bytes()


def test_a_forgotten_client_is_not_asked_again():
    fed = simulated()
    model = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=2)).fit(fed, keep=True, progress=False)
    asked = len(fed.meter.records)
    model.forget(GONE, fed, progress=False)
    for record in fed.meter.records[asked:]:
        assert GONE not in record.clients
    with pytest.raises(so.errors.UsageError, match="left out"):
        fed.without(GONE).ask("linear.train", {}, to=[GONE])


# --- rounds ---


def test_averaging_goes_on_from_the_round_before_and_says_that_it_is_not_exact(caplog):
    fed = simulated()
    make = lambda: so.FedLinear(rounds=6, per_round=2, batch_size=8)  # noqa: E731
    whole = make().fit(fed, progress=False)
    model = make().fit(fed, keep=True, progress=False)
    assert same(model, whole), "keeping changes nothing"
    first = {int(c): r for c, r in model._kept["first"].items()}
    late = max(first, key=first.get)
    assert first[late] > 0
    before = [entry["loss"] for entry in model.history_[: first[late]]]
    asked = len(fed.meter.records)
    with caplog.at_level("WARNING", logger="solera"):
        model.forget(late, fed, progress=False)
    assert "not exact" in caplog.text
    assert [entry["loss"] for entry in model.history_[: first[late]]] == before
    assert len(model.history_) == 6
    trained = [r for r in fed.meter.records[asked:] if r.task == "linear.train"]
    assert [r.round for r in trained] == list(range(first[late], 6))
    assert all(late not in r.clients for r in trained)
    assert not same(model, whole)
    state = encode(model.get_state())
    with pytest.raises(CannotForget, match="rounds"):
        model.forget(0)
    assert encode(model.get_state()) == state, "what cannot be forgotten is as it was"

    # The next one is one of the first: what it gave before the round above counts, too.
    early = next(c for c, r in first.items() if r == 0)
    assert model._kept["first"][str(early)] == 0
    asked = len(fed.meter.records)
    model.forget(early, fed, progress=False)
    trained = [r for r in fed.meter.records[asked:] if r.task == "linear.train"]
    assert [r.round for r in trained] == list(range(6))
    assert not any({early, late} & set(r.clients.tolist()) for r in trained)


def test_after_a_resumed_run_everything_is_trained_again(tmp_path):
    fed = simulated()
    path = tmp_path / "run.sol"
    so.FedLinear(rounds=3, per_round=2).fit(fed, checkpoint=path, progress=False)
    more = so.FedLinear(rounds=6, per_round=2).fit(fed, checkpoint=path, progress=False, keep=True)
    asked = len(fed.meter.records)
    more.forget(0, fed, progress=False)
    trained = [r for r in fed.meter.records[asked:] if r.task == "linear.train"]
    assert [r.round for r in trained] == list(range(6))


def test_a_client_that_never_took_part_leaves_the_model_as_it_is():
    fed = simulated()
    model = so.FedLinear(rounds=1, per_round=2).fit(fed, keep=True, progress=False)
    never = next(c for c in range(10) if str(c) not in model._kept["first"])
    before = model.get_state()
    model.forget(never, fed, progress=False)
    assert encode(model.get_state()) == encode(before)


# --- receipts and limits ---


def test_a_receipt_is_signed_and_names_both_models(tmp_path):
    pytest.importorskip("cryptography")
    from solera.serve.identity import Identity

    key = Identity.create(tmp_path / "key")
    model = so.FedHEONN().fit(simulated(), keep=True)
    model.forget(GONE, key=key)
    assert model.receipt["forgotten"] == "3"
    assert model.receipt["exact"] is True
    assert check_receipt(model.receipt, model.to_bytes()) == []
    other = so.FedHEONN().fit(simulated())
    assert "not the one" in check_receipt(model.receipt, other.to_bytes())[0]
    changed = {**model.receipt, "forgotten": "4"}
    assert "changed" in check_receipt(changed)[0]
    assert from_bytes(model.to_bytes()).receipt is None


def test_what_was_kept_does_not_stand_for_clients_that_came_later():
    fed = simulated()
    model = so.FedHEONN().fit(fed, keep=True).partial_fit(simulated(without=[0]))
    with pytest.raises(CannotForget, match="nothing was kept"):
        model.forget(GONE)


def test_a_model_that_began_with_another_says_so():
    fed = simulated()
    start = so.FedLinear(rounds=1).fit(fed, progress=False)
    model = so.FedLinear(rounds=1).fit(fed, start=start, keep=True, progress=False)
    with pytest.raises(CannotForget, match="began with another"):
        model.forget(GONE, fed)


def test_after_a_secure_sum_nothing_can_be_refolded():
    fed = simulated(secure=True)
    with pytest.raises(CannotForget, match="secure sum"):
        so.FedHEONN().fit(fed, keep=True)
    model = so.FedHEONN().fit(fed)
    with pytest.raises(CannotForget, match="nothing was kept"):
        model.forget(GONE)


def test_encrypted_sums_forget(tmp_path, monkeypatch):
    pytest.importorskip("tenseal")
    monkeypatch.setenv("SOLERA_KEYS", str(tmp_path))
    so.keys.create(tmp_path, "ward", so.keys.SMALL_CLIENT)
    fed = simulated()
    options = {"encrypt": so.Encryption("ward")}
    model = so.FedHEONN("linear", lam=0.1, **options).fit(fed, keep=True)
    kept = model._kept
    smallest = _without_largest(kept)
    model.forget(smallest)
    plain = so.FedHEONN("linear", lam=0.1).fit(fed.without(smallest))
    np.testing.assert_allclose(model.weights_, plain.weights_, atol=1e-4)
    entry = kept["asks"][-1]
    folding, partial = model.aggregation(), None
    for client, payload in entry["replies"]:
        if client != smallest:
            reply = so.messages.Reply(client, payload)
            partial = folding.merge(partial, folding.lift(reply))
    folded = folding.finish(partial)["moments"]
    assert encode(folded) == encode(model.statistics_["moments"])


ENCRYPTED = {name: FOLDS[name] for name in ("heonn", "hidden", "ensemble")}
ENCRYPTED["numbers"] = (lambda: so.FedHEONN("linear", lam=0.1), "numbers")


@pytest.mark.parametrize(
    ("name", "finish"), [*((name, "client") for name in ENCRYPTED), ("heonn", "coordinator")]
)
def test_encrypted_folds_forget_to_the_bit_of_a_fresh_fit(name, finish, tmp_path, monkeypatch):
    """Where equal numbers have equal ciphertexts, so that those of two fits can be compared.

    A coordinator that multiplies draws anew each time; the encrypted sums are compared then.
    """
    pytest.importorskip("tenseal")
    from solera.privacy.he import keys
    from solera.privacy.he.ring import context, dump, seal

    def encrypt_block(self, plaintext):
        here = context(self.parameters, blake2b(dump(plaintext)).digest())
        return dump(seal().Encryptor(here, self._key).encrypt_symmetric(plaintext))

    monkeypatch.setattr(keys.SecretKey, "encrypt_block", encrypt_block)
    monkeypatch.setenv("SOLERA_KEYS", str(tmp_path))
    so.keys.create(tmp_path, "ward", so.keys.SMALL_CLIENT if finish == "client" else so.keys.SMALL)
    make, target = ENCRYPTED[name]
    encrypt = so.Encryption("ward", finish=finish)
    fed = simulated(target)

    def told(model):
        return model.to_bytes() if finish == "client" else encode(model.get_state()["statistics_"])

    never = make().set_params(encrypt=encrypt).fit(fed.without(GONE))
    model = make().set_params(encrypt=encrypt).fit(fed, keep=True)
    assert told(model) != told(never)
    assert told(model.forget(GONE, fed)) == told(never)


def _without_largest(kept):
    """A client on whose numbers the scaling of the others does not rest."""
    asked = next(e for e in kept["asks"] if "exponent" in dict(e["replies"][0][1]))
    exponents = {c: np.asarray(p["exponent"]) for c, p in asked["replies"]}
    for client in exponents:
        others = np.max([e for c, e in exponents.items() if c != client], axis=0)
        if np.array_equal(others, np.max(list(exponents.values()), axis=0)):
            return client
    raise AssertionError("every client sets the scale of some column")
