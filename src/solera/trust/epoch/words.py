"""A hash as a few words that people compare by voice.

Proquints (Wilkerson 2009): five letters for 16 bits, consonants and vowels in turn, so that they
can be said and spelled in any language. The hash passes through scrypt (RFC 7914) first: somebody
in the middle who shows each side another epoch needs two that have the same words, 2⁴⁰ attempts of
which each takes some 40 ms.
"""

from __future__ import annotations

import hashlib

WORDS = 5
_CONSONANTS = "bdfghjklmnprstvz"
_VOWELS = "aiou"


def words_of(digest: bytes) -> str:
    """The words of a hash."""
    slow = hashlib.scrypt(digest, salt=b"solera words 1", n=1 << 14, r=8, p=1, dklen=2 * WORDS)
    return " ".join(_word(int.from_bytes(slow[i : i + 2], "big")) for i in range(0, len(slow), 2))


def _word(bits: int) -> str:
    letters = [
        (_VOWELS[bits >> shift & 3] if shift in (10, 4) else _CONSONANTS[bits >> shift & 15])
        for shift in (12, 10, 6, 4, 0)
    ]
    return "".join(letters)
