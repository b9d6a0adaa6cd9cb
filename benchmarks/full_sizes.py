"""The published studies at full size, in parts that many processes share and that outlive them.

A part is one run of a study: a method on a set with a seed, a cell, a repeat with a noise
multiplier, or a whole short study. Its result is a file of the folder; what is there is not
computed again, so that a run which was stopped, or ran on another machine, goes on. Files are JSON:
scores by metric and part of the test for ``multilabel``, rows as in the study for the others.

    python full_sizes.py work FOLDER --gpu 6 --labels 6 --trees 4 --seconds 560
    python full_sizes.py left FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import solera as so
from sizes import TINY
from solera.study import named as tables
from solera_studies import dp, multilabel, selection_performance, trees
from solera_studies.rows import AS_PUBLISHED, OURS, quiet

WHOLE = ("selection-resources", "robust", "leakage", "cifar", "mnist", "heonn-ensemble",
         "heonn-grid")  # fmt: skip
"""Short enough at full size to be one part."""
SEEDS, ROUNDS = 5, 1000
COSTLY = ("tmc2007_500", "20NG", "YahooEducation", "Corel5k", "slashdot", "scene", "reutersK500",
          "yeast")  # fmt: skip
"""Multi-label sets, the longest first."""


class Part(NamedTuple):
    """A study and the arguments of one of its runs."""

    study: str
    key: tuple[Any, ...]

    @property
    def name(self) -> str:
        return "-".join(str(word) for word in (self.study, *self.key)).replace(" ", "_")

    def file(self, folder: Path) -> Path:
        return folder / f"{self.name}.json"

    def store(self, folder: Path, result: Any) -> None:
        draft = folder / f"{self.name}.{os.getpid()}"
        draft.write_text(json.dumps(result))
        draft.replace(self.file(folder))

    def claimed(self, folder: Path) -> bool:
        """Whether this process is the first to want the part."""
        try:
            (folder / f"{self.name}.claim").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


# --- the parts of every study, and how one is computed ---


def label_parts() -> Iterator[Part]:
    for seed in range(SEEDS):
        for method in multilabel.METHODS:
            for data in COSTLY:
                yield Part("multilabel", (data, seed, method))


def selection_parts() -> Iterator[Part]:
    for seed in range(3):
        for setting in reversed(selection_performance.SETTINGS):
            for kind in selection_performance.KINDS:
                for protocol in (AS_PUBLISHED, OURS) if kind == "nearly IID" else (OURS,):
                    for method in reversed(selection_performance.METHODS):
                        yield Part(
                            "selection-performance", (setting.name, kind, protocol, method, seed)
                        )


def tree_parts() -> Iterator[Part]:
    for cell in trees.cells(full=True):
        yield Part("trees", tuple(cell))


def dp_parts() -> Iterator[Part]:
    for seed in range(10):
        for name in dp.PARTITIONS:
            for noise in (0.0, *dp.NOISES):
                yield Part("dp", (name, noise, seed))


def everything() -> dict[str, list[Part]]:
    if TINY:
        return {"leakage": [Part("leakage", ())]}
    found = {
        "multilabel": list(label_parts()),
        "trees": list(tree_parts()),
        "selection-performance": list(selection_parts()),
        "dp": list(dp_parts()),
    }
    return found | {name: [Part(name, ())] for name in WHOLE}


@quiet()
def compute(part: Part, folder: Path) -> Any:
    """A part's result; None where it has to wait for another."""
    if part.study == "multilabel":
        data, seed, method = part.key
        stopped = 0
        if method.startswith(multilabel.ALONE) and "improved" not in method:
            before = Part("multilabel", (data, seed, "samples_labels")).file(folder)
            if not before.exists():
                return None
            stopped = json.loads(before.read_text())["rounds"]
        scores, took = multilabel.one_method(multilabel.SETS[data], seed, method, ROUNDS, stopped)
        return {f"{metric}, {test}": score for (_, metric, test), score in scores.items()} | {
            "rounds": took
        }
    if part.study == "selection-performance":
        name, *rest = part.key
        (setting,) = [each for each in selection_performance.SETTINGS if each.name == name]
        return selection_performance._one(setting, *rest, full=True)
    if part.study == "trees":
        return trees.measure(trees.Cell(*part.key))
    if part.study == "dp":
        name, noise, seed = part.key
        return dp.one_fit(images(), name, noise, seed, 10)
    return tables.run_named(part.study, folder / part.study, full=not TINY)


