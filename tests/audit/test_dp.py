"""The noise of so.DP against the strongest attack: a canary whose place in the sums is known."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.audit.mechanism import _flat
from solera.core.clients import Client, Draws
from solera.privacy.dp.sums import Noise
from solera.trust.open_asks import numbers_of

pytest.importorskip("dp_accounting", reason="the extra 'dp' is not installed")

EPSILON, DELTA, CLIP = 1.0, 1e-5, 10.0


def neighbours():
    """Rows, and the same with one more, which is as long as clipping lets it be."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(40, 3)) / 10
    y = draw.integers(0, 2, 40)
    X_more, y_more = np.concatenate([X, [[np.sqrt(CLIP**2 - 1), 0, 0]]]), np.append(y, 1)
    return [so.simulate(*rows, clients=1) for rows in ((X_more, y_more), (X, y))]


def noised(statistics):
    """What of a release carries noise; the rest must not depend on the row."""
    return {name: statistics[name] for name in ("shape", "moments")}


def audits(runs, trials):
    """Claimed noise, and a tenth of it, in as many runs."""
    present, absent = neighbours()
    plain = [so.FedHEONN("linear", lam=1.0).fit(f).statistics_ for f in (present, absent)]
    inside, outside = (_flat(noised(s)) for s in plain)
    full = so.DP(epsilon=EPSILON, delta=DELTA, level="record", clip=CLIP)
    noise = so.FedHEONN("linear", lam=1.0, dp=full).fit(absent).accounts_["noise"]
    weak = so.DP(noise_multiplier=noise / 10, delta=DELTA, level="record", clip=CLIP)
    seeds = iter(range(10**9))

    def releasing(dp):
        learner = so.FedHEONN("linear", lam=1.0, dp=dp).fit(absent)
        task, table = learner.contribution, Noise(learner, dp, 1).table
        ask = {**learner._plan(), "privacy": table}

        def release(fed):
            draws = Draws(next(seeds), task.name, 0, None)  # simulated noise follows from the seed
            client = Client(0, fed.data, draws, {})
            return noised(numbers_of(task, client, ask, task.one(client, ask)))

        return release

    more = {"difference": inside - outside, "trials": trials, "delta": DELTA, "claimed": EPSILON}
    for _ in range(runs):
        yield tuple(
            so.audit.mechanism(releasing(dp), present, absent, confidence=0.95, **more)
            for dp in (full, weak)
        )


@pytest.mark.parametrize(
    ("runs", "trials"), [(1, 200), pytest.param(20, 300, marks=pytest.mark.slow)]
)
def test_the_claim_is_not_refuted_and_a_tenth_of_the_noise_is(runs, trials):
    for honest, cheated in audits(runs, trials):
        assert honest.holds, str(honest)
        assert not cheated.holds, str(cheated)


# --- the updates of clients ---


def audited_averaging(dp, seed, trials, **options):
    """FedAvg against one canary client after the other, all in one run.

    Client j has its own coordinate: its update is as long as clipping lets it be there, or nothing
    at all. Its place in the final model, which adds up all rounds, is the best that anybody can
    look at, and no other client adds anything to it but noise.
    """
    torch = pytest.importorskip("torch")
    clients = 4 * trials
    present = np.random.default_rng(seed).permutation(clients) < 2 * trials
    rows = np.eye(clients) * present[:, None]
    linear = torch.nn.Linear(clients, 1, bias=False)
    torch.nn.init.zeros_(linear.weight)
    model = so.FedAvg(linear, rounds=3, lr=0.5, batch_size=None, weight=None, dp=dp, **options)
    pairs = [(row[None], np.array([1e3])) for row in rows]
    model.fit(so.simulate(pairs, seed=seed), progress=False)
    found = model.weights_.astype(np.float64)
    more = {"difference": [1.0], "delta": DELTA, "claimed": EPSILON, "confidence": 0.95}
    sides = iter(found[present]), iter(found[~present])
    return so.audit.mechanism(lambda side: [next(side)], *sides, trials=trials, **more), model


VARIANTS = {
    "fixed clipping": ({}, {}),
    "adaptive clipping": ({"adaptive": 0.5}, {}),
    "drawn clients": ({"sampling": "poisson"}, {"per_round": 0.5}),
}


@pytest.mark.parametrize(
    ("runs", "trials", "variant"),
    [
        (1, 150, "fixed clipping"),
        *(pytest.param(20, 200, name, marks=pytest.mark.slow) for name in VARIANTS),
    ],
)
def test_updates_of_clients_are_as_private_as_claimed_and_no_more(runs, trials, variant):
    more, options = VARIANTS[variant]
    if "per_round" in options:
        options = {"per_round": round(options["per_round"] * 4 * trials)}
    full = so.DP(epsilon=EPSILON, delta=DELTA, clip=1.0, **more)
    for seed in range(runs):
        honest, model = audited_averaging(full, seed, trials, **options)
        assert honest.holds, str(honest)
        weak = so.DP(noise_multiplier=model.accounts_["noise"] / 10, delta=DELTA, clip=1.0, **more)
        cheated, _ = audited_averaging(weak, seed, trials, **options)
        assert not cheated.holds, str(cheated)
