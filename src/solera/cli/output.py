"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer
from msgspec import to_builtins
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from solera.core.federation import UnsentAsk
from solera.evaluation.figure import plain

if TYPE_CHECKING:
    from solera.data.federated import FederatedData
    from solera.study.report.blocks import Block

CIVIDIS = (
    "#00224e", "#123570", "#3b496c", "#575d6d", "#707173",
    "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838",
)  # fmt: skip
"""Colours from few to many that look in order to colour-blind readers too."""
SHADES = " ·░▒▓█"
"""The same where there are no colours."""

_PIPED_WIDTH = 200
_MAX_CLIENTS = 25
_BAR = 16


def stdout() -> Console:
    """Where results go; wide enough for any table when it is no terminal."""
    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(width=width, highlight=False)


def stderr() -> Console:
    """Where progress and complaints go."""
    return Console(stderr=True, highlight=False)


def complain(message: str, hint: str | None = None, *, label: str = "error: ") -> None:
    """One line that says what is wrong and one that says what to do."""
    console = stderr()
    for start, text, style in ((label, message, "bold red"), ("hint: ", hint, "bold cyan")):
        if text:
            line = " ".join(text.split())
            console.print(Text.assemble((start, style), line), soft_wrap=True)


def interrupted(message: str, hint: str | None = None) -> typer.Exit:
    """Say that a person stopped the program; what ends it. An ask cut off unsent is no mistake."""
    complain(message, hint)
    warnings.simplefilter("ignore", UnsentAsk)
    return typer.Exit(130)


def first_line(thing: object) -> str:
    """What the documentation of a class or a function says first."""
    return (thing.__doc__ or "").strip().split("\n")[0]


def print_json(value: Any) -> None:
    """Plain JSON and nothing else; records become objects."""
    plain_value = to_builtins(value, enc_hook=plain)
    text = json.dumps(plain_value, indent=2, ensure_ascii=False)
    sys.stdout.write(text + "\n")


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; columns whose name starts with ``>`` are flushed right."""
    table = Grid(box=None, pad_edge=False)
    for name in header:
        right = name.startswith(">")
        table.add_column(name.lstrip(">"), justify="right" if right else "left", header_style="dim")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    stdout().print(table)


def print_blocks(blocks: Sequence[Block]) -> None:
    """Words and tables of a report; of a picture, what it says."""
    from solera.study.report.blocks import Figure, Marked, Table

    console = stdout()
    for i, block in enumerate(blocks):
        if i:
            console.print()
        if isinstance(block, Table):
            names, *numbers = block.header
            rows = [
                [f"{cell} *" if isinstance(cell, Marked) else cell for cell in row]
                for row in block.rows
            ]
            print_table([names, *(f">{name}" for name in numbers)], rows)
        else:
            text = block.caption if isinstance(block, Figure) else block.text
            console.print(text, markup=False, soft_wrap=True)


def print_partition(data: FederatedData, names: Sequence[str] = ()) -> None:
    """A small picture in text: clients down, classes across, and how many rows each client has."""
    import numpy as np

    console = stdout()
    sizes, counts = np.diff(data.offsets), data.class_counts()
    if counts is None:
        counts = np.zeros((len(sizes), 0), np.int64)
    shown = np.unique(np.linspace(0, len(sizes) - 1, min(len(sizes), _MAX_CLIENTS)).astype(int))
    most = min(counts.shape[1], max(min(console.width, 100) - _BAR - 18, 0) // 2)
    margin = max(6, len(str(shown[-1])))
    short = bool(names) and max(map(len, names)) <= 2
    labels = [names[c] if short else str(c % 100) for c in range(most)]
    header = "".join(f"{label:>2}" for label in labels)
    console.print(f"{'client':>{margin}} {header}  rows", style="dim", markup=False)
    for client in shown.tolist():
        line = Text(f"{client:>{margin}} ", no_wrap=True)
        for c in range(most):
            line.append_text(_cell(counts[client, c] / max(counts.max(), 1), console))
        bar = "▇" * round(_BAR * sizes[client] / sizes.max())
        line.append(f"  {bar}", style="cyan").append(f" {sizes[client]:,}")
        console.print(line, crop=True)
    if len(shown) < len(sizes):
        console.print(f"{len(shown)} of {len(sizes):,} clients, evenly spaced", style="dim")
    if most < counts.shape[1]:
        console.print(f"the first {most} of {counts.shape[1]} classes", style="dim")
    elif names and not short:
        legend = "  ".join(f"{c} {name}" for c, name in enumerate(names[:most]))
        console.print(legend, style="dim", markup=False)


def _cell(share: float, console: Console) -> Text:
    if console.color_system is None or console.no_color:
        return Text(SHADES[0 if share == 0 else 1 + min(int(share * 5), 4)] * 2)
    colour = CIVIDIS[min(int(share * len(CIVIDIS)), len(CIVIDIS) - 1)]
    return Text("  ", style=f"on {colour}")
