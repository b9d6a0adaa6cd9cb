"""Before training, clients agree on what a row is, without sending one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation, Fields, Union
from solera.core.clients import BoolArray, Client, ClientGroup, Rows
from solera.core.errors import DataError, SchemaError
from solera.core.federation import Federation
from solera.core.replies import Reply
from solera.core.schema import Feature, Schema
from solera.core.task import task
from solera.trust.constructors import count_by

_FILL_FIRST = "fill them first, for example so.Pipeline(so.FedImputer(), …)"
SMALLEST_COUNT = 5
"""Counts below this are not shown, whatever an owner's policy lets out."""


@task("data.describe", alone=True)
def describe(client: Client, ask: Any) -> dict[str, Any]:
    """Names, kinds and categories of the columns, the classes, and which columns miss values."""
    rows = client.data.part("train")
    described = client.data.schema.to_payload()
    if client.data.schema.target == "classes" and rows.y is not None:
        described["classes"] = np.unique(rows.y)
    described["rows"] = count_by(None)
    described["empty"] = not len(rows)
    described["gaps"] = _missing_columns(rows)
    return described


def _missing_columns(rows: Rows) -> list[int]:
    """Columns with values that are missing or infinite."""
    values = rows.X.data if hasattr(rows.X, "indptr") else rows.X
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return []
    return [int(column) for column in np.flatnonzero(_missing(rows).any(axis=0))]


def _missing(rows: Rows) -> BoolArray:
    """Which values are missing or infinite, rows × columns."""
    X = rows.X
    if hasattr(X, "indptr"):
        marks = np.zeros(X.shape, dtype=bool)
        lines = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        marks[lines, X.indices] = ~np.isfinite(X.data)
        return marks
    return np.asarray(~np.isfinite(X.reshape(len(rows), -1)))


class SchemaAgreement(Aggregation):
    """The schema all clients share: same columns and target, all categories and classes together.

    Clients with different columns are kept apart until :meth:`finish`, which names the first one
    that differs from the majority and the column where it does. Commutative and associative.
    """

    def lift(self, reply: Reply) -> Any:
        answer = reply.payload
        columns = [[name, kind] for name, kind, _ in answer["features"]]
        return {
            "views": [
                {
                    "columns": columns,
                    "target": [answer["target"], _outputs(answer), *_label_names(answer)],
                    "shape": list(answer.get("shape", ())),
                    "clients": 1,
                    "first": reply.client,
                }
            ],
            "categories": {n: list(c) for n, _, c in answer["features"] if c},
            "classes": np.asarray(answer["classes"]),
            "gaps": [[reply.client, int(column)] for column in answer["gaps"][:1]],
            "empty": [reply.client] if answer["empty"] else [],
        }

    def combine(self, a: Any, b: Any) -> Any:
        views = {_kind_of_rows(view): dict(view) for view in a["views"]}
        for view in b["views"]:
            known = views.setdefault(_kind_of_rows(view), dict(view))
            if known != view:
                known["clients"] += view["clients"]
                known["first"] = min(known["first"], view["first"])
        categories = {
            name: _joined(a["categories"].get(name, []), b["categories"].get(name, []))
            for name in sorted({*a["categories"], *b["categories"]})
        }
        return {
            "views": [views[key] for key in sorted(views)],
            "categories": categories,
            "classes": np.union1d(a["classes"], b["classes"]),
            "gaps": sorted([*a["gaps"], *b["gaps"]])[:1],
            "empty": sorted([*a["empty"], *b["empty"]])[:1],
        }

    def finish(self, partial: Any) -> dict[str, Any]:
        views = sorted(partial["views"], key=lambda v: (-v["clients"], v["first"]))
        agreed = views[0]
        for view in views[1:]:
            raise SchemaError(_difference(view, agreed), hint="agree on the columns first")
        features = tuple(
            Feature(name, kind, tuple(partial["categories"].get(name, ())))
            for name, kind in agreed["columns"]
        )
        target, outputs, *names = agreed["target"]
        classes = partial["classes"]
        outputs = len(classes) if target == "classes" else outputs
        shape = tuple(agreed["shape"])
        schema = Schema(features, target, classes, outputs, tuple(names), shape=shape)
        return {"schema": schema, "gaps": partial["gaps"], "empty": partial["empty"]}


def _kind_of_rows(view: Any) -> str:
    return repr((view["columns"], view["target"], view["shape"]))


def _joined(a: list[str], b: list[str]) -> list[str]:
    """Categories in the order that all have them in, or in that of the alphabet."""
    return a if a == b else sorted({*a, *b})


