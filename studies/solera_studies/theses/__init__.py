"""The numbers that the theses print, in one place.

One file for each thesis (``000.toml`` …), one table of it for each table, figure or section that
prints numbers; ``"N/A"`` is what the thesis itself leaves empty. Studies ask for a
:class:`Cell` and never write a published number themselves.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from solera.core.config import nearest
from solera.core.errors import UsageError


class Cell(NamedTuple):
    """A number of a thesis: where it stands."""

    thesis: str
    table: str
    row: str
    column: str

    @property
    def source(self) -> str:
        """The table it stands in, for a reader: ``001 Table 6.1``."""
        return f"{self.thesis} {self.table}"

    @property
    def value(self) -> float | None:
        """The number; None where the thesis leaves the cell empty."""
        return table(self.thesis, self.table).numbers[self.row][self.column]


class Table(NamedTuple):
    """A table of a thesis."""

    thesis: str
    name: str
    numbers: dict[str, dict[str, float | None]]

    def cell(self, row: str, column: str) -> Cell:
        """One cell, by its names."""
        if column not in self.numbers.get(row, {}):
            known = [f"{a}; {b}" for a, columns in self.numbers.items() for b in columns]
            wanted = f"{row}; {column}"
            raise UsageError(
                f"{self.thesis} {self.name} has no cell {wanted!r}", hint=nearest(wanted, known)
            )
        return Cell(self.thesis, self.name, row, column)

    def cells(self) -> list[Cell]:
        """All cells in which the thesis prints a number."""
        return [
            Cell(self.thesis, self.name, row, column)
            for row, columns in self.numbers.items()
            for column, value in columns.items()
            if value is not None
        ]


@cache
def read(thesis: str) -> dict[str, Table]:
    """The tables of a thesis."""
    text = files(__name__).joinpath(f"{thesis}.toml").read_text(encoding="utf-8")
    return {
        name: Table(thesis, name, {row: _by_column(found, row) for row in found["rows"]})
        for name, found in tomllib.loads(text).items()
    }


def _by_column(found: dict[str, list[str]], row: str) -> dict[str, float | None]:
    values = [None if value == "N/A" else float(value) for value in found["rows"][row]]  # type: ignore[call-overload]
    return dict(zip(found["columns"], values, strict=True))


def table(thesis: str, name: str) -> Table:
    """A table by its thesis and name, for example ``table("001", "Table 6.1")``."""
    return read(thesis)[name]


THESES = ("000", "001", "002", "003", "004")


def tables() -> list[Table]:
    """All tables of all theses."""
    return [table for thesis in THESES for table in read(thesis).values()]
