"""Agents find the atoms of an epoch by themselves, and sign what their own run has found."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "cryptography", "pandas"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from closed_network import NAMES, ClosedNetwork  # noqa: E402

import solera as so  # noqa: E402
from solera.serve.agent.closed.store import ClosedStore  # noqa: E402
from solera.serve.agent import home  # noqa: E402
from solera.serve.agent.epoch_files import EpochFiles, current_epoch  # noqa: E402
from solera.trust.epoch import EpochError  # noqa: E402


def frame(rows=200):
    draw = np.random.default_rng(0)
    age = draw.integers(40, 90, rows)
    ward = draw.choice(["eye", "heart", "skin", "rare"], rows, p=[0.4, 0.3, 0.28, 0.02])
    died = np.where(age + draw.normal(0, 15, rows) > 65, "yes", "no")
    return pd.DataFrame({"age": age, "ward": ward, "died": died})


@pytest.fixture
def network(tmp_path):
    found = ClosedNetwork(tmp_path, frame(), agents_find_atoms=True)
    yield found
    found.close()


def test_agents_find_what_a_simulation_finds(network):
    epoch = network.settled()
    assert epoch.atoms == network.simulation().atoms
    assert epoch.atoms is not None
