"""Tables 2.2 to 2.5 of the trees thesis by its program's protocol, over several draws.

The thesis drew clients and test rows without a seed and prints no deviation, so a figure of it is
one draw: it is compared with the mean of several and twice their deviation. Every run is a line of
``--runs FILE …``, so that what is there is not run again; ``--store`` writes the figures into
``published.csv``, with reasons from the runs of ``tree_protocols.py`` that ``--protocols FILE …``
names. ``--program FOLDER`` merges the same trees by the authors' own classes besides
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
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from sizes import sized
from solera.core.clients import FloatArray
from solera.core.errors import DatasetUnavailable
from solera_studies import tree_program, tree_rules, trees

DRAWS, CLIENTS = sized((20, trees.CLIENTS), tiny=(2, (2,)))
DATA = sized(trees.DATA, tiny=("car",))
RARE = 0.99
"""The part of draws that lie nearer to the others than what luck does not explain."""
STORED = Path(__file__).with_name("published.csv")
Runs = dict[tuple[str, str, int, str, int], dict[str, list[float]]]
Measure = Callable[[trees.Cell, int], dict[str, list[float]]]
"""Accuracy and macro-F1 by name, of one draw."""
Figure = tuple[trees.Cell, str, str]
"""A cell, whose trees, and the metric."""


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
    found: Runs = {}
    for line in lines:
        found.setdefault(tuple(line["run"]), {}).update(line["found"])  # type: ignore[arg-type]
    return found


def measured(cell: trees.Cell, draw: int) -> dict[str, list[float]]:
    """One draw of the program's own experiment."""
    return {who: value.tolist() for who, value in tree_program.measured(*cell, draw).items()}


def run(
    chosen: list[trees.Cell], draws: int, files: list[Path], measure: Measure = measured
) -> Runs:
    """Every draw of every cell."""
    found = known(files)
    for draw in range(draws):
        for cell in sorted(chosen, key=lambda cell: (cell.data, cell.kind)):  # one set in memory
            if (*cell, draw) in found:
                continue
            found[*cell, draw] = measure(cell, draw)
            if files:
                line = {"run": [*cell, draw], "found": found[*cell, draw]}
                with files[0].open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(line) + "\n")
    return found


def figures(found: Runs, cell: trees.Cell, who: str, metric: str) -> list[float]:
    """The draws of one figure that have been run."""
    place = trees.METRICS.index(metric)
    of_cell = [scores for run, scores in found.items() if run[:4] == tuple(cell)]
    return [scores[who][place] for scores in of_cell if who in scores]


def spread(values: list[float]) -> float:
    """Twice the deviation of the draws, and at least a point."""
    return max(1.0, 2 * float(np.std(values, ddof=1))) if len(values) > 1 else 1.0


def distance(value: float, values: list[float]) -> float:
    """How many spreads a value is from the mean of draws."""
    return abs(float(np.mean(values)) - value) / spread(values)


def inside(printed: float, values: list[float]) -> bool:
    return bool(values) and distance(printed, values) <= 1


# --- why a figure is outside ---


def by_luck(found: Runs, compared: list[Figure]) -> FloatArray:
    """How many spreads every draw is from the other draws of its figure."""
    draws = [figures(found, *figure) for figure in compared]
    return np.array(
        [
            distance(value, values[:i] + values[i + 1 :])
            for values in draws
            for i, value in enumerate(values)
            if len(values) > 2
        ]
    )


def reasons(found: Runs, others: Runs, chosen: list[trees.Cell]) -> dict[Figure, str]:
    """Which entry of the errata page every figure belongs to, none if it is inside.

    ``contradiction``: accuracy and macro-F1 of the table exclude each other; ``equal-clients``:
    clients of equal size have the figure; ``another-depth``: Federated-ID3 of other splits has it;
    ``unseeded``: it is no farther off than one in a hundred of our own draws is from the others;
    ``one-leaf``: a stricter filter of trees has it; ``open``: none of these.
    """
    compared = [
        (cell, who, metric)
        for cell in chosen
        for who in cell.printed
        for metric in trees.METRICS
        if figures(found, cell, who, metric)
    ]
    luck = by_luck(found, compared)
    limit = float(np.quantile(luck, RARE)) if len(luck) else 1.0
    return {figure: _reason(found, others, figure, limit) for figure in compared}


