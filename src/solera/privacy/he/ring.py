"""CKKS rings: their parameters, how strong they are, and the border to Microsoft SEAL.

SEAL (through ``tenseal.sealapi``) is imported when it is first used. Its objects have no types and
are read and written through files only; everything that depends on either is in this module.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from solera.core.errors import MissingExtra, PayloadError, UsageError
from solera.privacy.he.packing import Layout

_LIMITS = {
    1024: (27, 19, 14),
    2048: (54, 37, 29),
    4096: (109, 75, 58),
    8192: (218, 152, 118),
    16384: (438, 305, 237),
    32768: (881, 611, 476),
}
"""Most bits of modulus for 128, 192 and 256 bits of security with a ternary secret
(HomomorphicEncryption.org standard, Albrecht et al. 2018)."""


class WeakParameters(UserWarning):
    """Encryption below 128 bits of security was asked for explicitly."""


# --- parameters ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameters:
    """A CKKS ring: polynomials of ``degree`` N modulo primes of ``moduli`` bits.

    The last prime belongs to the keys alone; ciphertexts live modulo the others. A number x is held
    as the integer x·2^``scale_bits``, and each of ``depth`` products by a matrix multiplies that by
    2^``matrix_bits``: nothing is rescaled between rotations, whose noise would otherwise show.
    """

    degree: int
    moduli: tuple[int, ...]
    scale_bits: int
    matrix_bits: int = 0
    depth: int = 0

    @property
    def slots(self) -> int:
        """Complex numbers in a ciphertext."""
        return self.degree // 2

    def headroom(self, level: int = 0) -> int:
        """Arrays within their magnitude whose sum cannot overflow after ``level`` products.

        One bit is for the sign and one for the complex slots.
        """
        data = sum(self.moduli[:-1] or self.moduli)
        return 1 << max(0, data - 2 - self.scale_bits - level * self.matrix_bits)

    def security(self) -> int:
        """Bits of security by the standard's table: 256, 192, 128, or 0 for less."""
        limits = _LIMITS.get(self.degree, (0, 0, 0))
        levels = zip((256, 192, 128), reversed(limits), strict=True)
        return next((bits for bits, limit in levels if sum(self.moduli) <= limit), 0)

    def check(self, *, allow_weak: bool = False) -> Self:
        """Itself, when it makes sense and is at least 128 bits strong."""
        numbers = (self.degree, *self.moduli, self.scale_bits, self.matrix_bits, self.depth)
        if any(type(number) is not int or number < 0 for number in numbers):
            raise UsageError(f"{self}: parameters are whole numbers >= 0")
        if self.degree not in _LIMITS:
            raise UsageError.of(self, "degree", self.degree, f"must be one of {list(_LIMITS)}")
        if not self.moduli or not all(20 <= bits <= 60 for bits in self.moduli):
            raise UsageError.of(self, "moduli", self.moduli, "must be primes of 20 to 60 bits")
        if self.depth and not self.matrix_bits:
            raise UsageError.of(self, "matrix_bits", self.matrix_bits, "must be > 0 for products")
        if self.headroom(self.depth) < 2 or self.scale_bits < 16:
            raise UsageError.of(
                self, "scale_bits", self.scale_bits, "must be >= 16 and leave room in the moduli"
            )
        total, limit = sum(self.moduli), _LIMITS[self.degree][0]
        if total > limit:
            error = UsageError.of(
                self,
                "moduli",
                self.moduli,
                f"are {total} bits, 128-bit security at degree {self.degree} allows {limit}",
            )
            if not allow_weak:
                raise error
            warnings.warn(f"WEAK ENCRYPTION: {error}", WeakParameters, stacklevel=3)
        return self

    def to_list(self) -> list[int]:
        return [self.degree, self.scale_bits, self.matrix_bits, self.depth, *self.moduli]

    @classmethod
    def from_list(cls, numbers: Any) -> Parameters:
        """Inverse of :meth:`to_list` for numbers of unknown origin, checked."""
        if type(numbers) is not list or not 5 <= len(numbers) <= 64:
            raise PayloadError("damaged encryption parameters")
        degree, scale_bits, matrix_bits, depth, *moduli = numbers
        try:
            parameters = cls(degree, tuple(moduli), scale_bits, matrix_bits, depth)
            return ring(parameters.check()).parameters
        except UsageError as error:
            raise PayloadError(error.message) from None


