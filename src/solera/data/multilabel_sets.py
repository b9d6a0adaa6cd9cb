"""Multi-label sets in ``<file>.npz``: ``Y``, ``feature_names``, ``label_names``, ``format``.

``format`` is "dense" (``X``) or "csr" (``X_data``, ``X_indices``, ``X_indptr``, ``X_shape``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.errors import DataError
from solera.core.schema import Feature
from solera.data.dataset import Dataset, divided, held_out
from solera.data.files import DatasetInfo, arrays, locate, reading


def _labels(
    name: str,
    title: str,
    file: str,
    shape: tuple[int, int, int],
    licence: str,
    openml: tuple[str, int] | None = None,
) -> DatasetInfo:
    rows, features, outputs = shape
    return DatasetInfo(
        name=name,
        title=title,
        rows=rows,
        features=features,
        outputs=outputs,
        target="labels",
        licence=licence,
        file=f"{file}.npz",
        openml=openml,
    )


_READ = "MEKA, Read 2010"
_YAHOO = "Yahoo! directory, Education"

MULTILABEL = {
    info.name: info
    for info in (
        _labels(
            "scene", "Scenes in photographs", "scene", (2407, 294, 6),
            "MULAN, Boutell et al. 2004", ("scene", 4),
        ),
        _labels(
            "yeast", "Functions of yeast genes", "yeast", (2417, 103, 14),
            "MULAN, Elisseeff & Weston 2001", ("yeast", 4),
        ),
        _labels("slashdot", "Slashdot articles", "slashdot", (3782, 1079, 22), _READ),
        _labels("reuters_k500", "Reuters news, 500 words", "reutersK500", (6000, 500, 103), _READ),
        _labels("ng20", "20 Newsgroups posts", "20NG", (19300, 1006, 20), "MEKA, Lang 1995"),
        _labels(
            "tmc2007_500", "Aviation safety reports, 500 words", "tmc2007_500", (21519, 500, 22),
            "MULAN, Srivastava & Zane-Ulman 2005",
        ),
        _labels(
            "corel5k", "Corel photographs", "Corel5k", (5000, 499, 374),
            "MULAN, Duygulu et al. 2002",
        ),
        _labels(
            "yahoo_education", _YAHOO, "YahooEducation", (12030, 27534, 33), "Ueda & Saito 2002",
        ),
        _labels(
            "yahoo_education_brfs500", f"{_YAHOO}, 500 words", "YahooEducation_BRFS500",
            (12030, 500, 33), "Ueda & Saito 2002",
        ),
        _labels(
            "mediamill", "MediaMill video concepts", "mediamill", (43907, 120, 101),
            "MULAN, Snoek et al. 2006",
        ),
        _labels(
            "human_pseaac", "Places of human proteins in the cell, PseAAC features",
            "HumanPseAAC", (3106, 440, 14), "KDIS, Xu et al. 2016",
        ),
    )
}  # fmt: skip


def load(
    info: DatasetInfo, *, test: float, seed: int, dense: bool = False, rows: int | None = None
) -> Dataset:
    """Reads a multi-label set, or its first ``rows`` rows, and holds the share ``test`` out."""
    path, source = locate(info, store)
    with reading(path):
        stored = arrays(path)
        X, y = _matrix(stored), stored["Y"].astype(np.uint8)
        if X.shape != (len(y), info.features) or y.shape[1] != info.outputs:
            raise DataError(
                f"X is {X.shape} and Y {y.shape}",
                hint=f"expected {info.features} features and {info.outputs} labels",
            )
        features = [Feature(name) for name in stored["feature_names"].tolist()]
        class_names = tuple(stored["label_names"].tolist())
    X, y = (X if not dense or isinstance(X, np.ndarray) else X.toarray())[:rows], y[:rows]
    marked = held_out(info.name, y, "labels", test, seed)
    return divided(info, X, y, marked, features, source=source, class_names=class_names)


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
