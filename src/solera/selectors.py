"""``so.selectors``: which clients take part in a round, and what selectors came to."""

from solera.core.selection import Poisson, Roster, Selector, Uniform
from solera.select.active import ActiveSampling, PowerOfChoice
from solera.select.metrics import (
    Selections,
    area_under,
    coverage,
    gini,
    gini_by_group,
    rounds_to,
    summarise,
    time_to,
    traffic,
    updates,
)
from solera.select.pictures import plot_clients, plot_learning, plot_selections, plot_times
from solera.select.resources import DynHybridFL, FedCS, HybridFL
from solera.select.round_robin import RoundRobin
from solera.select.search import grid_search
from solera.select.shapley import exact_shapley, truncated_shapley
from solera.select.valued import GreedyShapley, ShapleySoftmax, ShapleyUCB

__all__ = [
    "ActiveSampling",
    "DynHybridFL",
    "FedCS",
    "GreedyShapley",
    "HybridFL",
    "Poisson",
    "PowerOfChoice",
    "Roster",
    "RoundRobin",
    "Selections",
    "Selector",
    "ShapleySoftmax",
    "ShapleyUCB",
    "Uniform",
    "area_under",
    "coverage",
    "exact_shapley",
    "gini",
    "gini_by_group",
    "grid_search",
    "plot_clients",
    "plot_learning",
    "plot_selections",
    "plot_times",
    "rounds_to",
    "summarise",
    "time_to",
    "traffic",
    "truncated_shapley",
    "updates",
]
