"""Which of an epoch's rows and columns one job sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from solera.core.errors import UsageError
from solera.trust.epoch.populations import EVERYONE
from solera.trust.epoch.snapshot import FOLDS


@dataclass(frozen=True, slots=True)
class Selection:
    """Columns, target, population and folds of a job; without columns or target, the dictionary's.

    The last folds are tested with, those before them validated with.
    """

    columns: tuple[str, ...] = ()
    target: str | tuple[str, ...] | None = None
    population: str = EVERYONE
    training: tuple[int, ...] = tuple(range(FOLDS))
    validation: tuple[int, ...] = ()
    test: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        columns: Sequence[str] | None = None,
        target: str | Sequence[str] | None = None,
        *,
        population: str | None = None,
        validation: float = 0.0,
        test: float = 0.0,
    ) -> Self:
        """The selection whose parts are these shares of the folds."""
        last, before = _folds("test", test), _folds("validation", validation)
        if last + before >= FOLDS:
            raise UsageError(f"validation={validation}, test={test} leaves no fold to train on")
        folds = tuple(range(FOLDS))
        first = FOLDS - last - before
        return cls(
            tuple(columns or ()),
            target if target is None or isinstance(target, str) else tuple(target),
            population or EVERYONE,
            folds[:first],
            folds[first : first + before],
            folds[first + before :],
        )


def _folds(name: str, share: float) -> int:
    """How many folds a share of the rows is."""
    folds = round(share * FOLDS)
    if not 0 <= share < 1 or abs(folds - share * FOLDS) > 1e-9:
        raise UsageError(
            f"{name}={share}: in an epoch a part is whole folds, tenths of the persons",
            hint=f"{name}={max(folds, 0) / FOLDS:g}",
        )
    return folds
