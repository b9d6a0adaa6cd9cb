"""Whether steps that ``torch.compile`` translated change weights as the same steps do without it.

Seen on an H200 with PyTorch 2.11: the gradients of all layers before the last batch normalisation
were zero, and nothing but a loss that fell too slowly told of it (``channels_last`` says why). So
the first step of every shape is made both ways, and what comes out is compared.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from solera.learn.averaging.training.batched_models import BatchedModel
from solera.learn.averaging.training.batches import TrainingConfig
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.layers import Pass

log = logging.getLogger("solera")

_ROUNDING = 0.01
"""How far two ways to compute the same in float32 may be apart, relative to the change."""
_SMALL = 1e-3
"""A parameter that changes less than this share of all together is measured against that."""
_alike: dict[Hashable, bool] = {}


def leave_out_wrong_compiler(
    network: BatchedModel, x: Any, target: Any, share: Any, training: Pass
) -> None:
    """Before its first step, take the compiler out of a network that it translates wrongly."""
    config = network.config
    case = (network.architecture, replace(config, lr=1.0), tuple(x.shape), training.real is None)
    if case not in _alike:
        gap, allowed = _gaps(network, x, target, share, training)
        _alike[case] = not gap > allowed  # NaN: training diverges either way
        if not _alike[case]:
            log.warning(
                "compile=True: torch.compile translates the steps of this network wrongly on this "
                "machine (precision=%r: a change of weights is off by %.2g of its length, without "
                "it by less than %.2g); training goes on without it",
                config.precision,
                gap,
                allowed,
            )
    if not _alike[case]:
        network.config = replace(config, compile=False)
        network.__post_init__()


def _gaps(
    network: BatchedModel, x: Any, target: Any, share: Any, training: Pass
) -> tuple[float, float]:
    """How far a compiled step is from one in float32, and how far it may be.

    That is twice as far as the step in the same precision without the compiler, and rounding.
    """
    batch = (x, target, share, Pass(training.keys, training.step, training.real))
    config, matmul = network.config, torch().get_float32_matmul_precision()
    torch().set_float32_matmul_precision("highest")
    exact = _change(network, replace(config, precision="float32", compile=False), *batch)
    torch().set_float32_matmul_precision(matmul)
    plain, compiled = (
        _distance(network, _change(network, replace(config, compile=compile), *batch), exact)
        for compile in (False, True)
    )
    return compiled, 2 * plain + _ROUNDING


def _change(
    network: BatchedModel, config: TrainingConfig, x: Any, target: Any, share: Any, training: Pass
) -> Any:
    """What one step from the network's weights changes."""
    twin = type(network)(network.architecture, network.weights.clone(), config, network.correction)
    twin.step(x, target, share, training)
    return twin.trained_weights() - network.weights


def _distance(network: BatchedModel, change: Any, exact: Any) -> float:
    """The largest difference between two changes of one parameter, relative to its length."""
    views = network.architecture.training_layout.views
    least = _SMALL * float(exact.norm())
    return max(
        float((ours - theirs).norm()) / (float(theirs.norm()) + least)
        for ours, theirs in zip(views(change).values(), views(exact).values(), strict=True)
    )
