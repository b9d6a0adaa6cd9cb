"""What clients report to selectors: valuations and resources, as ordinary tasks they may decline.

A policy that does not name ``select.value`` or ``select.resources`` declines them. Selectors put a
documented default in the place of what was not reported.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import numpy as np
from msgspec import Meta

from solera.core.clients import (
    Array,
    Client,
    ClientGroup,
    FloatArray,
    IntArray,
    Rows,
    Segments,
)
from solera.core.component import Component, component_name, describe_fitted
from solera.core.disclosure.evidence import Sums, cells, everyone
from solera.core.errors import DataError, Refusal
from solera.core.plan import PlannedTask, planned
from solera.core.release import Cells, Facts
from solera.core.replies import Stacked
from solera.core.schema import class_codes
from solera.core.selection import Roster
from solera.core.task import task
from solera.learn.base import Learner
from solera.learn.client_models import by_own_models, own_model
from solera.trust.declared import Classes, Fitted

VARIABLE = "SOLERA_RESOURCES"

# --- valuations ---


def _value_many(group: ClientGroup, ask: Any) -> Stacked:
    return Stacked(by_own_models(group, ask, lambda m, rows: _values(m, rows, ask)))


class Value(TypedDict):
    """What ``select.value`` takes."""

    model: Annotated[dict[str, Any], Fitted(Learner)]
    power: Annotated[float, Meta(ge=0, le=2)]


def _behind_value(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    losses = losses_of(own_model(client, ask["model"]), client.data.part("train"))
    scale = len(losses) ** -float(ask["power"])
    return {"value": Sums(losses[:, None], scale=scale, what="losses", beyond=True)}


@task("select.value", many=_value_many, ask=Value, release=[Cells("value", behind=_behind_value)])
def value(client: Client, ask: Any) -> dict[str, Any]:
    """The sum of the losses of the client's rows under a model over n^power, n the rows."""
    return _value_many(client.alone, ask)[0]


def losses_of(model: Any, rows: Rows) -> FloatArray:
    """The loss of every row."""
    losses: FloatArray = model.losses(rows.X, rows.y)
    return losses


def _values(model: Any, rows: Segments, ask: Any) -> dict[str, Any]:
    if not rows.sizes.min():
        raise Refusal("a client without rows has no loss")
    losses = losses_of(model, rows.joined())
    sums = np.add.reduceat(losses, np.cumsum(rows.sizes) - rows.sizes)
    return {"value": np.asarray(sums / rows.sizes ** float(ask["power"]), dtype=np.float64)}


def ask_values(
    roster: Roster, to: IntArray, round: int, power: float
) -> tuple[IntArray, FloatArray]:
    """Who reported a valuation of the current model, and which; NaN counts as no report."""
    model = describe_fitted(roster.learner.for_prediction())
    replies = roster.ask(value, {"model": model, "power": power}, to, round)
    values = np.array([float(reply["value"]) for reply in replies])
    known = np.flatnonzero(np.isfinite(values))
    clients = np.array([reply.client for reply in replies], dtype=np.int64)
    return clients[known], values[known]


def value_asks(learner: Component, most: int, power: float) -> PlannedTask:
    """What so many calls of :func:`ask_values` ask."""
    model = {"made": {"$component": component_name(type(learner))}}
    return planned(value, most, {"model": model, "power": power}, open=["model"])


def with_default(values: FloatArray) -> FloatArray:
    """Values where NaN, no report, is replaced by the median of the others, or by 0."""
    known = values[~np.isnan(values)]
    return np.where(np.isnan(values), np.median(known) if len(known) else 0.0, values)


# --- rows ---


def _everyone(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    return {"rows": everyone(len(client.data))}


@task("select.rows", release=[Cells("rows", behind=_everyone)])
def rows(client: Client, ask: Any) -> dict[str, Any]:
    """How many rows the client trains on."""
    return {"rows": len(client.data)}


# --- resources ---


def _stated(path: str) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as file:
            stated = tomllib.load(file)
        speed, link = float(stated["samples_per_second"]), float(stated["bits_per_second"])
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"{VARIABLE}={path}: {error}",
            hint="the file says samples_per_second, bits_per_second and perhaps upload = true",
        ) from error
    return {"speed": speed, "link": link, "upload": stated.get("upload") is True}


def own_resources(client: Client) -> Mapping[str, Any]:
    """Speed, link and whether rows may be sent: simulated, or as the owner stated in a file."""
    if client.resources is not None:
        who, draws = [client.id], client.draws
        state = client.resources.reported(draws.seed, draws.round, who)
        allows = bool(client.resources.allows_upload(draws.seed, who)[0])
        return {"speed": float(state.speed[0]), "link": float(state.link[0]), "upload": allows}
    path = os.environ.get(VARIABLE)
    if not path:
        raise Refusal("this client does not say what it can do")
    return _stated(path)


class AskResources(TypedDict):
    """What ``select.resources`` takes: the agreed classes, none where the target is no class."""

    classes: Annotated[Array, Classes()]


def _behind_counts(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    classes = ask["classes"]
    codes = _codes(client, classes) if len(classes) else np.full(len(client.data), -1)
    return {"counts": cells(codes, len(classes))}


@task(
    "select.resources",
    ask=AskResources,
    release=[
        Facts("speed", "link", "upload", "row_bits"),
        Cells("rows", behind=_everyone),
        Cells("counts", behind=_behind_counts),
    ],
)
def resources(client: Client, ask: Any) -> dict[str, Any]:
    """Speed, link, whether rows may be sent, bits of a row, rows, and rows of each class."""
    X = client.data.X
    return {
        **own_resources(client),
        "rows": len(client.data),
        "row_bits": 8 * int(np.prod(X.shape[1:])) * X.dtype.itemsize,
        "counts": class_counts(client, ask["classes"]),
    }


def class_counts(client: Client, classes: Any) -> IntArray:
    """Rows of each class; empty where the target is no class."""
    if not len(classes):
        return np.zeros(0, dtype=np.int64)
    return np.bincount(_codes(client, classes), minlength=len(classes)).astype(np.int64)


def _codes(client: Client, classes: Any) -> IntArray:
    """The class of every row, as a code; a target that is no class has none."""
    if client.data.schema.target != "classes":
        raise Refusal("the target of this client is no class")
    return class_codes(client.data.y, classes)
