"""Local training of one client as in the textbook: a module, autograd, one batch after the other.

This is what runs at a real client, and what the training of many at once is tested against.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import Array
from solera.core.rng import Bits
from solera.learn.averaging.training.architecture import Architecture
from solera.learn.averaging.training.batched_models import Correction
from solera.learn.averaging.training.batches import ADAM, TrainingConfig, deal_batches
from solera.learn.averaging.training.devices import seeded, torch
from solera.learn.averaging.training.layers import Pass
from solera.learn.averaging.training.losses import row_losses
from solera.learn.averaging.training.optimisers import OURS, make_optimiser


def train_reference(
    architecture: Architecture,
    start: Array,
    X: Any,
    targets: Array,
    key: Bits,
    config: TrainingConfig,
    correction: Correction,
    device: Any = "cpu",
) -> tuple[Array, float, int]:
    """The trained vector, the mean loss on the way and the number of steps.

    Every step follows ∇L + l2·w + mu·(w − anchor) + offset; ``frozen`` coordinates stay. These
    vectors of the ``correction`` and the start are in PyTorch's order.
    """
    t = torch()
    module = architecture.load(start).to(device)
    module.train()
    names = [slot.name for slot in architecture.layout.trained_slots]
    parameters = dict(module.named_parameters())
    weights = [parameters[name] for name in names]
    like = {"dtype": weights[0].dtype, "device": device}
    fixed = {
        kind: architecture.layout.arrays(vector.to(device))
        for kind, vector in vars(correction).items()
        if vector is not None
    }
    optimiser = None if config.optimiser in OURS else make_optimiser(weights, config)
    memory = [[t.zeros_like(w), t.zeros_like(w)] for w in weights]
    batches = deal_batches(key, np.array([X.shape[0]]), config)
    total, seen = 0.0, 0
    for step, count in enumerate(batches.counts[0].tolist()):
        take = batches.index[0, step * batches.batch :][:count]
        x = X[take]
        x = t.as_tensor(x.toarray() if hasattr(x, "toarray") else x.reshape(count, -1), **like)
        with t.autocast(x.device.type, t.bfloat16, enabled=config.precision == "bfloat16"):
            outputs = _outputs(architecture, module, x, key, step).to(x.dtype)
        target = t.as_tensor(targets[take], device=device)
        losses = row_losses(outputs, target, config.loss)
        gradients = t.autograd.grad(losses.mean(), weights)
        total, seen = total + float(losses.detach().sum()), seen + count
        with t.no_grad():
            before = [w.clone() for w in weights] if optimiser and "frozen" in fixed else []
            for name, w, gradient, kept in zip(names, weights, gradients, memory, strict=True):
                g = gradient if optimiser else gradient + config.l2 * w
                if "anchor" in fixed:
                    g = g + config.mu * (w - fixed["anchor"][name])
                if "offset" in fixed:
                    g = g + fixed["offset"][name]
                if optimiser is not None:
                    w.grad = g.detach()
                    continue
                change = _change(g, kept, step + 1, config)
                if "frozen" in fixed:
                    change = change * ~fixed["frozen"][name]
                w -= config.lr * change
            if optimiser is not None:
                optimiser.step()
            for name, w, was in zip(names, weights, before, strict=False):
                w.copy_(t.where(fixed["frozen"][name], was, w))
    return architecture.vector(module, start.dtype), total / seen, batches.counts.shape[1]


def _outputs(architecture: Architecture, module: Any, x: Any, key: Bits, step: int) -> Any:
    """A forward pass whose random draws belong to the client and the step."""
    if architecture.layers is not None:
        for part in module.modules():
            if hasattr(part, "current"):
                part.current = Pass(key, step)
        return module(x)
    with seeded((int(key[0]) ^ step) & (2**63 - 1)):
        return module(x)


def _change(g: Any, kept: list[Any], step: int, config: TrainingConfig) -> Any:
    """The direction of one step, before it is scaled by the learning rate."""
    if config.optimiser == "sgd":
        kept[0] = config.momentum * kept[0] + g
        return kept[0]
    beta1, beta2, epsilon = ADAM
    kept[0] = beta1 * kept[0] + (1 - beta1) * g
    kept[1] = beta2 * kept[1] + (1 - beta2) * g**2
    mean, square = kept[0] / (1 - beta1**step), kept[1] / (1 - beta2**step)
    return mean / (square.sqrt() + epsilon)