def _find_missing_many(group: ClientGroup, ask: Any) -> list[dict[str, Any]]:
    rows = group.data.joined()
    if rows.X.dtype.kind != "f" or np.isfinite(getattr(rows.X, "data", rows.X)).all():
        return [
            _missing_reply(i, [], size) for i, size in zip(group.ids, group.data.sizes, strict=True)
        ]
    return [find_missing(client, ask) for client in group]


@task("data.flaws", many=_find_missing_many, alone=True)
def find_missing(client: Client, ask: Any) -> dict[str, Any]:
    """Whether this client has no rows, and the first column in which values are missing."""
    rows = client.data.part("train")
    names = [client.data.schema.features[column].name for column in _missing_columns(rows)[:1]]
    return _missing_reply(client.id, names, len(rows))


def _missing_reply(client: int, columns: list[str], rows: int) -> dict[str, Any]:
    return {
        "gaps": [f"{client:012d} {name}" for name in columns],
        "empty": [] if rows else [int(client)],
    }


def agree(federation: Federation, *, allow_missing: bool = True) -> Schema:
    """The schema of a federation: known beforehand in a simulation, asked for otherwise.

    Of two classes the one that the federation calls positive is the second.

    A client without rows, a column on which clients disagree and, unless ``allow_missing``, a
    missing value are errors that name client and column. Clients whose rows are generated lazily
    are not asked: theirs show when a task meets them.
    """
    if hasattr(getattr(federation.engine, "source", None), "parties"):
        raise DataError(
            "the clients hold different columns of the same people",
            hint="only vertical learners learn from them, such as so.VerticalLogisticRegression()",
        )
    positive = federation.configuration.positive
    schema = federation.schema
    if not allow_missing and (gaps := federation.gaps):
        raise DataError(
            f"values may be missing in {_some(gaps)}, by the dictionary", hint=_FILL_FIRST
        )
    if schema is None:
        answer = federation.ask(describe).fold(SchemaAgreement())
        schema = answer["schema"]
        missing = [(client, schema.features[column].name) for client, column in answer["gaps"]]
    elif federation.is_complete():  # as a simulation of many clients knows at once
        federation.record(find_missing, _missing_reply(0, [], 1))
        return schema.with_positive(positive)
    elif federation.engine.sizes("train") is not None:
        answer = federation.ask(find_missing).fold(Fields({"gaps": Union(), "empty": Union()}))
        missing = [(int(gap[:12]), gap[13:]) for gap in answer["gaps"]]
    else:
        return schema.with_positive(positive)
    if answer["empty"]:
        raise DataError(
            f"client {answer['empty'][0]} has no rows to train on",
            hint="give it data or leave it out",
        )
    if missing and not allow_missing:
        raise missing_values(missing[0][0], [missing[0][1]])
    return schema.with_positive(positive)


def check_labelled(federation: Federation) -> None:
    """Refuse simulated clients without labels, for who needs labels of all of them."""
    source = getattr(federation.engine, "source", None)
    unlabelled = np.asarray(getattr(source, "unlabelled", ()), dtype=np.int64)
    if len(unlabelled):  # of a million clients it takes a second to look
        unlabelled = unlabelled[np.isin(unlabelled, federation.clients)]
    if len(unlabelled):
        named = ", ".join(str(int(client)) for client in unlabelled[:5])
        raise DataError(
            f"clients without labels: {named}{' …' if len(unlabelled) > 5 else ''}",
            hint=f"leave them out: federation.without({named})",
        )


def missing_values(client: int, columns: list[str]) -> DataError:
    """The error for missing values given to a learner that cannot use them."""
    return DataError(
        f"client {client} has missing or infinite values in {_some(columns)}", hint=_FILL_FIRST
    )


def _some(columns: Sequence[str]) -> str:
    return ", ".join(columns[:5]) + (" …" if len(columns) > 5 else "")


def _label_names(answer: Any) -> Sequence[str]:
    """Labels are the same only under the same names, in the same order."""
    return answer.get("target_names", ()) if answer["target"] == "labels" else ()


def _outputs(answer: Any) -> int:
    return 0 if answer["target"] == "classes" else int(answer["outputs"])


def _difference(view: Any, agreed: Any) -> str:
    client, own, others = view["first"], view["columns"], agreed["columns"]
    for i, (a, b) in enumerate(zip(own, others, strict=False)):
        if a != b:
            return (
                f"client {client}: column {i} is {a[0]!r} ({a[1]}), others have {b[0]!r} ({b[1]})"
            )
    if len(own) != len(others):
        longer = own if len(own) > len(others) else others
        name = longer[min(len(own), len(others))][0]
        return (
            f"client {client} has {len(own)} columns, others have {len(others)}: "
            f"{name!r} is the first that is not on both sides"
        )
    if view["shape"] != agreed["shape"]:
        return f"client {client} has rows of shape {view['shape']}, others {agreed['shape']}"
    return f"client {client} has a target of kind {view['target']}, others {agreed['target']}"
