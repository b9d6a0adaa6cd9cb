"""A measured number that says whose rows it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import Any, Literal

from solera.evaluation.metrics import find_metric

MeasuredPart = Literal["train", "validation", "test", "all", "rows", "unknown"]
"""Rows that clients train on, stop by or keep to test on, all of these, or rows at hand.

Numbers of files that said nothing of rows are of unknown ones.
"""


class Figure(float):
    """A measured number: a float that carries its metric and the rows it rests on.

    Arithmetic with it gives plain floats, because what is computed from figures rests on other
    rows than they do.

    >>> Figure(0.9, metric="accuracy", part="test", rows=90, clients=6, asked=10)
    accuracy 0.9 of 90 test rows of 6 of 10 clients
    >>> float(Figure(0.9, metric="accuracy", part="rows", rows=90))
    0.9

    Parameters
    ----------
    metric: its name in :data:`solera.evaluation.metrics.METRICS`.
    part: which rows these are.
    rows: how many it rests on; None where that is not known.
    clients: of how many clients; 0 for rows at hand.
    asked: how many clients were asked, and ``absent`` how many of these did not reply.
    withheld: rows of these clients whose part in the number their owners withheld; one of a client
        that withheld how many it has.
    interval: of 95 % for the same figure on all such rows, where one is known to hold.
    bound: how far the number of these very rows can be from this one.
    between: the least and the largest that the number of these very rows can be, where counts carry
        noise: this one is about it.
    positive: the class that counts as positive, where there is one.
    """

    metric: str = ""
    part: MeasuredPart = "unknown"
    rows: int | None = None
    clients: int = 0
    asked: int = 0
    absent: int = 0
    withheld: int = 0
    interval: tuple[float, float] | None = None
    bound: float = 0.0
    between: tuple[float, float] | None = None
    positive: str = ""

    def __new__(cls, value: float, **about: Any) -> Figure:
        return super().__new__(cls, value)

    def __init__(self, value: float, **about: Any) -> None:
        if not about.keys() <= Figure.__annotations__.keys():
            raise TypeError(f"a figure says nothing of one of {', '.join(about)}")
        vars(self).update(about)

    @property
    def is_whole(self) -> bool:
        """Whether it is known to rest on all the rows that it is about."""
        return self.rows is not None and not (self.withheld or self.absent)

    @property
    def whose(self) -> str:
        """Whose rows it rests on, and which class counts as positive, in words."""
        if self.part == "unknown":
            return "rows that are not known"
        rows = "an unknown number of" if self.rows is None else f"{self.rows:,}"
        kind = {"rows": "rows at hand", "all": "rows"}.get(self.part, f"{self.part} rows")
        text = f"{rows} {kind}"
        if self.asked:
            some = "" if self.clients == self.asked else f"{self.clients:,} of "
            text += f" of {some}{self.asked:,} client{'s' if self.asked > 1 else ''}"
        if self.absent:
            text += f", {self.absent:,} did not reply"
        if self.withheld:
            text += f", {self.withheld:,} rows withheld by their owners"
        return f"{text}, positive class {self.positive}" if self.positive else text

    @property
    def number(self) -> str:
        """Its value in words, with how far it may be off."""
        text = self.short
        if self.bound:
            text += f" ± {self.bound:.2g}"
        if self.interval is not None:
            low, high = self.interval
            text += f" (95 %: {low:.4g} to {high:.4g})"
        return text

    @property
    def short(self) -> str:
        """Its value, and between what it is where noise leaves that open."""
        if self.between is None:
            return f"{self:.4g}"
        low, high = self.between
        return f"about {self:.3g}, between {low:.3g} and {high:.3g}"

    @property
    def marked(self) -> str:
        """Its value, and whether rows are missing, for tables that have no room for more."""
        return self.short if self.is_whole else f"{self.short} (rows missing)"

    @property
    def words(self) -> str:
        """Its value, and whose rows it rests on."""
        return f"{self.number} of {self.whose}"

    def __repr__(self) -> str:
        return f"{self.metric} {self.words}".lstrip()

    __str__ = __repr__

    def to_payload(self) -> dict[str, Any]:
        """What files and messages hold of it; :func:`restored` reads that."""
        return {
            "value": float(self),
            **{name: value for name, value in vars(self).items() if value},
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return read_figure, ("", self.to_payload())


def in_words(value: float) -> str:
    """A number and, of a figure, whose rows it rests on."""
    return value.words if isinstance(value, Figure) else f"{value:.4g}"


def measured(metrics: Mapping[str, float], **about: Any) -> dict[str, Figure]:
    """Metrics of the same rows as figures; ``about`` says of which."""
    return {name: Figure(value, metric=name, **about) for name, value in metrics.items()}


def restored(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of a file or message as figures again; bare metrics are of unknown rows."""
    return {
        name: read_figure(name, value) if _is_figure(name, value) else value
        for name, value in entries.items()
    }


def plain(value: Any) -> Any:
    """Figures, and NumPy's numbers and arrays, as JSON has them."""
    return value.to_payload() if isinstance(value, Figure) else value.tolist()


def figures(entries: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures among entries of a file or message."""
    return {name: f for name, f in restored(entries).items() if isinstance(f, Figure)}


def read_figure(name: str, value: Any) -> Figure:
    """The figure of a metric in a file or message."""
    if isinstance(value, Figure):
        return value
    if not isinstance(value, Mapping):
        return Figure(value, metric=name)
    about = dict(value)
    number = about.pop("value")
    for pair in about.keys() & {"interval", "between"}:
        about[pair] = tuple(about[pair])
    return Figure(nan if number is None else number, **about)


def _is_figure(name: str, value: Any) -> bool:
    if isinstance(value, Mapping):
        return "value" in value
    return isinstance(value, float) and find_metric(name) is not None
