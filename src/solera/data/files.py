"""Where the files of data sets are: the user's folder, the cache, a download into the cache."""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from solera.core.errors import DataError, DatasetUnavailable, MissingExtra
from solera.core.schema import Target

_PATIENCE = 20.0  # seconds without an answer before a download is given up
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    zlib.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What is known of a data set before it is read.

    ``outputs`` counts its classes, labels or numbers to predict; ``file`` is the file it is read
    from, empty when scikit-learn brings it along.
    """

    name: str
    title: str
    rows: int
    features: int
    outputs: int
    target: Target
    licence: str
    file: str = ""
    openml: tuple[str, int] | None = field(default=None, repr=False)

    @property
    def at_hand(self) -> bool:
        """Whether it can be loaded without a download; the file is not opened."""
        return not self.file or find(self.file) is not None


Info = TypeVar("Info", bound=DatasetInfo)
Store = Callable[[Info, Any, Any, Path], None]


def cache() -> Path:
    """The user's cache: ``$XDG_CACHE_HOME/solera`` or ``~/.cache/solera``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "solera"


def folders() -> list[Path]:
    """Where files are looked for, first to last: ``$SOLERA_DATA`` and the cache."""
    chosen = os.environ.get("SOLERA_DATA")
    return [Path(chosen).expanduser(), cache()] if chosen else [cache()]


def find(file: str) -> Path | None:
    """The first file of that name in :func:`folders`."""
    return next((path for path in (f / file for f in folders()) if path.is_file()), None)


def locate(info: Info, store: Store[Info] | None = None) -> tuple[Path, str]:
    """The file of a data set and the words for where it comes from.

    An absent file is downloaded from OpenML, where it has the set; ``store`` converts what came
    (features and target as data frames) and writes the file, which then stays in the cache.
    """
    path = find(info.file)
    if path is not None:
        return path, str(path)
    if info.openml is None or store is None:
        raise unavailable(info, "there is no download for it")
    data, target = _download(info, info.openml)
    path = cache() / info.file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            part = Path(scratch) / info.file
            store(info, data, target, part)
            part.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error}") from error
    return path, f"download, kept in {path}"


def unavailable(info: DatasetInfo, reason: str) -> DatasetUnavailable:
    """The error for a data set that cannot be had, with the way out."""
    places = " or ".join(str(folder) for folder in folders())
    unset = "" if "SOLERA_DATA" in os.environ else ", or into a folder that SOLERA_DATA names"
    return DatasetUnavailable(
        f"data set {info.name!r} is not at hand: {reason}",
        hint=f"put {info.file} into {places}{unset}",
    )


def _download(info: DatasetInfo, openml: tuple[str, int]) -> tuple[Any, Any]:
    if os.environ.get("SOLERA_OFFLINE", "0") not in ("", "0"):
        raise unavailable(info, "SOLERA_OFFLINE forbids the download")
    require_pandas(f"downloading the data set {info.name!r}")
    import socket
    from http.client import HTTPException

    from rich.console import Console
    from sklearn.datasets import fetch_openml

    name, version = openml
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)
    try:
        with Console(stderr=True).status(f"Downloading {info.title} from OpenML"):
            bunch = fetch_openml(name, version=version, as_frame=True, cache=False, n_retries=1)
    except (OSError, HTTPException, ValueError) as error:
        raise unavailable(info, f"the download from OpenML failed ({error})") from error
    finally:
        socket.setdefaulttimeout(before)
    if bunch.data.shape != (info.rows, info.features):
        shape = " x ".join(str(n) for n in bunch.data.shape)
        raise unavailable(info, f"OpenML's copy is {shape}, not {info.rows} x {info.features}")
    return bunch.data, bunch.target


def require_pandas(what: str) -> Any:
    """The module pandas, or an error that says what needs it."""
    try:
        import pandas
    except ImportError:
        raise MissingExtra.of(what, "pandas") from None
    return pandas


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns whatever a damaged file raises into a :class:`DataError` that names the file."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path}: {error.message}", hint=error.hint) from error
    except _DAMAGE as error:
        what = str(error) or type(error).__name__
        if isinstance(error, KeyError):
            what = f"it has no {what}"
        raise DataError(
            f"{path} cannot be read: {what}", hint="replace it by a sound copy, or delete it"
        ) from error


def arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an ``.npz`` file; pickled ones are refused."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
