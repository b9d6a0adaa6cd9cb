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
from functools import lru_cache
from typing import Any

from solera.learn.averaging.training.architecture import Architecture
from solera.learn.averaging.training.batches import ADAM, TrainingConfig
from solera.learn.averaging.training.devices import is_gpu, torch
from solera.learn.averaging.training.layers import (
    Activation,
    Dense,
    Dropout,
    Layer,
    Normalisation,
    Pass,
)
from solera.learn.averaging.training.layout import Tensors
from solera.learn.averaging.training.losses import OUR_LOSSES, output_error, row_losses
from solera.learn.averaging.training.recurrent import Embedding


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

    def train_alike(self, total: Any, x: Any, target: Any, counts: list[int], batch: int) -> bool:
        """Train all clients on ``counts`` rows of some batches each, if that can be one call.

        The sums of their losses are added to ``total``.
        """
        return False

    def trained_weights(self) -> Any:
        """The weights after the last step."""
        return self.weights

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
        from solera.learn.averaging.training import dense_steps

        super().__post_init__()
        assert self.architecture.layers is not None
        self.pieces = dense_steps
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
                z = self.pieces.activate(block.activation, z)
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
                kind = self.blocks[i - 1].activation or ""
                error = self.pieces.error_before(kind, inputs[i], before, mask)
        gradient = None if self.fused else self._gradient[:clients, : self.trained]
        return gradient, losses.sum(dim=1)

    def train_alike(self, total: Any, x: Any, target: Any, counts: list[int], batch: int) -> bool:
        config = self.config
        if not is_plain(self.architecture, config, self.correction, x.device):
            return False
        self._train_plain(total, x, target, self.layers, config.loss, counts, batch, config.lr)
        return True

    @property
    def layers(self) -> list[Any]:
        """The layers as :mod:`~solera.learn.averaging.training.dense_steps` takes them."""
        pairs = zip(self._views, self.blocks, strict=True)
        return [(*views, block.wide, block.activation or "") for views, block in pairs]

    def _train_plain(self, *steps: Any) -> None:
        self.pieces.train_scripted(*steps)

    def _affine(self, i: int, x: Any, W: Any, b: Any, training: Pass) -> Any:
        return self.pieces.affine(x, W, b, self.blocks[i].wide)

    def _write(self, i: int, into: Any, x: Any, error: Any, scale: float, training: Pass) -> None:
        W, b = into
        self.pieces.write(W, b, x, error, self.blocks[i].wide, self._keep, scale)


def is_plain(
    architecture: Architecture, config: TrainingConfig, correction: Correction, device: Any
) -> bool:
    """Whether steps of clients that are alike can be one call: gradient descent and no draws."""
    if is_gpu(device) or not architecture.dense or architecture.draws:
        return False
    uncorrected = correction.offset is None and correction.frozen is None
    return config.plain and uncorrected and config.loss in OUR_LOSSES


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


class BatchedLayers(BatchedModel):
    """Our layers, batched over clients, differentiated by autograd.

    With plain gradient descent a GPU holds each parameter of all clients in memory of its own:
    following a gradient is then one pass over neighbouring numbers. In bfloat16 that pass also
    writes the short copy that the next step multiplies with.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._held: Tensors | None = None
        self._short: Tensors = {}
        if self.fused and is_gpu(self.weights.device):
            views = self.architecture.training_layout.views(self.weights)
            own = torch().contiguous_format  # of one client a view is whole, and shares its memory
            self._held = {name: view.clone(memory_format=own) for name, view in views.items()}
            if self.config.precision == "bfloat16":
                short = _short_names(self.architecture)
                self._short = {name: self._held[name].bfloat16() for name in short}

    def trained_weights(self) -> Any:
        if self._held is not None:
            held = [value.flatten(1) for value in self._held.values()]
            torch().cat(held, dim=1, out=self.weights)
        return self.weights

    def step(self, x: Any, target: Any, share: Any, training: Pass) -> Any:
        if self._held is None:
            return super().step(x, target, share, training)
        values = {name: value[: len(x)] for name, value in self._held.items()}
        short = {name: value[: len(x)] for name, value in self._short.items()}
        gradients, losses, moved = self._gradients({**values, **short}, x, target, share, training)
        if self.config.compile:
            rate = self.weights.new_full((), self.config.lr)  # a number would be translated anew
            compiled_follow()(values, short, gradients, rate, moved)
        else:
            follow_gradients(values, short, gradients, self.config.lr, moved)
        return losses

    def gradient(self, x: Any, target: Any, share: Any, training: Pass) -> tuple[Any, Any]:
        values = self.architecture.training_layout.views(self.weights[: len(x)])
        gradients, losses, moved = self._gradients(values, x, target, share, training)
        for name, value in moved.items():
            values[name].copy_(value)
        return torch().cat([g.reshape(len(x), -1) for g in gradients.values()], dim=1), losses

    def _gradients(
        self, values: Tensors, x: Any, target: Any, share: Any, training: Pass
    ) -> tuple[Tensors, Any, Tensors]:
        """The gradients of the trained parameters, the losses, and new running statistics."""
        t = torch()
        trained = [slot.name for slot in self.architecture.layout.trained_slots]
        leaves = {name: values[name].detach().requires_grad_() for name in trained}
        objective = layered_objective
        if self.config.compile:
            objective = compiled_objective
            training = Pass(training.keys[:0], 0, training.real)  # alike in all steps
        minimised = objective(self.architecture, self.config.loss, self.config.precision)
        with t.enable_grad():
            total, losses, moved = minimised({**values, **leaves}, x, target, share, training)
            gradients = t.autograd.grad(total, list(leaves.values()))
        return dict(zip(trained, gradients, strict=True)), losses, moved


def follow_gradients(
    values: Tensors, short: Tensors, gradients: Tensors, rate: float, moved: Tensors
) -> None:
    """w ← w − η g for every parameter, in place, and so its ``short`` copy; statistics move on."""
    t = torch()
    weights = [values[name] for name in gradients]
    t._foreach_add_(weights, [g.contiguous() for g in gradients.values()], alpha=-rate)
    if short:
        t._foreach_copy_(list(short.values()), [values[name] for name in short])
    for name, value in moved.items():
        values[name].copy_(value)


@lru_cache(maxsize=1)
def compiled_follow() -> Any:
    """The same, translated by ``torch.compile`` into one pass over each parameter."""

    def follow(
        values: Tensors, short: Tensors, gradients: Tensors, rate: Any, moved: Tensors
    ) -> None:
        for name, gradient in gradients.items():
            weight = values[name]
            weight.sub_(gradient.to(weight.dtype) * rate)
            if name in short:
                short[name].copy_(weight)
        for name, value in moved.items():
            values[name].copy_(value)

    return torch().compile(follow, dynamic=False)


def _short_names(architecture: Architecture) -> list[str]:
    """The trained parameters that :func:`forward` shortens in bfloat16."""
    layers = architecture.layers or ()
    trained = [slot.name for slot in architecture.layout.trained_slots]
    return [
        name for name in trained if not isinstance(layers[int(name.split(".")[0])], Normalisation)
    ]


Objective = Callable[[Tensors, Any, Any, Any, Pass], tuple[Any, Any, Tensors]]


def layered_objective(architecture: Architecture, loss: str, precision: str) -> Objective:
    """What our layers minimise: the sum of shares of losses, each client's losses, statistics."""

    def objective(
        values: Tensors, x: Any, target: Any, share: Any, training: Pass
    ) -> tuple[Any, Any, Tensors]:
        outputs, moved = forward(architecture, values, x, training, precision=precision)
        losses = row_losses(outputs, target, loss)
        real = losses.detach() if isinstance(share, float) else losses.detach() * (share > 0)
        return (losses * share).sum(), real.sum(dim=1), moved

    return objective


