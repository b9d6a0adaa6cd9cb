"""Homomorphic sums: exact enough, unreadable without the secret key, hard to upset.

Randomness of keys and noise comes from the system, so tolerances are far from what is observed.
"""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from functools import cache, reduce
from typing import Any

import numpy as np
import pytest

from solera.core import payload
from solera.core.errors import DataError, PayloadError, UsageError
from solera.privacy import he
from solera.privacy.he import ciphertexts
from solera.privacy.he.packing import block_count, embed, extract, pack, unpack
from solera.privacy.he.ring import ring

RING = {
    "client": he.CLIENT,
    "coordinator": he.COORDINATOR,
    "compat": he.COMPAT,
    "small": he.SMALL,
    "small_client": he.SMALL_CLIENT,
}


@cache
def pair(name: str = "client") -> he.SecretKey:
    pytest.importorskip("tenseal", reason="the extra 'he' (tenseal) is not installed")
    return he.generate(RING[name])


def travel(encrypted: he.Encrypted, key: Any = None) -> he.Encrypted:
    """Through the wire and back."""
    return he.Encrypted.from_payload(payload.decode(payload.encode(encrypted.to_payload())), key)


def relative(found: Any, wanted: Any) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


# --- packing -------------------------------------------------------------------------------------


def test_embedding_turns_polynomial_products_into_slot_products() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 64))
    full = np.convolve(a, b)
    negacyclic = full[:64] - np.append(full[64:], 0)
    assert np.allclose(extract(embed(a)), a)
    assert np.allclose(extract(embed(a) * embed(b)), negacyclic)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (1, 4, 32), (9, 3, 11), (40, 1, 2)])
@pytest.mark.parametrize("layout", ["flat", "systems"])
def test_packing_round_trip(layout: Any, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).normal(size=shape)
    slots = pack(values, layout, degree=64)
    assert slots.shape == (block_count(layout, shape, 64), 32)
    assert np.allclose(unpack(slots, layout, shape), values)


# --- parameters ----------------------------------------------------------------------------------


