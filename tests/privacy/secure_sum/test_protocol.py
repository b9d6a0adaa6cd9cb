"""Secure sums in simulations: right, robust to dropouts, and of no use to a liar."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.component import describe
from solera.core.engine import PerClient
from solera.core.errors import NotASum, NotEnoughReplies, SecureSumFailed, UsageError
from solera.core.payload import encode
from solera.engines.faults import Faults
from solera.engines.local import LocalEngine

pytest.importorskip("cryptography", reason="the extra 'secure' is not installed")

from solera.privacy.secure_sum import keys, tasks
from solera.privacy.secure_sum.shares import combine
from solera.trust import masks
from solera.trust.encoding import Encoding

STEPS = ("secure.keys", "secure.shares", "test.vector", "secure.confirm", "secure.unmask")
CLIENTS = 9  # of which 7 must stay
VALUES = np.random.default_rng(5).normal(size=(120, 4))


@so.task("test.vector")
def vector(client, ask):
    """The client's row, or whatever the ask wants of it."""
    wanted = ask.get(str(client.id), "row")
    if wanted == "nan":
        return {"x": np.array([1.0, np.nan]), "n": 1}
    if wanted == "shape":
        return {"x": np.ones(7), "n": 1}
    if wanted == "text":
        return {"x": "text", "n": 1}
    if "size" in ask:
        return {"x": np.ones(ask["size"]), "n": 1}
    return {"x": client.data.X[0] * ask.get("times", 1.0), "n": 1}


class Dropping:
    """Lets clients drop out of the ask of a task."""

    def __init__(self, **who):
        self.who = {name.replace("_", "."): ids for name, ids in who.items()}

    def faults(self, ask, clients):
        gone = np.isin(clients, self.who.get(ask.task, []))
        no = np.zeros(len(clients), bool)
        return Faults(gone, no, no, np.zeros(len(clients)))


class Watched(LocalEngine):
    """Remembers every ask, and may change what clients answer."""

    change: Any = None

    def __init__(self, source, **options):
        super().__init__(source, **options)
        self.asks = []

    def run(self, ask, aggregation):
        self.asks.append(ask)
        for block in super().run(ask, None if self.change else aggregation):
            if self.change:
                for reply in block.batch:
                    self.change(ask.task, reply)
                block = block if aggregation is None else self.folded(block, aggregation, ask)
            yield block

    def folded(self, block, aggregation, ask):
        from solera.core.task import find_task
        from solera.engines.folds import validate_and_fold

        task = find_task(ask.task)
        return validate_and_fold(task, ask, block.batch, block.failures, 0.0, aggregation)

    @property
    def asked(self):
        return [ask.task for ask in self.asks]


def engine_of(clients=CLIENTS, **options):
    offsets = np.arange(clients + 1)
    return Watched(so.data.FederatedData(VALUES[:clients], None, offsets), **options)


def federation(clients=CLIENTS, secure=True, **options):
    return so.Federation(engine_of(clients, **options), seed=3, secure=secure)


def total_of(found):
    return found["x"], found["n"]


# --- the sum ---


@pytest.mark.parametrize("clients", [2, 3, CLIENTS])
def test_the_sum_is_the_plain_one_and_nothing_is_left_at_clients(clients):
    fed = federation(clients)
    x, n = total_of(fed.ask(vector, {}).fold(so.aggregations.Sum()))
    np.testing.assert_allclose(x, VALUES[:clients].sum(axis=0), rtol=1e-15)
    assert n == clients
    assert fed.engine.asked == list(STEPS)
    assert fed.engine.states() == {}


def test_of_one_client_there_is_no_secret_sum():
    with pytest.raises(UsageError, match="tells that client's numbers"):
        federation().ask(vector, {}, to=[4]).fold(so.aggregations.Sum())


