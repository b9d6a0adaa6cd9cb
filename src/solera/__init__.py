"""Solera: federated learning where the data stays where it is."""

from __future__ import annotations

from solera.core.aggregation import (
    Aggregation,
    Collect,
    Extremes,
    Fields,
    Mean,
    Sum,
    Union,
)
from solera.core.federation import Federation, PerClient
from solera.core.payload import Limits
from solera.core.replies import Stacked
from solera.core.rounds import Callback, EarlyStopping, Selector
from solera.core.task import task
from solera.core.topology import Custom, Hierarchy, Peers, Star
from solera.data.federated import FederatedData, LazyData
from solera.learn.base import Learner, load
from solera.learn.linear import FedLinear
from solera.select.uniform import Uniform
from solera.simulate.failures import Failures
from solera.simulate.simulation import simulate
