"""What a network says of rows, however many there are."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import Array
from solera.learn.averaging.training.architecture import Architecture
from solera.learn.averaging.training.batched_models import forward
from solera.learn.averaging.training.devices import find_device, torch

_PREDICTED = 1 << 27
"""Bytes of rows that are predicted at once."""


def outputs_of(architecture: Architecture, weights: Array, X: Any, device: str | None) -> Array:
    """The network's outputs for all rows, some thousands at a time."""
    t = torch()
    place = find_device(device)
    flat = architecture.training_layout.arrange(t.tensor(weights).to(place))
    module = (
        None if architecture.layers is not None else architecture.load(weights).eval().to(place)
    )
    width = int(np.prod(X.shape[1:]))
    at_once = max(1, _PREDICTED // (width * flat.element_size()))
    outputs = []
    with t.no_grad():
        views = architecture.training_layout.views(flat[None])
        for first in range(0, max(1, X.shape[0]), at_once):
            rows = X[first : first + at_once]
            rows = rows.toarray() if hasattr(rows, "toarray") else np.ascontiguousarray(rows)
            x = t.from_numpy(rows.reshape(len(rows), -1)).to(place, flat.dtype)
            z = forward(architecture, views, x[None], None)[0][0] if module is None else module(x)
            outputs.append(z.cpu().numpy())
    return np.concatenate(outputs)
