"""Two parties that hold different columns of the same people."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def people():
    rng = np.random.default_rng(0)
    df = pd.DataFrame(rng.normal(size=(80, 4)), columns=["age", "income", "visits", "spent"])
    df["y"] = (df.age + df.visits + 0.3 * rng.normal(size=80) > 0).astype(int)
    df["id"] = [f"P-{i:03d}" for i in rng.permutation(80)]
    return df


@pytest.fixture
def columns():
    return {"bank": ["age", "income"], "shop": ["visits", "spent"]}
