"""The client's side of :class:`~solera.learn.statistics.glm.FedGLM`: sums over its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np

from solera.core.clients import Array, BoolArray, Client, FloatArray
from solera.core.constraints import Positive
from solera.core.disclosure.evidence import Sums, everyone
from solera.core.disclosure.exact import Exact
from solera.core.disclosure.gram import Gram, Member
from solera.core.disclosure.noised import Noised
from solera.core.errors import DataError
from solera.core.release import Cells
from solera.core.schema import Schema, class_codes
from solera.core.task import task
from solera.data.frames import check_columns
from solera.learn.rows import dense, refuse_empty
from solera.learn.statistics.families import FAMILIES, Family, Name
from solera.learn.statistics.private_steps import bounded, check_noised, noised_step
from solera.privacy.dp.sums import (
    SumNoise,
    clipped_rows,
    spent_by_sums,
)
from solera.trust.declared import Classes, Shape

LEAST = 1e-300


class Model(TypedDict):
    """Which model it is, and where its coefficients stand."""

    family: Name
    offset: str | None
    weights: str | None
    coef: Annotated[FloatArray, Shape("terms")]
    classes: NotRequired[Annotated[Array, Classes()]]


class Step(Model):
    """What ``glm.step`` takes; at the ``start`` responses are put through the link as they are."""

    start: bool
    privacy: NotRequired[SumNoise]
    clip_residuals: NotRequired[Positive]


class Likelihood(Model):
    """What ``glm.likelihood`` takes."""

    scale: Positive


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
        Z = np.column_stack([np.ones(len(X)), X[:, used]])
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
    if "privacy" in ask:
        return bounded(weight, weight * residual, ask)
    if not (np.isfinite(weight).all() and np.isfinite(weight * residual).all()):
        raise DataError(
            "means of the model are not finite or at the edge of what they can be",
            hint="a column tells the classes apart without error, or is of another size than the "
            "others: leave it out, or so.FedScaler() before it",
        )
    return weight, weight * residual


def _members(client: Client, ask: Any) -> Iterator[Member]:
    design = Design.of(client, ask)
    w, moment = (column[:, None] for column in _working(design, ask))
    yield Member(design.Z, np.ones(len(w)), w, moment, np.zeros_like(w), "outputs")


def _behind_step(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    """What rows gave, with which differences to earlier answers are judged.

    Totals are compared whatever the other columns are.
    """
    design = Design.of(client, ask)
    w, moment = (column[:, None] for column in _working(design, ask))
    i, j = np.triu_indices(design.Z.shape[1])
    return {
        "shape.grams": Sums(w, design.Z[:, i] * design.Z[:, j], what="weighted products"),
        "moments": Sums(moment, design.Z, what="working residuals"),
        "totals": Sums(np.column_stack([w, moment]), what="weights"),
        "rows": everyone(len(w)),
    }


@task(
    "glm.step",
    ask=Step,
    release=[
        Noised(
            Exact(Gram("shape", "moments", "squares", "few", members=_members)),
            spends=spent_by_sums,
        ),
        *(
            Noised(release, spends=lambda client, ask: ())
            for release in (
                Exact(Cells("shape.grams", "moments", behind=_behind_step)),
                Exact(Cells("totals", behind=_behind_step)),
                Cells("rows", behind=_behind_step),
            )
        ),
    ],
)
@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def step_sums(client: Client, ask: Any) -> dict[str, Any]:
    """ZᵀWZ (its upper triangle), ZᵀWr, their first entries as totals, and the number of rows."""
    design = Design.of(client, ask)
    if "privacy" in ask:
        check_noised(ask)
        ones, X = design.Z[:, :1], clipped_rows(design.Z[:, 1:], ask["privacy"])
        design = replace(design, Z=np.concatenate([ones, X], axis=1))
    w, moment = _working(design, ask)
    gram = design.Z.T @ (design.Z * w[:, None])
    if "privacy" in ask:
        return noised_step(client, gram, design.Z.T @ moment, len(w), ask)
    return {
        "shape": {"grams": gram[np.triu_indices(len(gram))][None, None]},
        "moments": (design.Z.T @ moment)[None, :, None],
        "squares": np.zeros((1, 1)),
        "totals": np.array([w.sum(), moment.sum()]),
        "few": int(len(w) < len(gram)),
        "rows": len(w),
    }


def _by_row(client: Client, ask: Any) -> dict[str, FloatArray]:
    design, family = Design.of(client, ask), FAMILIES[ask["family"]]
    mu = design.means(family, ask["coef"])
    return {
        "deviance": design.weight * family.deviance(design.y, mu),
        "pearson": design.weight * (design.y - mu) ** 2 / family.variance(mu),
        "likelihood": family.likelihood(design.y, mu, design.weight, ask["scale"]),
    }


def _behind_likelihood(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    return {
        name: Sums(given[:, None], what=name, beyond=True)
        for name, given in _by_row(client, ask).items()
    }


@task(
    "glm.likelihood",
    ask=Likelihood,
    release=[Exact(Cells("deviance", "pearson", "likelihood", behind=_behind_likelihood))],
)
def likelihood_sums(client: Client, ask: Any) -> dict[str, Any]:
    """Deviance, Pearson's χ² and log-likelihood of this client's rows."""
    return {name: float(given.sum()) for name, given in _by_row(client, ask).items()}
