"""Layers of images of many clients with channels last, as a GPU likes them: (C, B, H, W, channels).

A convolution is one product per client of patches and weights, y = P(x) W. The gradient of x is a
convolution again: patches of the gradient of y times the weights, flipped and with inputs and
outputs exchanged. So nothing is ever added from columns back into an image, which is what takes
the time in the usual way back.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

implicit: Any = None
if find_spec("triton") is not None:  # PyTorch for a GPU brings it along, others need not
    implicit = import_module("solera.learn.averaging.training.implicit_convolution")

_ALIGNED = 8
"""Tensor cores want rows that begin at multiples of 16 bytes: eight numbers of bfloat16."""


def patches(x: Any, kernel: int, padding: int) -> Any:
    """The neighbourhood of every place, (clients, rows · places, kernel · kernel · channels).

    Columns of zeros follow, up to a multiple of eight.
    """
    if padding:
        x = torch.nn.functional.pad(x, (0, 0, padding, padding, padding, padding))
    clients, rows, height, width, channels = x.shape
    out = (height - kernel + 1, width - kernel + 1)
    columns = kernel * kernel * channels
    around = x.unfold(2, kernel, 1).unfold(3, kernel, 1).permute(0, 1, 2, 3, 5, 6, 4)
    around = around.reshape(clients, rows * out[0] * out[1], columns)
    return (
        torch.nn.functional.pad(around, (0, -columns % _ALIGNED)) if columns % _ALIGNED else around
    )


class Convolution(torch.autograd.Function):  # type: ignore[misc]
    """y = P(x) W + b, and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, padding: int) -> Any:
        clients, rows, height, width, _ = x.shape
        outputs, _, kernel, _ = weight.shape[1:]
        around = patches(x, kernel, padding)
        columns = _aligned(weight.permute(0, 3, 4, 2, 1).reshape(clients, -1, outputs))
        # Not baddbmm, which first writes the bias to every place of y and then reads it again.
        y = torch.bmm(around, columns).add_(bias.unsqueeze(1))
        ctx.save_for_backward(around, weight)
        ctx.padding = padding
        grown = 2 * padding - kernel + 1
        return y.view(clients, rows, height + grown, width + grown, outputs)

    @staticmethod
    def backward(ctx: Any, error: Any) -> Any:
        around, weight = ctx.saved_tensors
        clients, outputs, inputs, kernel, _ = weight.shape
        flat = error.reshape(clients, -1, outputs)
        by_weight = torch.bmm(around.transpose(1, 2), flat)[:, : kernel * kernel * inputs]
        by_weight = by_weight.view(clients, kernel, kernel, inputs, outputs)
        before = None
        if ctx.needs_input_grad[0]:
            flipped = weight.flip(3, 4).permute(0, 3, 4, 1, 2).reshape(clients, -1, inputs)
            flipped = _aligned(flipped)
            spread = kernel - 1 - ctx.padding
            before = torch.bmm(patches(error, kernel, spread), flipped)
            rows, height, width = error.shape[1:4]
            grown = 2 * spread - kernel + 1
            before = before.view(clients, rows, height + grown, width + grown, inputs)
        return before, by_weight.permute(0, 4, 3, 1, 2), flat.sum(dim=1), None


