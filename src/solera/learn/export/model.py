"""A fitted learner as an ONNX file.

The graph takes rows and gives ``prediction`` and, where the learner knows them, ``probabilities``.
Without categories its one input is ``X``, rows × columns of float64. With categories every column
is an input of its own, rows × 1, by its name: text for a categorical one, float64 for the others,
dates as days since 1970-01-01. NaN, and a text that is no known category, count as missing.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.clients import Array
from solera.core.errors import UsageError
from solera.core.private_files import write_file
from solera.core.schema import UNKNOWN, Feature, Schema
from solera.learn.base import Learner
from solera.learn.export.graph import IR_VERSION, ML, ML_OPSET, OPSET, Graph, element_type, onnx
from solera.learn.rows import dense


@dataclass(frozen=True)
class Outputs:
    """The tensors that answer: predictions, their type, and probabilities where there are some."""

    prediction: str
    dtype: Any
    probabilities: str | None = None


@singledispatch
def add_predictor(learner: Any, graph: Graph, X: str) -> Outputs:
    """Add what a learner does with rows X, float64; every family of learners registers its own."""
    raise UsageError(
        f"{type(learner).__name__} cannot be exported to ONNX",
        hint="model.save(…) keeps every learner; so.load and solera predict use what it wrote",
    )


@singledispatch
def add_transformer(step: Any, graph: Graph, X: str) -> str:
    """Add what a transformer does with rows X, float64; the rows that it makes."""
    raise UsageError(f"{type(step).__name__} cannot be exported to ONNX")


def export(learner: Learner, path: str | os.PathLike[str]) -> Path:
    """Write what ``predict`` and ``predict_proba`` compute as an ONNX file."""
    learner.check_fitted()
    helper = onnx().helper
    graph = Graph()
    schema = learner.schema_
    inputs, X = _add_inputs(graph, schema)
    outputs = add_predictor(learner, graph, X)
    several = schema.target == "labels" or (schema.target == "numbers" and schema.outputs > 1)
    columns = [schema.outputs] if learner.predicts and several else []
    answers = [_answer(graph, "prediction", outputs.prediction, outputs.dtype, columns)]
    if outputs.probabilities is not None:
        p = outputs.probabilities
        answers.append(_answer(graph, "probabilities", p, np.float64, [schema.outputs]))
    made = helper.make_graph(
        graph.nodes, type(learner).__name__, inputs, answers, initializer=graph.constants
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=IR_VERSION)
    model.producer_name = "solera"
    helper.set_model_props(model, {"solera.schema": json.dumps(_described(schema))})
    onnx().checker.check_model(model)
    path = Path(path)
    write_file(path, model.SerializeToString(), 0o644, overwrite=True)
    return path


def onnx_inputs(learner: Learner, X: Any) -> dict[str, Array]:
    """What the exported graph takes for these rows, by the names of its inputs."""
    schema = learner.schema_
    rows = dense(learner.check_rows(X)).astype(np.float64)
    if not _has_categories(schema):
        return {"X": rows}
    columns = zip(schema.features, rows.T, strict=True)
    return {feature.name: _as_input(feature, column)[:, None] for feature, column in columns}


def _as_input(feature: Feature, column: Array) -> Array:
    if feature.kind != "categorical":
        return column
    texts = np.array([*feature.categories, ""], dtype=object)
    known = np.isfinite(column)
    return np.asarray(texts[np.where(known, column, -1).astype(np.int64)])


def _has_categories(schema: Schema) -> bool:
    return any(feature.kind == "categorical" for feature in schema.features)


def _add_inputs(graph: Graph, schema: Schema) -> tuple[list[Any], str]:
    """The inputs of the graph, and the rows of float64 that they make."""
    info = onnx().helper.make_tensor_value_info
    if not _has_categories(schema):
        return [info("X", element_type(np.float64), ["rows", schema.width])], "X"
    inputs, columns = [], []
    for feature in schema.features:
        if feature.name in ("prediction", "probabilities"):
            raise UsageError(f"a column is called {feature.name!r}, as an output of the graph is")
        is_text = feature.kind == "categorical"
        dtype: Any = np.str_ if is_text else np.float64
        inputs.append(info(feature.name, element_type(dtype), ["rows", 1]))
        columns.append(_codes(graph, feature) if is_text else feature.name)
    return inputs, graph("Concat", *columns, axis=1)


def _codes(graph: Graph, feature: Feature) -> str:
    """A column of text as the codes of its categories, NaN for others."""
    texts = list(feature.categories) or [""]
    codes = list(map(float, range(len(feature.categories)))) or [np.nan]
    coded = graph(
        "LabelEncoder",
        feature.name,
        domain=ML,
        keys_strings=texts,
        values_floats=codes,
        default_float=np.nan,
    )
    return graph.cast(coded, np.float64)


def _answer(graph: Graph, name: str, tensor: str, dtype: Any, columns: list[Any]) -> Any:
    node = onnx().helper.make_node("Identity", [tensor], [name])
    graph.nodes.append(node)
    return onnx().helper.make_tensor_value_info(name, element_type(dtype), ["rows", *columns])


def _described(schema: Schema) -> dict[str, Any]:
    """The schema for whoever opens the file without Solera."""
    return {
        "columns": [
            {"name": f.name, "kind": f.kind, "categories": list(f.categories)}
            for f in schema.features
        ],
        "target": schema.target,
        "target_names": list(schema.target_names),
        "classes": schema.classes.tolist(),
    }


# --- from scores to answers, as several families need it ---


def best_class(graph: Graph, schema: Schema, scores: str) -> str:
    """The class with the largest score of every row; of equals the first."""
    place = graph("ArgMax", scores, axis=1, keepdims=0)
    return graph("Gather", schema.classes, place, axis=0)


def numbers(graph: Graph, schema: Schema, outputs: str) -> Outputs:
    """The outputs themselves; one number per row comes as a vector."""
    if schema.outputs == 1:
        outputs = graph("Squeeze", outputs, np.array([1]))
    return Outputs(outputs, np.float64)


def from_scores(graph: Graph, schema: Schema, z: str, columns: int, learner: Any = None) -> Outputs:
    """Softmax, sigmoid or the numbers themselves, as the target asks.

    A client's own model may have a threshold for every label, and labels that it never saw.
    """
    if schema.target == "numbers":
        return numbers(graph, schema, z)
    if schema.target == "labels":
        thresholds = np.asarray(getattr(learner, "thresholds_", 0.0))
        present, p = graph.cast(graph("Greater", z, thresholds), np.int8), graph("Sigmoid", z)
        if (learned := getattr(learner, "labels_", None)) is not None:
            present = graph("Where", learned, present, np.int8(UNKNOWN))
            p = graph("Where", learned, p, np.nan)
        return Outputs(present, np.int8, p)
    if columns == 1:  # two classes, one output
        z = graph("Concat", graph("Mul", z, 0.0), z, axis=1)
    p = graph("Softmax", z, axis=1)
    return Outputs(best_class(graph, schema, z), schema.classes.dtype, p)
