"""Tasks behind ``so.describe``: counts of every column and class, and products of columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from solera.core.clients import Array, Client, IntArray
from solera.core.errors import DataError
from solera.core.schema import Feature, Schema
from solera.core.task import task
from solera.learn.rows import dense
from solera.trust.constructors import count_by, gram

MISSING, VALUES = 0, 1
"""The first cells of every column: missing values, then intervals, or other categories and named
ones."""


def with_labels(schema: Schema) -> Schema:
    """The schema with each of several labels as one more column, and no classes."""
    if schema.target != "labels":
        return schema
    labels = [Feature(name, "categorical", ("absent", "present")) for name in schema.label_names]
    return replace(schema, features=(*schema.features, *labels), classes=schema.classes[:0])


@task("describe.counts", version=2)
def count_cells(client: Client, ask: Any) -> dict[str, Any]:
    """Rows, those of every cell of each column, and those of each class.

    Missing values are the first cell of a column. Of numbers a value x is in interval i when
    edge_{i−1} < x ≤ edge_i; of categories the first of the others are those without a name.
    """
    X, features = dense(client.data.X), with_labels(client.data.schema).features
    if client.data.y is not None and len(features) > X.shape[1]:
        X = np.column_stack([X, np.where(client.data.y < 0, np.nan, client.data.y)])
    if len(features) != len(ask["columns"]):
        raise DataError(f"client {client.id} has {len(features)} columns, others are asked")
    columns = {}
    for j, (feature, column) in enumerate(zip(features, ask["columns"], strict=True)):
        cell, cells = _cells_of(X[:, j], feature, column)
        columns[str(j)] = count_by(cell, cells)
    classes = count_by(_class_of_rows(client, ask["classes"]), len(ask["classes"]))
    return {"rows": count_by(None), "columns": columns, "classes": classes}


def _cells_of(x: Array, feature: Feature, column: Any) -> tuple[IntArray, int]:
    """The cell of every value of a column, and how many cells there are."""
    known = np.isfinite(x)
    if feature.kind == "categorical":
        named = {name: 1 + i for i, name in enumerate(column["categories"])}
        places = np.array([named.get(name, 0) for name in feature.categories], dtype=np.int64)
        place, values = places[np.where(known, x, 0).astype(np.int64)], 1 + len(named)
    else:
        place, values = np.searchsorted(column["edges"], x, side="left"), 1 + len(column["edges"])
    return np.where(known, VALUES + place, MISSING), VALUES + values


def _class_of_rows(client: Client, classes: Array) -> IntArray:
    """The class of every row, −1 for one that is not asked about."""
    if client.data.y is None or client.data.schema.target != "classes":
        return np.full(len(client.data), -1)
    same = np.asarray(client.data.y)[:, None] == np.asarray(classes)
    return np.where(same.any(axis=1), same.argmax(axis=1) if same.shape[1] else 0, -1)


@task("describe.products", version=2)
def sum_products(client: Client, ask: Any) -> dict[str, Any]:
    """Sums of products of 1 and the columns of numbers, over the rows in which none misses."""
    numbers = [feature.kind != "categorical" for feature in client.data.schema.features]
    Z = ((dense(client.data.X) - ask["centre"]) / ask["scale"])[:, numbers]
    whole = np.isfinite(Z).all(axis=1)
    Z = np.concatenate([np.ones((len(Z), 1)), np.where(whole[:, None], Z, 0.0)], axis=1)
    return {"products": gram(Z, weights=whole)}
