"""The same results through proxies and over a link that loses packets."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import solera as so
from solera.core.component import describe_fitted
from solera.core.payload import decode, encode

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from links import BadLink, Front, Tunnels, missing  # noqa: E402
from network import COORDINATOR, Network, kill  # noqa: E402

rng = np.random.default_rng(2)
X = rng.normal(size=(90, 4))
DATA = so.data.FederatedData(X, (X @ rng.normal(size=(4, 3))).argmax(axis=1), np.array([0, 50, 90]))


def learned(federation):
    return encode(describe_fitted(so.FedLinear(rounds=3).fit(federation)))


def enrol(network, name, client):
    network.enrol(name)
    network.give(name, DATA, client)
    network.work(name)


def test_through_a_proxy_and_behind_one(tmp_path, monkeypatch):
    """One agent goes out through a CONNECT proxy, the other comes in through a reverse proxy."""
    network = Network(tmp_path)
    with Tunnels() as tunnels:
        try:
            network.start()
            with Front(network.url, network.ca, "/federated/learning") as front:
                direct = network.url
                with monkeypatch.context() as patch:
                    patch.setenv("HTTPS_PROXY", tunnels.url)
                    enrol(network, "north", 0)
                    network.url = front.url
                    enrol(network, "south", 1)
                    before = front.passed
                    inside = network.connect("inside", seed=5)
                    assert front.passed > before
                    model = learned(inside)
                    network.url = direct
                    outside = learned(network.connect("through", seed=5))
                assert model == outside == learned(network.connect("direct", seed=5))
                # Libraries that other tests loaded into this process may report to their makers.
                asked = {line for line in tunnels.asked if " 127.0.0.1:" in line}
                assert asked == {f"CONNECT 127.0.0.1:{network.port}"}
                assert len(tunnels.asked) >= 3, "the agent, its enrolment and the driver"
                assert front.passed > before + 20
        finally:
            network.close()
        for word in (network.token.encode(), b"/v1/work", b"linear.train"):
            assert word not in tunnels.carried
        assert len(tunnels.carried) > 10_000
        front.shutdown()
        tunnels.shutdown()


FAR = """
import sys
from pathlib import Path
folder, port, tests, out = sys.argv[1:]
sys.path.insert(0, tests)
from network import Network
from test_links import DATA, enrol, learned
network = object.__new__(Network)
network.folder, network.federation, network.agents = Path(folder), "cardio", {}
network.coordinator, network.ca = None, str(Path(folder) / "tls" / "ca.pem")
network.url = f"https://10.77.13.1:{port}"
try:
    for client, name in enumerate(("north", "south")):
        enrol(network, name, client)
    Path(out).write_bytes(learned(network.connect("far", seed=5)))
finally:
    network.close()
"""


def wait_for(path):
    deadline = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.05)


@pytest.mark.netns
def test_a_slow_link_that_loses_packets(tmp_path):
    """5 % of all packets are lost, each takes 50 ms one way."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    expected = learned(so.simulate(DATA, seed=5))
    near = Network(tmp_path, host=BadLink.hosts[0])
    out = tmp_path / "model"
    with BadLink(loss=0.05, delay=0.05) as link:
        start = link.inside(0, sys.executable, "-c", COORDINATOR, *near.place)
        near.coordinator = subprocess.Popen(start)
        try:
            wait_for(tmp_path / "coordinator" / "driver.token")
            told = (str(tmp_path), str(near.port), str(Path(__file__).parent), str(out))
            subprocess.run(
                link.inside(1, sys.executable, "-c", FAR, *told), check=True, timeout=600
            )
        finally:
            kill(near.coordinator)
    assert link.lost >= 4
    assert 0.04 < link.lost / link.carried < 0.2, (
        "the draws have a seed; how many packets is chance"
    )
    there, here = (decode(frame)["learned"] for frame in (out.read_bytes(), expected))
    np.testing.assert_allclose(there["coef_"], here["coef_"], rtol=1e-9, atol=1e-12)
