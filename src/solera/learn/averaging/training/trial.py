"""A network of a user's, tried on two rows of zeros before clients are asked to train it."""

from __future__ import annotations

from typing import Any

from solera.core.errors import DataError
from solera.core.schema import Schema
from solera.learn.averaging.models import ImageModel, Registered
from solera.learn.averaging.training.architecture import Architecture
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.losses import OUR_LOSSES

_OF_SHAPES = ("shape", "size", "dimension", "channels", "broadcast", "expected")


def check_network(architecture: Architecture, schema: Schema, loss: str, dtype: str) -> None:
    """Raise :class:`DataError` where the network does not take such rows, or has other outputs."""
    model = architecture.model
    if isinstance(model, ImageModel):
        _check_channels(model, schema)
    if not isinstance(model, Registered):
        return
    shape = _try(architecture, schema, dtype)
    wanted = schema.outputs
    if shape is None or loss not in OUR_LOSSES or shape == (2, wanted):
        return
    if schema.target == "classes" and wanted == 2 and shape == (2, 1) and loss == "binary":
        return
    kinds = {"classes": "classes", "labels": "labels", "numbers": "numbers"}[schema.target]
    raise DataError(
        f"the network gives {_words(shape[1:]) or 'one number'} for a row, the target has "
        f"{wanted} {kinds}",
        hint=f"a last layer of {wanted} outputs",
    )


def _check_channels(model: ImageModel, schema: Schema) -> None:
    """Images whose channels come first would be read as others, of the same size."""
    height, width, channels = model.shape
    if channels > 1 and schema.shape == (channels, height, width):
        raise DataError(
            f"rows are images of {_words(schema.shape)}, channels first, and the network reads "
            f"{_words((height, width, channels))}",
            hint="X.transpose(0, 2, 3, 1), or so.data.from_torch(dataset), which does it",
        )


def _try(architecture: Architecture, schema: Schema, dtype: str) -> tuple[int, ...] | None:
    """The shape of what two rows become; None where zeros are no rows for this network."""
    t = torch()
    network = architecture.module().to(getattr(t, dtype)).eval()
    entered: list[tuple[str, Any, Any]] = []
    for name, layer in network.named_modules():

        def enter(layer: Any, inputs: Any, name: str = name) -> None:
            entered.append((name, layer, inputs))

        layer.register_forward_pre_hook(enter)
    try:
        with t.no_grad():
            outputs = network(t.zeros(2, schema.width, dtype=getattr(t, dtype)))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        if not any(word in reason.lower() for word in _OF_SHAPES):
            return None
        name, layer, inputs = entered[-1]
        given = ", ".join(_words(part.shape[1:]) for part in inputs if hasattr(part, "shape"))
        rows = _words(schema.shape or (schema.width,))
        where = f"layer {name!r}, {layer!r}," if name else "it"
        raise DataError(
            f"the network does not take rows of {rows}: {where} gets {given} for each ({reason})"
        ) from None
    except Exception:
        return None
    return tuple(outputs.shape) if hasattr(outputs, "shape") else None


def _words(shape: Any) -> str:
    return " × ".join(map(str, shape))
