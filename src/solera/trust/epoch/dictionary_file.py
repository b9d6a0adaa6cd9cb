"""Dictionaries as TOML, one line for a column.

identifier = "patient"       # whose row it is; never shown, and no column
target = "died"              # what is predicted, unless a job says otherwise; or several labels
time = "admitted"            # the time axis, where there is one

[columns]
age = { kind = "numeric", unit = "years", bounds = [18, 110], grid = 1 }
sex = { kind = "categorical", categories = ["female", "male"] }
admitted = { kind = "date", bounds = [2010-01-01, 2024-12-31], missing = true }
died = { kind = "categorical", categories = ["no", "yes"] }

[populations.elderly-women]
age = { min = 65 }
sex = { in = ["female"] }

[bases.minilm]               # a base model that so.FedLoRA may adapt, see so.nn.list_base
digest = "6f1e…"
hidden = 384

[bases.minilm.layers]
"encoder.layer.0.attention.self.query" = [384, 384]
"""

from __future__ import annotations

import json
import math
import sys
import tomllib
from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import numpy as np

from solera.core.config import Problem, Where, errors_located, nearest, read_text
from solera.core.schema import Kind
from solera.trust.epoch.bases import Base
from solera.trust.epoch.populations import Criterion, Population, is_plain_name

if TYPE_CHECKING:
    from solera.trust.epoch.dictionary import Dictionary, DictionaryColumn

D = TypeVar("D", bound="Dictionary")
EPOCH_TABLE = "epoch"
"""The table of a draft that says who is to sign; see :mod:`solera.trust.epoch.epoch`."""
_LARGEST = sys.float_info.max
_COLUMN = ("kind", "unit", "categories", "bounds", "grid", "missing")
_CRITERION = ("min", "max", "in")
_BASE = ("digest", "hidden", "layers")


def read_dictionary(cls: type[D], path: Any) -> D:
    """The dictionary of a file."""
    return parse_dictionary(cls, read_text(path, hint="solera dictionary draft"), str(path))


def parse_dictionary(cls: type[D], text: str, file: str) -> D:
    """The dictionary that TOML text declares."""
    with errors_located(text, file):
        return from_tables(cls, tomllib.loads(text))


def from_tables(cls: type[D], content: Mapping[str, Any]) -> D:
    """The dictionary that the tables of a file declare."""
    known = ("identifier", "target", "time", "columns", "populations", "bases")
    _check_names(content, (*known, EPOCH_TABLE), "a dictionary", ())
    target = content.get("target", [])
    columns = tuple(_column(name, entry) for name, entry in _table(content, "columns").items())
    kinds = {column.name: column.kind for column in columns}
    return cls(
        columns=columns,
        target=_texts([target] if isinstance(target, str) else target, ("target",)),
        identifier=_text(content.get("identifier", ""), ("identifier",)),
        time=_text(content.get("time", ""), ("time",)),
        populations=tuple(
            _population(name, entry, kinds)
            for name, entry in _table(content, "populations").items()
        ),
        bases=tuple(_base(name, entry) for name, entry in _table(content, "bases").items()),
    )


def _column(name: str, entry: Any) -> DictionaryColumn:
    from solera.trust.epoch.dictionary import DictionaryColumn

    where: Where = ("columns", name)
    if not isinstance(entry, Mapping):
        raise Problem(where, f"column {name!r} is a table, not {entry!r}", hint="{ kind = … }")
    _check_names(entry, _COLUMN, f"column {name!r}", where)
    kind = entry.get("kind", "numeric")
    if kind not in get_args(Kind):
        hint = nearest(str(kind), get_args(Kind))
        raise Problem((*where, "kind"), f"column {name!r}: there is no kind {kind!r}", hint=hint)
    bounds, grid = entry.get("bounds"), entry.get("grid")
    if bounds is not None:
        if not isinstance(bounds, list) or len(bounds) != 2:
            raise Problem((*where, "bounds"), f"column {name!r}: bounds are two values, low first")
        bounds = tuple(_number(each, kind, name, (*where, "bounds")) for each in bounds)
    if grid is not None:
        grid = _number(grid, "numeric", name, (*where, "grid"))
    categories = _texts(entry.get("categories", []), (*where, "categories"))
    unit = _text(entry.get("unit", ""), (*where, "unit"))
    missing = entry.get("missing", False)
    if not isinstance(missing, bool):
        raise Problem((*where, "missing"), f"column {name!r}: missing is true or false")
    return DictionaryColumn(name, kind, unit, categories, bounds, grid, missing)


def _population(name: str, entry: Any, kinds: Mapping[str, Kind]) -> Population:
    where: Where = ("populations", name)
    if not isinstance(entry, Mapping):
        raise Problem(where, f"population {name!r} is a table of columns", hint="{ age = { … } }")
    criteria = (_criterion(c, each, kinds.get(c, "numeric"), where) for c, each in entry.items())
    return Population(name, tuple(criteria))


def _criterion(column: str, entry: Any, kind: Kind, where: Where) -> Criterion:
    where = (*where, column)
    if not isinstance(entry, Mapping) or not entry or ({"min", "max"} & {*entry} and "in" in entry):
        raise Problem(where, f"column {column!r}: {{ min = …, max = … }} or {{ in = […] }}")
    _check_names(entry, _CRITERION, f"a criterion of column {column!r}", where)
    ends = {
        name: _number(entry[name], kind, column, where) for name in ("min", "max") if name in entry
    }
    categories = _texts(entry.get("in", []), where)
    return Criterion(column, ends.get("min", -math.inf), ends.get("max", math.inf), categories)