def test_a_secure_sum_in_place_of_a_sum():
    fed = federation(secure=False)
    x, _ = total_of(fed.ask(vector, {}).fold(so.SecureSum()))
    np.testing.assert_allclose(x, VALUES[:CLIENTS].sum(axis=0), rtol=1e-15)
    mean = fed.ask(vector, {}).fold(so.SecureSum(so.aggregations.Mean("n"), range=8.0))["x"]
    np.testing.assert_allclose(mean, VALUES[:CLIENTS].mean(axis=0), atol=1e-15)
    coarse = so.SecureSum(range=8.0, precision=1e-4)
    x, _ = total_of(fed.ask(vector, {}).fold(coarse))
    np.testing.assert_allclose(x, VALUES[:CLIENTS].sum(axis=0), atol=CLIENTS * 1e-4)
    assert not np.array_equal(x, VALUES[:CLIENTS].sum(axis=0))


def test_a_sum_does_not_depend_on_the_masks_or_the_engine():
    bytes_ = set()
    for engine in ("local", "processes"):
        with so.simulate(VALUES[:20], clients=10, engine=engine, seed=1, secure=True) as fed:
            for _ in range(2):
                bytes_.add(encode(fed.ask(vector, {}).fold(so.aggregations.Sum())))
    assert len(bytes_) == 1


def test_many_clients_share_masks_with_some_only():
    gone = {
        "secure_shares": [3],
        "test_vector": [5, 70],
        "secure_confirm": [8],
        "secure_unmask": [9],
    }
    fed = federation(120, fault_model=Dropping(**gone))
    x, n = total_of(fed.ask(vector, {}).fold(so.aggregations.Sum()))
    there = np.setdiff1d(np.arange(120), [3, 5, 70])
    np.testing.assert_allclose(x, VALUES[there].sum(axis=0), rtol=1e-13)
    assert n == len(there)
    sealed = fed.engine.asks[-1].payload.payloads[0]["sealed"]
    assert len(sealed) < 110, "everyone is next to everyone"


# --- dropouts ---


@pytest.mark.parametrize("step", STEPS)
def test_up_to_n_minus_t_clients_may_drop_out_of_any_step(step):
    drops = {step.replace(".", "_"): [1, 6]}
    fed = federation(fault_model=Dropping(**drops))
    replies = fed.ask(vector, {})
    x, n = total_of(replies.fold(so.aggregations.Sum()))
    came = STEPS.index(step) > STEPS.index("test.vector")
    there = np.arange(CLIENTS) if came else np.setdiff1d(np.arange(CLIENTS), [1, 6])
    np.testing.assert_allclose(x, VALUES[there].sum(axis=0), rtol=1e-13)
    assert n == len(there)
    assert sorted({failure.client for failure in replies.failures}) == ([] if came else [1, 6])
    replied = next(r for r in fed.meter.records if r.task == "test.vector").replied
    assert np.array_equal(replied, there)


@pytest.mark.parametrize(("first", "second"), list(product(STEPS, STEPS)))
def test_clients_may_drop_out_at_different_steps(first, second):
    drops = {first.replace(".", "_"): [0]} | {second.replace(".", "_"): [0, 8]}
    fed = federation(fault_model=Dropping(**drops))
    x, n = total_of(fed.ask(vector, {}).fold(so.aggregations.Sum()))
    early = STEPS[:3]
    gone = ([0] if first in early and first != second else []) + ([0, 8] if second in early else [])
    there = np.setdiff1d(np.arange(CLIENTS), gone)
    np.testing.assert_allclose(x, VALUES[there].sum(axis=0), rtol=1e-13)
    assert n == len(there)


@pytest.mark.parametrize("step", STEPS)
def test_with_fewer_than_t_nothing_is_revealed(step):
    fed = federation(fault_model=Dropping(**{step.replace(".", "_"): [1, 2, 6]}))
    words = {"secure.unmask": "gave their share of client 0's secret, 7 are needed"}
    with pytest.raises(SecureSumFailed, match=words.get(step, "6 of 9 clients .*, 7 are needed")):
        fed.ask(vector, {}).fold(so.aggregations.Sum())
    assert fed.engine.asked[-1] == step, "something was asked afterwards"


def test_a_quorum_counts_those_in_the_sum():
    fed = federation(fault_model=Dropping(test_vector=[1, 6]))
    with pytest.raises(NotEnoughReplies, match=r"7 of 9 clients replied to 'test.vector', 8"):
        fed.ask(vector, {}, quorum=8).fold(so.aggregations.Sum())


