"""``so.simulation``: what a simulated federation may have: clocks, faults, topologies, actors."""

from solera.core.topology import Custom, Hierarchy, Peers, Star
from solera.simulate import pool as steps
from solera.simulate.clock import Availability, VirtualClock
from solera.simulate.durations import Durations
from solera.simulate.failures import Failures
from solera.simulate.folds import FoldsInClients, FoldsOverClients
from solera.simulate.pool import Pool
from solera.simulate.resources import Resources
from solera.simulate.simulation import Simulation, simulate

__all__ = [
    "Availability",
    "Custom",
    "Durations",
    "Failures",
    "FoldsInClients",
    "FoldsOverClients",
    "Hierarchy",
    "Peers",
    "Pool",
    "Resources",
    "Simulation",
    "Star",
    "VirtualClock",
    "simulate",
    "steps",
]
