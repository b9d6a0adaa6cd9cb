"""Solera: federated learning where the data stays where it is.

import solera as so

X, y, X_test, y_test = so.datasets.digits()
fed = so.simulate(X, y, clients=10, partition=so.Dirichlet(0.3), seed=7)
so.FedLinear(rounds=20).fit(fed).score(X_test, y_test)

Here are the names that most programs need. Others live in the namespace that gives them meaning:
``so.partitions.Explicit``, ``so.selectors.Uniform``, ``so.updates.Clip``, …
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from solera import (
    aggregations,
    audit,
    callbacks,
    data,
    energy,
    epochs,
    learn,
    messages,
    metrics,
    partitions,
    robust,
    selectors,
    simulation,
    updates,
)
from solera.core import errors
from solera.core.federation import Federation
from solera.core.task import task
from solera.core.version import __version__ as __version__
from solera.data import datasets
from solera.data.adapters import from_pandas
from solera.data.client_files import from_files
from solera.learn import *
from solera.learn.vertical.simulation import simulate_vertical
from solera.partitions import Dirichlet
from solera.privacy.dp.mechanism import DP
from solera.privacy.he import keys
from solera.privacy.secure_sum import SecureSum
from solera.selectors import ActiveSampling
from solera.simulate.pool import pool
from solera.simulate.simulation import simulate
from solera.study import runs
from solera.trust.cells import intervals
from solera.trust.constructors import count_by, fact, gram, sum_by, update

_NAMESPACES = {
    "aggregations": aggregations,
    "audit": audit,
    "callbacks": callbacks,
    "data": data,
    "energy": energy,
    "epochs": epochs,
    "learn": learn,
    "messages": messages,
    "metrics": metrics,
    "partitions": partitions,
    "robust": robust,
    "selectors": selectors,
    "simulation": simulation,
    "updates": updates,
}
_INSIDE = {
    "Additive", "Averaging", "Ditto", "FedAdagrad", "FedAvgM", "FedBN", "FedBagging", "FedBuff",
    "FedNova", "FedPer", "FedRep", "FedSGD", "FedSelect", "FedYogi", "PeerToPeer", "Predictor",
    "Scaffold", "SimFL", "Transformer", "VerticalLearner", "VerticalLinearRegression",
    "VerticalPoissonRegression", "adapters", "common_rows", "evaluate", "kaplan_meier", "learn",
}  # fmt: skip
"""What fewer programs need and is found in ``so.learn``, and what other namespaces show."""

__all__ = [
    "DP",
    "ActiveSampling",
    "Dirichlet",
    "Federation",
    "SecureSum",
    "connect",
    "count_by",
    "datasets",
    "errors",
    "fact",
    "from_files",
    "from_pandas",
    "gram",
    "intervals",
    "keys",
    "pool",
    "runs",
    "simulate",
    "simulate_vertical",
    "sum_by",
    "task",
    "update",
    *sorted({*_NAMESPACES, *learn.__all__} - _INSIDE),
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """``connect`` is looked up when it is used: it lies above everything that is imported here."""
    if name == "connect":
        return import_module("solera.serve.driver.driven").connect
    homes = [home for home, module in _NAMESPACES.items() if name in module.__all__]
    where = f": it is so.{homes[0]}.{name}" if homes else ""
    raise AttributeError(f"module 'solera' has no attribute {name!r}{where}")