def _reason(found: Runs, others: Runs, figure: Figure, limit: float) -> str:
    cell, who, metric = figure
    printed = cell.source(who, metric).value
    assert printed is not None
    values = figures(found, *figure)
    if inside(printed, values):
        return ""
    if metric == "accuracy" and trees.contradicts(cell, who):
        return "contradiction"
    if cell.partition != "IID" and inside(printed, equal_clients(found, *figure)):
        return "equal-clients"
    if who == trees.FED_ID3:
        return "another-depth" if _at_another_depth(others, cell) else "open"
    if distance(printed, values) <= limit:
        return "unseeded"
    stricter = [figures(others, cell, f"percentile {q}", metric) for q in (75, 90)]
    if who == trees.FUSION and any(inside(printed, draws) for draws in stricter):
        return "one-leaf"
    return "open"


def _at_another_depth(others: Runs, cell: trees.Cell) -> bool:
    """Whether both figures of Federated-ID3 come out with one other number of splits."""
    equal = cell._replace(partition="IID")
    names = {name for run, scores in others.items() if run[:4] == tuple(equal) for name in scores}
    wanted = [(metric, cell.source(trees.FED_ID3, metric).value or 0.0) for metric in trees.METRICS]
    return any(
        all(inside(value, figures(others, equal, name, metric)) for metric, value in wanted)
        for name in names
        if "splits, unknown: " in name
    )


def equal_clients(found: Runs, cell: trees.Cell, who: str, metric: str) -> list[float]:
    return figures(found, cell._replace(partition="IID"), who, metric)


# --- printing and storing ---


def line_of(found: Runs, figure: Figure, why: str) -> str:
    """Thesis and measured, mean ± spread; of random sizes what equal clients have as well."""
    cell, who, metric = figure
    text = f"{cell.name}, {who}, {metric}: thesis {cell.source(who, metric).value:.2f}"
    values = figures(found, *figure)
    text += f" {np.mean(values):.2f} ± {spread(values):.2f}"
    text += f" ({min(values):.2f} to {max(values):.2f})"
    equal = equal_clients(found, *figure)
    if cell.partition != "IID" and equal:
        text += f", equal clients {np.mean(equal):.2f} ± {spread(equal):.2f}"
    return f"{text} {why}".rstrip()


def store(found: Runs, why: dict[Figure, str]) -> None:
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
                "errata": why[cell, who, metric],
            }
    with STORED.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def verdict(found: Runs, why: dict[Figure, str]) -> str:
    """How many figures are inside, how many are expected to be by luck, and the others' reasons."""
    luck = by_luck(found, list(why))
    text = ""
    if len(luck):
        text = (
            f"of {len(luck)} draws {100 * np.mean(luck > 1):.1f} % are outside the spread of the "
            f"others, one in a hundred by {np.quantile(luck, RARE):.2f} spreads\n"
        )
    counts: dict[str, Counter[str]] = {}
    for (cell, who, _), reason in why.items():
        name = f"{who}, {cell.kind}, {cell.partition}"
        counts.setdefault(name, Counter())[reason or "inside"] += 1
    lines = [f"{name}: {dict(count)}" for name, count in counts.items()]
    return text + "\n".join([*lines, f"all: {dict(sum(counts.values(), Counter()))}"])


# --- beside the authors' program ---


