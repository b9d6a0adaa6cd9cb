"""The loss of many models of one network on the same rows, all at once.

The models of subsets of a round's clients are averages of few updates, and the output of the first
layer is linear in its parameters: with W_i = Σ_j c_ij B_j also x W_i = Σ_j c_ij (x B_j). So the
first layer, the widest of most networks, is applied to the few B_j and not to every model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import Array, FloatArray
from solera.learn.averaging.training.architecture import Architecture
from solera.learn.averaging.training.batched_models import forward
from solera.learn.averaging.training.devices import find_device, torch
from solera.learn.averaging.training.losses import row_losses

_AT_ONCE = 1 << 26
"""Bytes of one layer's outputs of all models together."""
_NEGLIGIBLE = 1e-13
"""Of the largest eigenvalue: what rounding in single precision leaves of a direction."""


def mean_losses(
    architecture: Architecture,
    weights: Array,
    X: Array,
    target: Array,
    loss: str,
    device: str | None,
) -> FloatArray:
    """The mean loss of each model, a row of ``weights``, over the rows of X.

    The network is a chain of dense layers.
    """
    assert architecture.layers is not None
    t = torch()
    place = find_device(device)
    layout = architecture.training_layout
    stack = layout.arrange(t.tensor(weights).to(place))
    models, rows = len(stack), len(X)
    shares, basis = _factors(stack, layout.slots[1].stop)
    first = {name: layout.views(basis)[f"0.{name}"] for name in ("weight", "bias")}
    views = layout.views(stack)
    width = max(X[0].size, *(slot.parameter.shape[0] for slot in layout.slots))
    step = max(1, _AT_ONCE // (models * width * stack.element_size()))
    total = t.zeros(models, dtype=t.float64, device=place)
    with t.no_grad():
        for start in range(0, rows, step):
            x = t.from_numpy(np.ascontiguousarray(X[start : start + step])).to(place, stack.dtype)
            x = x.reshape(1, len(x), -1).expand(len(basis), -1, -1)
            z = architecture.layers[0].forward(x, first, None)
            z = (shares @ z.reshape(len(basis), -1)).view(models, *z.shape[1:])
            outputs, _ = forward(architecture, views, z, None, after=1)
            wanted = t.from_numpy(target[start : start + step]).to(place)
            losses = row_losses(outputs, wanted.expand(models, *wanted.shape), loss)
            total += losses.sum(dim=1, dtype=t.float64)
    return np.asarray(total.cpu().numpy() / rows)


def _factors(stack: Any, width: int) -> tuple[Any, Any]:
    """Shares C and a basis B with C B = the models, B being right in the first columns."""
    t = torch()
    columns = stack[:, :width].double()
    values, vectors = t.linalg.eigh(columns @ columns.T)
    vectors = vectors[:, values > _NEGLIGIBLE * values[-1]]
    if 2 * vectors.shape[1] > len(stack):
        return t.eye(len(stack), dtype=stack.dtype, device=stack.device), stack
    basis = vectors.T @ stack.double()
    return vectors.to(stack.dtype), basis.to(stack.dtype)