@lru_cache(maxsize=16)
def compiled_objective(architecture: Architecture, loss: str, precision: str) -> Any:
    """The same, translated by ``torch.compile``."""
    return torch().compile(layered_objective(architecture, loss, precision), dynamic=False)


def forward(
    architecture: Architecture,
    values: Tensors,
    x: Any,
    training: Pass | None,
    after: int = 0,
    precision: str = "float32",
) -> tuple[Any, Tensors]:
    """Outputs of our layers, ``after`` the first so many, and their new running statistics.

    With the ``precision`` bfloat16 rows and products are of that type; parameters and statistics
    of a batch are not.
    """
    assert architecture.layers is not None
    moved = {}
    on_gpu, dtype = is_gpu(x.device), x.dtype
    for i, layer in enumerate(architecture.layers[after:], after):
        own = {p.name: values[f"{i}.{p.name}"] for p in layer.parameters()}
        if own and precision == "bfloat16" and not isinstance(layer, Normalisation):
            own = {name: value.bfloat16() for name, value in own.items()}
            x = x if isinstance(layer, Embedding) else x.bfloat16()  # token numbers stay whole
        if training is not None:
            training.moved, training.tensor_cores = {}, precision != "float32"
        x = layer.forward_on_gpu(x, own, training) if on_gpu else layer.forward(x, own, training)
        if training is not None and training.moved:
            moved.update({f"{i}.{name}": value for name, value in training.moved.items()})
    return x.to(dtype), moved


class BatchedModule(BatchedModel):
    """Any module without running statistics or random layers, stacked by ``torch.func``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        config, like = self.config, (self.weights.dtype, self.weights.device)
        gradients = compiled_gradients if config.compile else module_gradients
        self._gradients = gradients(self.architecture, config.loss, config.precision, *like)

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


def module_gradients(
    architecture: Architecture, loss: str, precision: str, dtype: Any, device: Any
) -> Any:
    """A function to the gradients of a module at many clients, and the sums of their losses."""
    t = torch()
    module = architecture.module().to(device, dtype).train()
    short = t.bfloat16 if precision == "bfloat16" else dtype

    def objective(values: Any, x: Any, target: Any, share: Any) -> tuple[Any, Any]:
        own = {name: value.to(short) for name, value in values.items()}
        outputs = t.func.functional_call(module, own, (x.to(short),)).to(dtype)
        losses = row_losses(outputs, target, loss)
        return (losses * share).sum(), (losses * (share > 0)).sum()

    return t.func.vmap(t.func.grad(objective, has_aux=True))


@lru_cache(maxsize=16)
def compiled_gradients(*of: Any) -> Any:
    """The same, translated by ``torch.compile``; one for all rounds."""
    return torch().compile(module_gradients(*of), dynamic=False)


def batched_model_for(
    architecture: Architecture, weights: Any, config: TrainingConfig, correction: Correction
) -> BatchedModel:
    """The fastest way to train this model, as measured in ``benchmarks/simulation.py``."""
    by_hand = architecture.dense and config.precision != "bfloat16"
    kind: type[BatchedModel] = BatchedDense if by_hand else BatchedLayers
    if architecture.layers is None:
        kind = BatchedModule
    return kind(architecture, weights, config, correction)
