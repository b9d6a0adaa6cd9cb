"""Images in ``<name>.npz``: uint8 arrays ``x_train, y_train, x_test, y_test``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import IntArray
from solera.core.errors import DataError
from solera.core.schema import numbered
from solera.data.catalogue import described
from solera.data.dataset import Dataset, make_schema
from solera.data.files import DatasetInfo, arrays, locate, reading, unavailable


@dataclass(frozen=True, kw_only=True)
class Images(DatasetInfo):
    """Images of one size; ``test`` counts the test rows of each class.

    ``subset`` serves where the whole set is not at hand.
    """

    shape: tuple[int, ...] = field(repr=False)
    test: tuple[int, ...] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    subset: Images | None = field(default=None, repr=False)


IMAGES = described("images", Images)


def best_at_hand(images: Images) -> Images:
    """The whole set, or its subset when only that is at hand."""
    if images.subset and not images.at_hand and images.subset.at_hand:
        return images.subset
    return images


def load(name: str, *, flat: bool = True) -> Dataset:
    """Reads images as float32 in [0, 1], one row of pixels each unless ``flat`` is False."""
    images = best_at_hand(IMAGES[name])
    path, source = locate(images, store)
    with reading(path):
        stored = arrays(path)
        X, y = _pixels(images, stored, "train", flat)
        X_test, y_test = _pixels(images, stored, "test", flat)
    return Dataset(
        X=X,
        y=y,
        X_test=X_test,
        y_test=y_test,
        schema=make_schema(numbered(images.features), "classes", images.outputs),
        name=images.name,
        title=images.title,
        source=source,
        class_names=images.class_names,
    )


def _pixels(
    images: Images, stored: dict[str, NDArray[Any]], part: str, flat: bool
) -> tuple[NDArray[np.float32], IntArray]:
    x, y = stored[f"x_{part}"], stored[f"y_{part}"]
    if x.dtype != np.uint8 or x.shape != (len(y), *images.shape):
        size = " x ".join(map(str, images.shape))
        raise DataError(f"x_{part} is {x.dtype} {x.shape}, not uint8 images of {size}")
    if y.max(initial=0) >= images.outputs:
        raise DataError(f"y_{part} has class {y.max()}, there are {images.outputs}")
    scaled = np.divide(x, 255, dtype=np.float32)
    return scaled.reshape(len(y), -1) if flat else scaled, y.astype(np.int64)


def store(images: Images, data: Any, target: Any, path: Path) -> None:
    """Writes OpenML's frame as the file :func:`load` reads.

    Its rows are the training images followed by the test images; colour images lie plane by plane
    (red, green, blue), as in the original files.
    """
    x = data.to_numpy().astype(np.uint8)
    if len(images.shape) == 3:
        height, width, planes = images.shape
        x = x.reshape(-1, planes, height, width).transpose(0, 2, 3, 1)
    x = x.reshape(-1, *images.shape)
    y = target.astype(int).to_numpy().astype(np.uint8)
    cut = len(y) - sum(images.test)
    if tuple(np.bincount(y[cut:], minlength=images.outputs).tolist()) != images.test:
        raise unavailable(images, "OpenML's copy does not end with the test rows")
    np.savez_compressed(path, x_train=x[:cut], y_train=y[:cut], x_test=x[cut:], y_test=y[cut:])
