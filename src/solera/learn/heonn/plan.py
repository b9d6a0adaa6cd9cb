"""What clients are asked with, and what must fit together in it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
from msgspec import Meta

from solera.core.clients import Array, IntArray
from solera.core.constraints import Count, NonNegative, NonNegativeInt, PositiveFraction
from solera.core.errors import Refusal
from solera.core.schema import Schema
from solera.learn.heonn.activations import Layout, Name, layout_of
from solera.learn.heonn.hidden import Kind
from solera.trust.declared import Classes, Shape
from solera.trust.noise import SumNoise

MOST_MEMBERS = 1000
MOST_HIDDEN = 20_000


class HiddenPlan(TypedDict):
    """Random hidden features."""

    kind: Kind
    width: Annotated[int, Meta(ge=1, le=MOST_HIDDEN)]
    scale: NonNegative
    seed: int


class Agreed(TypedDict):
    """How moments are encrypted."""

    key: str
    fingerprint: bytes
    shape: list[Count]
    outputs: Count
    exponent: (
        Annotated[IntArray, Shape("a", "b", kind="i", least=-1000, most=1000)]
        | Annotated[IntArray, Shape("a", "b", "c", kind="i", least=-1000, most=1000)]
    )
    layout: Literal["flat", "systems"]


class Plan(TypedDict):
    """What ``heonn.statistics`` takes."""

    width: Count
    columns: Count
    outputs: Count
    target: Literal["classes", "labels", "numbers"]
    classes: Annotated[Array, Classes()]
    layout: Layout
    activation: Name
    derivative: Literal["exact", "thesis"]
    representation: Literal["auto", "gram", "svd"]
    hidden: HiddenPlan | None
    patches: Annotated[IntArray, Shape("members", "features", kind="i", least=0)] | None
    row_share: PositiveFraction | None
    row_replacement: bool | None
    min_rows: NonNegativeInt
    encrypt: Agreed | None
    privacy: NotRequired[SumNoise]


class KeyPlan(Plan):
    """What ``heonn.agree_key`` takes."""

    key: str


class Rotations(TypedDict):
    """What ``heonn.rotation_keys`` takes."""

    key: str
    shape: list[Count]


def check_plan(ask: Any, schema: Schema) -> None:
    """Refuse a plan whose parts do not fit each other, or the rows."""
    hidden, patches, outputs = ask["hidden"], ask["patches"], ask["outputs"]
    columns = 1 + (schema.width if hidden is None else hidden["width"])
    named = schema.outputs if ask["target"] == "numbers" else len(ask["classes"])
    for what, given, right in (
        ("target", ask["target"], schema.target),
        ("width", ask["width"], schema.width),
        ("columns", ask["columns"], columns),
        ("outputs", outputs, named),
        ("layout", ask["layout"], layout_of(ask["target"], ask["activation"], ask["derivative"])),
    ):
        if given != right:
            raise Refusal(f"FedHEONN: {what} is {given} where the rows and the plan need {right}")
    together = [patches is None, ask["row_share"] is None, ask["row_replacement"] is None]
    if any(together) != all(together):
        raise Refusal("FedHEONN: patches, row_share and row_replacement belong together")
    if patches is not None:
        if not 0 < len(patches) <= MOST_MEMBERS or not 0 < patches.shape[1] < columns:
            raise Refusal(f"FedHEONN: patches have the shape {patches.shape}")
        if np.max(patches) >= columns - 1:
            raise Refusal(f"FedHEONN: patches name features beyond the {columns - 1} there are")
