"""Noise inside the sums of closed jobs: how much it is, whose, and what it is worth."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.accounting import Event
from solera.core.errors import GateRefusal, UsageError
from solera.data.federated import FederatedData
from solera.engines import owner as owner_module
from solera.engines.owner import OwnerWorker
from solera.learn.closed import price_of
from solera.simulate.owners import SimulatedOwners
from solera.trust import noise as noise_module
from solera.trust.board.engine import NotClosed
from solera.trust.noise import worth

pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.filterwarnings("ignore::solera.simulate.epochs.DraftedDictionary")

draw = np.random.default_rng(5)
X = draw.normal(size=(240, 4))
Y = (X[:, 0] + draw.normal(size=len(X)) > 0).astype(int)
OWNERS, PEERS = 4, 2
NOISE = {"policy": "sums", "privacy": {"epsilon": 8.0, "delta": 1e-5}}
MLP = so.nn.mlp(4, 3, 2)


def dp(**options: Any) -> so.DP:
    return so.DP(**{"epsilon": 7.9, "delta": 1e-5, **options})


ROWS = {"level": "record", "clip": 2.0}
LEARNERS = {
    "FedLinear": lambda: so.FedLinear(rounds=3, dp=dp(clip=1.0)),
    "FedAvg": lambda: so.FedAvg(MLP, rounds=2, weight=None, dp=dp(clip=1.0)),
    "FedAvg adaptive": lambda: so.FedAvg(MLP, rounds=2, weight=None, dp=dp(clip=1.0, adaptive=0.5)),
    "FedAvg rows": lambda: so.FedAvg(MLP, rounds=3, weight=None, dp=dp(rate=1.0, **ROWS)),
    "FedAvg some rows": lambda: so.FedAvg(
        MLP, rounds=3, weight=None, local_steps=1, dp=dp(rate=0.5, **ROWS)
    ),
    "FedProx": lambda: so.FedProx(MLP, rounds=2, weight=None, dp=dp(clip=1.0)),
    "FedGLM": lambda: so.FedGLM("binomial", rounds=3, dp=dp(**ROWS)),
    "FedHEONN": lambda: so.FedHEONN(dp=dp(**ROWS)),
    "FedHistGBDT": lambda: so.FedHistGBDT(rounds=2, max_depth=2, bins=4, dp=dp(level="record")),
    "FedID3": lambda: so.Pipeline(
        so.FedBins(3, dp=dp(epsilon=3.0, level="record")),
        so.FedID3(max_depth=1, dp=dp(epsilon=4.0, level="record")),
    ),
    "FedID3 Laplace": lambda: so.Pipeline(
        so.FedBins(3, dp=dp(epsilon=3.0, level="record")), so.FedID3(max_depth=1, epsilon=3.0)
    ),
}


def owners(X: Any = X, y: Any = Y, **options: Any) -> Any:
    return so.simulate(X, y, **{"clients": OWNERS, "seed": 1, "policy": NOISE, **options})


def workers(federation: Any) -> list[OwnerWorker]:
    exchange = federation.closed_job("any").engine.exchange
    assert isinstance(exchange, SimulatedOwners)
    return exchange.workers


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every question with noise, and its ask."""
    total, found = SimulatedOwners.total, []

    def watched(self: Any, question: bytes, ask: Any, aggregation: Any) -> Any:
        if isinstance(ask.payload, dict) and "privacy" in ask.payload:
            found.append((question, ask))
        return total(self, question, ask, aggregation)

    monkeypatch.setattr(SimulatedOwners, "total", watched)
    return found


def parts_of(model: Any) -> list[Any]:
    return [part for part in getattr(model, "steps_", [model]) if "accounts_" in vars(part)]


@pytest.mark.parametrize("name", LEARNERS)
def test_a_job_is_priced_before_its_first_sum_and_spends_no_more(
    name: str, asked: list[Any]
) -> None:
    if "FedAvg" in name or name == "FedProx":
        pytest.importorskip("torch")
    price = price_of(LEARNERS[name](), OWNERS)
    assert price is not None
    assert price.honest_peers == PEERS
    model = LEARNERS[name]().fit(owners())
    parts = parts_of(model)
    spent = [Event.from_payload(event) for part in parts for event in part.accounts_["events"]]
    assert worth(spent, 1e-5) <= price.epsilon * (1 + 1e-9)
    assert price.epsilon <= 7.9 * (1 + 1e-9)
    if len(parts) == 1:
        assert parts[0].epsilon_ == pytest.approx(price.epsilon, rel=1e-12)
        assert price.epsilon == pytest.approx(7.9, rel=1e-3)
    assert len(asked) == sum(event.times for event in spent)
    for part in parts:
        for entry in part.history_:
            assert (entry["noise"], entry["honest_peers"]) == ("at the sum", PEERS)
        assert "at the sum, if 2 other owners are honest" in part.privacy_