# --- replies that are not sound ---


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("nan", "entry 1 at 'x' is nan"),
        ("shape", "not of the form of the others'"),
        ("text", "cannot add values of type str"),
    ],
)
def test_an_unsound_reply_is_named_and_left_out(wanted, why):
    fed = federation()
    replies = fed.ask(vector, {"4": wanted})
    x, n = total_of(replies.fold(so.aggregations.Sum()))
    np.testing.assert_allclose(x, np.delete(VALUES[:CLIENTS], 4, axis=0).sum(axis=0), rtol=1e-13)
    assert n == CLIENTS - 1
    (failure,) = replies.failures
    assert failure.client == 4
    assert why in failure.reason


def test_a_number_outside_the_declared_range_is_named_at_the_client():
    fed = federation(secure=so.SecureSum(range=1e-3))
    with pytest.raises(SecureSumFailed, match=r"entry 0 at 'x' is .*up to 0.001.* a larger range"):
        fed.ask(vector, {}).fold(so.aggregations.Sum())
    assert "secure.confirm" not in fed.engine.asked
    with pytest.raises(UsageError, match="precision needs a range"):
        so.SecureSum(precision=0.1)


def junk(task, client, change):
    def apply(name, reply):
        if (name, reply.client) == (task, client):
            change(reply.payload)

    return apply


def put(**values):
    return lambda payload: payload.update(values)


@pytest.mark.parametrize(
    ("task", "change"),
    [
        ("secure.keys", put(mask=b"short")),
        ("secure.keys", put(seal="text")),
        ("secure.keys", dict.clear),
        ("secure.shares", put(sealed=np.zeros((3, 80), np.uint8))),
        ("secure.shares", put(to=np.arange(8))),
        ("secure.shares", put(to=None)),
        ("test.vector", put(words=b"123")),
        ("test.vector", put(bits=33)),
        ("test.vector", put(form={"x": {"$leaf": ["float64", [10**9]]}})),
        ("test.vector", put(form=3)),
        ("test.vector", dict.clear),
        ("test.vector", put(asked=bytes(24))),
        ("secure.confirm", put(confirmations=np.zeros((8, 3), np.uint8))),
        ("secure.confirm", put(confirmations=np.zeros((8, 16), np.uint8))),
        ("secure.unmask", put(shares=b"")),
        ("secure.unmask", put(of=np.zeros(9, np.float64))),
    ],
)
def test_malformed_messages_of_a_client_cost_no_more_than_its_own_part(task, change):
    fed = federation()
    fed.engine.change = junk(task, 3, change)
    x, n = total_of(fed.ask(vector, {}).fold(so.aggregations.Sum()))
    there = np.arange(CLIENTS) if n == CLIENTS else np.delete(np.arange(CLIENTS), 3)
    np.testing.assert_allclose(x, VALUES[there].sum(axis=0), rtol=1e-13)
    assert (n == CLIENTS) == (task in STEPS[3:])


# --- what the coordinator sees ---


def masked_bytes(clients=3, size=40_000):
    """One client's masked reply, of numbers that are all the same."""

    @so.task("test.masked_ones")
    def ones(client, ask):
        return np.ones(size)

    seen = []
    fed = federation(clients)
    fed.engine.change = lambda task, reply: seen.append((task, reply))
    total = fed.ask(ones).fold(so.aggregations.Sum())
    assert np.array_equal(total, np.full(size, float(clients)))
    return next(
        r.payload["words"] for task, r in seen if task == "test.masked_ones" and r.client == 1
    )


def chi_square(frame):
    counts = np.bincount(np.frombuffer(frame, np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2 / expected).sum())


def test_one_masked_reply_looks_like_noise():
    """Bytes, and differences of neighbouring words, are uniform: 255 degrees of freedom."""
    frame = masked_bytes()
    assert chi_square(frame) < 400
    assert chi_square(np.diff(np.frombuffer(frame, np.uint64)).tobytes()) < 400


def test_without_masks_the_same_test_fails(monkeypatch):
    monkeypatch.setattr(tasks, "add_masks", lambda *_: None)
    monkeypatch.setattr("solera.privacy.secure_sum.protocol.add_masks", lambda *_: None)
    assert chi_square(masked_bytes()) > 10**6


