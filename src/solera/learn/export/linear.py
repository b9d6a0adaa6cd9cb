"""FedLinear and FedKMeans as graphs."""

from __future__ import annotations

import numpy as np

from solera.learn.cluster.kmeans import FedKMeans
from solera.learn.export.graph import Graph
from solera.learn.export.model import Outputs, add_predictor, from_scores
from solera.learn.linear import FedLinear


@add_predictor.register
def _linear(learner: FedLinear, graph: Graph, X: str) -> Outputs:
    """X w + b."""
    coef = np.asarray(learner.coef_, dtype=np.float64)
    intercept = np.asarray(learner.intercept_, dtype=np.float64)
    z = graph("Add", graph("MatMul", X, coef), intercept)
    return from_scores(graph, learner.schema_, z, coef.shape[1])


@add_predictor.register
def _k_means(learner: FedKMeans, graph: Graph, X: str) -> Outputs:
    """The centroid with the least sum of squared differences."""
    apart = graph("Sub", graph("Unsqueeze", X, np.array([1])), learner.centroids_[None])
    squared = graph("ReduceSum", graph("Mul", apart, apart), np.array([2]), keepdims=0)
    return Outputs(graph("ArgMin", squared, axis=1, keepdims=0), np.int64)
