"""Published rows and the theses' own spread: every row outside it has its experiment.

``benchmarks/published.csv`` holds, for every figure that a study compares, what came out as
published at the largest size that was run; ``docs/explanation/errata.md`` says of every name in
its last column what was tried.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from solera.study import named as tables
from solera_studies import theses

ROOT = Path(__file__).parents[2]
UNCOMPARED = {"kWh", "kg CO2e", "seconds", "serial", "parallel", "p"}
"""Columns of another machine's seconds and energies, and p-values over other sets."""
NOT_RUN = "not run at full size"
NOT_REACHED = "not reached"
AT_LEAST = "at least"


def stored() -> list[dict[str, str]]:
    with (ROOT / "benchmarks" / "published.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def explained() -> dict[str, str]:
    """The entries of the errata page's section on rows outside the spread, by their names."""
    page = (ROOT / "docs" / "explanation" / "errata.md").read_text(encoding="utf-8")
    section = page.partition("## Rows outside the theses' spread")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([a-z0-9-]+)` \|(.+)\|$", section, flags=re.MULTILINE))


def cell_of(line: dict[str, str]) -> theses.Cell:
    return theses.table(line["thesis"], line["table"]).cell(line["row"], line["column"])


def outside(line: dict[str, str]) -> bool:
    """Whether a figure lies farther from the thesis's than the spread beside it."""
    value = cell_of(line).value
    assert value is not None
    measured = float(line["measured"])
    if line["of"] == AT_LEAST:
        return measured < value - 1e-9
    return abs(measured - value) > float(line["spread"])


def complaints(lines: list[dict[str, str]], entries: dict[str, str]) -> list[str]:
    """What is missing: a figure, or the explanation of one that is outside."""
    found = []
    for line in lines:
        name = f"{line['study']}: {line['label']}"
        if not line["measured"]:
            missed = line["scale"].endswith(NOT_REACHED) and line["errata"] in entries
            if line["scale"] != NOT_RUN and not missed:
                found.append(f"{name} has no figure")
        elif outside(line) and line["errata"] not in entries:
            found.append(f"{name} is outside and not explained")
        elif not outside(line) and line["errata"]:
            found.append(f"{name} is inside and needs no {line['errata']}")
    return found


def test_every_row_outside_the_spread_is_explained_on_the_errata_page() -> None:
    entries = explained()
    assert complaints(stored(), entries) == []
    for name, text in entries.items():
        assert len(re.findall(r"\d", text)) >= 6, f"{name} tells no figures of an experiment"


def test_every_entry_explains_something() -> None:
    assert set(explained()) == {line["errata"] for line in stored() if line["errata"]}


def test_experiments_that_the_page_names_can_be_run() -> None:
    page = (ROOT / "docs" / "explanation" / "errata.md").read_text(encoding="utf-8")
    program = (ROOT / "benchmarks" / "errata.py").read_text(encoding="utf-8")
    experiments = set(re.findall(r'^    "([a-z]+)": errata_', program, flags=re.MULTILINE))
    assert set(re.findall(r"errata\.py ([a-z]+)`", page)) == experiments


def test_every_compared_cell_is_stored() -> None:
    there = {cell_of(line) for line in stored()}
    for name, study in tables.studies().items():
        wanted = {
            cell
            for cell in study.planned(full=True)
            if cell.value is not None and cell.column not in UNCOMPARED
            and not (cell.table == "Table 6.1" and cell.column == "s/round")
        }  # fmt: skip
        assert wanted <= there, (name, sorted(wanted - there)[:3])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"measured": "50.0"}, "outside and not explained"),
        ({"measured": ""}, "has no figure"),
        ({"measured": "", "scale": "full: not reached"}, "has no figure"),
        ({"errata": "one-run"}, "inside and needs no"),
    ],
)
def test_a_row_that_moves_is_found_out(change: dict[str, Any], complaint: str) -> None:
    inside = next(line for line in stored() if line["measured"] and not line["errata"])
    (found,) = complaints([{**inside, **change}], {})
    assert complaint in found
