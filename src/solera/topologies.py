"""``so.topologies``: who may send to whom in a simulation."""

from solera.core.topology import Custom, Hierarchy, Peers, Star

__all__ = ["Custom", "Hierarchy", "Peers", "Star"]
