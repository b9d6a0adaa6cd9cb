"""FedHEONN as a graph: hidden features, members, votes."""

from __future__ import annotations

import numpy as np

from solera.core.clients import FloatArray
from solera.learn.export.graph import Graph
from solera.learn.export.model import Outputs, add_predictor, classes_at, numbers
from solera.learn.heonn.activations import HIGH
from solera.learn.heonn.hidden import hidden_weights
from solera.learn.heonn.learner import FedHEONN

_EVEN = 1e-12
"""What predict_proba adds to every output, so that rows without any have probabilities."""


@add_predictor.register
def _heonn(learner: FedHEONN, graph: Graph, X: str) -> Outputs:
    schema = learner.schema_
    y = _outputs(learner, graph, X)
    mean = graph("ReduceMean", y, np.array([0]), keepdims=0)
    if schema.target == "numbers":
        return numbers(graph, schema, mean)
    p = graph("Clip", mean, 0.0, 1.0)
    if learner.vote == "mean":
        y = graph("Unsqueeze", mean, np.array([0]))
    if schema.target == "labels":
        votes = graph.cast(graph("Greater", y, 0.5), np.float64)
        share = graph("ReduceMean", votes, np.array([0]), keepdims=0)
        return Outputs(graph.cast(graph("Greater", share, 0.5), np.uint8), np.uint8, p)
    p = graph("Add", p, _EVEN)
    p = graph("Div", p, graph("ReduceSum", p, np.array([1])))
    if learner.rule == "argmax":
        best = graph("ArgMax", y, axis=2, keepdims=0)
    else:
        best = graph("ArgMin", graph("Abs", graph("Sub", y, HIGH)), axis=2, keepdims=0)
    chosen = graph("Equal", graph("Unsqueeze", best, np.array([2])), np.arange(schema.outputs))
    votes = graph("ReduceSum", graph.cast(chosen, np.float64), np.array([0]), keepdims=0)
    place = graph("ArgMax", votes, axis=1, keepdims=0)
    return Outputs(classes_at(graph, schema, place), schema.classes.dtype, p)


def _outputs(learner: FedHEONN, graph: Graph, X: str) -> str:
    """f of the layer for every member: members × rows × outputs."""
    W = _member_weights(learner)
    z = graph("Add", graph("MatMul", _hidden(learner, graph, X), W[:, 1:]), W[:, :1])
    if learner.activation == "linear":
        return z
    if learner.activation == "logistic":
        return graph("Sigmoid", z)
    small = graph("Exp", graph("Neg", graph("Abs", z)))
    return graph("Add", graph("Relu", z), graph("Log", graph("Add", small, 1.0)))


def _hidden(learner: FedHEONN, graph: Graph, X: str) -> str:
    plan = vars(learner).get("hidden_")
    if plan is None:
        return X
    W, b = hidden_weights(
        plan["kind"], learner.schema_.width, plan["width"], plan["scale"], plan["seed"]
    )
    z = graph("Add", graph("MatMul", X, W), b)
    if plan["kind"] == "random_layer":
        return graph("Tanh", z)
    return graph("Mul", graph("Cos", z), np.sqrt(2 / plan["width"]))


def _member_weights(learner: FedHEONN) -> FloatArray:
    """Weights over all columns, the bias first: members × columns × outputs.

    A feature that a member does not see weighs nothing; one that it drew twice, the sum.
    """
    weights = learner.weights_
    if learner.ensemble is None:
        return weights[None]
    members, _, outputs = weights.shape
    width = learner.schema_.width if learner.features is None else learner.hidden
    spread = np.zeros((members, 1 + width, outputs))
    spread[:, 0] = weights[:, 0]
    np.add.at(spread, (np.arange(members)[:, None], learner.patches_ + 1), weights[:, 1:])
    return spread
