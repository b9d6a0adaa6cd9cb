"""Convolutions of many clients on tensor cores that read patches where they lie in the images.

Written to memory, the patches of a 3 × 3 convolution are nine times its images, and moving them
takes longer than multiplying. These kernels gather each tile of them between two products
(implicit GEMM; Chetlur et al. 2014, arXiv:1410.0759). They are two operators to the compiler,
which does not look inside: one gives y = P(x) W and, with other weights, the gradient of x, the
other P(x)ᵀ e, the gradient of W.

Images are (clients, rows, height, width, channels), with channels in multiples of ``CHANNELS``.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

CHANNELS = 32
"""Both kernels multiply so many channels at a time, or twice as many.

Tiles were chosen on an H200 among a dozen for each layer of ComplexCNN; the few rules below take
about as long as the best of every layer, and fit the shared memory of smaller cards.
"""


_PRECISION = {False: "tf32", True: "tf32x3"}
"""Of products of float32. ``exact`` adds up three of them, of 10 bits each, and so keeps 21 of 23
(Ootomo & Yokota 2022, arXiv:2203.03341)."""


@triton.jit  # type: ignore[untyped-decorator]
def _products(  # type: ignore[no-untyped-def]
    x,
    weight,
    y,
    height: tl.constexpr,
    width: tl.constexpr,
    lines: tl.constexpr,
    places: tl.constexpr,
    rows: tl.constexpr,
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    kernel: tl.constexpr,
    padding: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    deep: tl.constexpr,
    precision: tl.constexpr,
):
    """``tall`` places times ``wide`` outputs of one client; weights (outputs, k, k, inputs)."""
    total: tl.constexpr = rows * lines * places
    depth: tl.constexpr = kernel * kernel * inputs
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * tall + tl.arange(0, tall)
    n = tl.program_id(1) * wide + tl.arange(0, wide)
    i = tl.arange(0, deep)
    row = m // (lines * places)
    x += client * rows * height * width * inputs
    weight += client * outputs * depth
    y += client * total * outputs
    products = tl.zeros((tall, wide), tl.float32)
    for step in range(depth // deep):
        tap = step // (inputs // deep)
        first = step % (inputs // deep) * deep
        line = m // places % lines - padding + tap // kernel
        place = m % places - padding + tap % kernel
        inside = (line >= 0) & (line < height) & (place >= 0) & (place < width) & (m < total)
        at = ((row * height + line) * width + place) * inputs + first
        a = tl.load(x + at[:, None] + i[None, :], mask=inside[:, None], other=0.0)
        b = tl.load(weight + (n * depth)[None, :] + (tap * inputs + first + i)[:, None])
        products = tl.dot(a, b, products, input_precision=precision)
    own = (m < total)[:, None]
    tl.store(y + m[:, None] * outputs + n[None, :], products.to(y.dtype.element_ty), mask=own)


@triton.jit  # type: ignore[untyped-decorator]
def _gradients(  # type: ignore[no-untyped-def]
    x,
    error,
    gradient,
    height: tl.constexpr,
    width: tl.constexpr,
    lines: tl.constexpr,
    places: tl.constexpr,
    rows: tl.constexpr,
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    kernel: tl.constexpr,
    padding: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    deep: tl.constexpr,
    precision: tl.constexpr,
):
    """``tall`` inputs times ``wide`` outputs of one place of the kernel of one client."""
    total: tl.constexpr = rows * lines * places
    client = tl.program_id(2).to(tl.int64)
    tap = tl.program_id(0)
    i = tl.program_id(1) % (inputs // tall) * tall + tl.arange(0, tall)
    n = tl.program_id(1) // (inputs // tall) * wide + tl.arange(0, wide)
    x += client * rows * height * width * inputs
    error += client * total * outputs
    gradient += (client * kernel * kernel + tap) * inputs * outputs
    products = tl.zeros((tall, wide), tl.float32)
    for first in range(0, total, deep):
        m = first + tl.arange(0, deep)
        line = m // places % lines - padding + tap // kernel
        place = m % places - padding + tap % kernel
        inside = (line >= 0) & (line < height) & (place >= 0) & (place < width) & (m < total)
        at = ((m // (lines * places) * height + line) * width + place) * inputs
        a = tl.load(x + at[None, :] + i[:, None], mask=inside[None, :], other=0.0)
        own = (m < total)[:, None]
        b = tl.load(error + m[:, None] * outputs + n[None, :], mask=own, other=0.0)
        products = tl.dot(a, b, products, input_precision=precision)
    at = gradient + i[:, None] * outputs + n[None, :]
    tl.store(at, products.to(gradient.dtype.element_ty))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _tensor_cores() -> bool:
    """Whether the card has those of Ampere or later, for TF32 and bfloat16.

    Not asked before a tensor is on the card: what asks wakes it, and no fork could use it then.
    """
    return bool(torch.cuda.get_device_capability() >= (8, 0))


def suits(x: Any, weight: Any) -> bool:
    """Whether the kernels can convolve these images with weights (clients, out, in, k, k)."""
    outputs, inputs = weight.shape[1:3]
    places = x.shape[1] * (x.shape[2] + weight.shape[3]) * (x.shape[3] + weight.shape[3])
    return bool(
        x.is_cuda
        and _tensor_cores()
        and x.dtype != torch.float64
        and inputs % CHANNELS == outputs % CHANNELS == 0
        and places * max(inputs, outputs) < 1 << 31
        and len(x) < 1 << 16
    )


def convolve(x: Any, weight: Any, padding: int, exact: bool) -> Any:
    """y = P(x) W, for weights (clients, outputs, kernel, kernel, inputs)."""
    y = _like_products(x, weight, padding, exact)
    clients, rows, lines, places, outputs = y.shape
    tall, wide = 128, _wide(outputs)
    tiles = (triton.cdiv(rows * lines * places, tall), outputs // wide, clients)
    _products[tiles](
        x.contiguous(),
        weight.contiguous(),
        y,
        *x.shape[2:4],
        lines,
        places,
        rows,
        x.shape[4],
        outputs,
        weight.shape[2],
        padding,
        tall,
        wide,
        CHANNELS,
        _PRECISION[exact],
        num_warps=4,
        num_stages=3,
    )
    return y


def _like_products(x: Any, weight: Any, padding: int, exact: bool) -> Any:
    clients, rows, height, width, _ = x.shape
    grown = 2 * padding - weight.shape[2] + 1
    return x.new_empty(clients, rows, height + grown, width + grown, weight.shape[1])


def convolution_gradient(x: Any, error: Any, kernel: int, padding: int, exact: bool) -> Any:
    """P(x)ᵀ e of each client, (clients, kernel, kernel, inputs, outputs)."""
    gradient = _like_gradients(x, error, kernel, padding, exact)
    clients, rows, lines, places, outputs = error.shape
    inputs = x.shape[4]
    tall = CHANNELS if x.dtype == torch.float32 else _wide(inputs)
    wide = _wide(outputs)
    tiles = (kernel * kernel, (inputs // tall) * (outputs // wide), clients)
    _gradients[tiles](
        x.contiguous(),
        error.contiguous(),
        gradient,
        *x.shape[2:4],
        lines,
        places,
        rows,
        inputs,
        outputs,
        kernel,
        padding,
        tall,
        wide,
        64,
        _PRECISION[exact],
        num_warps=4,
        num_stages=3,
    )
    return gradient


def _like_gradients(x: Any, error: Any, kernel: int, padding: int, exact: bool) -> Any:
    return x.new_empty(len(x), kernel, kernel, x.shape[4], error.shape[4])


def _wide(channels: int) -> int:
    """How many channels a tile has."""
    return CHANNELS if channels % 64 else 64


def _define(name: str, takes: str, work: Any, like: Any) -> None:
    """Make an operator that the compiler calls and does not look into."""
    schema = f"({takes}) -> Tensor"
    operator = torch.library.custom_op(f"solera::{name}", work, mutates_args=(), schema=schema)
    operator.register_fake(like)


_define("convolve", "Tensor x, Tensor weight, int padding, bool exact", convolve, _like_products)
_define(
    "convolution_gradient",
    "Tensor x, Tensor error, int kernel, int padding, bool exact",
    convolution_gradient,
    _like_gradients,
)
