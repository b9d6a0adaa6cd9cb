"""``so.selection``: what selectors came to — metrics, pictures, grid search, Shapley values."""

from __future__ import annotations

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
from solera.select.search import grid_search
from solera.select.shapley import exact_shapley, truncated_shapley

__all__ = [
    "Selections",
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
