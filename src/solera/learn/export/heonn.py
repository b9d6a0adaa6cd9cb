"""FedHEONN as a graph: hidden features, members, votes."""

from __future__ import annotations

import numpy as np

from solera.core.clients import FloatArray
from solera.learn.export.graph import Graph
from solera.learn.export.model import Outputs, add_predictor, best_class, numbers
from solera.learn.heonn.activations import HIGH
from solera.learn.heonn.hidden import hidden_weights
from solera.learn.heonn.learner import FedHEONN


@add_predictor.register
def _heonn(learner: FedHEONN, graph: Graph, X: str) -> Outputs:
    schema = learner.schema_
    y = _outputs(learner, graph, X)
    mean = graph("ReduceMean", y, np.array([0]), keepdims=0)
    if schema.target == "numbers":
        return numbers(graph, schema, mean)
    votes = learner.vote == "majority" and learner.ensemble is not None
    if schema.target == "labels":
        p = graph("Clip", mean, 0.0, 1.0)
        if votes:
            p = _share(graph, graph("Greater", y, 0.5))
        return Outputs(graph.cast(graph("Greater", p, 0.5), np.uint8), np.uint8, p)
    scores = y if votes else mean
    if learner.rule == "nearest":
        scores = graph("Sub", HIGH, graph("Abs", graph("Sub", scores, HIGH)))
    if votes:
        best = graph("ArgMax", scores, axis=2, keepdims=1)
        p = _share(graph, graph("Equal", best, np.arange(schema.outputs)))
    else:
        p = _scaled(graph, scores)
    return Outputs(best_class(graph, schema, p), schema.classes.dtype, p)


def _share(graph: Graph, chosen: str) -> str:
    """Which share of the members chose."""
    return graph("ReduceMean", graph.cast(chosen, np.float64), np.array([0]), keepdims=0)


def _scaled(graph: Graph, scores: str) -> str:
    """Scores as shares of their sum; those of a row without a positive one above the least."""
    positive = graph("Greater", graph("ReduceMax", scores, np.array([1])), 0.0)
    least = graph("Where", positive, 0.0, graph("ReduceMin", scores, np.array([1])))
    above = graph("Relu", graph("Sub", scores, least))
    some = graph("Greater", graph("ReduceSum", above, np.array([1])), 0.0)
    above = graph("Where", some, above, 1.0)
    return graph("Div", above, graph("ReduceSum", above, np.array([1])))


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
