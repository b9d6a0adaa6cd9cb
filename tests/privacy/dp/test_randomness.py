"""What protects is drawn from secrets, and has the distribution that is promised."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import solera as so
from solera.core.clients import Client, Draws
from solera.trust.randomness import protecting

SECRET, OTHER = b"s" * 32, b"t" * 32
X = np.random.default_rng(0).normal(size=(20, 3))


def client(secret=None, *, seed=1, round=0, rows=X):
    source = so.simulate(rows, clients=1, seed=0).engine.source
    return Client(0, source, Draws(seed, "some.task", round, secret), {})


@pytest.mark.parametrize("secret", [None, SECRET])
def test_noise_has_the_distribution_that_is_promised(secret):
    draw = protecting(client(secret), "noise")
    normal = draw.normal(400_000)
    assert stats.kstest(normal, "norm").pvalue > 1e-3
    beyond = (np.abs(normal) > 3.8).sum()  # of which the ziggurat has a branch of its own
    assert stats.poisson.interval(0.9999, 400_000 * 2 * stats.norm.sf(3.8))[0] <= beyond
    assert beyond <= stats.poisson.interval(0.9999, 400_000 * 2 * stats.norm.sf(3.8))[1]
    assert stats.kstest(draw.laplace(100_000), "laplace").pvalue > 1e-3
    assert abs(draw.chosen(100_000, 0.3).mean() - 0.3) < 0.01


def test_at_an_agent_the_seed_says_nothing_and_the_secret_all():
    drawn = protecting(client(SECRET), "noise").normal(8)
    assert not protecting(client(SECRET), "noise").simulated
    assert np.array_equal(drawn, protecting(client(SECRET, seed=9, round=4), "noise").normal(8))
    assert not np.isclose(drawn, protecting(client(OTHER), "noise").normal(8)).any()
    assert not np.isclose(drawn, protecting(client(SECRET), "rows").normal(8)).any()


def test_other_rows_have_other_noise_or_their_difference_would_be_told():
    moved = X.copy()
    moved[3, 1] += 1e-9
    one = protecting(client(SECRET), "noise").normal(8)
    assert not np.isclose(one, protecting(client(SECRET, rows=moved), "noise").normal(8)).any()


def test_a_simulation_is_seeded_and_says_so():
    draw = protecting(client(), "noise")
    assert draw.simulated
    assert np.array_equal(draw.normal(8), protecting(client(), "noise").normal(8))
    assert not np.isclose(
        protecting(client(), "noise").normal(8), protecting(client(round=1), "noise").normal(8)
    ).any()


def test_noised_numbers_lie_on_a_grid_that_tells_no_last_bits():
    noised = protecting(client(SECRET), "noise").add_normal(np.full(1000, 1 / 3), 0.7)
    steps = noised / (0.5 * 2.0**-20)
    assert np.array_equal(steps, np.rint(steps))
    assert abs(noised.std() - 0.7) < 0.06


def test_what_protects_never_draws_from_the_seed():
    """No module of differential privacy mentions the generators that follow from the seed."""
    source = Path(so.__file__).parent
    found = []
    for path in sorted((source / "privacy" / "dp").glob("*.py")):
        found += [f"{path.name}: {name}" for name in _seeded(ast.parse(path.read_text()))]
    assert found == []
    bad = "def noise(client):\n    return client.rng.normal()"
    assert list(_seeded(ast.parse(bad))) == ["rng"]


def _seeded(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("rng", "key", "keys", "alone"):
            yield node.attr
        if isinstance(node, ast.ImportFrom) and node.module == "solera.core.rng":
            yield "core.rng"
        if isinstance(node, ast.Attribute) and node.attr == "default_rng":
            yield node.attr