# --- how much noise ---


def pure_noise(asked: list[Any], **options: Any) -> tuple[Any, list[Any]]:
    """What every owner adds to a sum that is 0 without noise: 3000 coefficients."""
    wide = owners(np.zeros((40, 3000)), np.arange(40.0), **options)
    noise = so.DP(noise_multiplier=3.0, delta=1e-4, clip=0.5)
    model = so.FedLinear(rounds=1, lr=1e-9, dp=noise).fit(wide, progress=False)
    ((question, ask),) = asked
    shares = [worker.run(question, ask).numbers["change"]["coef"] for worker in workers(wide)]
    return model, shares


def test_the_shares_of_honest_peers_suffice_whoever_colludes(asked: list[Any]) -> None:
    """One person turns an update round, from C to −C: their total noise is σ 2 C or more."""
    sigma, ball = 3.0, 2 * 0.5
    rich = {"policy": "sums", "privacy": {"epsilon": 100.0, "delta": 1e-4}}
    model, shares = pure_noise(asked, policy=rich)
    deviations = [np.std(share) for share in shares]
    assert deviations == pytest.approx([sigma * ball / math.sqrt(PEERS)] * OWNERS, rel=0.06)
    for i in range(OWNERS):
        others = [share for j, share in enumerate(shares) if j != i]
        for liar in others:  # tells its share to whoever listens
            honest = sum(share for share in others if share is not liar)
            assert np.std(honest) == pytest.approx(sigma * ball, rel=0.06)
    assert np.std(model.coef_ * OWNERS) == pytest.approx(
        sigma * ball * math.sqrt(OWNERS / PEERS), rel=0.06
    )
    table = np.corrcoef([share.ravel() for share in shares])
    assert np.abs(table - np.eye(OWNERS)).max() < 0.08


def test_less_noise_than_is_priced_is_seen(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_module, "_deviation", lambda *_: 1e-3)
    with pytest.raises(AssertionError):
        test_the_shares_of_honest_peers_suffice_whoever_colludes(asked)


def test_a_person_of_a_small_owner_is_hidden_as_well_as_one_of_a_large(asked: list[Any]) -> None:
    """Owners divide by one number: with their own rows a person of a few would stand out."""
    pytest.importorskip("torch")
    sizes = [20, 100, 60, 60]
    ends = np.cumsum([0, *sizes])
    pairs = [(X[a:b], Y[a:b]) for a, b in itertools.pairwise(ends)]
    learner = so.FedAvg(MLP, rounds=1, lr=1.0, weight=None, dp=dp(rate=1.0, **ROWS))
    federation = so.simulate(pairs, seed=1, policy=NOISE)
    model = learner.fit(federation)
    sigma = model.accounts_["noise"]
    ((_, ask),) = asked
    loud, quiet = ({**ask.payload["privacy"], "noise": noise} for noise in (sigma, 1e-3))
    moved, spreads = [], []
    for worker, (rows, y) in zip(workers(federation), pairs, strict=True):
        exact = gradient_step(worker, rows, y, ask, quiet)
        others = [worker_of(worker, rows, y, bytes([i]) * 32) for i in range(20)]
        spreads.append(np.std([gradient_step(one, rows, y, ask, loud) - exact for one in others]))
        less = [(np.delete(rows, i, 0), np.delete(y, i)) for i in range(8)]
        steps = [gradient_step(worker, *without, ask, quiet) for without in less]
        moved.append(max(np.linalg.norm(exact - step) for step in steps))
    priced = min(spreads) * math.sqrt(PEERS) / sigma
    assert max(moved) <= 1.1 * priced, moved
    assert max(moved) > 0.05 * priced


def worker_of(worker: OwnerWorker, rows: Any, y: Any, secret: bytes) -> OwnerWorker:
    source = FederatedData(rows, y, np.array([0, len(rows)]), schema=worker.source.schema)
    rich = replace(worker.policy, budget=(1e9, 0.9))
    return OwnerWorker(source, rich, secret, OWNERS)


