"""Identifiers as people write them, made comparable by a rule that all parties declare.

``plain``
    without case and outer spaces, in Unicode's composed form (NFC): ``" José  GARCÍA-1"`` is
    ``"josé  garcía-1"``. The default: nothing that tells two people apart is taken away.
``exact``
    as it is, in Unicode's composed form.

Looser rules join identifiers that differ in what they leave out, -5 with 5 and 1-2 with 12:

``text``
    without case, accents, spaces and punctuation: ``" José  GARCÍA-1"`` is ``"josegarcia1"``.
``digits``
    the digits alone, without leading zeros: ``"ID 00-123"`` is ``"123"``.
``date``
    text of which dates become ISO days: ``"García 3/12/1990"`` is ``"garcia19901203"``. Days come
    before months where both could be meant.

The rule is part of what owners approve; nothing about identifiers leaves with it.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

import numpy as np

from solera.core.clients import Array, IntArray
from solera.core.errors import DataError

Normalisation = Literal["plain", "exact", "text", "digits", "date"]

_YEAR_FIRST = re.compile(r"(?<!\d)(\d{4})[-/. ](\d{1,2})[-/. ](\d{1,2})(?!\d)")
_DAY_FIRST = re.compile(r"(?<!\d)(\d{1,2})[-/. ](\d{1,2})[-/. ](\d{4})(?!\d)")


def normalise(identifier: str, rule: Normalisation) -> str:
    """The identifier as it is compared."""
    if rule == "plain":
        identifier = identifier.strip().casefold()
    if rule in ("plain", "exact"):
        return unicodedata.normalize("NFC", identifier)
    if rule == "digits":
        digits = "".join(str(unicodedata.digit(c)) for c in identifier if c.isdigit())
        return digits.lstrip("0") or digits[:1]
    if rule == "date":
        identifier = _YEAR_FIRST.sub(lambda m: _day(m[1], m[2], m[3]), identifier)
        identifier = _DAY_FIRST.sub(lambda m: _day(m[3], m[2], m[1]), identifier)
    letters = unicodedata.normalize("NFKD", identifier).casefold()
    letters = unicodedata.normalize("NFKD", letters)
    return "".join(c for c in letters if c.isalnum())


def _day(year: str, month: str, day: str) -> str:
    if int(month) > 12 >= int(day):
        month, day = day, month
    return f" {int(year):04d}{int(month):02d}{int(day):02d} "


def normalised(identifiers: Array, rule: Normalisation) -> list[str]:
    """All identifiers as they are compared.

    One that is missing, or that two rows share, is an error that says how many and in which rows,
    and not whose they are: errors travel.
    """
    found = [normalise(str(identifier), rule) for identifier in identifiers]
    empty = [row for row, identifier in enumerate(found) if not identifier]
    if empty:
        raise DataError(
            f"{len(empty):,} identifiers are missing, {_rows(empty)}",
            hint="leave these rows out: nobody can say whose they are",
        )
    numbers = repeated(found)
    if len(numbers):
        raise DataError(
            f"{len(numbers):,} rows share their identifier with another one, {_rows(numbers)}",
            hint=f"keep one row of each; identifiers were compared as {rule!r}",
        )
    return found


def repeated(identifiers: list[str]) -> IntArray:
    """The numbers of rows whose identifier some other row has, too."""
    _, which, counts = np.unique(
        np.array(identifiers, dtype=object), return_inverse=True, return_counts=True
    )
    return np.flatnonzero(counts[which] > 1)


def _rows(numbers: list[int] | IntArray) -> str:
    shown = ", ".join(str(int(n)) for n in numbers[:5])
    return f"in rows {shown}{' …' if len(numbers) > 5 else ''}"
