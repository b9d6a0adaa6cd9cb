"""What of a table does not fit a dictionary, column by column, and what would mend it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from solera.core.clients import FloatArray
from solera.core.errors import DataError
from solera.data.frames import category_texts, encode_column, some_of, to_pandas, typed
from solera.trust.epoch.dictionary import Dictionary, DictionaryColumn
from solera.trust.epoch.dictionary_file import column_entry, key, quoted

UNITS: Mapping[str, Sequence[tuple[str, float, float]]] = {
    "kg": [("pounds", 0.0, 0.45359237), ("grams", 0.0, 0.001)],
    "g": [("kilograms", 0.0, 1000.0)],
    "cm": [("metres", 0.0, 100.0), ("inches", 0.0, 2.54), ("millimetres", 0.0, 0.1)],
    "m": [("centimetres", 0.0, 0.01)],
    "years": [("months", 0.0, 1 / 12), ("days", 0.0, 1 / 365.25)],
    "months": [("years", 0.0, 12.0)],
    "days": [("hours", 0.0, 1 / 24), ("weeks", 0.0, 7.0)],
    "°C": [("Fahrenheit", -32.0, 5 / 9)],
    "mmHg": [("kilopascals", 0.0, 7.50062)],
    "mmol/L": [("mg/dL of glucose", 0.0, 0.0555), ("mg/dL of cholesterol", 0.0, 0.02586)],
    "mg/dL": [("mmol/L of glucose", 0.0, 18.016), ("mmol/L of cholesterol", 0.0, 38.67)],
    "µmol/L": [("mg/dL of creatinine", 0.0, 88.42)],
}
"""By the dictionary's unit: what else columns are in, as (value + plus) × times."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """One thing about a column that does not fit.

    ``mend`` is a line for ``[columns]`` of the policy file, or where no translation mends it, of
    the dictionary's (``in_dictionary``); empty where only the table itself can be mended.
    """

    column: str
    what: str
    mend: str = ""
    in_dictionary: bool = False


def misfits(
    dictionary: Dictionary, frame: Any, *, sources: Mapping[str, str] | None = None
) -> list[Misfit]:
    """Everything in a frame that does not fit a dictionary.

    ``sources`` says what columns that were translated are called in the table itself.

    Examples
    --------
    >>> import pandas, solera as so
    >>> dictionary = so.epochs.Dictionary.parse('''
    ... [columns]
    ... weight = { unit = "kg", bounds = [30, 200] }
    ... sex = { kind = "categorical", categories = ["female", "male"] }
    ... ''')
    >>> table = pandas.DataFrame({"weight": [155.5, 310.0], "Sex": ["F", "M"]})
    >>> for misfit in so.epochs.misfits(dictionary, table):
    ...     print(misfit.mend)
    weight = { from = "weight", times = 0.45359237 }  # pounds
    sex = { from = "Sex", categories = { F = "female", M = "male" } }
    """
    return list(_each_misfit(dictionary, to_pandas(frame), sources or {}))


def first_misfit(dictionary: Dictionary, frame: Any) -> Misfit | None:
    """The first thing that does not fit, if any."""
    return next(_each_misfit(dictionary, frame, {}), None)


def _each_misfit(
    dictionary: Dictionary, frame: Any, sources: Mapping[str, str]
) -> Iterator[Misfit]:
    known = list(frame.columns)
    if dictionary.identifier:
        yield from _identifier(dictionary.identifier, frame, known)
    for column in dictionary.columns:
        source = sources.get(column.name, column.name)
        if column.name in known:
            yield from _column(column, frame[column.name], source)
        elif name := _nearest(column.name, known, dictionary):
            yield from _renamed(column, frame[name], name)
        else:
            yield Misfit(column.name, f"is not in the table, which has {some_of(known, 20)}")


def _identifier(name: str, frame: Any, known: Sequence[str]) -> Iterator[Misfit]:
    if name not in known:
        nearest = get_close_matches(name, known, n=1)
        mend = f"{key(name)} = {{ from = {quoted(nearest[0])} }}" if nearest else ""
        yield Misfit(name, "says whose row it is, and is not in the table", mend)
    elif missing := int(frame[name].isna().sum()):
        yield Misfit(name, f"is missing in {_rows(missing, frame)}, which are then nobody's")


def _renamed(column: DictionaryColumn, series: Any, name: str) -> Iterator[Misfit]:
    """A column that is there under another name; what else is to be translated goes with it."""
    inside = next(_column(column, series, name), None)
    said = f"is called {name!r} here" + (f" and {inside.what}" if inside else "")
    mend = inside.mend if inside else ""
    if not mend or (inside and inside.in_dictionary):
        mend = f"{key(column.name)} = {{ from = {quoted(name)} }}"
    yield Misfit(column.name, said, mend)


def _nearest(name: str, known: Sequence[str], dictionary: Dictionary) -> str:
    """A column that the dictionary does not name and that is called much the same."""
    free = {_plain(k): k for k in known if k not in dictionary.by_name}
    found = get_close_matches(_plain(name), list(free), n=1, cutoff=0.75)
    return free[found[0]] if found else ""


def _plain(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _column(column: DictionaryColumn, series: Any, source: str) -> Iterator[Misfit]:
    missing = int(series.isna().sum())
    if missing and not column.missing:
        entry = f"{key(column.name)} = {column_entry(replace(column, missing=True))}"
        yield Misfit(column.name, f"is missing in {_rows(missing, series)}", entry, True)
    if column.kind == "categorical":
        yield from _categories(column, series, source)
        return
    try:
        values = encode_column(series, column.feature)
    except DataError as error:
        said = error.message.removeprefix(f"column {column.name!r} ")
        said = said.removeprefix(f"column {series.name!r} ")
        yield Misfit(column.name, said)
        return
    yield from _outside(column, values, source)


def _categories(column: DictionaryColumn, series: Any, source: str) -> Iterator[Misfit]:
    texts = category_texts(typed(series))
    here = sorted({text for text in texts if text is not None})
    strangers = [text for text in here if text not in column.categories]
    if not strangers:
        return
    meant = {text: _meant(text, column.categories) for text in here}
    names = ", ".join(f"{key(text)} = {quoted(name or '?')}" for text, name in meant.items())
    yield Misfit(
        column.name,
        f"holds {some_of(map(repr, strangers))}, known are {some_of(map(repr, column.categories))}",
        f"{key(column.name)} = {{ from = {quoted(source)}, categories = {{ {names} }} }}",
    )


def _meant(text: str, categories: Sequence[str]) -> str:
    """The category that a text most likely stands for; nothing where none does."""
    if text in categories:
        return text
    plain = {_plain(name): name for name in categories}
    if _plain(text) in plain:
        return plain[_plain(text)]
    begins = [
        name for short, name in plain.items() if _plain(text) and short.startswith(_plain(text))
    ]
    if len(begins) == 1:
        return begins[0]
    truth = {"0": ("no", "false"), "1": ("yes", "true"), "false": ("no", "0"), "true": ("yes", "1")}
    same = [plain[word] for word in truth.get(_plain(text), ()) if word in plain]
    near = get_close_matches(_plain(text), list(plain), n=1, cutoff=0.8)
    return same[0] if same else plain[near[0]] if near else ""


def _outside(column: DictionaryColumn, values: FloatArray, source: str) -> Iterator[Misfit]:
    assert column.bounds is not None
    low, high = column.bounds
    outside = values[(values < low) | (values > high)]
    if np.isinf(values).any():
        yield Misfit(column.name, "holds infinite values")
    elif len(outside):
        text = column.feature.text
        far = {float(outside.min()), float(outside.max())}
        what = (
            f"has values outside {text(low)} … {text(high)}: "
            f"{', '.join(map(text, sorted(far)))}, in {_rows(len(outside), values)}"
        )
        for unit, plus, times in UNITS.get(column.unit, ()):
            known = (values[~np.isnan(values)] + plus) * times
            if ((known >= low) & (known <= high)).all():
                added = f", plus = {plus:g}" if plus else ""
                mend = (
                    f"{key(column.name)} = "
                    f"{{ from = {quoted(source)}{added}, times = {times:.10g} }}  # {unit}"
                )
                yield Misfit(column.name, f"{what}; as {unit} all fit", mend)
                return
        yield Misfit(column.name, what)


def _rows(count: int, all_rows: Any) -> str:
    return f"{count:,} of {len(all_rows):,} rows"