class ImplicitConvolution(torch.autograd.Function):  # type: ignore[misc]
    """The same on tensor cores, faster than patches can be written to memory."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, padding: int, exact: bool) -> Any:
        y = torch.ops.solera.convolve(x, weight.permute(0, 1, 3, 4, 2), padding, exact)
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.exact = padding, exact
        return y + _per_channel(bias)

    @staticmethod
    def backward(ctx: Any, error: Any) -> Any:
        x, weight = ctx.saved_tensors
        kernel, padding, exact = weight.shape[3], ctx.padding, ctx.exact
        by_weight = torch.ops.solera.convolution_gradient(x, error, kernel, padding, exact)
        flipped = weight.flip(3, 4).permute(0, 2, 3, 4, 1)
        before = torch.ops.solera.convolve(error, flipped, kernel - 1 - padding, exact)
        return before, by_weight.permute(0, 4, 3, 1, 2), error.sum(dim=(1, 2, 3)), None, None


class Normalisation(torch.autograd.Function):  # type: ignore[misc]
    """Batch normalisation and its gradients (Ioffe & Szegedy 2015, page 4)."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, real: Any, epsilon: float) -> Any:
        wide = x.to(weight.dtype)  # sums of many short numbers need long ones
        places = x.shape[2] * x.shape[3]
        if real is None:
            count = None
            variance, mean = torch.var_mean(wide, dim=(1, 2, 3), correction=0)
        else:
            counted = real[:, :, None, None, None]
            count = (real.sum(dim=1) * places)[:, None]
            mean = (wide * counted).sum(dim=(1, 2, 3)) / count
            spread = (wide - _per_channel(mean)) ** 2 * counted
            variance = spread.sum(dim=(1, 2, 3)) / count
        inverse = (variance + epsilon).rsqrt()
        scale = weight * inverse
        shift = torch.addcmul(bias, mean, scale, value=-1)
        y = torch.addcmul(_per_channel(shift), wide, _per_channel(scale))
        # A result that is y itself, as y.to(float32) is, has no gradient where PyTorch 2.11 traces.
        y = y if y.dtype == x.dtype else y.to(x.dtype)
        ctx.save_for_backward(x, weight, mean, inverse, real, count)
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, error: Any, _mean: Any, _variance: Any) -> Any:
        x, weight, mean, inverse, real, count = ctx.saved_tensors
        wide, of = error.to(weight.dtype), x.to(weight.dtype)
        if count is None:
            count = float(x.shape[1] * x.shape[2] * x.shape[3])
        total = wide.sum(dim=(1, 2, 3))
        # Σ e x̂ with x̂ = (x − mean) / deviation
        along = ((wide * of).sum(dim=(1, 2, 3)) - total * mean) * inverse
        # dL/dx = scale · (e − Σe/n − x̂ Σ(e x̂)/n), written as a e + b x + c
        scale = weight * inverse
        slope = -scale * inverse * along / count
        constant = -scale * total / count - slope * mean
        through_statistics = torch.addcmul(_per_channel(constant), of, _per_channel(slope))
        if real is not None:
            through_statistics = through_statistics * real[:, :, None, None, None]
        before = torch.addcmul(through_statistics, wide, _per_channel(scale)).to(x.dtype)
        return before, along, total, None, None


def _aligned(weight: Any) -> Any:
    """Weights (clients, inputs, outputs) with rows of zeros for the columns that patches add."""
    missing = -weight.shape[1] % _ALIGNED
    return torch.nn.functional.pad(weight, (0, 0, 0, missing)) if missing else weight


def convolve(x: Any, weight: Any, bias: Any, padding: int, tensor_cores: bool) -> Any:
    """Convolutions of each client's images (C, B, H, W, in) with its weights (C, out, in, k, k).

    With ``tensor_cores`` products may be those of TF32; without, they are as good as float32's.
    """
    if implicit is not None and implicit.suits(x, weight):
        return ImplicitConvolution.apply(x, weight, bias, padding, not tensor_cores)
    return Convolution.apply(x, weight, bias, padding)


def normalise(x: Any, weight: Any, bias: Any, real: Any, epsilon: float) -> tuple[Any, Any, Any]:
    """Each channel of a client with mean 0 and variance 1, scaled; and that mean and variance.

    ``real`` marks the rows that count, (C, B), or is None for all.
    """
    y, mean, variance = Normalisation.apply(x, weight, bias, real, epsilon)
    return y, mean, variance


def _per_channel(values: Any) -> Any:
    """(C, channels) beside (C, B, H, W, channels)."""
    return values[:, None, None, None, :]
