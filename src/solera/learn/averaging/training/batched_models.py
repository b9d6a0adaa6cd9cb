"""One step of many clients: three ways to the gradient, one way to follow it.

:class:`BatchedDense` serves chains of dense layers. Autograd is half the time of such a step, so
the gradients are written out, and plain gradient descent is fused into the product that makes
them: W ← W − η xᵀe. :class:`BatchedLayers` serves our other layers, :class:`BatchedModule` any
module that ``torch.func`` can stack.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from solera.learn.averaging.training.architecture import Architecture
from solera.learn.averaging.training.batches import ADAM, TrainingConfig
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.layers import Activation, Dense, Dropout, Layer, Pass
from solera.learn.averaging.training.layout import Tensors
from solera.learn.averaging.training.losses import output_error, row_losses


@dataclass
class Correction:
    """What is added to the gradients, or kept from following them; see :func:`train_reference`.

    Matrices (clients, parameters), or vectors that hold for all clients.
    """

    anchor: Any = None
    offset: Any = None
    frozen: Any = None

    def of(self, who: Any) -> Correction:
        """The same for some of the clients."""
        return self._each(lambda part: part if part.ndim == 1 else part[who])

    def first(self, clients: int, trained: int) -> Correction:
        """That of the trained parameters of the first clients."""
        return self.of(slice(clients))._each(lambda part: part[..., :trained])

    def _each(self, change: Callable[[Any], Any]) -> Correction:
        parts = (self.anchor, self.offset, self.frozen)
        return Correction(*(part if part is None else change(part) for part in parts))


@dataclass(eq=False)
class BatchedModel(ABC):
    """The parameters of some clients, (clients, size), and a step of training for the first ones.

    ``weights`` are changed in place.
    """

    architecture: Architecture
    weights: Any
    config: TrainingConfig
    correction: Correction = field(default_factory=Correction)

    def __post_init__(self) -> None:
        self.trained = self.architecture.layout.trained
        self.uncorrected = self.correction.offset is None and self.correction.frozen is None
        self.fused = self.config.plain and self.uncorrected
        self._memory: list[Any] = []

    def prepare(self, x: Any) -> None:  # noqa: B027 (most have nothing to prepare)
        """See the rows of the next steps, (clients, rows, width), before training on them."""

    def step(self, x: Any, target: Any, share: Any, training: Pass) -> Any:
        """Train the first len(x) clients on a batch; the sum of the losses of each one's rows.

        ``share`` is what a row weighs in its client's mean, a number or (clients, rows).
        """
        gradient, losses = self.gradient(x, target, share, training)
        if gradient is not None:
            self._follow(gradient, training.step + 1)
        return losses

    @abstractmethod
    def gradient(self, x: Any, target: Any, share: Any, training: Pass) -> tuple[Any, Any]:
        """∇L of each client, (clients, trained), or None where it was followed; and the losses."""

    def _follow(self, g: Any, step: int) -> None:
        config, clients = self.config, len(g)
        w = self.weights[:clients, : self.trained]
        correction = self.correction.first(clients, self.trained)
        if config.l2:
            g.add_(w, alpha=config.l2)
        if config.mu:
            g.add_(w - correction.anchor, alpha=config.mu)
        if correction.offset is not None:
            g.add_(correction.offset)
        if config.optimiser == "adam":
            g = self._adam(g, step)
        elif config.momentum:
            (velocity,) = self._kept(1, clients)
            g = velocity.mul_(config.momentum).add_(g)
        if correction.frozen is not None:
            g = g.masked_fill(correction.frozen, 0)
        w.add_(g, alpha=-config.lr)

    def _adam(self, g: Any, step: int) -> Any:
        beta1, beta2, epsilon = ADAM
        mean, square = self._kept(2, len(g))
        mean.lerp_(g, 1 - beta1)
        square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        scale = square.sqrt().div_((1 - beta2**step) ** 0.5).add_(epsilon)
        return mean.div(scale).div_(1 - beta1**step)

    def _kept(self, count: int, clients: int) -> list[Any]:
        """What the optimiser remembers of the first clients."""
        while len(self._memory) < count:
            self._memory.append(torch().zeros_like(self.weights[:, : self.trained]))
        return [kept[:clients] for kept in self._memory]


class BatchedDense(BatchedModel):
    """Dense layers, activations and dropout."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.architecture.layers is not None
        self.blocks = _blocks(self.architecture.layers)
        self._views = self._read(self.weights)
        self._into, self._keep, self._scale = self._views, 1.0, -self.config.lr
        self._gradient: Any = None
        if not self.fused:
            self._gradient = torch().empty_like(self.weights)
            self._into, self._keep, self._scale = self._read(self._gradient), 0.0, 1.0

    def _read(self, matrix: Any) -> list[tuple[Any, Any]]:
        views = self._named(matrix)
        return [
            (views[f"{block.name}.weight"], views[f"{block.name}.bias"].unsqueeze(1))
            for block in self.blocks
        ]

    def _named(self, matrix: Any) -> Tensors:
        """The parameters in a matrix of weights or gradients by their names."""
        return self.architecture.training_layout.views(matrix)

    def gradient(self, x: Any, target: Any, share: Any, training: Pass) -> tuple[Any, Any]:
        clients = len(x)
        views, into = self._views, self._into
        if clients != len(self.weights):
            views = [(W[:clients], b[:clients]) for W, b in views]
            into = [(W[:clients], b[:clients]) for W, b in into]
        inputs, masks = [x], []
        z = x
        for i, block in enumerate(self.blocks):
            z = self._affine(i, z, *views[i], training)
            if block.activation is not None:
                z = activate(block.activation, z)
                if block.dropout is not None:
                    masks.append(block.dropout.mask(training, tuple(z.shape), z))
                    inputs.append(z * masks[-1])
                    z = inputs[-1]
                else:
                    inputs.append(z)
        losses, error = output_error(z, target, self.config.loss)
        if isinstance(share, float):
            scale = self._scale * share
        else:
            error.mul_(share.unsqueeze(-1))
            losses.mul_(share > 0)
            scale = self._scale
        for i in range(len(self.blocks) - 1, -1, -1):
            before = None
            if i:
                W = views[i][0]
                before = torch().bmm(error, W.transpose(1, 2) if self.blocks[i].wide else W)
            self._write(i, into[i], inputs[i], error, scale, training)
            if before is not None:
                mask = masks[i - 1] if masks else None
                error = error_before(self.blocks[i - 1].activation, inputs[i], before, mask)
        gradient = None if self.fused else self._gradient[:clients, : self.trained]
        return gradient, losses.sum(dim=1)

    def _affine(self, i: int, x: Any, W: Any, b: Any, training: Pass) -> Any:
        """x W + b, (clients, rows, outputs); few outputs lie column by column."""
        if self.blocks[i].wide:
            return torch().baddbmm(b, x, W)
        return torch().baddbmm(b.transpose(1, 2), W, x.transpose(1, 2)).transpose(1, 2)

    def _write(self, i: int, into: Any, x: Any, error: Any, scale: float, training: Pass) -> None:
        W, b = into
        if self.blocks[i].wide:
            W.baddbmm_(x.transpose(1, 2), error, beta=self._keep, alpha=scale)
        else:
            W.baddbmm_(error.transpose(1, 2), x, beta=self._keep, alpha=scale)
        total = error.sum(dim=1, keepdim=True)
        if self.fused:
            b.add_(total, alpha=scale)
        else:
            torch().mul(total, scale, out=b)


