"""The environment in which every owner's learner computes the same bits from the same totals."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

_ABOVE = ("AVX512", "AVX10", "X86_V4")
"""What processors have beyond x86-64-v3: not all of them do."""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def pinned_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment, or another one, with what pins the path of floating-point numbers."""
    dispatched = np._core._multiarray_umath.__cpu_dispatch__  # type: ignore[attr-defined]
    above = [name for name in dispatched if name.startswith(_ABOVE)]
    return {
        **(os.environ if environment is None else environment),
        **dict.fromkeys(_ONE_THREAD, "1"),
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": " ".join(above),
        "PYTHONHASHSEED": "0",
    }
