"""Pipelines and their transformers as graphs."""

from __future__ import annotations

import numpy as np

from solera.learn.export.graph import Graph
from solera.learn.export.model import Outputs, add_predictor, add_transformer
from solera.learn.preprocess.column_parts import FedColumns, FedSelect
from solera.learn.preprocess.columns import FedBins, FedEncoder, FedImputer, FedScaler
from solera.learn.preprocess.pipeline import Pipeline


@add_predictor.register
def _pipeline(learner: Pipeline, graph: Graph, X: str) -> Outputs:
    *transformers, last = learner.steps_
    for step in transformers:
        X = add_transformer(step, graph, X)
    return add_predictor(last, graph, X)


@add_transformer.register
def _scaler(step: FedScaler, graph: Graph, X: str) -> str:
    return graph("Div", graph("Sub", X, step.mean_), step.scale_)


@add_transformer.register
def _imputer(step: FedImputer, graph: Graph, X: str) -> str:
    return graph("Where", graph.known(X), X, step.fill_)


@add_transformer.register
def _encoder(step: FedEncoder, graph: Graph, X: str) -> str:
    """Every column of the result is one of X, or says whether one of X holds a code."""
    features = step.schema_.features
    categorical = np.array([feature.kind == "categorical" for feature in features])
    if not categorical.any():
        return X
    sizes = np.array([len(feature.categories) for feature in features])
    if step.kind == "ordinal":
        inside = graph("And", graph("GreaterOrEqual", X, 0.0), graph("Less", X, sizes * 1.0))
        codes = graph("Where", inside, graph("Floor", X), np.nan)
        return graph("Where", categorical, codes, X)
    itself = [np.zeros(1, dtype=np.int64)]
    marked = [step.marked(j) or [] if categorical[j] else itself for j in range(len(features))]
    source = np.repeat(np.arange(len(features)), [len(some) for some in marked])
    values = graph("Gather", X, source, axis=1)
    whole, holds = graph("Floor", values), ""
    members = [some for of_column in marked for some in of_column]
    for place in range(max(map(len, members))):
        code = np.array([some[min(place, len(some) - 1)] for some in members])
        equal = graph("Equal", whole, code * 1.0)
        holds = graph("Or", holds, equal) if holds else equal
    return graph("Where", categorical[source], graph.cast(holds, np.float64), values)


@add_transformer.register
def _bins(step: FedBins, graph: Graph, X: str) -> str:
    """How many edges of its column lie below a value."""
    numeric = np.array([feature.kind != "categorical" for feature in step.schema_.features])
    edges = np.full((len(numeric), max(map(len, step.edges_))), np.inf)
    for j, own in enumerate(step.edges_):
        edges[j, : len(own)] = own
    below = graph("Less", edges[None], graph("Unsqueeze", X, np.array([2])))
    number = graph("ReduceSum", graph.cast(below, np.float64), np.array([2]), keepdims=0)
    return graph("Where", graph("And", graph.known(X), numeric), number, X)


@add_transformer.register
def _select(step: FedSelect, graph: Graph, X: str) -> str:
    return graph("Gather", X, step.chosen_, axis=1)


@add_transformer.register
def _columns(step: FedColumns, graph: Graph, X: str) -> str:
    made = [
        add_transformer(part, graph, graph("Gather", X, chosen, axis=1))
        for part, chosen in zip(step.parts_, step.chosen_, strict=True)
    ]
    if len(step.rest_):
        made.append(graph("Gather", X, step.rest_, axis=1))
    return graph("Concat", *made, axis=1)
