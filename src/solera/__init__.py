"""Solera: federated learning where the data stays where it is.

import solera as so

X, y, X_test, y_test = so.datasets.digits()
fed = so.simulate(X, y, clients=10, partition=so.Dirichlet(0.3), seed=7)
so.FedLinear(rounds=20).fit(fed).score(X_test, y_test)
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from solera.core import errors
from solera.core.aggregation import (
    Aggregation,
    ByFold,
    Collect,
    Extremes,
    Fields,
    Mean,
    Sum,
    Union,
)
from solera.core.engine import PerClient
from solera.core.federation import Federation
from solera.core.payload import Limits
from solera.core.replies import Failure, Reply, Stacked
from solera.core.rounds import Callback, EarlyStopping, StopAt
from solera.core.schema import Feature, Schema
from solera.core.selection import Selector, Uniform
from solera.core.task import task
from solera.core.topology import Custom, Hierarchy, Peers, Star
from solera.data import datasets
from solera.data.adapters import from_huggingface, from_pandas, from_torch
from solera.data.agreement import agree
from solera.data.dataset import holdout
from solera.data.federated import FederatedData, LazyData
from solera.data.multilabel import LabelData, deal_labels
from solera.data.partition import IID, ClientWeights, Overlap, Partition, QuantitySkew
from solera.data.partition_groups import ByCluster, ByGroup, Explicit
from solera.data.partition_labels import Dirichlet, LabelsPerClient, LabelWeights, Shards
from solera.data.vertical import TransferSplit, VerticalSplit
from solera.green.energy import EnergyBudget, EnergyOptions, EnergyUse, track_energy
from solera.learn.averaging import nn
from solera.learn.averaging.base import Averaging
from solera.learn.averaging.buffered import FedBuff
from solera.learn.averaging.learner import FedAvg
from solera.learn.averaging.multilabel import MLFedAvg
from solera.learn.averaging.personal import Ditto, FedBN, FedPer, FedRep
from solera.learn.averaging.schedules import CosineDecay, StepDecay
from solera.learn.averaging.updates import Clip, Noise, Quantise, RandomMask, TopK, UpdateStep
from solera.learn.averaging.variants import (
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedNova,
    FedProx,
    FedSGD,
    FedYogi,
    Scaffold,
)
from solera.learn.base import Learner, Predictor, Transformer, load
from solera.learn.cluster.agreement import adjusted_rand, jaccard
from solera.learn.cluster.kmeans import FedKMeans
from solera.learn.evaluation import Evaluate, Evaluation, evaluate
from solera.learn.heonn.encryption import Encryption
from solera.learn.heonn.ensemble import RandomPatches
from solera.learn.heonn.learner import FedHEONN
from solera.learn.linear import FedLinear
from solera.learn.peers import PeerToPeer
from solera.learn.preprocess.columns import FedBins, FedEncoder, FedImputer, FedScaler
from solera.learn.preprocess.pipeline import Pipeline
from solera.learn.trees.boosting.hist_gbdt import FedHistGBDT
from solera.learn.trees.boosting.simfl import SimFL
from solera.learn.trees.fed_id3 import FedID3
from solera.learn.trees.forest import FedForest
from solera.learn.trees.fusion.federated_tree import FederatedTree
from solera.privacy.he import keys
from solera.select import analysis as selection
from solera.select.active import ActiveSampling, PowerOfChoice
from solera.select.resources import DynHybridFL, FedCS, HybridFL
from solera.select.round_robin import RoundRobin
from solera.select.valued import GreedyShapley, ShapleySoftmax, ShapleyUCB
from solera.simulate import pool as steps
from solera.simulate.clock import Availability, VirtualClock
from solera.simulate.durations import Durations
from solera.simulate.failures import Failures
from solera.simulate.pool import pool
from solera.simulate.resources import Resources
from solera.simulate.simulation import Simulation, simulate
from solera.study import runs
from solera.study.exporters import MLflow, TensorBoard

try:
    __version__ = version("solera")
except PackageNotFoundError:  # run from a source tree
    __version__ = "0+source"

__all__ = [
    "ActiveSampling",
    "Aggregation",
    "Availability",
    "Averaging",
    "ByCluster",
    "ByFold",
    "ByGroup",
    "Callback",
    "ClientWeights",
    "Clip",
    "Collect",
    "CosineDecay",
    "Custom",
    "Dirichlet",
    "Ditto",
    "Durations",
    "DynHybridFL",
    "EarlyStopping",
    "Encryption",
    "EnergyBudget",
    "EnergyOptions",
    "EnergyUse",
    "Evaluate",
    "Evaluation",
    "Explicit",
    "Extremes",
    "Failure",
    "Failures",
    "Feature",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedBins",
    "FedBuff",
    "FedCS",
    "FedEncoder",
    "FedForest",
    "FedHEONN",
    "FedHistGBDT",
    "FedID3",
    "FedImputer",
    "FedKMeans",
    "FedLinear",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSGD",
    "FedScaler",
    "FedYogi",
    "FederatedData",
    "FederatedTree",
    "Federation",
    "Fields",
    "GreedyShapley",
    "Hierarchy",
    "HybridFL",
    "IID",
    "LabelData",
    "LabelWeights",
    "LabelsPerClient",
    "LazyData",
    "Learner",
    "Limits",
    "MLFedAvg",
    "MLflow",
    "Mean",
    "Noise",
    "Overlap",
    "Partition",
    "PeerToPeer",
    "Peers",
    "PerClient",
    "Pipeline",
    "PowerOfChoice",
    "Predictor",
    "Quantise",
    "QuantitySkew",
    "RandomMask",
    "RandomPatches",
    "Reply",
    "Resources",
    "RoundRobin",
    "Scaffold",
    "Schema",
    "Selector",
    "ShapleySoftmax",
    "ShapleyUCB",
    "Shards",
    "SimFL",
    "Simulation",
    "Stacked",
    "Star",
    "StepDecay",
    "StopAt",
    "Sum",
    "TensorBoard",
    "TopK",
    "TransferSplit",
    "Transformer",
    "Uniform",
    "Union",
    "UpdateStep",
    "VerticalSplit",
    "VirtualClock",
    "adjusted_rand",
    "agree",
    "connect",
    "datasets",
    "deal_labels",
    "errors",
    "evaluate",
    "from_huggingface",
    "from_pandas",
    "from_torch",
    "holdout",
    "jaccard",
    "keys",
    "load",
    "nn",
    "pool",
    "runs",
    "selection",
    "simulate",
    "steps",
    "task",
    "track_energy",
]


def __getattr__(name: str) -> Any:
    """``connect`` is looked up when it is used: it lies above everything that is imported here."""
    if name == "connect":
        return import_module("solera.serve.driver.engine").connect
    raise AttributeError(f"module 'solera' has no attribute {name!r}")
