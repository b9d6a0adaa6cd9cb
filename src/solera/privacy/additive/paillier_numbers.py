"""Paillier's cipher on whole numbers, with the short exponents of Damgård, Jurik and Nielsen.

Modulo n², [[m]] = (1 + n·m) · hⁿʳ, where −h is a random square and r is short: instead of a random
n-th power, a random power of one (Damgård, Jurik, Nielsen 2010, *A generalization of Paillier's
public-key system*, section 4.2). r has twice as many bits as the key has bits of security, which is
safe as long as discrete logarithms with short exponents are hard (Koshiba, Kurosawa 2004). The
powers come from a table of hⁿ, one product for every eight bits of r. Decryption uses the Chinese
remainder theorem: two powers modulo p² and q², of half the length.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Any

from solera.core.errors import MissingExtra, PayloadError

_SECURITY = {2048: 112, 3072: 128, 4096: 152, 7680: 192}
"""Bits of security of moduli (NIST SP 800-57, part 1, table 2; 4096 by SP 800-56B)."""
SIZES = tuple(_SECURITY)


@cache
def gmp() -> Any:
    """The library, imported when it is first used."""
    try:
        return import_module("gmpy2")
    except ImportError:
        raise MissingExtra.of("Paillier's cipher", "vertical") from None


@dataclass(frozen=True)
class Modulus:
    """A public key: n, and h^n modulo n²."""

    n: Any
    power: Any

    @property
    def bits(self) -> int:
        return int(self.n.bit_length())

    @property
    def security(self) -> int:
        return _SECURITY[self.bits]

    @cached_property
    def square(self) -> Any:
        return self.n * self.n

    @cached_property
    def _table(self) -> list[list[Any]]:
        """hⁿ to the powers 0 … 255 times 256^k, for every byte k of an exponent."""
        base, table = self.power, []
        for _ in range(2 * self.security // 8):
            line = [gmp().mpz(1)]
            for _ in range(255):
                line.append(line[-1] * base % self.square)
            table.append(line)
            base = line[-1] * base % self.square
        return table

    def zero(self) -> Any:
        """A new ciphertext of 0."""
        product = gmp().mpz(1)
        square, table = self.square, self._table
        for line, byte in zip(table, secrets.token_bytes(len(table)), strict=True):
            product = product * line[byte] % square
        return product

    def plain(self, number: Any) -> Any:
        """A ciphertext of a number without randomness, to add a known number to another."""
        return (1 + self.n * (number % self.n)) % self.square

    def encrypt(self, number: Any) -> Any:
        return self.plain(number) * self.zero() % self.square

    @property
    def length(self) -> int:
        """Bytes of a ciphertext."""
        return 2 * self.bits // 8

    def write(self, ciphertext: Any) -> bytes:
        return int(ciphertext).to_bytes(self.length, "little")

    def read(self, data: bytes) -> Any:
        """A ciphertext; 0 and what has no inverse is none."""
        if len(data) != self.length:
            raise PayloadError(f"a ciphertext has {self.length} bytes, not {len(data)}")
        number = gmp().mpz.from_bytes(data, "little")
        if not 0 < number < self.square or gmp().gcd(number, self.n) != 1:
            raise PayloadError("damaged ciphertext: no key makes this number")
        return number


@dataclass(frozen=True)
class Factors:
    """A secret key: the primes of n."""

    p: Any
    q: Any

    @cached_property
    def _half(self) -> Any:
        """For each prime: itself, its square, and by what a power becomes the number."""
        n = self.p * self.q
        halves = []
        for prime in (self.p, self.q):
            square = prime * prime
            power = gmp().powmod(1 + n, prime - 1, square)
            halves.append((prime, square, gmp().invert((power - 1) // prime, prime)))
        return halves

    @cached_property
    def _inverse(self) -> Any:
        return gmp().invert(self.p, self.q)

    def decrypt(self, ciphertext: Any) -> Any:
        """The number, between 0 and n − 1."""
        remainders = []
        for prime, square, inverse in self._half:
            power = gmp().powmod(ciphertext % square, prime - 1, square)
            remainders.append((power - 1) // prime * inverse % prime)
        at_p, at_q = remainders
        return at_p + self.p * ((at_q - at_p) * self._inverse % self.q)


def generate_factors(bits: int, seed: bytes | None = None) -> tuple[Factors, Modulus]:
    """A new pair; the same from the same ``seed`` of secret random bytes.

    Both primes are 3 modulo 4 and begin with the bits 11, so that n has exactly ``bits`` bits and
    every −x² generates the same kind of group.
    """
    numbers = _draws(secrets.token_bytes(64) if seed is None else seed, bits // 2)
    p = _prime(numbers, bits // 2)
    q = _prime(numbers, bits // 2)
    while q == p:
        q = _prime(numbers, bits // 2)
    n = p * q
    x = (next(numbers) << (bits // 2) | next(numbers)) % n
    h = -x * x % n
    return Factors(p, q), Modulus(n, gmp().powmod(h, n, n * n))


def _draws(seed: bytes, bits: int) -> Iterator[Any]:
    """Uniform numbers of so many bits that follow from the seed (SHAKE-256 of seed and count)."""
    count = 0
    while True:
        data = hashlib.shake_256(seed + count.to_bytes(8, "little")).digest(bits // 8)
        yield gmp().mpz.from_bytes(data, "little")
        count += 1


def _prime(numbers: Iterator[Any], bits: int) -> Any:
    top = gmp().mpz(3) << (bits - 2)
    while True:
        candidate = next(numbers) | top | 3
        if gmp().is_prime(candidate, 40):
            return candidate
