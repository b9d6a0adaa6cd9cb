"""MiniBooNE in the format of its source, on files made in it."""

from __future__ import annotations

import numpy as np
import pytest

from solera.core.errors import DataError, DatasetUnavailable
from solera.data import datasets


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setenv("SOLERA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SOLERA_OFFLINE", "1")

    def written(first: str, rows: np.ndarray) -> None:
        body = "\n".join("  ".join(f"{value: .5E}" for value in row) for row in rows)
        (tmp_path / "MiniBooNE_PID.txt").write_text(f" {first}\n{body}\n")

    return written


def test_signal_comes_first(write):
    rows = np.arange(350.0).reshape(7, 50)
    write("3     4", rows)
    data = datasets.load("miniboone", test=0)
    np.testing.assert_allclose(data.X, rows)
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert data.class_names == ("signal", "background")
    assert datasets.miniboone(test=0.5, seed=1).X_test.shape[1] == 50


@pytest.mark.parametrize("first", ["3 5", "7", "3 x"])
def test_a_file_whose_counts_are_wrong(write, first):
    write(first, np.zeros((7, 50)))
    with pytest.raises(DataError, match="MiniBooNE_PID"):
        datasets.miniboone()


def test_without_the_file(write):
    with pytest.raises(DatasetUnavailable, match=r"put MiniBooNE_PID\.txt into"):
        datasets.miniboone()
