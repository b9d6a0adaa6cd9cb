"""What asks and replies carry, and its bytes on the wire.

A payload is None, a bool, an int of 64 bits, a float, text, bytes, a NumPy array, or a list or dict
(with text keys) of payloads. Tuples become lists, NumPy scalars Python numbers, and an object with
a ``to_payload`` method what that returns. Nothing else can be encoded: no code, no pickle.

A frame is ``SOL`` · version · u32 length · structure (msgpack) · buffers. Arrays and long byte
strings leave only a mark in the structure; their raw bytes follow, in the order of the marks, each
aligned to 16, so decoding copies no array. Equal payloads give equal frames, and every byte of a
frame is accounted for: trailing, missing or overlapping bytes are errors.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from solera.core.errors import PayloadError, PayloadTooLarge

VERSION = 1
_MAGIC = b"SOL" + bytes([VERSION])
_HEAD = struct.Struct("<4sI")
_ALIGN = 16
_ARRAY, _BYTES = 1, 2
_LONG = 4096
"""Byte strings at least this long travel as buffers, so that the structure stays small."""
_KINDS = "biufcUS"
_NONE_PADDING = bytes(_ALIGN)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reader is willing to take in.

    ``structure`` bounds everything that is not a buffer: a msgpack byte can become a Python object
    sixty times its size, so it is kept far below ``size``.
    """

    size: int = 1 << 30
    structure: int = 1 << 22
    depth: int = 32


DEFAULT_LIMITS = Limits()


# --- writing -------------------------------------------------------------------------------------


