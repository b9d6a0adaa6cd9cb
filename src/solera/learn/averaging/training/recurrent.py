"""Layers for sequences of tokens: embedding and long short-term memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.training.layers import Layer, Pass
from solera.learn.averaging.training.layout import Parameter, Tensors


@dataclass(frozen=True)
class Embedding(Layer):
    """A vector for each of ``tokens`` numbers; a number beyond them is taken for the nearest."""

    tokens: int
    width: int

    def parameters(self) -> Sequence[Parameter]:
        return (Parameter("weight", (self.tokens, self.width), math.sqrt(3)),)  # variance 1

    def _numbers(self, x: Any) -> Any:
        return x.long().clamp(0, self.tokens - 1)

    def module(self) -> Any:
        layer = self

        class Embedded(torch().nn.Embedding):  # type: ignore[misc]
            def forward(self, x: Any) -> Any:
                return super().forward(layer._numbers(x))

        return Embedded(self.tokens, self.width)

    def forward(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        # One table of all clients: its gradient is summed in an order that threads do not change.
        first = torch().arange(len(x), device=x.device) * self.tokens
        numbers = self._numbers(x) + first[:, None, None]
        return torch().nn.functional.embedding(numbers, own["weight"].reshape(-1, self.width))


@dataclass(frozen=True)
class Recurrent(Layer):
    """Long short-term memory (Hochreiter & Schmidhuber 1997), as PyTorch's ``nn.LSTM`` has it.

        i, f, o = σ(x W + h R + b),  g = tanh(x W + h R + b)  with W, R and b of each
        c ← f c + i g,               h ← o tanh(c)

    It gives h after every token, or after the last one alone.
    """

    inputs: int
    hidden: int
    every: bool = False

    def parameters(self) -> Sequence[Parameter]:
        bound, gates = 1 / math.sqrt(self.hidden), 4 * self.hidden
        return (
            Parameter("weight_ih_l0", (gates, self.inputs), bound),
            Parameter("weight_hh_l0", (gates, self.hidden), bound),
            Parameter("bias_ih_l0", (gates,), bound),
            Parameter("bias_hh_l0", (gates,), bound),
        )

    def module(self) -> Any:
        every = self.every

        class LastState(torch().nn.LSTM):  # type: ignore[misc]
            def forward(self, x: Any) -> Any:
                states, _ = super().forward(x)
                return states if every else states[:, -1]

        return LastState(self.inputs, self.hidden, batch_first=True)

    def forward(self, x: Any, own: Tensors, training: Pass | None) -> Any:
        t = torch()
        clients, rows, length = x.shape[:3]
        bias = (own["bias_ih_l0"] + own["bias_hh_l0"]).unsqueeze(1)
        tokens = x.reshape(clients, rows * length, self.inputs)
        entering = t.baddbmm(bias, tokens, own["weight_ih_l0"].transpose(1, 2))
        entering = entering.view(clients, rows, length, -1).unbind(dim=2)
        recurrent = own["weight_hh_l0"].transpose(1, 2)
        h = c = x.new_zeros(clients, rows, self.hidden)
        states = []
        for gates in entering:
            i, f, g, o = t.baddbmm(gates, h, recurrent).chunk(4, dim=2)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        return t.stack(states, dim=2) if self.every else h
