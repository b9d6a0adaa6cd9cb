"""Vertical learning: intersection of identifiers, and each learner's seconds, one section each.

``psi``: which of 100,000 identifiers two parties share, all of it (normalising, hashing to the
curve, multiplying, sealing, comparing) as asks of a simulated federation, in one process and in
two; beside openmined.psi in the same run, where ``make bench-peers`` has set it up (or where
SOLERA_PEERS has an environment ``psi``). CPU seconds are those of all processes of a party's side.
Claim: at most the CPU seconds of openmined.psi.

``regression``: seconds per epoch of logistic regression, credit2, 10 + 13 columns, with each cipher
on the same rows; the first epoch makes columns ready and is told apart. Claim: CKKS at least 20
times as fast as Paillier with 3072 bits.

``boost``: seconds per tree of SecureBoost, Adult, 7 + 7 columns, 32 bins, depth 3 and 5, and bytes
per tree; AUC beside the same booster on the joined columns. Claim: at most 5 s at depth 3 on one
core with 128 bits of security, AUC within 0.005.

    OMP_NUM_THREADS=1 SOLERA_DATA=… vertical.py [psi regression boost] [--rows 100000]
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


# --- ciphers ---

SECURITY = {"ckks": "192 bits", "paillier": "128 bits", "plain": "no encryption"}
LEARNED, TREES = sized(("credit2", "adult"), tiny=("breast_cancer", "breast_cancer"))
DEPTHS, ROUNDS, EPOCHS = sized(((3, 5), 4, 4), tiny=((2,), 2, 2))
BATCH = 4096
PAILLIER = sized("paillier", tiny="paillier-2048")


class Laps(so.callbacks.Callback):
    """CPU seconds and bytes at the end of every round."""

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        self.seconds, self.bytes = [cpu_seconds()], [0]

    def on_round(self, learner: Any, round: Any) -> None:
        self.seconds.append(cpu_seconds())
        self.bytes.append(sum(int(r.up.sum()) for r in round.federation.meter.records))

    @property
    def each(self) -> Any:
        return np.diff(self.seconds)


def divided(name: str, first: int) -> tuple[so.Federation, Any, list[str]]:
    """Two parties, the one with the first columns and the labels."""
    data = so.datasets.load(name)
    names = [feature.name for feature in data.schema.features]
    columns = {"bank": names[:first], "shop": names[first:]}
    return so.simulate_vertical(data, columns=columns, labels="bank"), data, names


def regression(rows: int) -> None:
    seconds: dict[str, float] = {}
    for cipher, epochs in (("plain", EPOCHS), ("ckks", EPOCHS), (PAILLIER, 1)):
        fed, data, names = divided(LEARNED, 10)
        laps = Laps()
        options = {"epochs": epochs, "cipher": cipher, "align": "order", "batch_size": BATCH}
        so.VerticalLogisticRegression(**options).fit(fed, callbacks=[laps], progress=False)
        later = laps.each[1:] if epochs > 1 else laps.each
        seconds[cipher] = float(np.median(later))
        if cipher == "plain":
            shape = f"{len(data.all[1]):,} rows, 10 + {len(names) - 10} columns"
            print(f"regression, {LEARNED}, {shape}, batches of {BATCH:,}")
        print(
            f"{cipher:<14}{seconds[cipher]:9.3f} s CPU per epoch (first {laps.each[0]:.3f} s), "
            f"{np.diff(laps.bytes).mean() / 1e6:.1f} MB, {SECURITY.get(cipher, '112 bits')}",
            flush=True,
        )
    print(f"CKKS is {seconds[PAILLIER] / seconds['ckks']:.0f} times as fast (at least 20)")


def boost(rows: int) -> None:
    for depth in DEPTHS:
        for cipher in ("plain", "ckks", PAILLIER):
            if cipher == PAILLIER and depth > min(DEPTHS):
                continue
            fed, data, names = divided(TREES, 7)
            rounds = 1 if cipher == PAILLIER else ROUNDS
            laps = Laps()
            tested = (len(data.y_test) + 0.5) / len(data.all[1])  # the last rows
            options = {"rounds": rounds, "max_depth": depth, "cipher": cipher, "test": tested}
            model = so.SecureBoost(align="order", **options)
            model.fit(fed, callbacks=[laps], progress=False)
            if cipher == "plain":
                shape = f"{len(data.X):,} rows, 7 + {len(names) - 7} columns, 32 bins"
                print(f"boosting, {TREES}, {shape}, depth {depth}")
            later = laps.each[1:] if rounds > 1 else laps.each
            print(
                f"{cipher:<14}{np.median(later):9.3f} s CPU per tree (first {laps.each[0]:.3f} s), "
                f"{np.diff(laps.bytes).mean() / 1e6:.1f} MB, {SECURITY.get(cipher, '112 bits')}",
                flush=True,
            )
            if cipher == "ckks":
                _compare(model, fed, data, depth)


def _compare(model: so.SecureBoost, fed: so.Federation, data: Any, depth: int) -> None:
    """The AUC of both boosters on the rows that they were trained on."""
    from sklearn.metrics import roc_auc_score

    positive = np.array(data.class_names)[data.y] == str(model.schema_.classes[1])
    ours = roc_auc_score(positive, model.predict_proba(fed, "train").to_numpy()[:, 1])
    joint = so.FedHistGBDT(rounds=ROUNDS, max_depth=depth, l2=1.0, bins=32).fit(data)
    theirs = roc_auc_score(data.y == 1, joint.predict_proba(data.X)[:, 1])
    print(f"AUC {ours:.6f}, of the joined columns {theirs:.6f} (within 0.005)")


SECTIONS: dict[str, Callable[[int], None]] = {
    "psi": psi,
    "regression": regression,
    "boost": boost,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], default=[])
    parser.add_argument("--rows", type=int, default=sized(100_000, tiny=200))
    given = parser.parse_args()
    for name in given.sections or SECTIONS:
        SECTIONS[name](given.rows)


if __name__ == "__main__":
    main()
