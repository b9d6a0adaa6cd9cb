"""Numbers and names as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev


def number(value: float | None) -> str:
    """Three decimals; a dash for no number."""
    if value is None:
        return "–"
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def mean_and_spread(values: Sequence[float | None]) -> str:
    """``0.912 ± 0.004``, mean and standard deviation; a dash when a value is missing."""
    known = [float(value) for value in values if value is not None]
    if len(known) < len(values) or not known:
        return number(None)
    return number(fmean(known)) + (f" ± {number(stdev(known))}" if len(known) > 1 else "")


def capital(text: str) -> str:
    """With a capital letter, as a sentence begins."""
    return text[:1].upper() + text[1:]
