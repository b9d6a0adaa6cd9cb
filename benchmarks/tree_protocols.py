"""Which protocol gives the fused and the Federated-ID3 trees of the trees thesis's tables.

The published program does not give all figures of Tables 2.2 to 2.5. Here the same clients' trees
are kept, merged and judged in other ways: by the thesis's text, by lines that the program has as
comments or options, and by what else may have differed. Every run is a line of ``--runs FILE …``;
printed are, per protocol, how many figures are inside two deviations of its draws, and every cell.

    OMP_NUM_THREADS=1 SOLERA_DATA=… python benchmarks/tree_protocols.py --runs protocols.jsonl
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np

import published_trees
from published_trees import Runs
from sizes import sized
from solera.core.clients import FloatArray, IntArray
from solera.core.errors import DatasetUnavailable
from solera_studies import tree_program, trees
from solera_studies.tree_rules import PROGRAM, Way

DRAWS = sized(6, 2)
LAST = "the last kept tree alone"
LEVELS = sized(tuple(range(1, 12)), (1, 2))


class Protocol(NamedTuple):
    """How trees are grown, kept and merged."""

    way: Way = PROGRAM
    percentile: float | None = None
    levels: int = tree_program.ID3_LEVELS


FUSED = {
    "program": Protocol(),
    "no pure rules set aside": Protocol(Way(pure_from=inf)),
    "10,000 rules, none set aside": Protocol(Way(most=10_000, pure_from=inf)),
    "the largest 3,000 rules": Protocol(Way(largest=True)),
    "united conditions (text)": Protocol(Way(unite=True)),
    "united conditions, the largest 3,000 rules": Protocol(Way(unite=True, largest=True)),
    "united conditions, none set aside": Protocol(Way(unite=True, pure_from=inf)),
    "median": Protocol(percentile=50),
    "percentile 75": Protocol(percentile=75),
    "percentile 90": Protocol(percentile=90),
    "percentile 75, none set aside": Protocol(Way(pure_from=inf), percentile=75),
    "percentile 75, united conditions": Protocol(Way(unite=True), percentile=75),
    "three splits": Protocol(levels=3),
    "five splits": Protocol(levels=5),
}
"""Ways to a fused tree; united conditions and numbers of splits are ID3's alone."""
ID3_ONLY = {name for name, p in FUSED.items() if p.way.unite or p.levels != Protocol().levels}


def fused(cell: trees.Cell, draw: int) -> dict[str, list[float]]:
    """Accuracy and macro-F1 of every protocol on one draw."""
    clients = tree_program.dealt(*cell, draw)
    found, grown, means = {}, {}, {}
    for name, protocol in FUSED.items():
        if cell.kind == "cart" and name in ID3_ONLY:
            continue
        if protocol.levels not in grown:
            grown[protocol.levels] = tree_program.grown(clients, protocol.levels)
            judged = tree_program.judged(clients, grown[protocol.levels])
            means[protocol.levels] = judged.mean(axis=0)
        kept = tree_program.kept(means[protocol.levels], protocol.percentile)
        chosen = [grown[protocol.levels][i] for i in kept]
        found[name] = (100 * tree_program.fused(clients, chosen, protocol.way)).tolist()
        if name == "program":
            found[LAST] = (100 * means[protocol.levels][kept[-1]]).tolist()
    return found


def federated(cell: trees.Cell, draw: int) -> dict[str, list[float]]:
    """Federated-ID3 of equal clients, by splits and by what a leaf of no rows answers.

    A leaf without rows of the first client is a class of its own (the program), the first or the
    second class, or a wrong answer that macro-F1 does not count as a class.
    """
    clients = tree_program.dealt(*cell._replace(partition="IID"), draw)
    whole = [np.concatenate(both) for both in zip(clients.train, clients.test, strict=True)]
    found = {}
    for levels in LEVELS:
        guessed = tree_program.by_first_client(clients, whole, levels)
        for unknown in ("own class", "class 0", "class 1", "no class"):
            scores = [_guessed(clients, guessed[own], unknown, own) for own in whole]
            found[f"{levels} splits, unknown: {unknown}"] = (100 * np.mean(scores, axis=0)).tolist()
    return found


def _guessed(
    clients: tree_program.Clients, answers: IntArray, unknown: str, rows: IntArray
) -> FloatArray:
    nobody = clients.classes
    if unknown.startswith("class"):
        answers = np.where(answers == nobody, int(unknown[-1]), answers)
    accuracy, macro = tree_program.scores(clients, rows, answers)
    if unknown == "no class" and (answers == nobody).any():
        present = len(np.union1d(clients.y[rows], answers))
        macro *= present / (present - 1)  # its own share of the mean is zero
    return np.array([accuracy, macro])


def report(found: Runs, chosen: list[trees.Cell], who: str) -> Iterator[str]:
    """A line per protocol: figures inside, of how many, and every cell's mean."""
    names = list(dict.fromkeys(name for scores in found.values() for name in scores))
    for name in names:
        inside, count, parts = 0, 0, []
        for cell in chosen:
            means = []
            for metric in trees.METRICS:
                values = published_trees.figures(found, cell, name, metric)
                if values:
                    printed = cell.source(who, metric).value
                    assert printed is not None
                    there = published_trees.inside(printed, values)
                    inside, count = inside + there, count + 1
                    means.append(f"{np.mean(values):.1f}{'' if there else '*'}")
            if means:
                parts.append(f"{cell.name} {' / '.join(means)}")
        yield f"{name}: {inside} of {count} inside | " + "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--who", choices=(trees.FUSION, trees.FED_ID3), default=trees.FUSION)
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--data", nargs="*", default=list(published_trees.DATA))
    parser.add_argument("--kind", nargs="*", default=["id3"])
    parser.add_argument("--clients", type=int, nargs="*", default=list(published_trees.CLIENTS))
    arguments = parser.parse_args()
    chosen = [
        cell
        for cell in published_trees.cells(arguments.data)
        if cell.kind in arguments.kind and cell.clients in arguments.clients
    ]
    try:
        measure = fused if arguments.who == trees.FUSION else federated
        found = published_trees.run(chosen, arguments.draws, arguments.runs, measure)
    except DatasetUnavailable as problem:
        print(f"not at hand: {problem}")
        return
    print("* outside two deviations of the draws, at least a point")
    for line in report(found, chosen, arguments.who):
        print(line)


if __name__ == "__main__":
    main()
