"""Numbers as words whose sum is exact: fixed point, modulo 2³² or 2⁶⁴.

A number x becomes round(x / step) with a step that is a power of two; whole numbers stay as they
are. n clients with |x| ≤ range each add up without leaving the words, so nothing wraps around; a
number outside the range is an error that names its entry, before anything is masked. The sum is off
by at most n·step/2.

Where no range is declared a number takes two words, its whole part and the rest: good for all that
is not beyond 2⁶²/n, with a step of about n·2⁻⁶¹.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.errors import DataError, PayloadError, UsageError
from solera.trust.masks import Words

_LEAF = "$leaf"
_AT_ONCE = 1 << 15
"""Numbers that are taken apart at once: they stay in the processor's cache."""
TWO_WORDS = 128
"""Bits of a number without a declared range."""


@dataclass(frozen=True)
class Encoding:
    """How numbers of at most ``range`` become words, for sums of so many clients.

    With a ``precision`` the words are as small as it allows; with a range alone they have 64 bits
    and the step is as fine as those allow.
    """

    clients: int
    range: float | None = None
    precision: float | None = None

    @property
    def bits(self) -> int:
        """Of a number that is not whole."""
        if self.range is None:
            return TWO_WORDS
        if self.precision is None:
            return 64
        for bits in (32, 64):
            if self._finest(bits) <= self.step:
                return bits
        raise UsageError(
            f"a sum of {self.clients:,} numbers up to {self.range:g} with a precision of "
            f"{self.precision:g} does not fit into 64 bits",
            hint=f"the best precision is {self._finest(64):g}; or declare a smaller range",
        )

    @property
    def step(self) -> float:
        if self.precision is not None:
            return 2.0 ** math.floor(math.log2(self.precision))
        return self._finest(64)

    def _finest(self, bits: int) -> float:
        """The finest step; one bit is the sign's and one is for what rounding adds."""
        most = 1.0 if self.range is None else self.range  # of the rest, where x is in two words
        return 2.0 ** (math.ceil(math.log2(most * self.clients)) + 2 - bits)

    @property
    def dtype(self) -> Any:
        return np.dtype(np.uint32 if self.bits == 32 else np.uint64)

    def words(self, tree: Any) -> Words:
        """All numbers of a tree, in the order of :func:`leaves`."""
        words = np.zeros(size_of(form_of(tree), self.bits), self.dtype)
        self.add_words(tree, words)
        return words

    def add_words(self, tree: Any, total: Words) -> None:
        """Add all numbers of a tree to words of its form, in place."""
        start = 0
        for path, leaf in leaves(tree):
            values = np.asarray(leaf).reshape(-1)
            wide = self.range is None and values.dtype.kind == "f"
            end = start + len(values) * (1 + wide)
            if wide and _largest(values) <= 2.0**62 / self.clients:
                self._add_in_two_words(values, total[start:end].reshape(2, -1))
            else:
                total[start:end] += self._encoded(path, leaf).view(np.uint64).astype(self.dtype)
            start = end

    def numbers(self, total: Words, form: Any) -> Any:
        """The tree of that form whose words add up to this."""
        signed = total.view(np.int32 if self.bits == 32 else np.int64).astype(np.int64)
        iterator = iter(np.split(signed, np.cumsum(list(_sizes(form, self.bits)))[:-1]))
        return self._decoded(form, iterator)

    def _encoded(self, path: str, leaf: Any) -> Any:
        values = np.asarray(leaf).reshape(-1)
        where = f" at {path!r}" if path else ""
        if values.dtype.kind in "biu":
            most = (2 ** (8 * self.dtype.itemsize - 1) - 1) // self.clients
            outside = _magnitudes(values) > most
            if outside.any():
                raise self._too_large(where, int(outside.argmax()), values, float(most))
            return values.astype(np.int64)
        if values.dtype.kind != "f":
            raise PayloadError(f"values of type {values.dtype}{where} cannot be added in secret")
        values = values.astype(np.float64, copy=False)
        bad = ~np.isfinite(values)
        if bad.any():
            first = int(bad.argmax())
            raise DataError(
                f"entry {first}{where} is {values[first]}, which nothing can be added to"
            )
        most = 2.0**62 / self.clients if self.range is None else self.range
        outside = np.abs(values) > most
        if outside.any():
            raise self._too_large(where, int(outside.argmax()), values, most)
        return np.rint(values / self.step).astype(np.int64)

    def _add_in_two_words(self, values: Any, words: Any) -> None:
        """The whole parts of numbers, then the rests in steps; steps are powers of two."""
        steps = 1 / self.step
        for start in range(0, len(values), _AT_ONCE):
            some = values[start : start + _AT_ONCE].astype(np.float64)
            whole, rest = words[:, start : start + _AT_ONCE]
            part = np.rint(some)
            whole += part.astype(np.int64).view(np.uint64)
            np.subtract(some, part, out=some)
            np.multiply(some, steps, out=some)
            rest += np.rint(some, out=some).astype(np.int64).view(np.uint64)

    def _too_large(self, where: str, place: int, values: Any, most: float) -> DataError:
        return DataError(
            f"entry {place}{where} is {values[place]:g}, the secure sum takes numbers "
            f"up to {most:g}",
            hint="declare a larger range, as in so.SecureSum(range=2.0**40), or none",
        )

    def _decoded(self, form: Any, parts: Iterator[Any]) -> Any:
        if isinstance(form, Mapping) and _LEAF not in form:
            return {key: self._decoded(form[key], parts) for key in sorted(form)}
        if isinstance(form, list):
            return [self._decoded(inner, parts) for inner in form]
        kind, shape = form[_LEAF]
        values = next(parts)
        if kind == "int":
            return int(values[0])
        if kind == "float":
            return float(self._fixed(values)[0])
        dtype = np.dtype(kind)
        numbers = values if dtype.kind in "biu" else self._fixed(values)
        return numbers.astype(dtype).reshape(shape)[()]

    def _fixed(self, values: Any) -> Any:
        if self.range is not None:
            return values * self.step
        whole, rest = values.reshape(2, -1)
        return whole + rest * self.step


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number or array of a tree with its path, in an order that its keys alone decide."""
    if isinstance(tree, Mapping):
        for key in sorted(tree):
            yield from leaves(tree[key], f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list | tuple):
        for i, inner in enumerate(tree):
            yield from leaves(inner, f"{path}.{i}" if path else str(i))
    else:
        yield path, tree


def form_of(tree: Any) -> Any:
    """What a tree looks like, without its numbers: the same for all clients whose sums fit."""
    if isinstance(tree, Mapping):
        return {key: form_of(tree[key]) for key in sorted(tree)}
    if isinstance(tree, list | tuple):
        return [form_of(inner) for inner in tree]
    if isinstance(tree, np.ndarray | np.generic):
        kind = "int64" if tree.dtype.kind in "biu" else tree.dtype.name
        return {_LEAF: [kind, list(tree.shape)]}
    if isinstance(tree, int | float):
        return {_LEAF: ["float" if isinstance(tree, float) else "int", []]}
    raise PayloadError(f"{type(tree).__name__} cannot be added in secret")


def size_of(form: Any, bits: int) -> int:
    """How many words the numbers of a tree of that form are."""
    return sum(_sizes(form, bits))


def _sizes(form: Any, bits: int) -> Iterator[int]:
    if isinstance(form, Mapping) and _LEAF in form:
        kind, shape = form[_LEAF]
        yield math.prod(shape) * (2 if bits == TWO_WORDS and kind.startswith("float") else 1)
    elif isinstance(form, Mapping):
        for key in sorted(form):
            yield from _sizes(form[key], bits)
    else:
        for inner in form:
            yield from _sizes(inner, bits)


def _largest(values: Any) -> float:
    """The largest |x|, NaN where one is."""
    return max(float(values.max()), -float(values.min())) if len(values) else 0.0


def _magnitudes(values: Any) -> Any:
    """|x| of whole numbers; the least one of a type has no opposite."""
    if values.dtype.kind == "i":
        wide = values.astype(np.int64)
        return np.where(wide < 0, ~wide, wide).astype(np.uint64)
    return values.astype(np.uint64)
