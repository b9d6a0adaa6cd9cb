"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def shared_data(monkeypatch):
    """Points SOLERA_DATA at a folder of real data sets, or skips the test."""
    folder = os.environ.get("SOLERA_DATA") or Path(__file__).parents[2] / "shared" / "data"
    if not Path(folder).is_dir():
        pytest.skip("no folder of real data: set SOLERA_DATA")
    monkeypatch.setenv("SOLERA_DATA", str(folder))
    monkeypatch.setenv("SOLERA_OFFLINE", "1")
