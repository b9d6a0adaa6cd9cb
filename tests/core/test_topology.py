from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import ForbiddenMessage, UsageError
from solera.core.topology import Role, may_send

C, A, S = Role.CLIENT, Role.AGGREGATOR, Role.SERVER


def test_the_role_matrix():
    allowed = {(a, b) for a in Role for b in Role if may_send(a, b)}
    assert allowed == {(C, A), (A, A), (A, S), (S, C)}
    assert may_send(S | A, C)
    assert may_send(C, S | A)
    assert not may_send(C | S, S)


def test_a_forbidden_message_names_both_roles():
    with pytest.raises(ForbiddenMessage, match=r"client 3 may not send to client 4"):
        so.simulation.Star().check(3, 4)
    with pytest.raises(ForbiddenMessage, match=r"server 'server' may not send to aggregator"):
        so.simulation.Hierarchy(2).check("server", "aggregator-1")
    so.simulation.Star().check("server", 3)
    so.simulation.Star().check(3, "server")
    with pytest.raises(UsageError, match="no actor 'boss'"):
        so.simulation.Star().check("boss", 3)


def test_hierarchy_groups_every_client_once():
    groups = so.simulation.Hierarchy(3).groups(np.array([0, 1, 4, 5, 9]))
    assert sorted(np.concatenate(groups)) == [0, 1, 4, 5, 9]
    assert [g.tolist() for g in groups] == [[0, 9], [1, 4], [5]]
    with pytest.raises(UsageError, match="aggregators"):
        so.simulation.Hierarchy(0).groups(np.arange(3))


def test_peers_routes():
    rng = np.random.default_rng(0)
    assert [r.tolist() for r in so.simulation.Peers("cyclic").route(3, rng)] == [[0], [1], [2]]
    assert [r.tolist() for r in so.simulation.Peers("parallel").route(3, rng)] == [[0, 1, 2]]
    hops = np.concatenate(so.simulation.Peers("random").route(1000, rng))
    assert (hops[1:] != hops[:-1]).all()
    assert len(np.unique(hops)) > 500
    with pytest.raises(UsageError, match="exchange"):
        so.simulation.Peers("gossip").route(3, rng)


def test_custom():
    shape = so.simulation.Custom({"hub": "server-aggregator", "edge": "aggregator"},
                      aggregator_of=["edge", "hub", "edge"])  # fmt: skip
    assert [g.tolist() for g in shape.groups(np.arange(3))] == [[0, 2], [1]]
    shape.check("edge", "hub")
    with pytest.raises(ForbiddenMessage):
        so.simulation.Custom({"hub": "server"}, aggregator_of=["hub"]).groups(np.arange(1))
    with pytest.raises(UsageError, match="king"):
        so.simulation.Custom({"hub": "king"}).role("hub")
    with pytest.raises(UsageError, match="client 5"):
        shape.groups(np.array([5]))
