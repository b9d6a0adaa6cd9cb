"""Vertical learning: intersection of identifiers, and each learner's seconds, one section each.

``psi``: which of 100,000 identifiers two parties share, all of it (normalising, hashing to the
curve, multiplying, sealing, comparing) as asks of a simulated federation, in one process and in
two; beside openmined.psi in the same run, where ``make bench-peers`` has set it up (or where
SOLERA_PEERS has an environment ``psi``). CPU seconds are those of all processes of a party's side.
Claim: at most the CPU seconds of openmined.psi.

    vertical.py [psi …] [--rows 100000]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import solera as so
from sizes import sized

HERE = Path(__file__).resolve().parent
PEERS = Path(os.environ.get("SOLERA_PEERS", HERE.parent / ".peers"))


def cpu_seconds() -> float:
    """Of this process and of the children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result, seconds of the clock and of processors."""
    began, used = time.perf_counter(), cpu_seconds()
    result = work()
    return result, time.perf_counter() - began, cpu_seconds() - used


# --- intersection of identifiers ---


def psi(rows: int) -> None:
    print(f"intersection of {rows:,} × {rows:,} identifiers, half of them common; X25519, 126 bits")
    ours: dict[str, float] = {}
    for engine in ("local", "processes"):

        def common(engine: str = engine) -> int:
            with _parties(rows, engine) as fed:
                return so.learn.common_rows(fed)

        found, wall, cpu = timed(common)
        assert found == rows // 2, found
        ours[engine] = cpu
        print(f"{'solera, ' + engine:<20}{wall:8.2f} s{cpu:8.2f} s CPU", flush=True)
    peer = _openmined(rows)
    if peer is None:
        print("openmined.psi is not installed: make bench-peers")
        return
    assert peer["common"] == rows // 2, peer
    print(f"{'openmined.psi':<20}{peer['wall']:8.2f} s{peer['cpu']:8.2f} s CPU")
    print(f"ratio {ours['local'] / peer['cpu']:.2f} of its CPU seconds (at most 1)")


def _parties(rows: int, engine: str) -> Any:
    number = np.arange(rows)
    tables = {
        "left": pd.DataFrame({"id": [f"person {i}" for i in number], "x": 0.0, "y": number % 2}),
        "right": pd.DataFrame({"id": [f"person {i + rows // 2}" for i in number], "z": 0.0}),
    }
    options = {"workers": 2} if engine == "processes" else {}
    return so.simulate_vertical(tables, target="y", id="id", engine=engine, **options)


def _openmined(rows: int) -> dict[str, float] | None:
    python = PEERS / "psi" / "bin" / "python"
    if not python.exists():
        return None
    script = HERE / "peers" / "psi_peer.py"
    done = subprocess.run(
        [str(python), str(script), str(rows)], capture_output=True, text=True, check=True
    )
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


SECTIONS: dict[str, Callable[[int], None]] = {"psi": psi}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], default=[])
    parser.add_argument("--rows", type=int, default=sized(100_000, tiny=200))
    given = parser.parse_args()
    for name in given.sections or SECTIONS:
        SECTIONS[name](given.rows)


if __name__ == "__main__":
    main()
