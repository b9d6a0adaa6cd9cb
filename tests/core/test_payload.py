"""The codec: round trips, sizes, and bytes from an enemy."""

from __future__ import annotations

import math
import random
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from solera.core.errors import PayloadError, PayloadTooLarge
from solera.core.payload import Limits, decode, encode, encoded_size, is_finite, read_only

arrays = st.one_of(
    hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.float16, np.complex128, np.bool_])
        | hnp.integer_dtypes(endianness="<")
        | hnp.unsigned_integer_dtypes(endianness="<"),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    hnp.arrays(np.dtype("<U4"), hnp.array_shapes(max_dims=2, max_side=3)),
    hnp.arrays(np.dtype("S3"), hnp.array_shapes(max_dims=2, max_side=3)),
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=300),
    st.binary(max_size=300),
    st.integers(4090, 5000).map(bytes),
    arrays,
)
payloads = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=20,
)


def same(a, b):
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.tobytes() == b.tobytes()
        )
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return type(a) is type(b) and a == b


@given(payloads)
@settings(max_examples=200, deadline=None)
def test_round_trip_and_exact_size(payload):
    frame = encode(payload)
    assert len(frame) == encoded_size(payload)
    assert same(payload, decode(frame))
    assert encode(decode(frame)) == frame


def test_views_into_the_frame():
    frame = encode({"a": np.arange(1000.0), "b": [np.ones(3, dtype=np.int8)]})
    array = decode(frame)["a"]
    assert np.shares_memory(array, np.frombuffer(frame, dtype=np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10.0)[::3],
        np.arange(4, dtype=">i4"),
        np.array(["añb", "c"]),
        np.broadcast_to(np.float32(3), (2, 2)),
    ],
)
def test_any_memory_layout(array):
    frame = encode(array)
    assert len(frame) == encoded_size(array)
    assert np.array_equal(decode(frame), array)


@pytest.mark.parametrize(
    "scalar", [np.float32(1.5), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True), np.str_("x")]
)
def test_numpy_scalars_become_python_numbers(scalar):
    back = decode(encode([scalar]))[0]
    assert back == scalar.item()
    assert type(back) is type(scalar.item())


@pytest.mark.parametrize(
    "bad",
    [
        object(),
        {1: 2},
        {("a",): 1},
        {1, 2},
        1 + 2j,
        np.array([object()]),
        np.array([None, 1]),
        np.zeros(2, dtype=[("a", "f8")]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        lambda: 0,
        [[{"deep": print}]],
    ],
)
def test_refuses_what_is_no_payload(bad):
    with pytest.raises(PayloadError):
        encode(bad)


def test_limits():
    deep = 0
    for _ in range(40):
        deep = [deep]
    with pytest.raises(PayloadTooLarge, match="deep"):
        encode(deep)
    with pytest.raises(PayloadTooLarge, match="exceeds"):
        encode(np.zeros(1000), Limits(size=100))
    with pytest.raises(PayloadTooLarge, match="arrays"):
        encode([0.5] * 1000, Limits(structure=100))
    frame = encode({"a": np.zeros(1000)})
    with pytest.raises(PayloadTooLarge):
        decode(frame, Limits(size=100))


def test_other_versions_are_named():
    frame = bytearray(encode({"a": 1}))
    frame[3] += 1
    with pytest.raises(PayloadError, match="version 2"):
        decode(bytes(frame))


_CLAIMS = [
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\x91" * 50_000,
    b"\x81\xa1a" * 20_000,
]
_MARKS = [b"f8:99999999999", b"f8:-1", b"O:1", b"f8:1,,2", b"V99:1", b"U9:9999999", b"M8[D]:1"]
_MARKS += [b"zz:1", b">f8:1", b"f8:01", b"f8:" + b"1," * 40 + b"1"]


def _hostile(rng: random.Random, frames: list[bytes]) -> bytes:
    """A frame mutated, truncated, extended, spliced, or bytes with claims they cannot keep."""
    frame = bytearray(rng.choice(frames))
    action = rng.randrange(7)
    if action == 0:
        for _ in range(rng.randint(1, 8)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
    elif action == 1:
        del frame[rng.randrange(len(frame)) :]
    elif action == 2:
        frame += rng.randbytes(rng.randint(1, 40))
    elif action == 3:
        other = rng.choice(frames)
        cut = rng.randrange(min(len(frame), len(other)))
        frame = bytearray(frame[:cut] + other[cut:])
    elif action == 4:
        frame = bytearray(rng.randbytes(rng.randint(0, 200)))
    elif action == 5:
        claim = rng.choice(_CLAIMS)
        frame = bytearray(b"SOL\x01" + len(claim).to_bytes(4, "little") + claim)
    else:
        mark = rng.choice(_MARKS)
        body = b"\xc7" + bytes([len(mark)]) + b"\x01" + mark
        frame = bytearray(b"SOL\x01" + len(body).to_bytes(4, "little") + body + rng.randbytes(64))
    return bytes(frame)


def test_ten_thousand_hostile_frames():
    rng = random.Random(0)
    frames = [
        encode(p)
        for p in (
            {"coef": np.arange(60.0).reshape(6, 10), "rows": 12, "loss": 0.5},
            [np.ones(5, dtype=np.int8), "text", b"x" * 5000, None, True, {"a": {"b": [1, 2]}}],
            {"names": np.array(["ab", "cde"]), "flags": np.array([True, False])},
        )
    ]
    decode(frames[0])
    tracemalloc.start()
    refused = 0
    for _ in range(10_000):
        frame = _hostile(rng, frames)
        try:
            payload = decode(frame)
        except PayloadError:
            refused += 1
        else:
            encode(payload)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 8_000
    assert peak < 32 << 20


def test_finiteness():
    assert is_finite({"a": [1.0, np.ones(3)], "b": "nan"})
    assert not is_finite([np.array([1.0, np.nan])])
    assert not is_finite({"a": float("inf")})
    assert is_finite(np.full(10, 1e308))  # the sum overflows, the numbers do not


def test_read_only_copies_nothing_and_protects():
    array = np.zeros(3)
    view = read_only({"a": [array]})["a"][0]
    assert np.shares_memory(view, array)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    array[0] = 1
