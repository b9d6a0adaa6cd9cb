"""MiniBooNE as UCI has it: ``MiniBooNE_PID.txt``.

The first line counts signal and background events; then come the signal's rows and after them the
background's, 50 numbers each between blanks.
"""

from __future__ import annotations

import numpy as np

from solera.core.errors import DataError
from solera.core.schema import Feature
from solera.data.catalogue import described
from solera.data.dataset import Dataset, divided, held_out
from solera.data.files import DatasetInfo, locate, reading

(MINIBOONE,) = described("particles", DatasetInfo).values()


def miniboone(*, test: float = 0.25, seed: int = 0) -> Dataset:
    """Electron neutrinos (signal) or muon neutrinos: 130,064 events, 50 measures, 2 classes.

    UCI 199. Missing measures are -999, as in the source.
    """
    path, source = locate(MINIBOONE)
    with reading(path), open(path, encoding="ascii") as lines:
        counts = [int(count) for count in lines.readline().split()]
        X = np.loadtxt(lines, ndmin=2)
        if len(counts) != 2 or X.shape != (sum(counts), MINIBOONE.features):
            raise DataError(
                f"its first line counts {counts} events, below are {X.shape[0]} of {X.shape[1]}",
                hint=f"expected signal and background events of {MINIBOONE.features} numbers",
            )
    y = np.repeat(np.array([0, 1]), counts)
    marked = held_out(MINIBOONE.name, y, "classes", test, seed)
    features = [Feature(f"pid{column}") for column in range(MINIBOONE.features)]
    return divided(
        MINIBOONE, X, y, marked, features, source=source, class_names=("signal", "background")
    )