@dataclass
class Block:
    """A dense layer with what follows it."""

    name: str
    wide: bool
    activation: str | None = None
    dropout: Dropout | None = None


def _blocks(layers: list[Layer]) -> list[Block]:
    blocks: list[Block] = []
    for i, layer in enumerate(layers):
        if isinstance(layer, Dense):
            blocks.append(Block(str(i), layer.wide))
        elif isinstance(layer, Activation):
            blocks[-1].activation = layer.kind
        elif isinstance(layer, Dropout):
            blocks[-1].dropout = layer
    return blocks


def activate(kind: str, z: Any) -> Any:
    """The activation of z, in its place."""
    return {"relu": z.relu_, "tanh": z.tanh_, "sigmoid": z.sigmoid_}[kind]()


def error_before(kind: str | None, h: Any, error: Any, mask: Any) -> Any:
    """The error before the activation whose (dropped-out) result is h."""
    if mask is not None:
        error = error.mul_(mask)
        h = h / mask.clamp(min=1)
    if kind == "relu":
        return torch().ops.aten.threshold_backward(error, h, 0)
    return error.mul_(1 - h * h if kind == "tanh" else h * (1 - h))


class BatchedLayers(BatchedModel):
    """Our layers, batched over clients, differentiated by autograd."""

    def gradient(self, x: Any, target: Any, share: Any, training: Pass) -> tuple[Any, Any]:
        t = torch()
        assert self.architecture.layers is not None
        clients = len(x)
        views = self.architecture.training_layout.views(self.weights[:clients])
        trained = [slot.name for slot in self.architecture.layout.trained_slots]
        with t.enable_grad():
            leaves = {name: views[name].detach().requires_grad_() for name in trained}
            outputs, moved = forward(self.architecture, {**views, **leaves}, x, training)
            losses = row_losses(outputs, target, self.config.loss)
            gradients = t.autograd.grad((losses * share).sum(), list(leaves.values()))
        for name, value in moved.items():
            views[name].copy_(value)
        real = losses.detach() if isinstance(share, float) else losses.detach() * (share > 0)
        return t.cat([g.reshape(clients, -1) for g in gradients], dim=1), real.sum(dim=1)


