"""``so.simulation``: what a simulated federation may have: clocks, faults, resources, actors."""

from solera.simulate import pool as steps
from solera.simulate.clock import Availability, VirtualClock
from solera.simulate.durations import Durations
from solera.simulate.failures import Failures
from solera.simulate.pool import Pool
from solera.simulate.resources import Resources
from solera.simulate.simulation import Simulation, simulate

__all__ = [
    "Availability",
    "Durations",
    "Failures",
    "Pool",
    "Resources",
    "Simulation",
    "VirtualClock",
    "simulate",
    "steps",
]
