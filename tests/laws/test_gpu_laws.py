"""Every learner that trains networks learns on a GPU what it learns on a CPU."""

from __future__ import annotations

import numpy as np
import pytest
from cases import federation, learner_cases, rows

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

CASES = {
    name: (make, target) for name, make, target in learner_cases() if hasattr(make(), "device")
}


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_learns_what_a_cpu_learns(name):
    """By default, so that nobody who owns a card gets other figures; all are in float64 here."""
    make, target = CASES[name]
    by_default, on_cpu = make(), make()
    on_cpu.device = "cpu"
    for learner in (by_default, on_cpu):
        learner.fit(federation("local", rows(target), learner))
    assert np.allclose(by_default.weights_, on_cpu.weights_, rtol=1e-8, atol=1e-10)
    X = rows(target).X[:50]
    assert np.allclose(
        by_default.decision_function(X), on_cpu.decision_function(X), rtol=1e-8, atol=1e-10
    )
