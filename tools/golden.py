"""Golden bytes: what learners compute, to compare before and after a change that must not show.

    python tools/golden.py write FOLDER      with the code before
    python tools/golden.py compare FOLDER    with the code after; exit code 1 where they differ

Every learner of the law suite is fitted to real rows with fixed seeds; what it learned, predicted,
asked and was answered is kept as arrays, beside the rows of every partition, the choices of every
selector, and the tables of a run, a study and two published studies. Which Solera is measured is
decided by ``PYTHONPATH``; the law suite's cases are taken from the same tree.

Values are compared to the bit. Networks alone may be laid out in another way: their numbers are
compared in sorted order as well, and to 1e-12, and what is equal only so is counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import functools
import hashlib
import html.parser
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import solera as so

# --- names that changed: the old one first ---

CLASSES = {"HistGBDT": "FedHistGBDT", "FedGBDT": "SimFL"}
LEARNED = {"uses_gaps": "uses_missing", "gaps": "missing"}
"""Learned attributes and keys of payloads."""
GONE = ("task data.flaws/",)
"""Facts that are no longer there on purpose: engines that know all rows look at them unasked."""
NAMESPACES = ("partitions", "selectors", "aggregations", "updates", "callbacks", "data",
              "simulation", "messages", "metrics", "energy", "learn")  # fmt: skip

TOLERANCE = 1e-12
CLOCK = re.compile(r"second|wall|time|energy|emission|watt|kwh|joule|co2|version", re.IGNORECASE)
"""Measurements of this machine and not of the learner."""
SOURCE = Path(so.__file__).parents[1]
MOST_SHOWN = 6

Facts = dict[str, Any]


@functools.cache
def public(name: str) -> Any:
    """Something public by its old name, wherever it lives now."""
    places = [so]
    for namespace in NAMESPACES:
        with contextlib.suppress(ImportError):
            places.append(importlib.import_module(f"solera.{namespace}"))
    for candidate in (name, CLASSES.get(name, name)):
        for place in places:
            if hasattr(place, candidate):
                return getattr(place, candidate)
    raise SystemExit(f"{name} is nowhere in solera; add its new name to {__file__}")


@functools.cache
def law_cases() -> Any:
    """tests/laws/cases.py of the tree that is measured."""
    folder = SOURCE.parent / "tests" / "laws"
    sys.path.insert(0, str(folder))
    return importlib.import_module("cases")


# --- data: wine, five standardised columns of it, the last one as three categories ---


@functools.cache
def wine() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_wine

    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    order = np.random.default_rng(0).permutation(len(X))[:160]
    return X[order], y[order]


def federated_rows(target: str) -> Any:
    """Five unequal clients; the kind of target that the case wants, three outputs at most."""
    if target not in ("classes", "labels", "numbers"):
        return law_cases().rows(target)
    full, y = wine()
    X = full[:, [0, 6, 9, 12, 10]].copy()
    X[:, 4] = np.digitize(X[:, 4], [0.0])  # codes of truth values, which every learner reads
    classes: np.ndarray | None = np.arange(3)
    outputs = 3
    if target == "labels":
        y, classes = (full[:, [1, 3, 5]] > 0).astype(np.uint8), None
    elif target == "numbers":
        y, classes, outputs = full[:, 2], None, 1
    feature = public("Feature")
    columns = (
        *(feature(f"x{i}") for i in range(4)),
        feature("c", "categorical", ("False", "True")),
    )
    like = law_cases().rows(target).schema
    schema = public("Schema")(columns, target, like.classes if classes is None else classes,
                              outputs)  # fmt: skip
    offsets = np.concatenate([[0], np.cumsum([60, 40, 30, 20, 10])])
    return public("FederatedData")(X, y, offsets, schema=schema).split(test=0.2, seed=1)


# --- arrays out of whatever a payload or a state holds ---


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, scalar, text or array) of everything in a nested value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}/{LEARNED.get(str(key), key)}")
    elif isinstance(value, list | tuple):
        if value and all(isinstance(v, int | float) for v in value):
            yield path, np.array(value)
        else:
            for place, inner in enumerate(value):
                yield from leaves(inner, f"{path}/{place}")
    elif isinstance(value, bytes):
        yield path, np.frombuffer(value, np.uint8)
    elif value is not None:
        yield path, value


def as_array(value: Any) -> np.ndarray:
    if dataclasses.is_dataclass(value):
        value = repr(value)
    array = np.asarray(value)
    return np.asarray([str(v) for v in array.ravel()]) if array.dtype.kind == "O" else array


def facts_of(value: Any, prefix: str) -> Facts:
    return {prefix + path: as_array(leaf) for path, leaf in leaves(value)}


def with_old_names(value: Any) -> Any:
    """A payload whose texts name classes as they were named before."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {key: with_old_names(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [with_old_names(inner) for inner in value]
    return value


