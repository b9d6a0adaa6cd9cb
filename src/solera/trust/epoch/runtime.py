"""What must be the same on every owner's machine so that all compute the same totals to the bit.

The process that runs a learner is pinned to one path: one thread, and no instructions beyond those
that every x86-64-v3 machine has. ``runtime`` names packages by digest, and the numbers that the
pinned path gives. Who differs cannot sign an epoch of the others.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from solera.core.errors import UsageError

PACKAGES = ("numpy", "scipy", "scikit-learn", "msgspec")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ABOVE_V3 = ("AVX512", "X86_V4", "AMX")
_SELF_TEST = """
import hashlib
import numpy as np
from scipy import special
draw = np.random.Generator(np.random.Philox(7))
A, x = draw.normal(size=(67, 19)), draw.gamma(2.0, size=4099)
G = A.T @ A + np.eye(19)
parts = [A @ A.T, A.sum(axis=0), np.exp(-x), np.log(x), np.tanh(x), np.sin(x), np.sqrt(x), x**1.7,
         np.log1p(x), np.expm1(-x), special.expit(x), special.gammaln(x), special.ndtri(x / 99),
         special.logsumexp(A, axis=1), np.einsum("ij,kj->ik", A, A), x.astype("f4").cumsum(),
         np.linalg.solve(G, A.T), np.linalg.cholesky(G), np.linalg.eigvalsh(G), np.dot(x, x),
         np.linalg.svd(A, compute_uv=False), np.linalg.lstsq(A, A[:, 0] ** 2, rcond=None)[0]]
data = b"".join(np.ascontiguousarray(p, dtype="<f8").tobytes() for p in parts)
print(hashlib.sha256(data).hexdigest())
"""


@cache
def pinned_environment() -> Mapping[str, str]:
    """The variables of a process on the pinned path; they count before NumPy is imported."""
    features = import_module("numpy._core._multiarray_umath").__cpu_dispatch__
    beyond = [name for name in features if name.startswith(_ABOVE_V3)]
    return {
        **dict.fromkeys(_THREADS, "1"),
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": " ".join(beyond),
    }


@cache
def runtime() -> Mapping[str, str]:
    """What an owner's machine computes with: packages by digest, and the pinned path's numbers."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "solera": _sources(Path(__file__).parents[2]),
        **{name: _package(name) for name in PACKAGES},
        "numbers": _self_test(),
    }


def differences(here: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """What is not the same here as at others."""
    return [
        f"{name}: {here.get(name, 'none')[:16]} here, {others.get(name, 'none')[:16]} there"
        for name in sorted({*here, *others})
        if here.get(name) != others.get(name)
    ]


def _package(name: str) -> str:
    """Version of a package and a digest of its files, as its installer recorded them."""
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return "none"
    recorded = sorted(
        line
        for line in (package.read_text("RECORD") or "").splitlines()
        if "sha256=" in line and ".dist-info/" not in line and "__pycache__" not in line
    )
    digest = hashlib.sha256("\n".join(recorded).encode()).hexdigest()
    return f"{package.version} {digest[:16]}"


def _sources(folder: Path) -> str:
    """A digest of all Python files of a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        total.update(path.relative_to(folder).as_posix().encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _self_test() -> str:
    """A digest of what the pinned path computes from fixed numbers."""
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SELF_TEST],
        env={**os.environ, **pinned_environment()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if made.returncode:
        last = made.stderr.strip().splitlines()[-1:] or ["no word"]
        raise UsageError(
            f"the numeric self-test fails: {last[0]}", hint="only x86-64-v3 machines sign an epoch"
        )
    return made.stdout.strip()
