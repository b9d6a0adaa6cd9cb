"""The client's side of :class:`~solera.learn.statistics.glm.FedGLM`: sums over its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.clients import Array, BoolArray, Client, FloatArray
from solera.core.errors import DataError
from solera.core.schema import Schema, class_codes
from solera.core.task import task
from solera.data.frames import check_columns
from solera.learn.rows import dense, refuse_empty
from solera.learn.statistics.families import FAMILIES, Family
from solera.learn.statistics.private_steps import bounds, check_noised
from solera.trust.constructors import count_by, gram, sum_by
from solera.trust.contributions import bound_rows

LEAST = 1e-300


@dataclass(frozen=True)
class Design:
    """Rows as a model sees them: Z with ones first, responses, offsets and prior weights."""

    Z: FloatArray
    y: FloatArray
    offset: FloatArray
    weight: FloatArray

    @classmethod
    def of(cls, client: Client, ask: Any) -> Design:
        rows, schema = client.data.part("train"), client.data.schema
        refuse_empty(client.id, len(rows))
        X = dense(rows.X).astype(np.float64)
        used = design_columns(schema, ask["offset"], ask["weights"])
        columns = X[:, used]
        if "privacy" in ask:
            columns = bound_rows(columns, ask["privacy"]["clip"])
        Z = np.column_stack([np.ones(len(X)), columns])
        if Z.shape[1] != len(ask["coef"]):
            raise DataError(f"there are {Z.shape[1]} terms here and {len(ask['coef'])} asked")
        y = responses(rows.y, schema.target, ask.get("classes", schema.classes))
        if not FAMILIES[ask["family"]].allowed(y).all():
            responses_are = FAMILIES[ask["family"]].responses
            raise DataError(f"a target here is none of a {ask['family']} model: {responses_are}")
        weight = named_column(X, schema, ask["weights"], 1.0)
        if not (weight > 0).all():
            raise DataError(f"a weight in {ask['weights']!r} is not above 0")
        return cls(Z, y, named_column(X, schema, ask["offset"], 0.0), weight)

    def means(self, family: Family, coef: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):  # what is not finite is reported
            return family.mean(self.Z @ coef + self.offset)


def design_columns(schema: Schema, *others: str | None) -> BoolArray:
    """Marks the columns that have a coefficient; those named are an offset or weights."""
    names = [feature.name for feature in schema.features]
    check_columns([name for name in others if name is not None], names)
    return np.array([name not in others for name in names], dtype=bool)


def named_column(X: FloatArray, schema: Schema, name: str | None, otherwise: float) -> FloatArray:
    """A column of X, or the same number for all rows."""
    if name is None:
        return np.full(len(X), otherwise)
    return X[:, [feature.name for feature in schema.features].index(name)]


def responses(y: Any, target: str, classes: Array) -> FloatArray:
    """Numbers as they are, the second of two classes as 1."""
    if target == "classes":
        return class_codes(y, classes).astype(np.float64)
    return np.asarray(y, dtype=np.float64).reshape(len(y))


def _working(design: Design, ask: Any) -> tuple[FloatArray, FloatArray]:
    """w and w r of every row.

    At the start w is the prior weight and r a response through the link: no row outweighs others
    before there is a model.
    """
    family = FAMILIES[ask["family"]]
    if ask["start"]:
        weight = design.weight
        residual = family.link(family.start(design.y)) - design.offset
    else:
        mu = design.means(family, ask["coef"])
        weight = design.weight * family.weight(mu)
        residual = family.residual(design.y, mu)
    if "privacy" in ask:  # the library bounds both
        return weight, weight * residual
    if not (np.isfinite(weight).all() and np.isfinite(weight * residual).all()):
        raise DataError(
            "means of the model are not finite or at the edge of what they can be",
            hint="a column tells the classes apart without error, or is of another size than the "
            "others: leave it out, or so.FedScaler() before it",
        )
    return weight, weight * residual


@task("glm.step", version=2)
@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def step_sums(client: Client, ask: Any) -> dict[str, Any]:
    """ZᵀWZ (its upper triangle), ZᵀWr, and the number of rows."""
    if "privacy" in ask:
        check_noised(ask)
    design = Design.of(client, ask)
    weight, moment = _working(design, ask)
    longest, most_weight, most_moment = bounds(ask)
    return {
        "gram": gram(design.Z, weights=weight, bound=(longest, most_weight)),
        "moment": gram(design.Z, moment[:, None], bound=(longest, most_moment)),
        "rows": count_by(None),
    }


@task("glm.likelihood")
def likelihood_sums(client: Client, ask: Any) -> dict[str, Any]:
    """Deviance, Pearson's χ² and log-likelihood of this client's rows."""
    design, family = Design.of(client, ask), FAMILIES[ask["family"]]
    y, mu, weight = design.y, design.means(family, ask["coef"]), design.weight
    return {
        "deviance": sum_by(None, weight * family.deviance(y, mu)),
        "pearson": sum_by(None, weight * (y - mu) ** 2 / family.variance(mu)),
        "likelihood": sum_by(None, family.likelihood(y, mu, weight, ask["scale"])),
    }