CLIENT = Parameters(8192, (60, 60), scale_bits=44)
"""Sums only (``finish="client"``): key holders decrypt the sum and go on in the clear."""
COORDINATOR = Parameters(8192, (60, 60, 60), scale_bits=56, matrix_bits=48, depth=1)
"""One product by plaintext matrices at the coordinator, to 1e-6 relative.

With (60, 40, 60) the noise of rotations reaches 2e-6 on unscaled data."""
COMPAT = Parameters(8192, (54, 54, 54, 56), scale_bits=54, matrix_bits=46, depth=2)
"""Two products in a row, as in the thesis, to 1e-6 relative."""
SMALL = Parameters(4096, (27, 27, 27, 28), scale_bits=38, matrix_bits=33, depth=1)
"""For devices, sums or one product of up to 256 clients. LOWER PRECISION: 1e-4 relative."""
SMALL_CLIENT = Parameters(4096, (60, 49), scale_bits=44)
"""For devices, sums only: half the size of ``CLIENT`` for up to 4,096 numbers, as precise."""


# --- SEAL ----------------------------------------------------------------------------------------


@cache
def seal() -> Any:
    """The library, imported when it is first used."""
    try:
        return import_module("tenseal.sealapi")
    except ImportError:
        raise MissingExtra.of("encryption", "he") from None


def context(parameters: Parameters, seed: bytes | None = None) -> Any:
    """SEAL's context; with ``seed``, of 64 secret bytes, all that is drawn in it follows from it.

    Every draw begins the same sequence again: one context with a seed is for one draw.
    """
    api = seal()
    settings = api.EncryptionParameters(api.SCHEME_TYPE.CKKS)
    settings.set_poly_modulus_degree(parameters.degree)
    primes = api.CoeffModulus.Create(parameters.degree, list(parameters.moduli))
    settings.set_coeff_modulus(primes)
    if seed is not None:
        words = [int.from_bytes(seed[i : i + 8], "little") for i in range(0, 64, 8)]
        settings.set_random_generator(api.Blake2xbPRNGFactory(words))
    return api.SEALContext(settings, True, api.SEC_LEVEL_TYPE.NONE)


class Ring:
    """SEAL's objects for one set of parameters. No keys."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        api = seal()
        try:
            self.context = context(parameters)
            self.encoder = api.CKKSEncoder(self.context)
        except (RuntimeError, ValueError) as error:
            raise UsageError(f"{parameters}: {error}") from None
        self.evaluator = api.Evaluator(self.context)
        self._top = self.context.first_context_data()
        self.primes: list[int] = [prime.value() for prime in self._top.parms().coeff_modulus()]

    def place(self, layout: Layout, level: int) -> tuple[list[int], float]:
        """Modulus and scale of a ciphertext; ``rows`` alone have been rescaled, by one prime."""
        scale = 2.0 ** (self.parameters.scale_bits + level * self.parameters.matrix_bits)
        if layout != "rows":
            return self._top.parms_id(), scale
        return self._top.next_context_data().parms_id(), scale / self.primes[-1]

    def encode(self, slots: NDArray[Any], parms_id: list[int], scale: float) -> Any:
        plaintext = seal().Plaintext()
        self.encoder.encode(slots.tolist(), parms_id, scale, plaintext)
        return plaintext

    def load(self, kind: str, data: bytes) -> Any:
        """A SEAL object from its bytes; SEAL checks that they fit the parameters."""
        thing = getattr(seal(), kind)()
        try:
            with _scratch(data) as path:
                thing.load(self.context, path)
        except Exception as error:
            raise PayloadError(f"damaged {kind}: {error}") from None
        return thing

    def ciphertext(self, data: bytes, layout: Layout, level: int) -> Any:
        """A ciphertext of two polynomials at the modulus and scale of its level."""
        most = 16 * len(self.parameters.moduli) * self.parameters.degree + 4096
        if len(data) > most:
            raise PayloadError(f"damaged Ciphertext: {len(data):,} bytes are more than {most:,}")
        ciphertext = self.load("Ciphertext", data)
        parms_id, scale = self.place(layout, level)
        if (ciphertext.parms_id(), ciphertext.scale, ciphertext.size()) != (parms_id, scale, 2):
            raise PayloadError("damaged Ciphertext: its modulus, scale or size is unexpected")
        if not ciphertext.is_ntt_form() or ciphertext.is_transparent():
            raise PayloadError("damaged Ciphertext: it encrypts nothing")
        return ciphertext


@lru_cache(maxsize=8)
def ring(parameters: Parameters) -> Ring:
    return Ring(parameters)


@contextmanager
def _scratch(data: bytes = b"") -> Iterator[str]:
    """A path holding ``data``, the only way in and out of SEAL: in memory where the system can."""
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("solera"), "wb", buffering=0) as file:
            file.write(data)
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "scratch"
            path.write_bytes(data)
            yield str(path)


def dump(thing: Any) -> bytes:
    with _scratch() as path:
        thing.save(path)
        return Path(path).read_bytes()