def test_two_sums_of_the_same_numbers_have_nothing_in_common():
    one, two = (np.frombuffer(masked_bytes(), np.uint64) for _ in range(2))
    assert chi_square((one - two).tobytes()) < 400


# --- a coordinator that lies ---


class Liar:
    """Goes through the steps by hand, as far as it is told, and says what it likes."""

    def __init__(self, clients=CLIENTS):
        self.fed = federation(clients, secure=False)
        self.masked = {}
        self.ids = np.arange(clients)
        told = self.ask(tasks.tell_keys, {})
        self.roster = {
            "clients": self.ids,
            "mask_keys": np.stack([np.frombuffer(told[c]["mask"], np.uint8) for c in told]),
            "seal_keys": np.stack([np.frombuffer(told[c]["seal"], np.uint8) for c in told]),
            "signatures": np.zeros((clients, 64), np.uint8),
            "share": 2 / 3,
        }

    def ask(self, task, payload, to=None):
        """Who answered what; refusals are kept beside."""
        replies = self.fed.ask(task, payload, to=to, quorum=0)
        found = {reply.client: reply.payload for reply in replies}
        self.refusals = {failure.client: failure.reason for failure in replies.failures}
        return found

    def share(self):
        self.sealed = self.ask(tasks.give_shares, self.roster)
        return self

    def mask(self, members=None, to=None, rule=None, **payload):
        from dataclasses import replace

        who = self.ids if members is None else np.asarray(members)
        masking = tasks.Masking(rule or so.aggregations.Sum(), who, len(self.ids))
        replies = self.fed.ask(vector, payload, to=to, quorum=0)
        replies.ask = replace(replies.ask, cover=describe(masking))
        self.masked |= {reply.client: reply.payload for reply in replies}
        self.refusals = {failure.client: failure.reason for failure in replies.failures}
        return self

    def tell(self, views):
        """To each client its own story of who has answered."""
        payload = {c: {"clients": np.array(view), **self.asked(c)} for c, view in views.items()}
        said = self.ask(tasks.confirm, PerClient(payload), to=sorted(views))
        self.said = {c: dict(zip(r["to"].tolist(), r["confirmations"], strict=True))
                     for c, r in said.items()}  # fmt: skip
        return self

    def asked(self, client):
        """What others said to a client of what they were asked."""
        lines = {
            c: np.frombuffer(r["asked"], np.uint8).reshape(-1, 16)[r["to"] == client]
            for c, r in self.masked.items()
            if c != client
        }
        return {"senders": np.array(list(lines)), "asked": np.concatenate(list(lines.values()))}

    def open(self, to, saying=None):
        """Ask for shares; every client gets what others said to it."""
        payloads = {}
        for c in to:
            words = {o: s[c] for o, s in self.said.items() if c in s}
            words |= {} if saying is None else saying
            sealed = {o: r["sealed"][r["to"] == c][0] for o, r in self.sealed.items() if o != c}
            payloads[c] = {
                "confirmed": np.array(list(words), np.int64),
                "confirmations": np.stack(list(words.values()))
                if words
                else np.zeros((0, 16), np.uint8),
                "senders": np.array(list(sealed)),
                "sealed": np.stack(list(sealed.values())),
            }
        return self.ask(tasks.give_up_shares, PerClient(payloads), to=to)


def everyone(view, clients=range(CLIENTS)):
    return {key: list(view) for key in clients}


def test_the_hand_made_protocol_works_when_it_does_not_lie():
    liar = Liar().share().mask().tell(everyone(range(CLIENTS)))
    given = liar.open(range(CLIENTS))
    shares = {c: dict(zip(r["of"].tolist(), r["shares"], strict=True)) for c, r in given.items()}
    digest = tasks.roster_digest(liar.roster)
    words = sum(np.frombuffer(m["words"], np.uint64) for m in liar.masked.values())
    words = np.array(words)
    for client in range(CLIENTS):
        seed = combine(range(7), np.stack([shares[c][client] for c in range(7)]))
        masks.add_masks(words, [], [tasks.own_mask(seed, digest)])
    total = Encoding(CLIENTS).numbers(words, liar.masked[0]["form"])
    np.testing.assert_allclose(total["x"], VALUES[:CLIENTS].sum(axis=0), rtol=1e-13)