def beside(folder: Path, cell: trees.Cell, draw: int) -> str:
    """The same clients' trees merged by the authors' own classes and by ours."""
    merge = authors_merge(folder)
    clients = tree_program.dealt(*cell, draw)
    grown = tree_program.grown(clients)
    kept = tree_program.kept(tree_program.judged(clients, grown).mean(axis=0))
    rules = tree_rules.merged([grown[i].rules() for i in kept])
    rows = np.concatenate(clients.test)
    ours = tree_rules.predicted(rules, clients.X[rows])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(tempfile.mkdtemp()):
        theirs, count = merge(clients, [grown[i] for i in kept], kept, rows)
    same = 100 * float(np.mean(theirs == ours[len(ours) - len(theirs) :]))
    return (
        f"{cell.name}, draw {draw}: {len(kept)} trees, rules {count} and {len(rules)}, "
        f"{same:.2f} % of {len(theirs)} predictions alike, of {len(np.unique(theirs))} classes"
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
    sys.breakpointhook = lambda *a, **k: None  # where the first rows have no branch, nor answers
    mean = pd.Series.mean
    pd.Series.mean = lambda self, *a, **k: (  # type: ignore[method-assign]
        np.mean(np.stack(list(self.values)), axis=0)
        if self.dtype == object  # as pandas did then
        else mean(self, *a, **k)
    )
    conjunction = importlib.import_module("dtfl.utils.ConjunctionSet").ConjunctionSet
    aggregate = importlib.import_module("dtfl.utils.utils_function_aggregator")
    numbers = importlib.import_module("dtfl.utils.branch_tree").TreeBranch
    categories = importlib.import_module("dtfl.utils.branch_tree_categorical")
    categorical = importlib.import_module("dtfl.utils.branch_categorical").BranchCategorical

    def of_cart(clients: tree_program.Clients, tree: Any, i: int, names: list[str]) -> Any:
        X, y = clients.X[clients.train[i]], clients.y[clients.train[i]]
        rules = conjunction(
            names, X, X, y, [tree.fitted], feature_types=["int"] * len(names),
            amount_of_branches_threshold=3000, minimal_forest_size=1, estimators=tree.fitted,
            filter_approach="probability", personalized=False,
        )  # fmt: skip
        return rules.get_branches_list()

    def of_id3(clients: tree_program.Clients, tree: Any, i: int, names: list[str]) -> Any:
        rules, classes = tree.rules(), list(range(clients.classes))
        branches = []
        for codes, shares, rows in zip(rules.shown[0], rules.shares, rules.rows, strict=True):
            branch = categorical(names, ["str"] * len(names), classes, shares, int(rows))
            for column in np.flatnonzero(codes >= 0):
                branch.add_condition(int(column), codes[column])
            branch.set_branch_probability(1.0)
            branches.append(branch)
        return [branches]

    def merge(clients: tree_program.Clients, grown: Any, kept: Any, rows: Any) -> Any:
        names = [f"x{j}" for j in range(clients.X.shape[1])]
        of_tree, tree_class = (of_cart, numbers) if clients.sizes is None else (
            of_id3, categories.TreeBranchCategorical)  # fmt: skip
        lists = [of_tree(clients, tree, i, names) for i, tree in zip(kept, grown, strict=True)]
        classes = list(range(clients.classes))
        _, tree, frame = aggregate.generate_cs_dt_branches_from_list(lists, classes, tree_class)
        return np.array(tree.predict(clients.X[rows], classes, frame)[0]), len(frame)

    return merge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--data", nargs="*", default=list(DATA))
    parser.add_argument("--protocols", type=Path, nargs="*", default=[])
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--program", type=Path)
    arguments = parser.parse_args()
    chosen = list(cells(arguments.data))
    if arguments.program is not None:
        for cell in chosen:
            for draw in range(arguments.draws):
                print(beside(arguments.program, cell, draw), flush=True)
        return
    try:
        found = run(chosen, arguments.draws, arguments.runs)
    except DatasetUnavailable as problem:
        print(f"not at hand: {problem}")
        return
    why = reasons(found, known(arguments.protocols), chosen)
    for figure, reason in why.items():
        print(line_of(found, figure, reason))
    print(verdict(found, why))
    if arguments.store:
        store(found, why)


if __name__ == "__main__":
    main()
