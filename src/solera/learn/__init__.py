"""Learners, and what one's own learner builds on."""

from solera.learn.averaging import nn
from solera.learn.averaging.base import Averaging
from solera.learn.averaging.buffered import FedBuff
from solera.learn.averaging.learner import FedAvg
from solera.learn.averaging.loops import adapters
from solera.learn.averaging.loops.learner import FedTorch
from solera.learn.averaging.lora import FedLoRA
from solera.learn.averaging.multilabel import MLFedAvg
from solera.learn.averaging.personal import Ditto, FedBN, FedPer, FedRep
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
from solera.learn.base import Additive, Learner, MissingRows, Predictor, Transformer, load
from solera.learn.cluster.kmeans import FedKMeans
from solera.learn.describe import describe
from solera.learn.evaluation import evaluate
from solera.learn.heonn.encryption import Encryption
from solera.learn.heonn.ensemble import RandomPatches
from solera.learn.heonn.learner import FedHEONN
from solera.learn.linear import FedLinear
from solera.learn.peers import PeerToPeer
from solera.learn.preprocess.column_parts import FedColumns, FedSelect
from solera.learn.preprocess.columns import FedBins, FedEncoder, FedImputer, FedScaler
from solera.learn.preprocess.pipeline import Pipeline
from solera.learn.statistics.cox import FedCox
from solera.learn.statistics.glm import FedGLM
from solera.learn.statistics.survival import kaplan_meier
from solera.learn.trees.boosting.bagging import FedBagging
from solera.learn.trees.boosting.hist_gbdt import FedHistGBDT
from solera.learn.trees.boosting.simfl import SimFL
from solera.learn.trees.fed_id3 import FedID3
from solera.learn.trees.forest import FedForest
from solera.learn.trees.fusion.federated_tree import FederatedTree
from solera.learn.vertical.base import VerticalLearner
from solera.learn.vertical.boosting.learner import SecureBoost
from solera.learn.vertical.psi import common_rows
from solera.learn.vertical.regression.learner import (
    VerticalLinearRegression,
    VerticalLogisticRegression,
    VerticalPoissonRegression,
)
from solera.learn.vertical.split_nn import SplitNN

__all__ = [
    "Additive",
    "Averaging",
    "Ditto",
    "Encryption",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedBagging",
    "FedBins",
    "FedBuff",
    "FedColumns",
    "FedCox",
    "FedEncoder",
    "FedForest",
    "FedGLM",
    "FedHEONN",
    "FedHistGBDT",
    "FedID3",
    "FedImputer",
    "FedKMeans",
    "FedLinear",
    "FedLoRA",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSGD",
    "FedScaler",
    "FedSelect",
    "FedTorch",
    "FedYogi",
    "FederatedTree",
    "Learner",
    "MLFedAvg",
    "MissingRows",
    "PeerToPeer",
    "Pipeline",
    "Predictor",
    "RandomPatches",
    "Scaffold",
    "SecureBoost",
    "SimFL",
    "SplitNN",
    "Transformer",
    "VerticalLearner",
    "VerticalLinearRegression",
    "VerticalLogisticRegression",
    "VerticalPoissonRegression",
    "adapters",
    "common_rows",
    "describe",
    "evaluate",
    "kaplan_meier",
    "load",
    "nn",
]