def forward(
    architecture: Architecture, values: Tensors, x: Any, training: Pass | None, after: int = 0
) -> tuple[Any, Tensors]:
    """Outputs of our layers, ``after`` the first so many, and their new running statistics."""
    assert architecture.layers is not None
    moved = {}
    for i, layer in enumerate(architecture.layers[after:], after):
        own = {p.name: values[f"{i}.{p.name}"] for p in layer.parameters()}
        if training is not None:
            training.moved = {}
        x = layer.forward(x, own, training)
        if training is not None and training.moved:
            moved.update({f"{i}.{name}": value for name, value in training.moved.items()})
    return x, moved


class BatchedModule(BatchedModel):
    """Any module without running statistics or random layers, stacked by ``torch.func``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        t, loss = torch(), self.config.loss
        module = self.architecture.module().to(self.weights).train()

        def objective(values: Any, x: Any, target: Any, share: Any) -> tuple[Any, Any]:
            outputs = t.func.functional_call(module, values, (x,))
            losses = row_losses(outputs, target, loss)
            return (losses * share).sum(), (losses * (share > 0)).sum()

        self._gradients = t.func.vmap(t.func.grad(objective, has_aux=True))

    def gradient(self, x: Any, target: Any, share: Any, training: Pass) -> tuple[Any, Any]:
        t = torch()
        if isinstance(share, float):
            share = t.full(x.shape[:2], share, dtype=x.dtype, device=x.device)
        values = self.architecture.training_layout.views(self.weights[: len(x)])
        gradients, losses = self._gradients(values, x, target, share)
        flat = [
            gradients[slot.name].reshape(len(x), -1)
            for slot in self.architecture.training_layout.slots
        ]
        return t.cat(flat, dim=1), losses


def batched_model_for(
    architecture: Architecture, weights: Any, config: TrainingConfig, correction: Correction
) -> BatchedModel:
    """The fastest way to train this model, as measured in ``benchmarks/simulation.py``."""
    kind: type[BatchedModel] = BatchedDense if architecture.dense else BatchedLayers
    if architecture.layers is None:
        kind = BatchedModule
    return kind(architecture, weights, config, correction)