def test_nobody_believes_that_only_one_client_is_left():
    """Then its reply would be the whole sum."""
    liar = Liar().share().mask().tell(everyone([4]))
    assert liar.said == {}
    assert "fewer than 7 clients next to this one" in liar.refusals[4]
    assert all("not among them" in liar.refusals[c] for c in range(CLIENTS) if c != 4)


def test_different_stories_for_different_clients_get_no_share():
    """Some are told that 4 has answered, the others that it has not: each story lacks witnesses."""
    dropped = [c for c in range(CLIENTS) if c != 4]
    views = {c: (range(CLIENTS) if c in (0, 1, 2, 4) else dropped) for c in range(CLIENTS)}
    liar = Liar().share().mask().tell(views)
    assert liar.open(range(CLIENTS)) == {}
    assert set(liar.refusals) == set(range(CLIENTS))
    assert all("confirm who has answered, 7 are needed" in why for why in liar.refusals.values())


def test_the_reply_of_a_client_that_is_said_to_be_gone_stays_masked():
    """All believe that 4 dropped out and give its key away; its own mask is left on its reply."""
    others = [c for c in range(CLIENTS) if c != 4]
    liar = Liar().share().mask(size=40_000).tell(everyone(others, others))
    given = liar.open(others)
    shares = {c: dict(zip(r["of"].tolist(), r["shares"], strict=True)) for c, r in given.items()}
    private = combine(others[:7], np.stack([shares[c][4] for c in others[:7]]))
    roster, digest = liar.roster, tasks.roster_digest(liar.roster)
    assert keys.public_of(private) == roster["mask_keys"][4].tobytes()
    words = np.array(np.frombuffer(liar.masked[4]["words"], np.uint64))
    masked_by = {
        c: tasks.pair_mask(keys.load(private), roster["mask_keys"][c].tobytes(), digest)
        for c in others
    }
    before, after = ([masked_by[c] for c in others if (c < 4) == side] for side in (True, False))
    masks.add_masks(words, before, after)
    assert chi_square(words.tobytes()) < 400


@pytest.mark.parametrize("other", [{"payload": {"times": 0.0}}, {"weigh": "n"}])
def test_all_are_asked_the_same_and_add_up_the_same(other):
    """All but one asked for nothing: what is left of the sum would be that one's reply."""
    rest = [c for c in range(CLIENTS) if c != 4]
    weigh = so.aggregations.Mean(other["weigh"]) if "weigh" in other else so.aggregations.Sum()
    liar = Liar().share().mask(to=rest, rule=weigh, **other.get("payload", {})).mask(to=[4])
    assert len(liar.masked) == CLIENTS
    liar.tell(everyone(range(CLIENTS)))
    assert liar.said == {}
    assert "client 4 does not say that it was asked the same" in liar.refusals[0]


def test_words_of_others_or_made_up_do_not_count():
    liar = Liar().share().mask().tell(everyone(range(CLIENTS)))
    forged = {c: np.full(16, 7, np.uint8) for c in range(1, CLIENTS)}
    assert liar.open([0], forged) == {}
    liar = Liar().share().mask().tell(everyone(range(CLIENTS)))
    moved = {c: liar.said[c][1] for c in range(2, CLIENTS)}  # what they said to client 1
    assert liar.open([0], moved) == {}
    assert "confirm who has answered" in liar.refusals[0]


def test_no_client_gives_both_kinds_of_share_of_one_peer():
    liar = Liar().share().mask().tell(everyone(range(CLIENTS)))
    said = liar.said
    liar.tell(everyone([c for c in range(CLIENTS) if c != 4]))
    assert liar.said == {}
    liar.said = said
    assert all("out of turn" in why for why in liar.refusals.values())
    given = liar.open(range(CLIENTS))
    assert len(given) == CLIENTS
    assert {len(r["of"]) for r in given.values()} == {CLIENTS}
    assert liar.open(range(CLIENTS)) == {}, "shares were given twice"


