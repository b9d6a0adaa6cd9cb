"""Multi-label sets in ``<file>.npz``: ``Y``, ``feature_names``, ``label_names``, ``format``.

``format`` is "dense" (``X``) or "csr" (``X_data``, ``X_indices``, ``X_indptr``, ``X_shape``). Sets
that are at hand in no other form are read from the ARFF file that their publishers have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.errors import DataError
from solera.core.schema import Feature
from solera.data.arff import read_arff
from solera.data.catalogue import described
from solera.data.dataset import Dataset, divided, held_out
from solera.data.files import DatasetInfo, arrays, locate, reading

MULTILABEL = described("labels", DatasetInfo)


def load(
    name: str, test: float, seed: int, *, dense: bool = False, rows: int | None = None
) -> Dataset:
    """Reads a multi-label set, or its first ``rows`` rows, and holds the share ``test`` out."""
    info = MULTILABEL[name]
    path, source = locate(info, store)
    with reading(path):
        stored = _arff(path) if path.suffix == ".arff" else arrays(path)
        X, y = _matrix(stored), stored["Y"].astype(np.uint8)
        if X.shape != (len(y), info.features) or y.shape[1] != info.outputs:
            raise DataError(
                f"X is {X.shape} and Y {y.shape}",
                hint=f"expected {info.features} features and {info.outputs} labels",
            )
        features = map(Feature, stored["feature_names"].tolist())
        class_names = tuple(stored["label_names"].tolist())
    X, y = (X if not dense or isinstance(X, np.ndarray) else X.toarray())[:rows], y[:rows]
    marked = held_out(info.name, y, "labels", test, seed)
    return divided(info, X, y, marked, features, source=source, class_names=class_names)


def _arff(path: Path) -> dict[str, NDArray[Any]]:
    """A dense set in the format of Mulan and Meka: columns of {0,1} are the labels."""
    frame = read_arff(path)
    labels = [name for name in frame.columns if frame[name].dtype.kind == "i"]
    features = [name for name in frame.columns if name not in labels]
    return {
        "format": np.array("dense"),
        "X": frame[features].to_numpy(),
        "Y": frame[labels].to_numpy(),
        "feature_names": np.array(features),
        "label_names": np.array(labels),
    }


def _matrix(stored: dict[str, NDArray[Any]]) -> Any:
    if str(stored["format"]) == "dense":
        return stored["X"].astype(np.float64)
    from scipy.sparse import csr_matrix

    parts = (
        stored["X_data"].astype(np.float32),
        stored["X_indices"].astype(np.int32),
        stored["X_indptr"].astype(np.int32),
    )
    X = csr_matrix(parts, shape=tuple(stored["X_shape"].tolist()))
    X.check_format(full_check=True)
    return X


def store(info: DatasetInfo, data: Any, target: Any, path: Path) -> None:
    """Writes OpenML's frames (numbers; "TRUE" or "FALSE") as the file :func:`load` reads."""
    np.savez_compressed(
        path,
        format=np.array("dense"),
        X=data.to_numpy().astype(np.float64),
        Y=(target.astype(str).to_numpy() == "TRUE").astype(np.uint8),
        feature_names=np.array([str(name) for name in data.columns]),
        label_names=np.array([str(name) for name in target.columns]),
    )
