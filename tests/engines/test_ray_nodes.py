"""A Ray cluster of two nodes on one machine, one of which is killed."""

from __future__ import annotations

import pytest

import solera as so

ray = pytest.importorskip("ray")


@pytest.mark.slow
def test_a_node_that_dies_changes_no_byte():
    """Two nodes on one machine; the one without the driver is killed in the middle of a fit."""
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": 80 << 20}
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **store})
    other = nodes.add_node(num_cpus=2, **store)
    ray.init(address=nodes.address, log_to_driver=False)

    class Kill(so.callbacks.Callback):
        def on_round(self, learner, round):
            if len(learner.history_) == 3:
                nodes.remove_node(other, allow_graceful=False)
                nodes.add_node(num_cpus=2, **store)

    try:
        Xd, yd, *_ = so.datasets.digits()
        learner = so.FedLinear(rounds=8)
        options = {"clients": 30, "seed": 1, "workers": 2}
        with so.simulate(Xd, yd, engine="ray", **options) as federation:
            ours = learner.clone().fit(federation, callbacks=[Kill()])
        with so.simulate(Xd, yd, engine="processes", **options) as federation:
            theirs = learner.clone().fit(federation)
        assert ours.coef_.tobytes() == theirs.coef_.tobytes()
    finally:
        ray.shutdown()
        nodes.shutdown()
