"""A measured number that says whose rows it rests on."""

from __future__ import annotations

from typing import Any, Literal

MeasuredPart = Literal["train", "validation", "test", "all", "rows"]
"""Rows that clients train on, stop by or keep to test on, all of these, or rows at hand."""


class Figure(float):
    """A measured number: a float that carries its metric and the rows it rests on.

    Arithmetic with it gives plain floats, because what is computed from figures rests on other
    rows than they do.

    >>> Figure(0.9, metric="accuracy", part="test", rows=90, clients=6, asked=10)
    accuracy 0.9 of 90 test rows of 6 of 10 clients

    Parameters
    ----------
    metric: its name in :data:`solera.evaluation.metrics.METRICS`.
    part: which rows these are.
    rows: how many it rests on; None where that is not known.
    clients: of how many clients; 0 for rows at hand.
    asked: how many clients were asked.
    withheld: rows of these clients whose part in the number their owners withheld.
    interval: of 95 % for the same figure on all such rows, where one is known to hold.
    bound: how far the number of these very rows can be from this one.
    positive: the class that counts as positive, where there is one.
    """

    __slots__ = (
        "asked", "bound", "clients", "interval", "metric", "part", "positive", "rows", "withheld",
    )  # fmt: skip

    metric: str
    part: MeasuredPart
    rows: int | None
    clients: int
    asked: int
    withheld: int
    interval: tuple[float, float] | None
    bound: float
    positive: str

    def __new__(cls, value: float, **about: Any) -> Figure:
        return super().__new__(cls, value)

    def __init__(
        self,
        value: float,
        *,
        metric: str,
        part: MeasuredPart,
        rows: int | None,
        clients: int = 0,
        asked: int = 0,
        withheld: int = 0,
        interval: tuple[float, float] | None = None,
        bound: float = 0.0,
        positive: str = "",
    ) -> None:
        self.metric = metric
        self.part = part
        self.rows = rows
        self.clients = clients
        self.asked = asked
        self.withheld = withheld
        self.interval = interval
        self.bound = bound
        self.positive = positive

    def __reduce__(self) -> tuple[Any, ...]:
        about = {name: getattr(self, name) for name in self.__slots__}
        return _restored, (float(self), about)


def _restored(value: float, about: dict[str, Any]) -> Figure:
    return Figure(value, **about)
