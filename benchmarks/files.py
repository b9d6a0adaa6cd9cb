"""Clients in Parquet files, read where they are used: 10,000 clients of 200 MB in all.

Claim: the driver stays under 300 MB on every engine, imports included; each engine has a process of
its own.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sizes import TINY, sized

CLIENTS, ROWS, ROUNDS = sized((10_000, 100, 10), tiny=(50, 20, 2))
COLUMNS = 25


def write(folder: Path) -> None:
    """One file for each client; no two have the same rows."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    truth = rng.normal(size=COLUMNS)
    for client in range(CLIENTS):
        X = rng.normal(size=(ROWS, COLUMNS))
        columns = {f"x{j}": X[:, j] for j in range(COLUMNS)}
        table = pa.table({**columns, "y": (X @ truth > 0).astype(np.int64)})
        parquet.write_table(table, folder / f"{client:05d}.parquet", use_dictionary=False)


def drive(folder: Path, engine: str) -> None:
    """Learn from the files on one engine, and print what it took."""
    import solera as so

    began = time.perf_counter()
    source = so.from_files(str(folder / "*.parquet"), target="y")
    looked = time.perf_counter()
    options = {} if engine == "local" else {"workers": 2}
    with so.simulate(source, engine=engine, **options) as fed:
        so.FedHEONN().fit(fed)
        exact = time.perf_counter()
        so.FedLinear(rounds=ROUNDS, per_round=100).fit(fed)
        done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{engine:<12}{looked - began:10.1f}{exact - looked:12.1f}"
        f"{(done - exact) / ROUNDS:12.2f}{peak:12.0f}",
        flush=True,
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{CLIENTS:,} Parquet files of {ROWS} rows × {COLUMNS} columns, {size / 1e6:.0f} MB")
        print(f"{'':<12}{'schema s':>10}{'FedHEONN s':>12}{'round s':>12}{'driver MB':>12}")
        sys.stdout.flush()
        for engine in ("local", "processes"):
            arguments = [sys.executable, __file__, str(folder), engine]
            arguments += ["--tiny"] * TINY
            subprocess.run(arguments, check=True, env=os.environ)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        drive(Path(sys.argv[-2]), sys.argv[-1])
    else:
        main()
