"""What clients report to selectors: valuations and resources, as ordinary tasks they may decline.

A policy that does not name ``select.value`` or ``select.resources`` declines them. Selectors put a
documented default in the place of what was not reported.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from typing import Any

import numpy as np

from solera.core.clients import (
    Client,
    ClientGroup,
    FloatArray,
    IntArray,
    Rows,
    Segments,
)
from solera.core.component import describe_fitted
from solera.core.errors import DataError, Refusal
from solera.core.replies import Stacked
from solera.core.schema import class_codes
from solera.core.selection import Roster
from solera.core.task import task
from solera.learn.client_models import by_own_models, own_model
from solera.learn.rows import refuse_empty
from solera.trust.constructors import count_by, fact, sum_by
from solera.trust.contributions import Contribution

VARIABLE = "SOLERA_RESOURCES"

# --- valuations ---


def _value_many(group: ClientGroup, ask: Any) -> Stacked:
    return Stacked(by_own_models(group, ask, _losses_by_client))


@task("select.value", many=_value_many, version=2)
def value(client: Client, ask: Any) -> dict[str, Any]:
    """The sum of the losses of the client's rows under a model, and the rows."""
    rows = client.data.part("train")
    refuse_empty(client.id, len(rows))
    losses = losses_of(own_model(client, ask["model"]), rows)
    return {"loss": sum_by(None, losses), "rows": count_by(None)}


def losses_of(model: Any, rows: Rows) -> FloatArray:
    """The loss of every row."""
    losses: FloatArray = model.losses(rows.X, rows.y)
    return losses


def _losses_by_client(model: Any, rows: Segments) -> dict[str, Any]:
    """The stacked twin of :func:`value`."""
    refuse_empty(np.arange(len(rows)), rows.sizes)
    losses = losses_of(model, rows.joined())
    sums = np.add.reduceat(losses, np.cumsum(rows.sizes) - rows.sizes)
    return {"loss": np.asarray(sums, dtype=np.float64), "rows": rows.sizes}


def ask_values(
    roster: Roster, to: IntArray, round: int, power: float
) -> tuple[IntArray, FloatArray]:
    """Who reported a valuation of the current model, Σ losses / rows^power, and which.

    NaN counts as no report.
    """
    model = describe_fitted(roster.learner.for_prediction())
    replies = roster.ask(value, {"model": model}, to, round)
    whole = [reply for reply in replies if reply["rows"] > 0]
    values = np.array([float(reply["loss"] / reply["rows"] ** power) for reply in whole])
    known = np.flatnonzero(np.isfinite(values))
    clients = np.array([reply.client for reply in whole], dtype=np.int64)
    return clients[known], values[known]


def with_default(values: FloatArray) -> FloatArray:
    """Values where NaN, no report, is replaced by the median of the others, or by 0."""
    known = values[~np.isnan(values)]
    return np.where(np.isnan(values), np.median(known) if len(known) else 0.0, values)


# --- rows ---


@task("select.rows")
def rows(client: Client, ask: Any) -> dict[str, Any]:
    """How many rows the client trains on."""
    return {"rows": count_by(None)}


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


@task("select.resources")
def resources(client: Client, ask: Any) -> dict[str, Any]:
    """Speed, link, whether rows may be sent, bits of a row, rows, and rows of each class."""
    X = client.data.X
    return {
        **{name: fact(value) for name, value in own_resources(client).items()},
        "row_bits": fact(8 * int(np.prod(X.shape[1:])) * X.dtype.itemsize),
        "rows": count_by(None),
        "counts": _class_counts(client, ask["classes"]),
    }


def _class_counts(client: Client, classes: Any) -> Contribution:
    """Rows of each class; empty where the target is no class."""
    if not len(classes):
        return fact(np.zeros(0, dtype=np.int64))
    if client.data.schema.target != "classes":
        raise Refusal("the target of this client is no class")
    return count_by(class_codes(client.data.y, classes), cells=len(classes))