def loose_numbers(value: Any) -> np.ndarray:
    """All floats and single numbers of a payload in sorted order: free of their layout."""
    parts = []
    for _, leaf in leaves(value):
        array = as_array(leaf)
        if array.dtype.kind == "f" or (array.dtype.kind in "iub" and not array.ndim):
            parts.append(array.ravel().astype(float))
    return np.sort(np.concatenate(parts)) if parts else np.empty(0)


# --- learners ---


class Recorder:
    """Notes every ask of an engine and the replies to it, client by client."""

    def __init__(self, engine: Any, loose: bool) -> None:
        self.facts: Facts = {}
        self._loose = loose
        self._asks: Counter[str] = Counter()
        self._run = engine.run
        engine.run = self.run

    def run(self, ask: Any, aggregation: Any) -> Iterator[Any]:
        key = f"task {ask.task}/{self._asks[ask.task]}"
        self._asks[ask.task] += 1
        self.facts[f"{key}/clients"] = np.asarray(ask.clients)
        payload = getattr(ask.payload, "payloads", ask.payload)
        self.note(f"{key}/ask", payload)
        for block in self._run(ask, None):
            for reply in block.batch:
                self.note(f"{key}/reply {reply.client}", reply.payload)
            if aggregation is None:
                yield block
            else:
                partial = aggregation.fold(block.batch)
                yield dataclasses.replace(block, batch=None, partial=partial)

    def note(self, key: str, payload: Any) -> None:
        if self._loose:
            self.facts[f"{key} numbers"] = loose_numbers(payload)
            return
        self.facts.update(facts_of(payload, key))
        with contextlib.suppress(Exception):  # keys of a mapping by client are no text
            frame = _payload().encode(with_old_names(payload))
            self.facts[f"{key} encoded"] = np.array(hashlib.sha256(frame).hexdigest())


def is_network(model: Any) -> bool:
    steps = getattr(model, "steps", None)
    last = steps[-1] if isinstance(steps, list | tuple) and steps else model
    return hasattr(last, "module")


def fitted_facts(model: Any, fed: Any, X: Any, y: Any) -> Facts:
    """All that a fit leaves behind."""
    network = is_network(model)
    recorder = Recorder(fed.engine, loose=network)
    model.fit(fed)
    facts: Facts = {"network": np.array(network)}
    for name in ("predict", "predict_proba", "decision_function", "transform"):
        try:
            method = getattr(model, name, None)
            facts[name] = as_array(_dense(method(X))) if method else np.array("absent")
        except (so.errors.SoleraError, AttributeError):  # FedGLM has classes for some families
            facts[name] = np.array("refused")
    if hasattr(model, "score"):
        facts["score"] = np.array(model.score(X, y))
    facts.update(facts_of(model.history_, "history"))
    if network:
        with contextlib.suppress(Exception):  # personal parts: no module of one model
            for name, tensor in model.module().state_dict().items():
                facts[f"module {name}"] = tensor.detach().numpy()
        facts["learned numbers"] = loose_numbers(model.get_state())
    else:
        facts.update(facts_of(model.get_state(), "learned"))
    if hasattr(model, "score"):
        evaluation = model.evaluate(fed)
        facts.update(facts_of(evaluation.metrics, "evaluate"))
        for client, metrics in evaluation.clients.items():
            facts.update(facts_of(metrics, f"evaluate client {client}"))
    explain = getattr(model, "explain", None)
    if explain is not None:
        facts["explain"] = np.array(str(explain(np.asarray(X)[0])))
    facts.update(saved_facts(model, X, network))
    facts.update(recorder.facts)
    return facts


def saved_facts(model: Any, X: Any, network: bool) -> Facts:
    """The content of the saved file, and whether a learner read from it does the same."""
    frame = model.to_bytes()
    content = {} if network else facts_of(_payload().decode(frame), "saved")
    with tempfile.TemporaryDirectory() as folder:
        again = so.load(model.save(Path(folder) / "model.sol"))
    verb = "predict" if hasattr(model, "predict") else "transform"
    before, after = (as_array(_dense(getattr(m, verb)(X))) for m in (model, again))
    same = np.array_equal(before, after, equal_nan=before.dtype.kind == "f")
    return {**content, "saved and loaded": np.array(same)}


