"""What clients check of their rows before they train on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solera.core.errors import DataError, Refusal


def check_shape(clients: ArrayLike, sizes: ArrayLike, X: Any, width: int) -> None:
    """Refuse to train a client without rows, or on rows of other columns than the model's.

    ``sizes`` are the rows of each of the ``clients``, or of the one, and X holds them all.
    """
    ids = np.atleast_1d(clients)
    columns = int(np.prod(X.shape[1:]))
    if columns != width:
        raise DataError(f"client {ids[0]} has {columns} columns, the model {width}")
    empty = ids[np.atleast_1d(sizes) == 0]
    if len(empty):
        raise Refusal(f"client {empty[0]} has no rows to train on")
