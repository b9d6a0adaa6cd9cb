"""Every learner gives over a real network what it gives in simulation, and repeats bit for bit."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import solera as so
from solera.core.component import describe_fitted
from solera.core.payload import encode

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

sys.path.insert(0, str(Path(__file__).parents[2] / "laws"))

import cases  # noqa: E402
from network import Network  # noqa: E402

CLIENTS = 3
TARGETS = ("classes", "labels", "numbers")


def rows(target):
    """What the clients train on; a network's clients in these tests keep nothing apart."""
    data = cases.rows(target)
    parts = [data.segments(np.array([client]))[0] for client in range(CLIENTS)]
    offsets = np.cumsum([0, *(len(part) for part in parts)])
    X = np.concatenate([part.X for part in parts])
    y = np.concatenate([part.y for part in parts])
    return so.data.FederatedData(X, y, offsets, schema=data.schema)


@pytest.fixture(scope="module", params=TARGETS)
def place(request, tmp_path_factory):
    """A network whose clients hold rows with one kind of target."""
    network = Network(tmp_path_factory.mktemp(request.param))
    network.start()
    data = rows(request.param)
    for client in range(CLIENTS):
        network.enrol(f"client-{client}")
        network.give(f"client-{client}", data, client)
        network.work(f"client-{client}")
    yield network, request.param, data
    network.close()


def test_every_learner_gives_the_same_over_a_network(place):
    """Every variant is compared with simulation; the first of each learner is also repeated."""
    network, target, data = place
    tried, noised = 0, []
    for name, make, of in CASES:
        if of != target:
            continue
        here = cases.federation_over(cases.ENGINES["local-undeclared"](data), make())
        expected = make().fit(here)
        there = learned(network, name, make(), here.topology)
        if draws_noise(make()):  # at agents it does not follow from the seed
            noised.append(encode(there) != encode(describe_fitted(expected)))
            continue
        assert_alike(name, there, describe_fitted(expected))
        if name in FIRST:
            again = learned(network, f"{name}-again", make(), here.topology)
            assert_equal(f"{name} repeated", again, there)
        tried += 1
    assert tried
    assert target != "classes" or any(noised)


def test_every_fit_over_a_network_starts_fresh(place):
    """Clients keep what is their own for one job, and no other model is judged by it."""
    network, target, _ = place
    if target != "classes":
        return
    federation = network.connect("fresh", seed=11)
    model = so.FedPer(so.nn.mlp(5, 4, 3), rounds=2)
    first, second = (describe_fitted(model.clone().fit(federation)) for _ in range(2))
    assert encode(first) == encode(second)
    judged = model.fit(federation).evaluate(federation, "train")
    assert sorted(judged.clients) == [0, 1, 2]
    with pytest.raises(so.errors.UsageError, match="keep nothing of this FedPer"):
        model.evaluate(network.connect("later", seed=11), "train")


def draws_noise(learner):
    """Whether clients add noise that protects them."""
    params = learner.get_params()
    private = [v for k, v in params.items() if k.rpartition("__")[2] in ("dp", "epsilon")]
    steps = [step for v in params.values() if isinstance(v, list | tuple) for step in v]
    return any(v is not None for v in private) or any(
        getattr(step, "protects", False) for step in steps
    )


CASES = [  # code of one's own stays in simulation
    case
    for case in cases.learner_cases()
    if case[2] in TARGETS and "module" not in case[0] and not case[0].startswith("FedTorch")
]
FIRST = {
    name.partition("-")[0]: name for name, make, _ in reversed(CASES) if not draws_noise(make())
}.values()
"""One of every learner."""


def learned(network, job, learner, topology):
    job = re.sub(r"[^A-Za-z0-9._-]", "-", job)[:60]
    federation = network.connect(job, seed=11, topology=topology)
    try:
        return describe_fitted(learner.fit(federation))
    except so.errors.SoleraError as error:
        error.add_note(f"fitting {job} over the network")
        raise


def assert_equal(where, found, expected):
    """Equal to the bit; if not, the first entry that differs is named before the bytes are."""
    if encode(found) != encode(expected):
        assert_alike(where, found, expected, rtol=0, atol=0)
        raise AssertionError(f"{where}: equal values, other bytes (signs of zeros, types, order)")


def assert_alike(where, found, expected, rtol=1e-7, atol=1e-9):
    """Equal but for the last bits of floating point numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_alike(f"{where}.{key}", found[key], value, rtol, atol)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        for k, value in enumerate(expected):
            assert_alike(f"{where}[{k}]", found[k], value, rtol, atol)
    elif isinstance(expected, np.ndarray) and expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=where)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected, err_msg=where)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=rtol, nan_ok=True), where
    else:
        assert found == expected, where