def _payload() -> Any:
    return importlib.import_module("solera.core.payload")


def _dense(value: Any) -> Any:
    return value.toarray() if hasattr(value, "toarray") else value


def law_learners() -> Iterator[tuple[str, Callable[[], Facts]]]:
    cases = law_cases()
    for name, make, target in cases.learner_cases():

        def facts(make: Any = make, target: str = target) -> Facts:
            data = federated_rows(target)
            model = make()
            fed = cases.federation_over(cases.ENGINES["local"](data), model)
            y = data.y
            return fitted_facts(model, fed, data.X, y)

        yield f"learner {name}", facts


def digits_learners() -> Iterator[tuple[str, Callable[[], Facts]]]:
    """Larger ones, on digits: wide and convolutional networks, ensembles, encryption."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X = X[:700] / 16
    y = y[:700]
    small = {"rounds": 3, "per_round": 4, "batch_size": 16, "lr": 0.1}
    image = np.kron(X.reshape(-1, 8, 8), np.ones((2, 2))).reshape(len(X), -1)
    nets = so.nn
    made: dict[str, tuple[Any, Callable[[], Any]]] = {
        "wide": (X, lambda: so.FedAvg(nets.mlp(64, 100, 10), **small)),
        "narrow": (X, lambda: so.FedAvg(nets.mlp(64, 20, 10), **small)),
        "double": (X, lambda: so.FedAvg(nets.mlp(64, 40, 40, 10), dtype="float64", **small)),
        "linear": (X, lambda: so.FedAvg(nets.linear(64, 10), **small)),
        "simple cnn": (image, lambda: so.FedAvg(nets.simple_cnn((16, 16, 1), 10), **small)),
        "conv net": (image, lambda: so.FedAvg(nets.conv_net((16, 16, 1), 10), **small)),
        "selected": (X, lambda: so.FedAvg(nets.mlp(64, 40, 10),
                                          select=public("ActiveSampling")(), **small)),
        "heonn": (X, lambda: so.FedHEONN(activation="logistic", lam=0.01)),
        "tree": (X, lambda: so.FederatedTree(kind="cart", max_depth=4)),
        "boosting": (X, lambda: public("HistGBDT")(rounds=3, max_depth=3)),
        "kmeans": (X, lambda: so.FedKMeans(10, rounds=5)),
    }  # fmt: skip
    for name, (rows, make) in made.items():

        def facts(rows: Any = rows, make: Any = make) -> Facts:
            partition = public("Dirichlet")(0.5, min_rows=5)
            fed = so.simulate(rows, y, clients=8, partition=partition, test=0.2, seed=7)
            return fitted_facts(make(), fed, rows[:200], y[:200])

        yield f"digits {name}", facts

    def encrypted() -> Facts:
        """Ciphertexts are new every time; what is decided with them is not."""
        with tempfile.TemporaryDirectory() as folder:
            so.keys.create(folder, "golden", so.keys.SMALL_CLIENT)
            os.environ["SOLERA_KEYS"] = folder
            fed = so.simulate(X, y, clients=4, test=0.2, seed=7)
            model = so.FedHEONN("linear", encrypt=public("Encryption")("golden")).fit(fed)
            return {"predict": model.predict(X[:200])}

    yield "digits encrypted", encrypted


# --- partitions and selectors ---


def partitions() -> Iterator[tuple[str, Callable[[], Facts]]]:
    cases = law_cases()
    X = np.random.default_rng(1).normal(size=(cases.ROWS, 3))
    for cls in cases.registered(public("Partition")):

        def facts(cls: Any = cls) -> Facts:
            kept: Facts = {}
            for seed in (0, 1, 2**31):
                result = cases.example(cls, cases.PARTITIONS).assign(
                    cases.ROWS, cases.LABELS, X=X, clients=cases.CLIENTS, seed=seed
                )
                kept[f"index {seed}"] = np.asarray(result.index)
                kept[f"offsets {seed}"] = np.asarray(result.offsets)
            return kept

        yield f"partition {cls.__name__}", facts


SELECTORS: dict[str, dict[str, Any]] = {
    "Uniform": {},
    "RoundRobin": {},
    "ActiveSampling": {},
    "PowerOfChoice": {},
    "GreedyShapley": {"part": "train"},
    "ShapleyUCB": {"part": "train"},
    "ShapleySoftmax": {"part": "train"},
    "FedCS": {},
    "HybridFL": {},
    "DynHybridFL": {},
}


def selectors() -> Iterator[tuple[str, Callable[[], Facts]]]:
    X, y = wine()
    for name, options in SELECTORS.items():

        def facts(name: str = name, options: Any = options) -> Facts:
            chosen: list[np.ndarray] = []

            class Watch(public("Callback")):
                def on_round(self, learner: Any, round: Any) -> None:
                    chosen.append(np.asarray(round.chosen))

            clock = public("VirtualClock")(public("Resources")(upload=0.5))
            fed = so.simulate(X, y, clients=8, seed=3, clock=clock)
            select = public(name)(**options)
            model = so.FedLinear(rounds=10, per_round=3, select=select, lr=0.05)
            model.fit(fed, callbacks=[Watch()])
            kept: Facts = {f"round {i}": ids for i, ids in enumerate(chosen)}
            kept.update(facts_of(model.get_state(), "learned"))
            kept.update(facts_of(model.history_, "history"))
            return kept

        yield f"selector {name}", facts


# --- runs, studies and published tables ---

RUN = """\
seeds = [0, 1]
[data]
name = "wine"
clients = 4
client_test = 0.25
[partition]
kind = "Dirichlet"
alpha = 1.0
min_rows = 8
[learner]
kind = "FedLinear"
rounds = 6
lr = 1e-5
"""
STUDY = """\
seeds = [0, 1, 2]
schemes = ["alone", "federated", "centralised"]
[data]
name = "wine"
clients = 3
client_test = 0.25
[[learner]]
kind = "FedLinear"
rounds = 2
lr = [1e-5, 1e-4]
[[learner]]
kind = "FedHEONN"
[[learner]]
kind = "FederatedTree"
max_depth = 3
"""
PUBLISHED = ("kmeans", "heonn-incremental")
MEASURED = ("cost", "energy")


class _Tables(html.parser.HTMLParser):
    """The cells of all tables of a page, row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.headers: list[bool] = []
        self._in_cell = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "tr":
            self.rows.append([])
            self.headers.append(True)
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self.headers[-1] &= tag == "th"
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


