"""What the asks of SecureBoost take, and what its parties seal to each other."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from msgspec import Meta

from solera.core.clients import IntArray
from solera.core.constraints import Count, NonNegative, NonNegativeInt, Positive
from solera.learn.trees.boosting.base import Loss
from solera.learn.trees.boosting.histograms import Bins
from solera.learn.vertical.judging import ModelName
from solera.learn.vertical.party import SharedPart
from solera.privacy.additive import CipherName
from solera.trust.declared import Shape

MOST_PARTIES = 64
_MOST_ROWS = 20_000_000
_Bytes = Annotated[bytes, Meta(max_length=1 << 30)]
_Blocks = Annotated[list[_Bytes], Meta(max_length=_MOST_ROWS)]
_Nodes = Annotated[list[_Blocks], Meta(max_length=1 << 16)]
_Number = Annotated[int, Meta(ge=0, le=1 << 31)]
_Numbers = Annotated[list[_Number], Meta(min_length=2, max_length=MOST_PARTIES)]


class Begin(TypedDict):
    """What ``boost.begin`` takes: most bins of a column, and who holds the labels."""

    model: ModelName
    bins: Bins
    owner: _Number


class Counted(TypedDict):
    """How many candidates a party has, by where they send missing values."""

    right: NonNegativeInt
    left: NonNegativeInt


class Taken(TypedDict):
    """The candidate that was taken at a node, and which of the node's rows it sends left."""

    node: NonNegativeInt
    candidate: NonNegativeInt
    left: _Bytes


class ToGrow(TypedDict):
    """What other parties tell the label owner before a level: candidates at first, then splits."""

    counted: NotRequired[Counted]
    taken: NotRequired[Annotated[list[Taken], Meta(max_length=1 << 16)]]


class FromSplitter(TypedDict):
    """Splits, and who made them."""

    sender: NonNegativeInt
    content: ToGrow


class Grow(TypedDict):
    """What ``boost.grow`` takes."""

    model: ModelName
    step: NonNegativeInt
    max_depth: Annotated[int, Meta(ge=1, le=20)]
    last: bool
    cipher: CipherName
    parties: _Numbers
    loss: Loss
    lr: Positive
    l2: NonNegative
    min_rows: Count
    sealed: NotRequired[list[FromSplitter]]


class Gradients(TypedDict):
    """Encrypted gradients by wanted node; the first come with the key and their form."""

    nodes: _Nodes
    key: NotRequired[_Bytes]
    form: NotRequired[list[int]]


class FromLabels(TypedDict):
    """Encrypted gradients, and whose labels are behind them."""

    sender: NonNegativeInt
    content: Gradients


class Sum(TypedDict):
    """What ``boost.sums`` takes."""

    model: ModelName
    step: NonNegativeInt
    cipher: CipherName
    sealed: list[FromLabels]


class Summed(TypedDict):
    """Encrypted sums by wanted node."""

    nodes: _Nodes


class FromSummer(TypedDict):
    """Encrypted sums, and whose candidates they are of."""

    sender: NonNegativeInt
    content: Summed


class Choose(TypedDict):
    """What ``boost.choose`` takes."""

    model: ModelName
    step: NonNegativeInt
    sealed: list[FromSummer]


class ToTake(TypedDict):
    """Candidates of a party that are the best of a node, and the node's rows."""

    node: NonNegativeInt
    candidates: Annotated[IntArray, Shape("*", kind="i", least=0)]
    rows: _Bytes


class Chosen(TypedDict):
    """All that is asked of a party after a level."""

    take: Annotated[list[ToTake], Meta(max_length=1 << 16)]


class FromChooser(TypedDict):
    """Splits to take, and who chose them."""

    sender: NonNegativeInt
    content: Chosen


class Split(TypedDict):
    """What ``boost.split`` takes."""

    model: ModelName
    step: NonNegativeInt
    tree: NonNegativeInt
    last: bool
    sealed: list[FromChooser]


class SidesOf(TypedDict):
    """Which rows every condition of a party sends left, a bit for each."""

    conditions: NonNegativeInt
    sides: _Bytes


class FromHolder(TypedDict):
    """Sides, and whose conditions they are of."""

    sender: NonNegativeInt
    content: SidesOf


class Score(TypedDict):
    """What ``boost.score`` takes."""

    model: ModelName
    part: SharedPart
    sealed: list[FromHolder]


class TellSides(TypedDict):
    """A model, rows, and the ask in which the label owner reads the sides."""

    model: ModelName
    part: SharedPart