def _base(name: str, entry: Any) -> Base:
    where: Where = ("bases", name)
    if not isinstance(entry, Mapping) or not isinstance(entry.get("layers", {}), Mapping):
        raise Problem(where, f"base {name!r} is a table", hint="so.nn.list_base(model)")
    _check_names(entry, _BASE, f"base {name!r}", where)
    digest = _text(entry.get("digest", ""), (*where, "digest"))
    (hidden,) = _sizes([entry.get("hidden", 0)], 1, (*where, "hidden"))
    layers = entry.get("layers", {}).items()
    shapes = ((layer, *_sizes(shape, 2, (*where, "layers", layer))) for layer, shape in layers)
    return Base(name, digest, hidden, tuple(shapes))


def _sizes(values: Any, count: int, where: Where) -> list[int]:
    """So many sizes of layers."""
    if (
        not isinstance(values, list)
        or [type(value) for value in values] != [int] * count
        or min(values) < 1
    ):
        raise Problem(where, f"{where[-1]} = {values!r} is not {count} whole numbers above 0")
    return values


def _table(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = content.get(name, {})
    if not isinstance(table, Mapping):
        raise Problem((name,), f"{name} is a table: [{name}]")
    return table


def _check_names(table: Mapping[str, Any], known: Any, what: str, where: Where) -> None:
    for name in table:
        if name not in known:
            raise Problem((*where, name), f"{what} has no {name!r}", hint=nearest(name, known))


def _text(value: Any, where: Where) -> str:
    if not isinstance(value, str):
        raise Problem(where, f"{where[-1]} = {value!r} is not text")
    return value


def _texts(value: Any, where: Where) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise Problem(where, f"{where[-1]} = {value!r} is not a list of texts")
    return tuple(value)


def _number(value: Any, kind: str, name: str, where: Where) -> float:
    """A number, or of a date the days since 1970-01-01."""
    if kind == "date" and type(value) is date:
        return float(np.datetime64(value, "D").astype(np.int64))
    if kind == "date" or isinstance(value, bool) or not isinstance(value, int | float):
        wanted = "a date such as 2024-05-31" if kind == "date" else "a number"
        raise Problem(where, f"column {name!r}: {value!r} is not {wanted}")
    if abs(value) > _LARGEST:
        raise Problem(where, f"column {name!r}: there is no such number")
    return float(value)


# --- writing ---


def dictionary_text(dictionary: Dictionary) -> str:
    """The text of a dictionary; equal dictionaries have equal text."""
    lines = []
    if dictionary.identifier:
        lines.append(f"identifier = {quoted(dictionary.identifier)}")
    if dictionary.target:
        several = len(dictionary.target) > 1
        lines.append(
            f"target = {_list(dictionary.target) if several else quoted(*dictionary.target)}"
        )
    if dictionary.time:
        lines.append(f"time = {quoted(dictionary.time)}")
    lines += ["", "[columns]"] if lines else ["[columns]"]
    lines += [f"{key(c.name)} = {column_entry(c)}" for c in dictionary.columns]
    for population in dictionary.populations:
        lines += ["", f"[populations.{population.name}]"]
        for criterion in population.criteria:
            entry = _criterion_entry(criterion, dictionary.by_name[criterion.column].kind)
            lines.append(f"{key(criterion.column)} = {entry}")
    for base in dictionary.bases:
        lines += ["", *base_lines(base)]
    return "\n".join(lines) + "\n"


def base_lines(base: Base) -> list[str]:
    """The lines that list a base model."""
    name = key(base.name)
    lines = [f"[bases.{name}]", f"digest = {quoted(base.digest)}", f"hidden = {base.hidden}"]
    lines += ["", f"[bases.{name}.layers]"]
    return [*lines, *(f"{key(layer)} = [{wide}, {narrow}]" for layer, wide, narrow in base.layers)]


def column_entry(column: DictionaryColumn) -> str:
    """What stands behind the name of a column."""
    parts = [f"kind = {quoted(column.kind)}"]
    if column.unit:
        parts.append(f"unit = {quoted(column.unit)}")
    if column.categories:
        parts.append(f"categories = {_list(column.categories)}")
    if column.bounds is not None:
        ends = ", ".join(value_text(end, column.kind) for end in column.bounds)
        parts.append(f"bounds = [{ends}]")
    if column.grid is not None:
        parts.append(f"grid = {value_text(column.grid)}")
    if column.missing:
        parts.append("missing = true")
    return f"{{ {', '.join(parts)} }}"


def _criterion_entry(criterion: Criterion, kind: Kind) -> str:
    if criterion.categories:
        return f"{{ in = {_list(criterion.categories)} }}"
    ends = (("min", criterion.low), ("max", criterion.high))
    parts = [f"{name} = {value_text(end, kind)}" for name, end in ends if math.isfinite(end)]
    return f"{{ {', '.join(parts)} }}"


def value_text(value: float, kind: Kind = "numeric") -> str:
    """A number as TOML has it, a date as such where it is a whole day."""
    if kind == "date" and value.is_integer():
        return str(np.datetime64(int(value), "D"))
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def key(name: str) -> str:
    """The name of an entry, in quotes where it must be."""
    return name if is_plain_name(name) else quoted(name)


def quoted(text: str) -> str:
    """Text in quotes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(texts: tuple[str, ...]) -> str:
    return f"[{', '.join(map(quoted, texts))}]"
