"""CSV, Parquet and ARFF files of rows: whole, or in pieces that can be read one by one."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solera.core.errors import DataError, MissingExtra
from solera.data.arff import read_arff
from solera.data.files import reading, require_pandas

ENDINGS = (".csv", ".csv.gz", ".parquet", ".arff")
_MISSING = ("", "?", "NA", "NaN", "nan", "NULL", "null")
_PIECE = 8 << 20  # bytes of lines that are read together


def table_files(path: Path) -> list[Path]:
    """The file, or those of a folder by name."""
    if not path.is_dir():
        if not path.is_file():
            raise DataError(f"there is no file {path}")
        return [path]
    files = sorted(p for p in path.iterdir() if p.name.endswith(ENDINGS) and p.is_file())
    if not files:
        raise DataError(f"the folder {path} holds no {' or '.join(ENDINGS)} file")
    return files


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file, or a ``part`` of it: the number of a row group, or bytes of lines (first, after)."""

    path: Path
    part: Any = None

    def pieces(self) -> list[TableFile]:
        """Its row groups, or runs of lines of a few megabytes; packed lines in one piece."""
        if self.path.name.endswith(".parquet"):
            with self._errors(), self._parquet() as file:
                groups = file.metadata.num_row_groups
            return [TableFile(self.path, part) for part in range(groups)]
        if self.path.name.endswith(".csv"):
            with self._errors():
                return [TableFile(self.path, part) for part in _runs_of_lines(self.path)]
        return [self]

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Those of these columns that are there, or all, as a pandas frame."""
        with self._errors():
            if self.path.name.endswith(".parquet"):
                return self._row_groups(columns)
            if self.path.name.endswith(ENDINGS):
                frame = self._arff() if self.path.name.endswith(".arff") else self._lines()
                return frame if columns is None else frame[[c for c in columns if c in frame]]
        raise DataError(f"{self.path} is none of {', '.join(ENDINGS)}")

    def _row_groups(self, columns: Sequence[str] | None) -> Any:
        with self._parquet() as file:
            there = {*file.schema_arrow.names}
            chosen = None if columns is None else [name for name in columns if name in there]
            if self.part is not None:
                table = file.read_row_group(self.part, chosen, use_threads=False)
            else:
                table = file.read(chosen, use_threads=False, use_pandas_metadata=chosen is None)
            return table.to_pandas(use_threads=False)

    def _parquet(self) -> Any:
        try:
            from pyarrow.parquet import ParquetFile
        except ImportError:
            raise MissingExtra.of(f"reading {self.path.name}", "arrow") from None
        return ParquetFile(self.path, pre_buffer=False)

    def _arff(self) -> Any:
        with reading(self.path):
            return read_arff(self.path)

    def _lines(self) -> Any:
        pandas = require_pandas("a table of one's own")
        source: Any = self.path
        if self.part is not None:
            first, after = self.part
            with self.path.open("rb") as file:
                header = file.readline()
                file.seek(first)
                source = io.BytesIO(header + file.read(after - first))
        return pandas.read_csv(source, keep_default_na=False, na_values=_MISSING)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Readers raise errors of many libraries."""
        from solera.core.errors import SoleraError

        try:
            yield
        except SoleraError:
            raise
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(f"{self.path} cannot be read: {reason}") from None


def _runs_of_lines(path: Path) -> list[tuple[int, int]]:
    """Where runs of whole lines below the header begin and end, as bytes.

    A line ends at a line break outside quotes: one with an even number of quotes before it.
    """
    runs = []
    with path.open("rb") as file:
        start = len(file.readline())
        quotes, pending = 0, b""
        while block := file.read(_PIECE):
            pending += block
            end = pending.rfind(b"\n") + 1
            while end and (quotes + pending.count(b'"', 0, end)) % 2:
                end = pending.rfind(b"\n", 0, end - 1) + 1
            if end:
                quotes += pending.count(b'"', 0, end)
                runs.append((start, start + end))
                start, pending = start + end, pending[end:]
    if pending.strip():
        runs.append((start, start + len(pending)))
    return runs or [(start, start)]