def test_presets_are_at_least_128_bit() -> None:
    for parameters in RING.values():
        assert parameters.check() is parameters
        assert parameters.security() >= 128
        assert parameters.headroom(parameters.depth) >= 256
    assert he.COORDINATOR.security() == 128
    assert he.CLIENT.security() == 192
    assert he.Parameters(8192, (59, 59), 40).security() == 256


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        (he.Parameters(8192, (60, 60, 60, 60), 40), r"240 bits.*8192 allows 218"),
        (he.Parameters(4096, (60, 50), 40), r"110 bits.*4096 allows 109"),
        (he.Parameters(16384, (60,) * 8, 40), r"480 bits.*16384 allows 438"),
        (he.Parameters(5000, (60, 60), 40), r"degree=5000"),
        (he.Parameters(8192, (61, 60), 40), r"20 to 60 bits"),
        (he.Parameters(8192, (60, 60), 59), r"scale_bits=59"),
        (he.Parameters(8192, (60, 60, 60), 56, 62, 1), r"scale_bits=56"),
        (he.Parameters(8192, (60, 60, 60), 56, 0, 1), r"matrix_bits=0"),
        (he.Parameters(8192, (60, 60), 40.0), r"whole numbers"),  # type: ignore[arg-type]
    ],
)
def test_weak_or_senseless_parameters_are_refused(parameters: he.Parameters, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        he.generate(parameters)


def test_weak_parameters_are_an_explicit_loud_option() -> None:
    pytest.importorskip("tenseal", reason="the extra 'he' (tenseal) is not installed")
    weak = he.Parameters(2048, (40, 40), 30)
    with pytest.warns(he.WeakParameters, match="WEAK ENCRYPTION.*80 bits"):
        secret = he.generate(weak, allow_weak=True)
    assert secret.parameters.security() == 0
    with pytest.raises(PayloadError, match="128-bit"):
        he.SecretKey.from_bytes(secret.to_bytes())
    with pytest.raises(PayloadError, match="128-bit"):
        he.Encrypted.from_payload(he.encrypt(secret, [1.0], magnitude=0).to_payload())


def test_without_the_extra_importing_works_and_using_names_it() -> None:
    code = (
        "import sys; sys.modules['tenseal'] = None\n"
        "from solera.core.errors import MissingExtra\n"
        "from solera.privacy import he\nfrom solera.privacy.he import products, keys\n"
        "try: he.generate()\n"
        "except MissingExtra as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "encryption needs the extra 'he' (pip install 'solera[he]')"


# --- sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RING)
@pytest.mark.parametrize("by", ["secret", "public"])
def test_round_trip(name: str, by: str) -> None:
    secret = pair(name)
    key = secret if by == "secret" else he.PublicKey.from_bytes(secret.public.to_bytes())
    for shape in [(1,), (3, 4), (2, 3, 700), (9000,)]:
        array = np.random.default_rng(3).normal(size=shape) * 50
        encrypted = travel(he.encrypt(key, array, magnitude=8), secret.public)
        found = he.decrypt(he.SecretKey.from_bytes(secret.to_bytes()), encrypted)
        assert found.shape == shape
        assert relative(found, array) < 1e-7


def test_integers_zeros_and_extreme_magnitudes() -> None:
    secret = pair()
    assert he.decrypt(secret, he.encrypt(secret, [[3, -4]], magnitude=2)) == pytest.approx(
        np.array([[3, -4]]), rel=1e-9
    )
    assert np.abs(he.decrypt(secret, he.encrypt(secret, np.zeros(5), magnitude=0))).max() < 1e-9
    for factor in (1e-30, 1e30):
        array = np.array([0.3, -1.0, 0.7]) * factor
        encrypted = he.encrypt(secret, array, magnitude=he.magnitude_of(array))
        assert relative(he.decrypt(secret, encrypted), array) < 1e-9


def test_a_magnitude_per_feature_keeps_small_features_precise() -> None:
    secret = pair()
    scale = 2.0 ** np.array([-20, 0, 20])
    array = np.random.default_rng(4).uniform(-1, 1, size=(5, 3)) * scale
    magnitude = np.array([-20, 0, 20])
    found = he.decrypt(secret, travel(he.encrypt(secret, array, magnitude=magnitude)))
    assert np.abs((found - array) / scale).max() < 1e-9


def test_magnitude_of_is_the_smallest_that_fits() -> None:
    assert [he.magnitude_of(x) for x in (1.0, 1.01, 0.5, 135.7, -4.0, 0.0)] == [0, 1, -1, 8, 2, 0]
    secret = pair()
    he.encrypt(secret, [135.7], magnitude=8)
    with pytest.raises(UsageError, match="agree on magnitude=8"):
        he.encrypt(secret, [135.7], magnitude=7)


@pytest.mark.parametrize("name", RING)
@pytest.mark.parametrize("count", [1, 2, 7, 50])
def test_sums_of_up_to_fifty(name: str, count: int) -> None:
    secret = pair(name)
    arrays = np.random.default_rng(count).normal(size=(count, 4, 30))
    parts = [he.encrypt(secret, array, magnitude=3) for array in arrays]
    total = travel(reduce(he.add, parts), secret.public)
    assert total.label.addends == count
    assert relative(he.decrypt(secret, total), arrays.sum(axis=0)) < 1e-7


def test_addition_is_a_monoid_bit_for_bit() -> None:
    secret = pair()
    a, b, c = (travel(he.encrypt(secret, np.full(9, x), magnitude=2)) for x in (1.0, 2.0, 3.5))
    one = he.add(he.add(a, b), c).to_payload()
    for other in (he.add(a, he.add(b, c)), he.add(he.add(c, a), b), he.add(b, he.add(c, a))):
        assert other.to_payload()["blocks"] == one["blocks"]
    assert np.allclose(he.decrypt(secret, a), 1, rtol=1e-9), "adding leaves the addends alone"


def test_a_sum_that_could_overflow_is_refused() -> None:
    secret = pair()
    total = he.encrypt(secret, [1.0], magnitude=0)
    while total.label.addends < he.CLIENT.headroom():
        total = he.add(total, total)
    assert he.decrypt(secret, total) == pytest.approx(he.CLIENT.headroom(), rel=1e-9)
    with pytest.raises(PayloadError, match="overflows"):
        he.add(total, total)


def test_sums_that_make_no_sense_are_refused() -> None:
    secret = pair()
    a = he.encrypt(secret, np.ones((2, 3)), magnitude=1)
    with pytest.raises(PayloadError, match=r"shape \(2, 3\) and \(3, 2\)"):
        he.add(a, he.encrypt(secret, np.ones((3, 2)), magnitude=1))
    with pytest.raises(PayloadError, match="different magnitudes"):
        he.add(a, he.encrypt(secret, np.ones((2, 3)), magnitude=2))
    with pytest.raises(PayloadError, match="layout 'systems' and 'flat'"):
        he.add(
            he.encrypt(secret, np.ones((1, 2, 3)), magnitude=1, layout="systems"),
            he.encrypt(secret, np.ones((1, 2, 3)), magnitude=1),
        )


@pytest.mark.parametrize(
    ("array", "arguments", "error"),
    [
        ([np.nan], {"magnitude": 0}, DataError),
        ([np.inf], {"magnitude": 0}, DataError),
        ([1j], {"magnitude": 0}, DataError),
        (["a"], {"magnitude": 0}, DataError),
        ([], {"magnitude": 0}, UsageError),
        (1.0, {"magnitude": 0}, UsageError),
        ([1.0], {"magnitude": 0.5}, UsageError),
        ([1.0], {"magnitude": 5000}, UsageError),
        ([1.0], {"magnitude": np.array([1, 2])}, UsageError),
        (np.ones((2, 3)), {"magnitude": 0, "layout": "systems"}, UsageError),
        (np.ones((1, 1, 5000)), {"magnitude": 0, "layout": "systems"}, UsageError),
        (np.ones((2, 3)), {"magnitude": 0, "layout": "rows"}, UsageError),
    ],
)
def test_arrays_that_cannot_be_encrypted(array: Any, arguments: Any, error: Any) -> None:
    with pytest.raises(error):
        he.encrypt(pair(), array, **arguments)


# --- what the coordinator holds ------------------------------------------------------------------


def test_no_secret_in_what_the_coordinator_gets() -> None:
    """Neither in place nor as a SEAL key hidden in the public bytes."""
    secret = pair("small")
    array = np.array([3.1, 1.4, 4.1, 1.6, 5.9])
    encrypted = he.encrypt(secret, array, magnitude=3)
    public, turns = secret.public.to_bytes(), secret.rotations([1, 2, 5])
    held = public + turns.to_bytes() + payload.encode(encrypted.to_payload())
    inner = secret._data[64:]
    assert all(inner[k : k + 16] not in held for k in range(0, len(inner) - 16, 97))
    for numbers in (array, array.astype(np.float32), array / 8):
        assert all(number.tobytes() not in held for number in numbers)
    here = ring(secret.parameters)
    for data in (
        public,
        secret.public._data,
        turns._data,
        encrypted.data[0],
    ):
        with pytest.raises(PayloadError):
            here.load("SecretKey", data)
        with pytest.raises(PayloadError):
            he.SecretKey.from_bytes(data)
    with pytest.raises(UsageError, match="needs a SecretKey, not a PublicKey"):
        he.decrypt(secret.public, encrypted)  # type: ignore[arg-type]
    other = he.generate(secret.parameters)
    guess = other.decrypt_block(encrypted.ciphertexts[0])
    assert relative(extract(guess)[:5], array / 8) > 1e3, "another key reads noise"


def test_a_secret_key_cannot_be_sent_or_pickled_or_shown() -> None:
    with pytest.raises(PayloadError):
        payload.encode({"key": pair()})
    with pytest.raises(TypeError):
        pickle.dumps(pair())
    assert str(pair()._data[:8]) not in repr(pair())


def test_equal_arrays_give_different_ciphertexts() -> None:
    a, b = (he.encrypt(pair(), [1.0, 2.0], magnitude=1).data for _ in range(2))
    assert a != b


def test_wrong_keys_are_named() -> None:
    mine, theirs = pair(), he.generate()
    a, b = (he.encrypt(key, [1.0], magnitude=0) for key in (mine, theirs))
    assert issubclass(he.WrongKey, PayloadError)
    with pytest.raises(he.WrongKey):
        he.add(a, b)
    with pytest.raises(he.WrongKey):
        he.decrypt(mine, b)
    for key in (mine, mine.public, pair("small")):
        with pytest.raises(he.WrongKey):
            he.Encrypted.from_payload(b.to_payload(), key)
    with pytest.raises(he.WrongKey):
        he.add(a, he.encrypt(pair("small"), [1.0], magnitude=0))


# --- damage --------------------------------------------------------------------------------------


def resigned(fields: dict[str, Any]) -> dict[str, Any]:
    """The payload with the checksum an attacker would compute."""
    rest = {name: value for name, value in fields.items() if name != "sha256"}
    return rest | {"sha256": ciphertexts._digest(rest)}


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, mostly near the front where the structure is, or cut, or extended."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 3, 30])):
        end = min(200, len(changed)) if rng.random() < 0.6 else len(changed)
        changed[rng.randrange(end)] ^= rng.randrange(1, 256)
    if rng.random() < 0.2:
        return bytes(changed[: rng.randrange(len(changed))])
    return bytes(changed) + bytes(rng.choice([0, 0, 0, 0, 9]))


@pytest.mark.parametrize("by", ["secret", "public"])
def test_damaged_ciphertexts_never_decrypt(by: str) -> None:
    key = pair("small") if by == "secret" else pair("small").public
    sound = he.encrypt(key, np.arange(40.0), magnitude=6).to_payload()
    rng = random.Random(5)
    for _ in range(150):
        with pytest.raises(PayloadError):
            he.Encrypted.from_payload(sound | {"blocks": [mutate(sound["blocks"][0], rng)]})
    frame = payload.encode(sound)
    for _ in range(100):
        with pytest.raises(PayloadError):
            he.Encrypted.from_payload(payload.decode(mutate(frame, rng)))


def test_forged_ciphertexts_raise_named_errors_or_are_ciphertexts() -> None:
    """With a valid checksum SEAL sees the bytes: it may accept other numbers, nothing else."""
    secret, rng, refused = pair("small"), random.Random(6), 0
    for key in (secret, secret.public):
        sound = he.encrypt(key, np.arange(40.0), magnitude=6).to_payload()
        for _ in range(250):
            forged = resigned(sound | {"blocks": [mutate(sound["blocks"][0], rng)]})
            try:
                found = he.Encrypted.from_payload(forged, secret)
            except PayloadError:
                refused += 1
            else:
                assert he.decrypt(secret, he.add(found, found)).shape == (40,)
    assert refused > 250


FORGED = {
    "shape": [[5000], [2**62], [2**40, 2**40], [0], [-40], [], [1] * 40, ["40"], [40.0], [True]],
    "layout": ["rows", "systems", "other"],
    "exponent": [np.array(x) for x in (3.0, 2**62, -(2**63), "x")]
    + [np.zeros((2, 40), np.int16), np.zeros(0, np.int16), 3],
    "addends": [0, -1, 2**60, True],
    "level": [1, -1],
    "blocks": [[], ["x"], [b""], [bytes(100)], [bytes(10**7)]],
    "parameters": [
        [],
        [4096, 38, 33, 1, 27, 27, 27],
        [4096, 38, 33, 1, 27, 27, 27, 60],
        [4096, 38, 33, 10**9, 27, 27, 27, 28],
        [1024, 16, 0, 0, 20],
        [4096, 16, 0, 0, 20, 20, 20, 20, 20],
        [np.ones(2), 38, 33, 1, 27, 27, 27, 28],
        he.CLIENT.to_list(),
    ],
    "extra": [1],
}


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("known", [True, False])
def test_forged_labels_raise_named_errors(name: str, known: bool) -> None:
    secret = pair("small")
    sound = he.encrypt(secret, np.arange(40.0), magnitude=6).to_payload()
    for value in FORGED[name]:
        with pytest.raises(PayloadError):
            he.Encrypted.from_payload(resigned(sound | {name: value}), secret if known else None)


@pytest.mark.parametrize("thing", [None, 1, [], {}, "x", b"x", {"blocks": []}])
def test_not_a_ciphertext_at_all(thing: Any) -> None:
    with pytest.raises(PayloadError, match="not an encrypted array"):
        he.Encrypted.from_payload(thing)


def test_damaged_keys_raise_named_errors() -> None:
    secret, rng = pair("small"), random.Random(7)
    readers: list[tuple[bytes, Any]] = [
        (secret.to_bytes(), he.SecretKey.from_bytes),
        (secret.public.to_bytes(), he.PublicKey.from_bytes),
        (secret.rotations([1, 2, 5]).to_bytes(), he.Rotations.from_bytes),
    ]
    for data, read in readers:
        for _ in range(60):
            with pytest.raises(PayloadError):
                read(mutate(data, rng))
        for other, _ in readers:
            if other != data:
                with pytest.raises(PayloadError, match="not a"):
                    read(other)
        for junk in (b"", b"x", bytes(100)):
            with pytest.raises(PayloadError):
                read(junk)
