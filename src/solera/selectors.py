"""``so.selectors``: which clients take part in a round."""

from solera.core.selection import Roster, Selector, Uniform
from solera.select.active import ActiveSampling, PowerOfChoice
from solera.select.resources import DynHybridFL, FedCS, HybridFL
from solera.select.round_robin import RoundRobin
from solera.select.valued import GreedyShapley, ShapleySoftmax, ShapleyUCB

__all__ = [
    "ActiveSampling",
    "DynHybridFL",
    "FedCS",
    "GreedyShapley",
    "HybridFL",
    "PowerOfChoice",
    "Roster",
    "RoundRobin",
    "Selector",
    "ShapleySoftmax",
    "ShapleyUCB",
    "Uniform",
]