def encode(payload: Any, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """The one frame of this payload."""
    pieces = encode_pieces(payload, limits)
    return b"".join(pieces)


def encode_pieces(payload: Any, limits: Limits = DEFAULT_LIMITS) -> list[Any]:
    """The frame as a list of buffers, for writers that can gather them without a copy."""
    buffers: list[Any] = []
    marked = _mark(payload, buffers, limits.depth)
    try:
        structure = _to_msgpack(marked)
    except (OverflowError, UnicodeEncodeError) as error:
        raise PayloadError(f"a payload cannot carry this value: {error}") from None
    if len(structure) > limits.structure:
        raise PayloadTooLarge(
            f"payload structure of {len(structure):,} bytes exceeds {limits.structure:,}",
            hint="send numbers as NumPy arrays rather than long lists",
        )
    pieces: list[Any] = [_HEAD.pack(_MAGIC, len(structure)), structure]
    size = _HEAD.size + len(structure)
    for buffer in buffers:
        pad = -size % _ALIGN
        pieces += [_NONE_PADDING[:pad], buffer]
        size += pad + len(buffer)
    if size > limits.size:
        raise PayloadTooLarge(f"payload of {size:,} bytes exceeds the limit of {limits.size:,}")
    return pieces


def _mark(value: Any, buffers: list[Any], depth: int) -> Any:
    """Copy of the structure with arrays and long bytes replaced by marks; checks every node."""
    kind = type(value)
    if kind in (float, int, str, bool) or value is None:
        return value
    if kind is dict or isinstance(value, Mapping):
        if not depth:
            raise PayloadTooLarge("payload is nested too deeply")
        for key in value:
            if type(key) is not str:
                raise PayloadError(f"payload keys are text, not {type(key).__name__}: {key!r}")
        return {key: _mark(v, buffers, depth - 1) for key, v in value.items()}
    if kind is list or kind is tuple:
        if not depth:
            raise PayloadTooLarge("payload is nested too deeply")
        return [_mark(v, buffers, depth - 1) for v in value]
    if isinstance(value, np.ndarray):
        buffers.append(_plain(value).data)
        return msgspec.msgpack.Ext(_ARRAY, _mark_bytes(value))
    if isinstance(value, np.generic):
        return _mark(_scalar(value), buffers, depth)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        if len(data) < _LONG:
            return data
        buffers.append(data)
        return msgspec.msgpack.Ext(_BYTES, struct.pack("<Q", len(data)))
    if hasattr(value, "to_payload"):
        return _mark(value.to_payload(), buffers, depth)
    raise PayloadError(
        f"a payload cannot carry {kind.__module__}.{kind.__qualname__}",
        hint="use numbers, text, bytes, NumPy arrays, lists and dicts",
    )


def _scalar(value: np.generic) -> Any:
    if value.dtype.kind not in "biufUS":
        raise PayloadError(f"a payload cannot carry a NumPy scalar of type {value.dtype}")
    return value.item()


def _plain(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The array's little-endian, C-ordered bytes."""
    if array.dtype.kind not in _KINDS:
        raise PayloadError(
            f"a payload cannot carry an array of type {array.dtype}",
            hint="convert it to numbers or fixed-width text first",
        )
    ordered = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return ordered.reshape(-1).view(np.uint8) if ordered.nbytes else np.empty(0, np.uint8)


def _mark_bytes(array: NDArray[Any]) -> bytes:
    """dtype and shape as text: ``f8:3,4``."""
    return _mark_text(array.dtype, array.shape)


@lru_cache(maxsize=1024)
def _mark_text(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    name = dtype.newbyteorder("<").str[1:]
    return f"{name}:{','.join(map(str, shape))}".encode()


_to_msgpack = msgspec.msgpack.Encoder().encode


# --- sizes ---------------------------------------------------------------------------------------


def encoded_size(payload: Any) -> int:
    """``len(encode(payload))`` without encoding anything."""
    buffers: list[int] = []
    size = _HEAD.size + _structure_size(payload, buffers)
    for nbytes in buffers:
        size += -size % _ALIGN + nbytes
    return size


_ATOMS = frozenset({float, bool, bytes, type(None)})


def check_payload(payload: Any) -> None:
    """Raise what :func:`encoded_size` raises for something that no payload can carry."""
    kind = type(payload)
    if kind is np.ndarray and payload.dtype.kind in _KINDS:
        return
    if kind is dict and all(type(key) is str for key in payload):
        for value in payload.values():
            if type(value) not in _ATOMS:
                check_payload(value)
    elif kind is list or kind is tuple:
        for value in payload:
            check_payload(value)
    elif kind is int:
        int_size(payload)
    else:
        encoded_size(payload)


def _structure_size(value: Any, buffers: list[int]) -> int:
    kind = type(value)
    if kind is float:
        return 9
    if kind is int:
        return int_size(value)
    if kind is str:
        n = len(value) if value.isascii() else _text_size(value)
        return n + (1 if n < 32 else 2 if n < 256 else 3 if n < 65536 else 5)
    if kind is bool or value is None:
        return 1
    if isinstance(value, np.ndarray):
        buffers.append(value.nbytes)
        n = len(_mark_bytes(value))
        return n + (2 if n in (1, 2, 4, 8, 16) else 3)
    if kind is dict or isinstance(value, Mapping):
        n = len(value)
        size = 1 if n < 16 else 3 if n < 65536 else 5
        for key, item in value.items():
            size += _structure_size(key, buffers) + _structure_size(item, buffers)
        return size
    if kind is list or kind is tuple:
        n = len(value)
        size = 1 if n < 16 else 3 if n < 65536 else 5
        for item in value:
            size += _structure_size(item, buffers)
        return size
    if isinstance(value, np.generic):
        return _structure_size(_scalar(value), buffers)
    if isinstance(value, bytes | bytearray | memoryview):
        n = len(value)
        if n >= _LONG:
            buffers.append(n)
            return 2 + 8
        return n + (2 if n < 256 else 3)
    if hasattr(value, "to_payload"):
        return _structure_size(value.to_payload(), buffers)
    raise PayloadError(f"a payload cannot carry {kind.__module__}.{kind.__qualname__}")


def _text_size(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise PayloadError(f"a payload cannot carry this value: {error}") from None


def int_size(value: int) -> int:
    """Bytes msgpack spends on an integer."""
    if not -(2**63) <= value < 2**64:
        raise PayloadError(f"a payload cannot carry {value}: integers have 64 bits")
    if value >= 0:
        return (
            1 if value < 128 else 2 if value < 256 else 3 if value < 65536 else 5 if value < 2**32
            else 9
        )  # fmt: skip
    return 1 if value >= -32 else 2 if value >= -128 else 3 if value >= -32768 else (
        5 if value >= -(2**31) else 9
    )  # fmt: skip


# --- reading -------------------------------------------------------------------------------------


def decode(frame: bytes | bytearray | memoryview, limits: Limits = DEFAULT_LIMITS) -> Any:
    """The payload of a frame. Its arrays are read-only views into ``frame``.

    Whatever the bytes are, the outcome is a payload or a :class:`PayloadError`, and the memory used
    is bounded by the limits.
    """
    view = memoryview(frame).toreadonly()
    if view.nbytes > limits.size:
        raise PayloadTooLarge(f"frame of {view.nbytes:,} bytes exceeds {limits.size:,}")
    if view.nbytes < _HEAD.size:
        raise PayloadError(f"not a Solera payload: {view.nbytes} bytes are too few")
    magic, length = _HEAD.unpack_from(view)
    if magic[:3] != _MAGIC[:3]:
        raise PayloadError("not a Solera payload: wrong first bytes")
    if magic != _MAGIC:
        raise PayloadError(
            f"payload version {magic[3]} is not understood, this is version {VERSION}",
            hint="update the older side",
        )
    if length > limits.structure:
        raise PayloadTooLarge(f"payload structure of {length:,} bytes exceeds {limits.structure:,}")
    reader = _Reader(view, _HEAD.size + length)
    try:
        decoder = msgspec.msgpack.Decoder(ext_hook=reader.buffer)
        payload = decoder.decode(view[_HEAD.size : _HEAD.size + length])
    except PayloadError:
        raise
    except RecursionError:
        raise PayloadTooLarge("payload is nested too deeply") from None
    except Exception as error:
        raise PayloadError(f"damaged payload: {error}") from None
    if reader.position != view.nbytes:
        raise PayloadError(f"damaged payload: {view.nbytes - reader.position} bytes too many")
    _check(payload, limits.depth)
    return payload


class _Reader:
    """Hands out the buffers behind the structure, one after the other."""

    def __init__(self, view: memoryview, position: int) -> None:
        self.view = view
        self.position = position

    def take(self, nbytes: int) -> memoryview:
        start = self.position + -self.position % _ALIGN
        end = start + nbytes
        if end > self.view.nbytes:
            raise PayloadError(f"damaged payload: {end - self.view.nbytes} bytes are missing")
        if any(self.view[self.position : start]):
            raise PayloadError("damaged payload: padding is not zero")
        self.position = end
        return self.view[start:end]

    def buffer(self, code: int, mark: memoryview) -> Any:
        if code == _BYTES and len(mark) == 8:
            (length,) = struct.unpack("<Q", mark)
            if length < _LONG:
                raise PayloadError("damaged payload: a short byte string among the buffers")
            return bytes(self.take(length))
        if code != _ARRAY:
            raise PayloadError(f"damaged payload: unknown mark {code}")
        return self._array(bytes(mark))

    def _array(self, mark: bytes) -> NDArray[Any]:
        name, _, dims = mark.decode("ascii").partition(":")
        dtype = np.dtype("<" + name)
        shape = tuple(int(n) for n in dims.split(",")) if dims else ()
        if dtype.kind not in _KINDS or len(shape) > 32 or any(n < 0 for n in shape):
            raise PayloadError(f"damaged payload: array of type {mark!r}")
        buffer = self.take(dtype.itemsize * math.prod(shape))
        if not buffer.nbytes:
            array = np.empty(shape, dtype)
            array.flags.writeable = False
        else:
            array = np.frombuffer(buffer, dtype).reshape(shape)
            _check_values(array)
        if _mark_bytes(array) != mark:
            raise PayloadError(f"damaged payload: array of type {mark!r}")
        return array


def _check_values(array: NDArray[Any]) -> None:
    """Bytes that are no value of their type would upset NumPy later."""
    if array.dtype.kind == "b" and array.view(np.uint8).max() > 1:
        raise PayloadError("damaged payload: a truth value other than 0 and 1")
    if array.dtype.kind == "U" and array.reshape(-1).view(np.uint32).max() > 0x10FFFF:
        raise PayloadError("damaged payload: text that is not Unicode")


def _check(value: Any, depth: int) -> None:
    """Depth, key types and leaf types of what msgpack gave back."""
    kind = type(value)
    if kind is dict or kind is list:
        if not depth:
            raise PayloadTooLarge("payload is nested too deeply")
        for item in value:
            if kind is dict and type(item) is not str:
                raise PayloadError(f"damaged payload: key of type {type(item).__name__}")
            _check(value[item] if kind is dict else item, depth - 1)
    elif kind not in (float, int, str, bool, bytes, np.ndarray) and value is not None:
        raise PayloadError(f"damaged payload: value of type {kind.__name__}")


# --- walking -------------------------------------------------------------------------------------


def read_only(payload: Any) -> Any:
    """The same payload with arrays that cannot be written to, as a client would receive it."""
    kind = type(payload)
    if kind is dict:
        return {key: read_only(value) for key, value in payload.items()}
    if kind is np.ndarray and not payload.flags.writeable:
        return payload
    if isinstance(payload, np.ndarray):
        view = payload.view()
        view.flags.writeable = False
        return view
    if isinstance(payload, (str, int, float)):
        return payload
    if isinstance(payload, Mapping):
        return {key: read_only(value) for key, value in payload.items()}
    if isinstance(payload, (list, tuple)):
        return [read_only(value) for value in payload]
    return payload


def is_finite(payload: Any) -> bool:
    """True when no float in the payload, alone or in an array, is NaN or infinite."""
    if isinstance(payload, float):
        return math.isfinite(payload)
    if isinstance(payload, (np.ndarray, np.generic)):
        return payload.dtype.kind not in "fc" or _finite_array(np.asarray(payload))
    if isinstance(payload, (dict, Mapping)):
        return all(map(is_finite, payload.values()))
    if isinstance(payload, (list, tuple)):
        return all(map(is_finite, payload))
    return True


def _finite_array(array: NDArray[Any]) -> bool:
    with np.errstate(all="ignore"):
        if np.isfinite(array.sum()):  # one fast pass; an overflowing sum needs the slow look
            return True
    return bool(np.isfinite(array).all())
