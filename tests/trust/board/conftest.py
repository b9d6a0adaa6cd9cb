"""Rows of four owners, and one thread for PyTorch: the path is pinned."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Six columns, two classes that follow from them, and a number."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(300, 6)) * [1, 2, 3, 1, 1, 5] + [0, 1, 0, 0, 9, 0]
    score = (X - X.mean(axis=0)) @ [1, 0.5, -0.3, 0, 0, 0.1]
    return X, (score + draw.normal(size=300) > 0).astype(int), score + draw.normal(size=300)