def test_masks_are_used_once():
    """The difference of two replies under the same masks would be that of the replies."""
    liar = Liar().share().mask()
    assert len(liar.masked) == CLIENTS
    liar.masked = {}
    liar.mask(times=2.0)
    assert liar.masked == {}
    assert "out of turn" in liar.refusals[0]
    first = Liar()
    first.share()
    assert first.ask(tasks.give_shares, first.roster) == {}, "seeds were shared out twice"


def test_masks_with_a_few_do_not_do():
    liar = Liar().share().mask(members=[0, 1, 2])
    assert liar.masked == {}
    assert "fewer than 7 clients share masks" in liar.refusals[0]


def test_a_roster_without_the_clients_own_keys_is_refused():
    liar = Liar()
    liar.roster["mask_keys"] = np.roll(liar.roster["mask_keys"], 1, axis=0)
    assert liar.ask(tasks.give_shares, liar.roster) == {}
    liar = Liar()
    liar.roster["share"] = 0.2
    assert liar.ask(tasks.give_shares, liar.roster) == {}


def test_a_share_that_the_relay_changed_does_not_open():
    liar = Liar().share().mask().tell(everyone(range(CLIENTS)))
    for reply in liar.sealed.values():
        reply["sealed"] = reply["sealed"] ^ 1
    assert liar.open([0]) == {}
    assert "was changed" in liar.refusals[0]


def test_keys_of_a_client_differ_between_sums():
    told = [
        tuple(federation().ask(tasks.tell_keys, {}).collect()[0].payload.values()) for _ in "ab"
    ]
    assert told[0][:2] != told[1][:2]
    assert keys.public_of(keys.new_private()) != keys.public_of(keys.new_private())


# --- what may not be folded, and what says so ---


@pytest.mark.parametrize(
    "read",
    [
        lambda replies: replies.fold(so.aggregations.Collect()),
        lambda replies: replies.fold(so.aggregations.ByFold(so.aggregations.Sum(), 3)),
        lambda replies: replies.fold(so.SecureSum(so.aggregations.Collect())),
        lambda replies: replies.collect(),
        lambda replies: next(iter(replies)),
    ],
)
def test_what_is_no_sum_is_an_error_that_says_so(read):
    with pytest.raises(NotASum, match=r"the replies to 'test.vector' are .*which is no sum"):
        read(federation().ask(vector, {}))


def test_selectors_that_look_at_updates_are_an_error():
    fed = so.simulate(VALUES, VALUES[:, 0] > 0, clients=5, secure=True)
    learner = so.FedLinear(rounds=1, per_round=3, select=so.selectors.GreedyShapley(part="train"))
    with pytest.raises(NotASum, match="shown to the selector one by one"):
        learner.fit(fed)


def test_secure_is_true_or_a_secure_sum():
    with pytest.raises(UsageError, match="secure='yes'"):
        so.simulate(VALUES, clients=3, secure="yes")
    fed = so.simulate(VALUES, clients=3, secure=so.SecureSum(range=8.0))
    assert fed.secure == so.SecureSum(range=8.0)
    assert so.simulate(VALUES, clients=3).secure is None


def test_the_history_and_the_card_say_that_sums_were_secure():
    X, y = VALUES, VALUES[:, 0] > 0
    model = so.FedLinear(rounds=2).fit(so.simulate(X, y, clients=4, secure=True))
    plain = so.FedLinear(rounds=2).fit(so.simulate(X, y, clients=4))
    assert [entry["secure"] for entry in model.history_] == [True, True]
    assert "only sums could be read: `SecureSum()`" in model.card()
    assert "secure" not in plain.history_[0]
    assert "only sums" not in plain.card()


def test_a_robust_rule_over_buckets_sees_sums_of_buckets():
    X, y = VALUES, (VALUES[:, 0] > 0).astype(int)
    rule = so.robust.Buckets(so.robust.Median(), buckets=3)
    feds = [so.simulate(X, y, clients=9, seed=1, secure=secure) for secure in (False, True)]
    models = [so.FedLinear(rounds=2, aggregate=rule).fit(fed) for fed in feds]
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, rtol=1e-9)
    shared = [r for r in feds[1].meter.records if r.task == "secure.shares"]
    assert [len(record.clients) for record in shared] == [3] * 6
