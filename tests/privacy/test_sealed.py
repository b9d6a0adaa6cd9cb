"""Sealed messages: the relay reads nothing, moves nothing, changes nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solera.core.errors import SoleraError, UsageError
from solera.trust import sealed

x25519 = pytest.importorskip(
    "cryptography.hazmat.primitives.asymmetric.x25519",
    reason="the extra 'serve' (cryptography) is not installed",
)

PRIVATE = x25519.X25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = PRIVATE.public_key().public_bytes_raw()
LOW_ORDER = [bytes(32), b"\x01" + bytes(31), (2**255 - 20).to_bytes(32, "little")]


@settings(deadline=None)
@given(st.binary(max_size=2000), st.binary(max_size=50))
def test_what_was_sealed_opens(data: bytes, context: bytes) -> None:
    box = sealed.seal(PUBLIC, data, context=context)
    assert len(box) == len(data) + sealed.OVERHEAD
    assert sealed.open_sealed(PRIVATE, box, context=context) == data
    assert sealed.open_sealed(bytes(range(32)), box, context=context) == data


def test_the_relay_sees_neither_data_nor_context_nor_recipient() -> None:
    boxes = [sealed.seal(PUBLIC, b"MARKER" * 20, context=b"CONTEXT") for _ in range(2)]
    for box in boxes:
        assert not any(word in box for word in (b"MARKER", b"CONTEXT", PUBLIC))
    first, second = (box[4:] for box in boxes)
    assert all(first[i : i + 8] != second[i : i + 8] for i in range(0, len(first) - 8, 8))


def test_another_key_or_context_is_named() -> None:
    box = sealed.seal(PUBLIC, b"data", context=b"job 1")
    with pytest.raises(sealed.NotForThisKey):
        sealed.open_sealed(x25519.X25519PrivateKey.generate(), box, context=b"job 1")
    with pytest.raises(sealed.OtherContext):
        sealed.open_sealed(PRIVATE, box, context=b"job 2")


def test_every_changed_bit_and_every_cut_is_noticed() -> None:
    box = sealed.seal(PUBLIC, b"12 patients", context=b"job")
    for i in range(len(box)):
        for bit in (0x01, 0x80):  # X25519 itself ignores the top bit of a key, byte 35 here
            changed = box[:i] + bytes([box[i] ^ bit]) + box[i + 1 :]
            with pytest.raises(sealed.SealError):
                sealed.open_sealed(PRIVATE, changed, context=b"job")
        with pytest.raises(sealed.SealError):
            sealed.open_sealed(PRIVATE, box[:i], context=b"job")
    damaged = box[:-1] + bytes([box[-1] ^ 1])
    with pytest.raises(sealed.DamagedSeal):
        sealed.open_sealed(PRIVATE, damaged, context=b"job")
    with pytest.raises(sealed.DamagedSeal):
        sealed.open_sealed(PRIVATE, box + b"\0", context=b"job")
    with pytest.raises(sealed.SealError, match="version 2"):
        sealed.open_sealed(PRIVATE, box[:3] + b"\x02" + box[4:], context=b"job")


@settings(max_examples=200)
@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda b: b"SEA\x01" + b))
def test_any_bytes_are_a_message_or_a_named_error(data: bytes) -> None:
    with pytest.raises(sealed.SealError):
        sealed.open_sealed(PRIVATE, data, context=b"")


@pytest.mark.parametrize("point", LOW_ORDER)
def test_keys_that_make_a_known_secret_are_refused(point: bytes) -> None:
    with pytest.raises(UsageError):
        sealed.seal(point, b"data", context=b"")
    with pytest.raises(sealed.DamagedSeal):
        sealed.open_sealed(PRIVATE, b"SEA\x01" + point + bytes(100), context=b"")


def test_keys_of_a_wrong_size_are_refused() -> None:
    with pytest.raises(UsageError, match="31 bytes"):
        sealed.seal(PUBLIC[:31], b"data", context=b"")
    box = sealed.seal(PUBLIC, b"data", context=b"")
    with pytest.raises(UsageError, match="32 bytes, not 31"):
        sealed.open_sealed(bytes(31), box, context=b"")


def test_without_the_library_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from solera.trust import sealed\n"
        "try: sealed.seal(bytes(32), b'', context=b'')\n"
        "except sealed.MissingExtra as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "sealed messages needs the extra 'serve'" in run.stdout
    assert issubclass(sealed.SealError, SoleraError)