def solera(*arguments: str, folder: Path) -> str:
    """What the command of the measured tree prints."""
    pyproject = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())
    module, function = pyproject["project"]["scripts"]["solera"].split(":")
    program = f"import sys; from {module} import {function} as main; sys.argv[0] = 'solera'; main()"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"solera {' '.join(arguments)}: {done.stderr[-2000:]}")
    return done.stdout


def metric_facts(file: Path) -> Facts:
    """The numbers of metrics.csv by learner, scheme, seed, fold, part, round, client and metric."""
    facts: Facts = {}
    for row in csv.DictReader(file.open()):
        if row["part"] in MEASURED and not row["metric"].startswith("bytes_"):
            continue
        names = ("learner", "scheme", "seed", "fold", "part", "round", "client", "metric")
        facts["metric " + "|".join(row.get(name) or "" for name in names)] = np.array(row["value"])
    return facts


def table_facts(page: Path) -> Facts:
    """The rows of a report's tables, by their first cell and their place among equals."""
    reader = _Tables()
    reader.feed(page.read_text())
    facts: Facts = {}
    seen: Counter[str] = Counter()
    header: list[str] = []
    for row, is_header in zip(reader.rows, reader.headers, strict=True):
        cells = [" ".join(cell.split()) for cell in row]
        if is_header:
            header = cells
            continue
        names = header if len(header) == len(cells) else [""] * len(cells)
        for name, cell in list(zip(names, cells, strict=True))[1:]:
            if CLOCK.search(name) or CLOCK.search(cells[0]) or re.search(r"\d m?s\b", cell):
                continue
            key = f"table {cells[0]}|{name}"
            facts[f"{key}|{seen[key]}"] = np.array(cell)
            seen[key] += 1
    return facts


def files() -> Iterator[tuple[str, Callable[[], Facts]]]:
    def run_facts(text: str) -> Facts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "spec.toml").write_text(text)
            solera("run", "spec.toml", "--folder", "out", "--json", folder=folder)
            return {
                **metric_facts(folder / "out" / "metrics.csv"),
                **table_facts(folder / "out" / "report.html"),
            }

    yield "file run", lambda: run_facts(RUN)
    yield "file study", lambda: run_facts(STUDY)
    for study in PUBLISHED:

        def facts(study: str = study) -> Facts:
            with tempfile.TemporaryDirectory() as name:
                text = solera("study", study, "--folder", "out", "--json", folder=Path(name))
                rows = json.loads(text)["rows"]
            numbers = {str(i): row for i, row in enumerate(rows)}
            kept = facts_of(numbers, "row")
            return {k: v for k, v in kept.items() if not CLOCK.search(k)}

        yield f"published {study}", facts


