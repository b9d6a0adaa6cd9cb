"""Terms as words of 64 bits whose sum is exact, with the number of owners before them.

A number takes two words, its whole part and the rest (:mod:`solera.trust.encoding`), so that the
total does not depend on the order of owners, nor on anything else but the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.errors import DataError
from solera.trust import encoding
from solera.trust.encoding import TWO_WORDS, Encoding, form_of

WORD = 8
MOST_WORDS = 1 << 24
"""Words of one sum."""

Words = NDArray[np.uint64]


def words_of(terms: Any, owners: int) -> tuple[Words, Any]:
    """The words of [1, terms], and their form."""
    form = _checked_form(terms)
    words = np.zeros(size_of(form), np.uint64)
    Encoding(owners).add_words([1, terms], words)
    return words, form


def add_words(terms: Any, form: Any, total: Words, owners: int) -> bool:
    """Add the words of [1, terms] to a total of this form; False where theirs is another."""
    if _checked_form(terms) != form:
        return False
    Encoding(owners).add_words([1, terms], total)
    return True


def _checked_form(terms: Any) -> Any:
    form = form_of([1, terms])
    if (size := size_of(form)) > MOST_WORDS:
        raise DataError(
            f"a sum of {size:,} words, a closed job takes up to {MOST_WORDS:,}",
            hint="a smaller model",
        )
    return form


def size_of(form: Any) -> int:
    """How many words a sum of this form has; 0 where there is none."""
    return 0 if form is None else encoding.size_of(form, TWO_WORDS)


def added(contents: Sequence[bytes]) -> Words:
    """Σ of all owners' words, modulo 2^64."""
    return sum_of([np.frombuffer(content, "<u8") for content in contents])


def sum_of(owners_words: Sequence[Words]) -> Words:
    """Σ of all owners' words, modulo 2^64."""
    total = np.zeros(len(owners_words[0]), np.uint64)
    for words in owners_words:
        total += words
    return total


def count_of(words: Words) -> int:
    """Word 0: how many owners' words these are the sum of."""
    return int(words[0]) if len(words) else 0


def numbers_of(words: Words, form: Any, owners: int) -> Any:
    """The terms that add up to these words."""
    return Encoding(owners).numbers(words, form)[1]
