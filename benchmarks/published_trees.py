"""Tables 2.2 to 2.5 of the trees thesis by its program's protocol, over several draws.

The thesis drew clients and test rows without a seed and prints no deviation, so a figure of it is
one draw: it is compared with the mean of several and twice their deviation. Every run is a line of
``--runs FILE …``, so that what is there is not run again; ``--store`` writes the figures into
``published.csv``. ``--program FOLDER`` merges the same trees by the authors' own classes besides
(a working tree of github.com/FLEXible-FL/flex-trees) and prints how often the two agree.

    OMP_NUM_THREADS=1 SOLERA_DATA=… python benchmarks/published_trees.py --runs trees.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import io
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from sizes import sized
from solera.core.errors import DatasetUnavailable
from solera.published import tree_program, tree_rules, trees

DRAWS, CLIENTS = sized((4, trees.CLIENTS), tiny=(2, (2,)))
DATA = sized(trees.DATA, tiny=("car",))
FEW_POINTS = 4.0
STORED = Path(__file__).with_name("published.csv")
Runs = dict[tuple[str, str, int, str, int], dict[str, list[float]]]


def cells(chosen: list[str]) -> Iterator[trees.Cell]:
    """The cells of the tables, cheap ones first."""
    for clients in CLIENTS:
        for kind in ("id3", "cart"):
            for data in chosen:
                for partition in ("IID", "non-IID"):
                    yield trees.Cell(data, kind, clients, partition)  # type: ignore[arg-type]


def known(files: list[Path]) -> Runs:
    """The runs that files have."""
    there = [file for file in files if file.exists()]
    lines = [json.loads(line) for file in there for line in file.read_text().splitlines()]
    return {tuple(line["run"]): line["found"] for line in lines}  # type: ignore[misc]


def run(chosen: list[trees.Cell], draws: int, files: list[Path]) -> Runs:
    """Every draw of every cell."""
    found = known(files)
    for draw in range(draws):
        for cell in sorted(chosen, key=lambda cell: (cell.data, cell.kind)):  # one set in memory
            if (*cell, draw) in found:
                continue
            scores = tree_program.measured(*cell, draw)
            found[*cell, draw] = {who: value.tolist() for who, value in scores.items()}
            if files:
                line = {"run": [*cell, draw], "found": found[*cell, draw]}
                with files[0].open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(line) + "\n")
    return found


def figures(found: Runs, cell: trees.Cell, who: str, metric: str) -> list[float]:
    """The draws of one figure that have been run."""
    place = trees.METRICS.index(metric)
    return [scores[who][place] for run, scores in found.items() if run[:4] == tuple(cell)]


def spread(values: list[float]) -> float:
    """Twice the deviation of the draws, and at least a point."""
    return max(1.0, 2 * float(np.std(values, ddof=1))) if len(values) > 1 else 1.0


def inside(printed: float, values: list[float]) -> bool:
    return bool(values) and abs(np.mean(values) - printed) <= spread(values)


def reason(found: Runs, cell: trees.Cell, who: str, metric: str) -> str:
    """Which entry of the errata page a figure outside the spread belongs to.

    ``equal-clients``: clients of equal size have the thesis's figure; ``unseeded``: it is within
    four points, as single draws are; ``open``: neither.
    """
    printed = cell.source(who, metric).value
    assert printed is not None
    values = figures(found, cell, who, metric)
    if inside(printed, values):
        return ""
    if cell.partition != "IID" and inside(printed, equal_clients(found, cell, who, metric)):
        return "equal-clients"
    return "unseeded" if abs(np.mean(values) - printed) <= FEW_POINTS else "open"


def equal_clients(found: Runs, cell: trees.Cell, who: str, metric: str) -> list[float]:
    return figures(found, cell._replace(partition="IID"), who, metric)


def line_of(found: Runs, cell: trees.Cell, who: str, metric: str) -> str:
    """Thesis and measured, mean ± spread; of random sizes what equal clients have as well."""
    text = f"{cell.name}, {who}, {metric}: thesis {cell.source(who, metric).value:.2f}"
    values = figures(found, cell, who, metric)
    text += f" {np.mean(values):.2f} ± {spread(values):.2f}"
    equal = equal_clients(found, cell, who, metric)
    if cell.partition != "IID" and equal:
        text += f", equal clients {np.mean(equal):.2f} ± {spread(equal):.2f}"
    return f"{text} {reason(found, cell, who, metric)}".rstrip()


def store(found: Runs) -> None:
    """Write means, spreads and reasons into published.csv."""
    with STORED.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        if line["study"] != "trees":
            continue
        data, kind, partition, clients, who, metric = line["label"].split(", ")
        cell = trees.Cell(data, kind, int(clients.split()[0]), partition)  # type: ignore[arg-type]
        values = figures(found, cell, who, metric)
        if values:
            draws = f"2 sd of {len(values)} draws, at least a point"
            line |= {
                "measured": f"{np.mean(values):.4f}",
                "spread": f"{spread(values):.4g}",
                "of": draws if len(values) > 1 else "one draw: a point",
                "scale": "full",
                "errata": reason(found, cell, who, metric),
            }
    with STORED.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def verdict(found: Runs, chosen: list[trees.Cell]) -> str:
    """How many figures are inside, and the reasons of the others, by whose trees they are."""
    counts: dict[str, Counter[str]] = {}
    for cell in chosen:
        for who in cell.printed:
            name = f"{who}, {cell.kind}, {cell.partition}"
            for metric in trees.METRICS:
                if figures(found, cell, who, metric):
                    why = reason(found, cell, who, metric) or "inside"
                    counts.setdefault(name, Counter())[why] += 1
    return "\n".join(f"{name}: {dict(count)}" for name, count in counts.items())


# --- beside the authors' program ---


def beside(folder: Path, cell: trees.Cell, draw: int) -> str:
    """The same clients' CART trees merged by the authors' own classes and by ours."""
    merge = authors_merge(folder)
    clients = tree_program.dealt(*cell, draw)
    grown = [
        tree_program.CartTree(clients, train, len(train) + len(test))
        for train, test in zip(clients.train, clients.test, strict=True)
    ]
    kept = range(min(4, len(grown)))
    rules = tree_rules.merged([grown[i].rules() for i in kept])
    rows = np.concatenate(clients.test)
    ours = tree_rules.predicted(rules, clients.X[rows])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(tempfile.mkdtemp()):
        theirs, count = merge(clients, [grown[i].fitted for i in kept], kept, rows)
    same = float(np.mean(theirs == ours))
    return (
        f"{cell.name}, draw {draw}: {len(kept)} trees, rules {count} and {len(rules)}, "
        f"{100 * same:.2f} % of {len(rows)} predictions alike"
    )


def authors_merge(folder: Path) -> Any:
    """The program's merging of scikit-learn trees, which imports itself by an older name."""
    import pandas as pd

    packages = {"dtfl": folder / "flextrees", "dtfl.utils": folder / "flextrees" / "utils"}
    for name, path in packages.items():
        module = ModuleType(name)
        module.__path__ = [str(path)]
        sys.modules.setdefault(name, module)
    absent = ModuleType("dtfl.utils.utils_trees")  # of ID3, which is no part of the comparison
    for name in ("ID3Classifier", "NewID3Classifier", "Node"):
        setattr(absent, name, type(name, (), {}))
    sys.modules[absent.__name__] = absent
    vars(np)["product"] = np.prod  # which NumPy had then
    mean = pd.Series.mean
    pd.Series.mean = lambda self, *a, **k: (  # type: ignore[method-assign]
        np.mean(np.stack(list(self.values)), axis=0)
        if self.dtype == object  # as pandas did then
        else mean(self, *a, **k)
    )
    conjunction = importlib.import_module("dtfl.utils.ConjunctionSet").ConjunctionSet
    aggregate = importlib.import_module("dtfl.utils.utils_function_aggregator")
    branches = importlib.import_module("dtfl.utils.branch_tree").TreeBranch

    def merge(clients: tree_program.Clients, fitted: Any, kept: Any, rows: Any) -> Any:
        names = [f"x{j}" for j in range(clients.X.shape[1])]
        lists = []
        for i, tree in zip(kept, fitted, strict=True):
            X, y = clients.X[clients.train[i]], clients.y[clients.train[i]]
            rules = conjunction(
                names, X, X, y, [tree], feature_types=["int"] * len(names),
                amount_of_branches_threshold=3000, minimal_forest_size=1, estimators=tree,
                filter_approach="probability", personalized=False,
            )  # fmt: skip
            lists.append(rules.get_branches_list())
        classes = sorted({int(c) for tree in fitted for c in tree.classes_})
        _, tree, frame = aggregate.generate_cs_dt_branches_from_list(lists, classes, branches)
        return np.array(tree.predict(clients.X[rows], classes, frame)[0]), len(frame)

    return merge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--data", nargs="*", default=list(DATA))
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--program", type=Path)
    arguments = parser.parse_args()
    chosen = list(cells(arguments.data))
    if arguments.program is not None:
        for cell in chosen:
            if cell.kind == "cart":
                for draw in range(arguments.draws):
                    print(beside(arguments.program, cell, draw), flush=True)
        return
    try:
        found = run(chosen, arguments.draws, arguments.runs)
    except DatasetUnavailable as problem:
        print(f"not at hand: {problem}")
        return
    for cell in chosen:
        for who in cell.printed:
            for metric in trees.METRICS:
                if figures(found, cell, who, metric):
                    print(line_of(found, cell, who, metric))
    print(verdict(found, chosen))
    if arguments.store:
        store(found)


if __name__ == "__main__":
    main()
