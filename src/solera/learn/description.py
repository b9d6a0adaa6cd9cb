"""Tasks behind ``so.describe``: counts of every column and class, and products of columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np

from solera.core.clients import Array, BoolArray, Client, FloatArray, IntArray
from solera.core.disclosure.evidence import Sums, cells, everyone
from solera.core.disclosure.gram import Gram, Member
from solera.core.disclosure.noised import Noised
from solera.core.errors import DataError
from solera.core.release import Cells
from solera.core.schema import Feature, Schema
from solera.core.task import task
from solera.learn.rows import dense
from solera.privacy.dp.sums import SumNoise, add_noise, norm, spent_by_sums
from solera.trust.declared import Classes, Shape

MISSING, OTHER = 0, 1
"""The first cells of every column; that of known numbers, or of categories without a name, next."""


class ColumnNames(TypedDict):
    """The categories of a column by which rows are counted."""

    categories: list[str]


class CountRows(TypedDict):
    """What ``describe.counts`` takes: categories of every column and label, and the classes."""

    columns: list[ColumnNames]
    classes: Annotated[Array, Classes()]
    privacy: NotRequired[SumNoise]


def column_of_cells(ask: Any) -> IntArray:
    """The column of every cell, for a table of one line per column."""
    sizes = [2 + len(column["categories"]) for column in ask["columns"]]
    return np.repeat(np.arange(len(sizes)), sizes)


def with_labels(schema: Schema) -> Schema:
    """The schema with each of several labels as one more column, and no classes."""
    if schema.target != "labels":
        return schema
    labels = [Feature(name, "categorical", ("absent", "present")) for name in schema.label_names]
    return replace(schema, features=(*schema.features, *labels), classes=schema.classes[:0])


def _cell_of_rows(client: Client, ask: Any) -> IntArray:
    """The cell of every row in each column and label: rows × columns."""
    X, features = dense(client.data.X), with_labels(client.data.schema).features
    if client.data.y is not None and len(features) > X.shape[1]:
        X = np.column_stack([X, np.where(client.data.y < 0, np.nan, client.data.y)])
    if len(features) != len(ask["columns"]):
        raise DataError(f"client {client.id} has {len(features)} columns, others are asked")
    place = np.full(X.shape, OTHER)
    for j, (feature, column) in enumerate(zip(features, ask["columns"], strict=True)):
        named = {name: 2 + i for i, name in enumerate(column["categories"])}
        if feature.kind == "categorical":
            known = np.isfinite(X[:, j])
            codes = np.array([named.get(name, OTHER) for name in feature.categories], np.int64)
            place[known, j] = codes[X[known, j].astype(np.int64)]
    place[~np.isfinite(X)] = MISSING
    sizes = [2 + len(column["categories"]) for column in ask["columns"]]
    return np.asarray(place + np.cumsum(sizes) - sizes, dtype=np.int64)


def _class_of_rows(client: Client, ask: Any) -> IntArray:
    """The class of every row, −1 for one that is not asked about."""
    if client.data.y is None or client.data.schema.target != "classes":
        return np.full(len(client.data), -1)
    same = np.asarray(client.data.y)[:, None] == np.asarray(ask["classes"])
    return np.where(same.any(axis=1), same.argmax(axis=1) if same.shape[1] else 0, -1)


def _rows_behind(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    place, number = _cell_of_rows(client, ask), len(column_of_cells(ask))
    marks: BoolArray = np.zeros((len(place), number), dtype=bool)
    np.put_along_axis(marks, place, True, axis=1)
    return {
        "rows": everyone(len(place)),
        "cells": Sums(marks),
        "classes": cells(_class_of_rows(client, ask), len(ask["classes"])),
    }


def _with_rows(client: Client, ask: Any) -> tuple[()]:
    """Nothing more: what the whole reply is worth is said with its rows."""
    return ()


@task(
    "describe.counts",
    ask=CountRows,
    release=[
        Noised(Cells("rows", behind=_rows_behind), spends=spent_by_sums),
        Noised(Cells("cells", behind=_rows_behind, margins=column_of_cells), spends=_with_rows),
        Noised(Cells("classes", behind=_rows_behind), spends=_with_rows),
    ],
)
def count_cells(client: Client, ask: Any) -> dict[str, Any]:
    """Rows, those of each column that miss, and those of each category and class."""
    number = len(column_of_cells(ask))
    place, classes = _cell_of_rows(client, ask), _class_of_rows(client, ask)
    counts = {
        "rows": len(place),
        "cells": np.bincount(place.reshape(-1), minlength=number),
        "classes": np.bincount(classes[classes >= 0], minlength=len(ask["classes"])),
    }
    if "privacy" not in ask:
        return counts
    most = {"rows": 1.0, "cells": norm(ask["privacy"], place.shape[1]), "classes": 1.0}
    noised = add_noise(client, counts, most, ask["privacy"])
    whole = {name: np.rint(value).astype(np.int64) for name, value in noised.items()}
    return {**whole, "rows": int(whole["rows"])}


class Products(TypedDict):
    """What ``describe.products`` takes: a centre and a scale of every column."""

    mean: Annotated[FloatArray, Shape("columns")]
    scale: Annotated[FloatArray, Shape("columns", least=1e-300)]


def _member(client: Client, ask: Any) -> Member:
    """The columns of numbers at one scale, of rows in which none misses."""
    numbers = [feature.kind != "categorical" for feature in client.data.schema.features]
    Z = ((dense(client.data.X) - ask["mean"]) / ask["scale"])[:, numbers]
    whole = np.isfinite(Z).all(axis=1)
    Z = np.concatenate([np.ones((len(Z), 1)), np.where(whole[:, None], Z, 0.0)], axis=1)
    nothing = np.zeros((len(Z), 1))
    once = whole.astype(float)
    return Member(Z, once, once[:, None], nothing, nothing, "one")


def _members(client: Client, ask: Any) -> Iterator[Member]:
    yield _member(client, ask)


@task(
    "describe.products",
    ask=Products,
    release=[Gram("shape", "moments", "squares", "few", members=_members)],
)
def sum_products(client: Client, ask: Any) -> dict[str, Any]:
    """Sums of products of columns of numbers, over the rows in which none misses."""
    member = _member(client, ask)
    G = member.Z.T @ (member.Z * member.weights)
    upper = np.triu_indices(len(G))
    return {
        "shape": {"grams": G[upper][None, None]},
        "moments": np.zeros((1, len(G), 1)),
        "squares": np.zeros((1, 1)),
        "few": int(member.times.sum() < len(G)),
    }