def everything() -> Iterator[tuple[str, Callable[[], Facts]]]:
    yield from law_learners()
    yield from digits_learners()
    yield from partitions()
    yield from selectors()
    yield from files()


# --- writing and comparing ---


def file_of(folder: Path, name: str) -> Path:
    return folder / (re.sub(r"[^A-Za-z0-9]+", "-", plain(name)) + ".npz")


def plain(text: str) -> str:
    """A text with the old names, for comparisons."""
    for old, new in CLASSES.items():
        text = re.sub(rf"\b{new}\b", old, text)
    return text


def alike(old: np.ndarray, new: np.ndarray, network: bool) -> str:
    """How two values agree: 'same', 'close', 'reordered' or, with the reason, not."""
    if old.dtype.kind in "US" or new.dtype.kind in "US":
        same = old.shape == new.shape and [plain(str(v)) for v in old.ravel()] == [
            plain(str(v)) for v in new.ravel()
        ]
        return "same" if same else f"{_short(old)} became {_short(new)}"
    if old.dtype == new.dtype and old.shape == new.shape and old.tobytes() == new.tobytes():
        return "same"
    if old.size != new.size:
        return f"shape {old.shape} became {new.shape}"
    before, after = (np.asarray(a, dtype=float).ravel() for a in (old, new))
    if network:
        if old.shape == new.shape and _close(before, after):
            return "close"
        if _close(np.sort(before), np.sort(after)):
            return "reordered"
    if old.dtype != new.dtype or old.shape != new.shape:
        return f"{old.dtype}{old.shape} became {new.dtype}{new.shape}"
    with np.errstate(invalid="ignore"):
        largest = np.nanmax(np.abs(before - after), initial=0.0)
    within = " (within 1e-12)" if _close(before, after) else ""
    return f"differs by {largest:.3g}{within}: {_short(old)} became {_short(new)}"


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True))


def _short(value: np.ndarray) -> str:
    text = " ".join(map(str, value.ravel()[:4]))
    return text[:80] + ("…" if value.size > 4 else "")


def compare_case(file: Path, facts: Facts) -> tuple[Counter[str], list[str]]:
    kept = np.load(file)
    before = {plain(key): kept[key] for key in kept.files}
    after = {plain(key): np.asarray(value) for key, value in facts.items()}
    network = bool(before.get("network", False))
    counts: Counter[str] = Counter()
    differences: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        if key.startswith(GONE):
            continue
        if key not in after or key not in before:
            differences.append(f"{key}: {'gone' if key in before else 'new'}")
            continue
        verdict = alike(before[key], after[key], network)
        if verdict in ("same", "close", "reordered"):
            counts[verdict] += 1
        else:
            differences.append(f"{key}: {verdict}")
    return counts, differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["write", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    parser.add_argument("--all", action="store_true", help="print every difference of a case")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    total: Counter[str] = Counter()
    unequal = 0
    met: set[Path] = set()
    for name, make in everything():
        if options.only not in name:
            continue
        file = file_of(options.folder, name)
        met.add(file)
        try:
            facts = make()
        except Exception as error:
            print(f"{name}: could not be computed: {type(error).__name__}: {error}")
            unequal += 1
            continue
        if options.action == "write":
            np.savez_compressed(file, **facts)
            total["cases"] += 1
            continue
        if not file.exists():
            print(f"{name}: a new case, nothing to compare with")
            continue
        counts, differences = compare_case(file, facts)
        total += counts
        total["cases"] += 1
        apart = ", ".join(f"{counts[w]} {w}" for w in ("close", "reordered") if counts[w])
        if apart:
            print(f"{name}: {counts['same']} same, {apart}")
        if differences:
            unequal += 1
            print(f"{name}: {len(differences)} differences")
            shown = differences if options.all else differences[:MOST_SHOWN]
            print(*(f"    {line}" for line in shown), sep="\n")
            if len(shown) < len(differences):
                print(f"    … and {len(differences) - len(shown)} more (--all)")
    if options.action == "compare" and not options.only:
        for file in sorted(set(options.folder.glob("*.npz")) - met):
            unequal += 1
            print(f"{file.stem}: no such case any more")
    words = ", ".join(f"{number} {word}" for word, number in total.items())
    print(f"{words}; {unequal} cases differ; {time.perf_counter() - began:.0f} s")
    return 1 if unequal else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets may reach encoded bytes
        os.execve(
            sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    sys.exit(main())
