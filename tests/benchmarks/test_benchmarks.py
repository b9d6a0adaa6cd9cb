"""Every benchmark runs at a tiny size, so that a renamed method does not break one unnoticed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from tests.programs import run_program

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SECONDS = 900
MODULES = {"heonn_reference", "numbers_task", "sizes"} | {
    f"errata_{part}" for part in ("labels", "networks", "selection", "tables")
}
"""Files that benchmarks import."""
SHOWS = {
    "before_after": r"heonn .*\d\.\d+ \[",
    "errata": r"order: (.*\n)+epochs: (.*\n)+images: (.*\n)+labels: ",
    "interval_coverage": r"accuracy +\d\.\d+ +\d\.\d+(.*\n)+log-rank",
    "energy": r"1 workers: tasks of \d+ cells",
    "closed": (
        r"no-op round, 4 agents: closed -?\d(.*\n)+784-128-10, 4 agents: closed -?\d(.*\n)+"
        r"2 trees, 1\d sums.*\n2 trees(.*\n)+k-means, .*ratio \d"
    ),
    "cores": r"W3: .*same bytes",
    "flower": r"Flower +FedAvg +\d|not installed",
    "evaluation_bounds": r"auroc +outside +0",
    "files": r"processes +\d.* \d+\n",
    "full_sizes": r"leakage: 1 of 1 parts",
    "gpu": r"W3 logistic +float32 +\d",
    "growth": r"FedAvg +rows .* exponent",
    "heonn": r"encrypted weights, finish=coordinator +\d",
    "heonn_figures": r"digits, random_layer, .* \d\d\.\d\d",
    "hostile": r"\d s: .*",
    "kmeans": r"one place: scikit-learn.*×",
    "million": r"peak memory +\d+ MB",
    "million_averaging": r"peak memory +\d+ MB",
    "own_loops": r"cnn: \d lines(.*\n)+.*median ratio \d",
    "noise_at_sum": r"FedHEONN +1 seeds  ε = 8|not at hand",
    "overhead": r"processes \(2 workers\), fold.* the loop",
    "privacy": r" 20 +\d+\.\d\d +\d",
    "pages": r"open pages, both ends: .*% of a core",
    "promise": r"wine +FedAvg +1 seeds",
    "progress_bar": r"bar \d.* ratio \d",
    "published_trees": r"not at hand: .* 'car'",
    "robust": r"NormBound +\d",
    "secure_sum": r"120 +\d+ +100 +\d\.\d",
    "selection": r"largest difference of a value \d",
    "ray": r"W2: .* ray \d.*×",
    "simulation": r"W3: (.*\n)*loop +\d",
    "survival": r"curve, closed: \d",
    "tree_protocols": r"not at hand: .* 'car'",
    "trees": r"FedHistGBDT, .*ratio \d",
    "vertical": r"solera, processes +\d",
}
PARTS = {
    ("errata", "tweets beans"): r"one of 19\n(.*\n)+ +not at hand: .* 'drybean'",
    ("coordinator", "latency load update"): (
        r"no-op round, .* \d\.\d+ s(.*\n)+.*1 MB +\d(.*\n)+.*worker +-?\d+ MB more"
    ),
    ("coordinator", "looks"): r"made anew: \d",
    ("coordinator", "workers"): r" 2  PostgreSQL +\d|not installed",
    ("coordinator", "flower"): r"ratio \d|not installed",
}
OF_REAL_ROWS = {
    ("published_trees", ""): (
        "car",
        r"car, cart, IID, 2 clients, local, accuracy: thesis 85\.04 \d",
    ),
    ("tree_protocols", ""): ("car", r"program: \d of 4 inside"),
    ("errata", "tweets beans"): ("drybean", r" +50 clients of 190 rows: \d"),
}
"""What else those print that are about real data sets, and of which."""
NEEDS = {
    "coordinator": ("fastapi", "httpx"),
    "closed": ("cryptography", "httpx", "pandas", "torch"),
    "cores": ("torch",),
    "errata": ("torch",),
    "evaluation_bounds": ("cryptography", "pandas"),
    "files": ("pyarrow",),
    "flower": ("torch", "fastapi", "httpx"),
    "full_sizes": ("torch", "cryptography"),
    "pages": ("fastapi", "httpx", "argon2"),
    "gpu": ("torch",),
    "growth": ("torch",),
    "hostile": ("fastapi", "httpx"),
    "heonn": ("tenseal",),
    "million_averaging": ("torch",),
    "privacy": ("torch", "dp_accounting"),
    "promise": ("pandas", "statsmodels", "torch"),
    "progress_bar": ("torch",),
    "secure_sum": ("cryptography",),
    "selection": ("torch",),
    "ray": ("ray", "torch"),
    "simulation": ("torch",),
    "survival": ("cryptography", "pandas"),
    "vertical": ("cryptography", "gmpy2", "pandas"),
}
CASES = [*((name, "") for name in SHOWS), *PARTS]
SLOW = {
    "closed",
    ("errata", ""),
    "flower",
    "full_sizes",
    "ray",
    ("coordinator", "looks"),
    ("coordinator", "workers"),
}
"""What takes long to start."""


def test_every_benchmark_is_started_here():
    files = {path.stem for path in FOLDER.glob("*.py")}
    assert files == {name for name, _ in CASES} | MODULES


@pytest.mark.parametrize(
    ("name", "part"),
    [
        pytest.param(
            *case,
            id=" ".join(filter(None, case)),
            marks=[pytest.mark.slow] if SLOW & {case[0], case} else [],
        )
        for case in CASES
    ],
)
def test_runs_at_a_tiny_size(name, part, tmp_path):
    runs(name, part, PARTS[name, part] if part else SHOWS[name], tmp_path)


@pytest.mark.parametrize(
    ("name", "part", "expected"),
    [
        pytest.param(*case, expected, id=" ".join(case).strip(), marks=pytest.mark.data(data))
        for case, (data, expected) in OF_REAL_ROWS.items()
    ],
)
def test_runs_on_real_rows(name, part, expected, tmp_path):
    runs(name, part, expected, tmp_path)


def runs(name, part, expected, tmp_path):
    for package in NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    arguments = [*part.split(), "--tiny"]
    done = run_program(FOLDER / f"{name}.py", *arguments, folder=tmp_path, seconds=SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(expected, done.stdout), done.stdout[-3000:]
    assert not list(tmp_path.iterdir()), "a benchmark leaves nothing behind"
