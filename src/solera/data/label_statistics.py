"""What a matrix of labels is like: how many a row has, how rare some are, which come together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solera.data.frames import some_of

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class LabelStatistics:
    """Labels by their names; what is not known of a row counts neither way.

    With p(l) = ``present`` / ``known`` of a label, ``cardinality`` is Σ p(l), which is the number
    of labels of a row where all are known, and ``density`` that over the number of labels
    (Tsoumakas & Katakis 2007). ``imbalance`` is the mean over the labels that some row has of
    max p / p(l) (Charte et al. 2015). ``together`` are the pairs that most rows have, with their
    number.
    """

    present: dict[str, int]
    known: dict[str, int]
    cardinality: float
    density: float
    imbalance: float
    together: dict[str, int]

    def lines(self) -> list[tuple[str, str]]:
        """A name and a text each."""
        rows = [f"{name}: {n:,} of {self.known[name]:,}" for name, n in self.present.items()]
        pairs = [f"{names}: {n:,}" for names, n in self.together.items()]
        return [
            ("rows with label", some_of(rows, _SHOWN)),
            ("cardinality", f"{self.cardinality:.3g} labels a row, density {self.density:.3g}"),
            ("imbalance", f"{self.imbalance:.3g} mean"),
            ("most together", some_of(pairs, _SHOWN) or "none"),
        ]


def label_statistics(y: NDArray[np.integer], names: Sequence[str]) -> LabelStatistics:
    """Statistics of a matrix of 1, 0 and −1."""
    from scipy.sparse import csr_matrix, triu

    has = csr_matrix(y > 0, dtype=np.int64)
    pairs = triu(has.T @ has, 1, format="coo")
    order = np.argsort(-pairs.data, kind="stable")[:_SHOWN]
    present, known = (y > 0).sum(axis=0), (y >= 0).sum(axis=0)
    rates = present / np.maximum(known, 1)
    held = rates[rates > 0]
    return LabelStatistics(
        present=dict(zip(names, present.tolist(), strict=True)),
        known=dict(zip(names, known.tolist(), strict=True)),
        cardinality=float(rates.sum()),
        density=float(rates.mean()),
        imbalance=float((held.max() / held).mean()) if len(held) else 0.0,
        together={
            f"{names[pairs.row[i]]} & {names[pairs.col[i]]}": int(pairs.data[i]) for i in order
        },
    )