@cache
def images() -> Any:
    return tuple(so.datasets.mnist())


# --- many processes ---


LANES = ("gpu", "labels", "trees")


def order(lane: str) -> list[Part]:
    """What a process takes first: networks with images on a GPU; low seeds first."""
    parts = everything()
    if TINY:
        return parts["leakage"]
    whole = {name: parts[name][0] for name in WHOLE}
    if lane == "gpu":
        selection = parts["selection-performance"]
        images = [part for part in selection if part.key[0] == "CIFAR10"]
        rest = [part for part in selection if part.key[0] != "CIFAR10"]
        short = [whole[name] for name in ("cifar", "mnist", "leakage")]
        return [whole["selection-resources"], whole["robust"], *images, *rest, *short, *parts["dp"]]
    first, then = ("multilabel", "trees") if lane == "labels" else ("trees", "multilabel")
    short = [whole[name] for name in ("heonn-ensemble", "heonn-grid")]
    return [*parts[first], *parts[then], *short, *parts["dp"]]


def serve(folder: Path, lane: str, until: float) -> None:
    """Take parts until all are taken or the time is up."""
    import torch

    torch.set_num_threads(1)
    wanted = order(lane)
    while wanted and time.time() < until:
        later = []
        for part in wanted:
            if time.time() > until:
                return
            if part.file(folder).exists() or not part.claimed(folder):
                continue
            began, used = time.time(), time.process_time()
            try:
                result = compute(part, folder)
            except Exception as problem:  # one part must not cost the others
                print(f"{part.name}: {type(problem).__name__}: {problem}", flush=True)
                continue
            if result is None:
                (folder / f"{part.name}.claim").unlink()
                later.append(part)
                continue
            part.store(folder, result)
            seconds, cpu = time.time() - began, time.process_time() - used
            print(f"{part.name} {seconds:.1f} s, {cpu:.1f} s of a core, {lane}", flush=True)
        wanted = later
        time.sleep(1)


def work(folder: Path, lanes: list[str], seconds: float) -> None:
    """Start a process for every lane, end them when the time is up, and say what is left."""
    folder.mkdir(parents=True, exist_ok=True)
    for claim in folder.glob("*.claim"):  # of processes that are gone
        claim.unlink()
    until = time.time() + seconds
    processes = []
    tiny = ["--tiny"] if TINY else []
    for number, lane in enumerate(lanes):
        hidden = {} if lane == "gpu" else {"CUDA_VISIBLE_DEVICES": ""}
        told = (folder / f"{lane}{number}.log").open("a")
        processes.append(
            subprocess.Popen(
                [sys.executable, __file__, "serve", str(folder), lane, str(until), *tiny],
                env={**os.environ, "OMP_NUM_THREADS": "1", **hidden},
                stdout=told,
                stderr=subprocess.STDOUT,
            )
        )
    while time.time() < until and any(process.poll() is None for process in processes):
        time.sleep(1)
    for process in processes:
        process.kill()
        process.wait()
    left(folder)


def left(folder: Path) -> None:
    """How many parts of every study are there."""
    for study, parts in everything().items():
        done = sum(part.file(folder).exists() for part in parts)
        print(f"{study}: {done} of {len(parts)} parts")


def main() -> None:
    if TINY and len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as folder:
            work(Path(folder), ["gpu"], 600)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["work", "serve", "left"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("rest", nargs="*")
    for lane in LANES:
        parser.add_argument(f"--{lane}", type=int, default=0, help="how many such processes")
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    if given.what == "work":
        lanes = [lane for lane in LANES for _ in range(getattr(given, lane))]
        work(given.folder, lanes, given.seconds)
    elif given.what == "serve":
        serve(given.folder, given.rest[0], float(given.rest[1]))
    else:
        left(given.folder)


if __name__ == "__main__":
    main()
