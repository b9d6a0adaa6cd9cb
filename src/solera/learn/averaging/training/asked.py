"""What tasks of averaging take.

An update of a network tells rows: a layer whose weights were chosen for it writes single rows into
its gradients, through a sum over clients as well. It leaves where it has few parameters for its
rows, where the owner trusts the driver with rows (the policy "trusted"), or with noise that the
client's own code adds and its budget allows.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from solera.core.clients import Array, FloatArray
from solera.core.component import build
from solera.core.constraints import Count, NonNegative, Positive, ProperFraction
from solera.core.errors import SoleraError
from solera.core.schema import Schema
from solera.learn.averaging.models import Model
from solera.learn.averaging.private_updates import Privacy
from solera.learn.averaging.training.architecture import architecture_of
from solera.learn.averaging.updates import UpdateStep, check_steps
from solera.trust.declared import Checked, Classes, Shape

MOST_PARAMETERS = 1 << 30

Precision = Literal["float32", "tf32", "bfloat16"]
Epochs = Annotated[int, Meta(ge=1, le=10_000)]
Weights = Annotated[FloatArray, Shape("parameters", longest=MOST_PARAMETERS)]


def _model_objection(value: Any, schema: Schema) -> str | None:
    """A described network that takes the client's rows."""
    try:
        if not isinstance(build(value), Model):
            return "is no model"
        architecture = architecture_of(value)
    except SoleraError as error:
        return f"is no model: {error}"
    except (TypeError, ValueError, KeyError, ArithmeticError):
        return "is no model"
    if architecture.inputs not in (None, schema.width):
        return f"takes rows of {architecture.inputs} values, there are {schema.width}"
    return None


def _steps_objection(value: Any, schema: Schema) -> str | None:
    try:
        steps = build(value)
        if not isinstance(steps, list) or not all(isinstance(s, UpdateStep) for s in steps):
            return "is no list of update steps"
        check_steps(steps)
    except (SoleraError, TypeError, ValueError, KeyError):
        return "is no list of update steps"
    return None


DescribedModel = Annotated[dict[str, Any], Checked(_model_objection)]


class TrainingPlan(TypedDict):
    """How a client trains; see :class:`~.batches.TrainingConfig`."""

    loss: str
    lr: Positive
    optimiser: str
    momentum: ProperFraction
    l2: NonNegative
    mu: NotRequired[NonNegative]
    epochs: Epochs
    steps: Annotated[int, Meta(ge=1, le=1_000_000)] | None
    batch_size: Count | None
    precision: NotRequired[Precision]
    compile: NotRequired[bool]
    shuffle: NotRequired[bool]


class Train(TypedDict):
    """What ``averaging.nova`` takes."""

    model: DescribedModel
    weights: Weights
    classes: Annotated[Array, Classes()]
    training: TrainingPlan
    private: list[str]
    send: Literal["difference", "weights"]
    steps: Annotated[list[Any], Checked(_steps_objection)]
    device: str | None


class TrainPrivately(Train):
    """What tasks take whose reply is an update alone: the same, and how it is noised."""

    privacy: NotRequired[Privacy]