def gradient_step(worker: OwnerWorker, rows: Any, y: Any, ask: Any, privacy: Any) -> Any:
    other = worker_of(worker, rows, y, worker.secret)
    asked = replace(ask, payload={**ask.payload, "privacy": privacy})
    return other.run(b"q", asked).numbers["update"]["values"]


# --- whose, and how often ---


def test_noise_is_the_owners_secret_and_drawn_once(asked: list[Any]) -> None:
    secrets = {f"client {i}": bytes([i + 1]) * 32 for i in range(OWNERS)}
    frame = {"dictionary": so.epochs.draft(_frame(), target="y"), "secrets": secrets}
    noise = so.FedLinear(rounds=2, dp=dp(clip=1.0))
    fits = [noise.clone().fit(_named(**frame)) for _ in range(2)]
    assert np.array_equal(fits[0].coef_, fits[1].coef_)
    other = {**secrets, "client 0": bytes(32)}
    assert not np.array_equal(
        fits[0].coef_, noise.clone().fit(_named(**{**frame, "secrets": other})).coef_
    )
    federation = _named(**frame)
    noise.clone().fit(federation)
    question, ask = asked[-1]
    for worker in workers(federation):
        restarted = OwnerWorker(worker.source, worker.policy, worker.secret, OWNERS)
        one, again = (w.run(question, ask).numbers["change"] for w in (worker, restarted))
        assert np.array_equal(one["coef"], again["coef"])


def _frame() -> Any:
    import pandas as pd

    return pd.DataFrame(X, columns=list("abcd")).assign(y=Y)


def _named(**options: Any) -> Any:
    return so.simulate(_frame(), target="y", clients=OWNERS, seed=1, policy=NOISE, **options)


def trees_that_differ_in(worker: OwnerWorker, asked: list[Any], scores: float) -> Any:
    """The sums of a level that is asked in the same words, of rows with other scores."""
    question, ask = asked[-1]
    state = {**worker._states[ask.fit]}
    (name,) = state
    state[name] = {**state[name], "summed": state[name]["summed"] + scores}
    state[name]["ask"] = int(ask.payload["step"][0]) - 1
    other = OwnerWorker(worker.source, worker.policy, worker.secret, OWNERS)
    other._states[ask.fit] = state
    return other.run(question, ask).numbers["trees"][0]


def differs_exactly(asked: list[Any]) -> bool:
    federation = owners()
    LEARNERS["FedHistGBDT"]().fit(federation)
    worker = workers(federation)[0]
    one, other = (trees_that_differ_in(worker, asked, scores) for scores in (0.0, 1e-3))
    change = other - one
    return bool(np.abs(change).max() < 0.5)


def test_the_same_words_about_other_scores_have_other_noise(asked: list[Any]) -> None:
    """Two jobs that differ in a rate of learning ask some levels alike: nothing is subtracted."""
    assert not differs_exactly(asked)


