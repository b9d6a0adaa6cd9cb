"""Tables of studies that lie beside the coordinator, for the page that compares.

Who looks after the coordinator puts the folder of a study, or its ``metrics.csv`` alone, at
``studies/<federation>/<name>`` of the coordinator's folder; people of that federation see it.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from solera.core.errors import DataError

_MOST_BYTES = 1 << 26
_JUDGED = ("clients", "test", "validation")
"""What a study is compared by, the first that it has: jobs are judged on clients' rows, too."""
_PLACES = {"cell", "seed", "fold", "part", "round", "client", "metric", "value", "rows"}


class Repeated(NamedTuple):
    """What differs in nothing but the seed: its name, and metrics by seed."""

    name: str
    seeds: dict[int, dict[str, float]]


def studies(folder: Path | None, federation: str) -> dict[str, Path]:
    """The tables of a federation's studies by name."""
    if folder is None:
        return {}
    return {
        table.parent.name: table for table in sorted((folder / federation).glob("*/metrics.csv"))
    }


def configurations(table: Path) -> list[Repeated]:
    """What a study compared: every configuration with its metrics by seed, means over folds."""
    if table.stat().st_size > _MOST_BYTES:
        raise DataError(f"its metrics.csv has over {_MOST_BYTES >> 20} MB")
    with table.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        try:
            lines = [line for line in reader if line["part"] in _JUDGED]
            return _grouped(lines)
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            raise DataError(f"its metrics.csv is not one of a study: {error}") from None


def _grouped(lines: list[dict[str, str]]) -> list[Repeated]:
    part = min((line["part"] for line in lines), key=_JUDGED.index, default="")
    mine = [line for line in lines if line["part"] == part]
    varying = [k for k in (mine[0] if mine else ()) if len({line[k] for line in mine}) > 1]
    shown = [k for k in varying if k not in _PLACES]
    values: dict[str, dict[int, dict[str, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for line in mine:
        value = float(line["value"])
        if math.isfinite(value):
            values[_name(line, shown)][int(line["seed"] or 0)][line["metric"]].append(value)
    return [
        Repeated(name, {s: {m: fmean(all_) for m, all_ in ms.items()} for s, ms in seeds.items()})
        for name, seeds in values.items()
    ]


def _name(line: Mapping[str, str], shown: list[str]) -> str:
    words = [line[k] if "." not in k else f"{k} = {line[k]}" for k in shown if line[k]]
    return ", ".join(words) or line["learner"]
