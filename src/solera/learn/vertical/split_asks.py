"""What the tasks of a split network take."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from solera.core.clients import Array, FloatArray
from solera.core.component import build
from solera.core.constraints import Count, NonNegative, NonNegativeInt, Positive, ProperFraction
from solera.core.errors import SoleraError
from solera.core.schema import Schema
from solera.learn.averaging.models import Layered, Registered
from solera.learn.averaging.training.architecture import architecture_of
from solera.learn.vertical.judging import ModelName
from solera.learn.vertical.party import (
    SharedPart,
)
from solera.trust.declared import Checked, Classes, Shape

MOST_PARTIES = 64
_Parties = Annotated[list[NonNegativeInt], Meta(max_length=MOST_PARTIES)]
_Step = Annotated[int, Meta(ge=0, lt=1 << 40)]


def _model_objection(value: Any, schema: Schema) -> str | None:
    try:
        if not isinstance(build(value), Layered | Registered):
            return "is no model"
        architecture_of(value)
    except (SoleraError, TypeError, ValueError, KeyError, ArithmeticError):
        return "is no model"
    return None


Described = Annotated[dict[str, Any], Checked(_model_objection)]


class Training(TypedDict):
    """How every party trains its network, and what it does to what it sends."""

    lr: Positive
    optimiser: Literal["sgd", "adam"]
    momentum: ProperFraction
    l2: NonNegative
    batch_size: Count | None
    clip: Positive | None
    noise: NonNegative
    gradient_noise: NonNegative
    join: Literal["concat", "sum"]
    loss: str
    dtype: Literal["float32", "float64"]


class Start(TypedDict):
    """What ``split.start`` takes: this party's networks, and who is who."""

    model: ModelName
    bottom: Described | None
    top: Described | None
    classes: Annotated[Array, Classes()]
    standardise: bool
    training: Training
    feeders: _Parties
    owners: _Parties


class Sent(TypedDict):
    """What a bottom network says of a batch, or the gradient of the loss by it."""

    values: Annotated[FloatArray, Shape("*", "*", longest=20_000_000)]


class FromParty(TypedDict):
    """Values, and whose they are."""

    sender: NonNegativeInt
    content: Sent


class Bottom(TypedDict):
    """What ``split.bottom`` takes: a batch to go back through and one to go forward with."""

    model: ModelName
    back: _Step | None
    forward: _Step | None
    steps: Count
    sealed: NotRequired[list[FromParty]]


class Top(TypedDict):
    """What ``split.top`` takes: the batch."""

    model: ModelName
    step: _Step
    steps: Count
    sealed: list[FromParty]


class Say(TypedDict):
    """What ``split.say`` takes: the rows of which the bottom networks speak."""

    model: ModelName
    part: SharedPart


class Said(TypedDict):
    """What ``split.answer`` takes: what they said."""

    model: ModelName
    part: SharedPart
    sealed: list[FromParty]


class Epoch(TypedDict):
    """What ``split.epoch`` takes."""

    model: ModelName


class Keep(TypedDict):
    """What ``split.keep`` takes: keep these weights as the best ones, or take the best back."""

    model: ModelName
    what: Literal["keep", "restore"]


class Averaged(TypedDict):
    """What ``split.average`` takes: the top networks of the other label owners."""

    model: ModelName
    sealed: list[FromParty]