def test_without_the_state_in_the_noise_differences_are_exact(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = owner_module.encode
    monkeypatch.setattr(owner_module, "encode", lambda v: b"" if isinstance(v, dict) else encode(v))
    assert differs_exactly(asked)


# --- what is refused before anything leaves ---


@pytest.mark.parametrize(
    ("policy", "options", "why", "line"),
    [
        ("sums", {}, "the policy has no budget", "[privacy]"),
        ("noise", {}, "the policy has no budget", "[privacy]"),
        (
            {"policy": "sums", "privacy": {"epsilon": 7.0, "delta": 1e-5}},
            {},
            "the privacy budget is ε = 7",
            "fewer rounds",
        ),
        ({**NOISE, "honest_peers": 1}, {}, "noise of 2 other owners, the policy on 1", "peers=1"),
    ],
)
def test_what_no_owner_lets_out_is_refused_before_anything_leaves(
    policy: Any, options: Any, why: str, line: str, asked: list[Any]
) -> None:
    federation = owners(policy=policy)
    with pytest.raises(GateRefusal, match=why) as refused:
        LEARNERS["FedLinear"]().fit(federation)
    assert line in str(refused.value)
    assert not federation.meter.records
    assert not asked


def test_fewer_honest_peers_cost_more_noise() -> None:
    careful = {**NOISE, "honest_peers": 1}
    learner = so.FedLinear(rounds=3, dp=dp(clip=1.0, honest_peers=1))
    model = learner.fit(owners(policy=careful))
    assert model.accounts_["share"] == 1
    assert "if 1 other owner is honest" in model.privacy_


def test_parameters_that_mean_nothing_are_named() -> None:
    with pytest.raises(UsageError, match="honest_peers= is of closed jobs"):
        so.FedLinear(dp=dp(clip=1.0, honest_peers=1)).fit(so.simulate(X, Y, clients=4))
    with pytest.raises(UsageError, match="must be below 4"):
        so.FedLinear(dp=dp(clip=1.0, honest_peers=4)).fit(owners())
    with pytest.raises(UsageError, match="count by another accountant"):
        so.FedLinear(dp=dp(clip=1.0, accountant="pld")).fit(owners())
    with pytest.raises(NotClosed, match="takes one step"):
        so.FedAvg(MLP, weight=None, dp=dp(rate=0.1, **ROWS)).fit(owners())


def test_more_asks_than_are_priced_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(so.FedGLM, "noised_asks", lambda self: 1)
    with pytest.raises(GateRefusal, match="the privacy budget is"):
        LEARNERS["FedGLM"]().fit(owners())


def test_a_budget_of_the_job_holds_whoever_writes_the_table(asked: list[Any]) -> None:
    """An owner counts what its tasks are asked, whatever the learner believes of it."""
    federation = owners()
    LEARNERS["FedLinear"]().fit(federation)
    _, ask = asked[0]
    worker = workers(federation)[0]
    with pytest.raises(GateRefusal, match="the privacy budget is"):
        worker.run(b"one more", ask)


def test_persons_with_several_rows_are_hidden_with_their_owner_or_not_at_all() -> None:
    person = np.arange(len(X)) // 2
    frame = _frame().assign(person=person)
    dictionary = so.epochs.draft(frame, target="y", identifier="person")
    options = {"clients": OWNERS, "seed": 1, "dictionary": dictionary, "policy": NOISE}
    with pytest.raises(GateRefusal, match="some person has several"):
        LEARNERS["FedGLM"]().fit(so.simulate(frame, target="y", **options))
    LEARNERS["FedLinear"]().fit(so.simulate(frame, target="y", **options))


def test_what_no_noise_is_on_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No counts of classes, no losses: of a noised job the first sum tells persons and rows."""
    told, total = [], SimulatedOwners.total

    def watched(self: Any, question: bytes, ask: Any, aggregation: Any) -> Any:
        came = total(self, question, ask, aggregation)
        if "privacy" not in (ask.payload or ()):
            told.append((ask.task, sorted(came.partial.get("solera.value", came.partial))))
        return came

    monkeypatch.setattr(SimulatedOwners, "total", watched)
    LEARNERS["FedHistGBDT"]().fit(owners())
    assert told == [("board.persons", ["rows", "test", "train", "validation"])]


def test_rounds_that_end_by_an_exact_loss_are_refused() -> None:
    stop = so.callbacks.EarlyStopping("validation_loss")
    with pytest.raises(NotClosed, match="no ε counts the losses"):
        LEARNERS["FedLinear"]().fit(owners(validation=0.2), callbacks=[stop])


def test_a_share_of_the_noise_of_gradients_is_counted_as_one_where_replies_are_read() -> None:
    from solera.learn.averaging.private_updates import spent_by_reply

    training = {"steps": 1, "epochs": 1}
    table = {"level": "record", "noise": 6.0, "clip": 1.0, "share": 9, "below": None, "rate": 1.0}
    assert spent_by_reply(None, {"privacy": table, "training": training}) == [Event(2.0)]


def test_a_description_with_noise_tells_single_clients_and_is_refused() -> None:
    with pytest.raises(NotClosed, match="counts of single clients"):
        so.describe(owners(), dp=dp(level="record"))


def test_owners_read_what_a_job_is_worth_before_they_approve() -> None:
    from solera.serve.closed_view import MANY_SUMS, notes
    from solera.trust.board.text import JobText

    text = JobText("training", LEARNERS["FedLinear"](), researcher_key=b"1" * 32)
    said = " ".join(notes(text, OWNERS))
    assert "ε = 7.9 at δ = 1e-05 for one person, at the sum, if 2 other owners are honest" in said
    assert MANY_SUMS not in said
    exact = JobText("training", so.FedLinear(rounds=3), researcher_key=b"1" * 32)
    assert MANY_SUMS in " ".join(notes(exact, OWNERS))
