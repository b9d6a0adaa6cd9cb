"""Persons that combinations of the exact cells of many jobs of one epoch single out."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pytest
from board_owners import EXACT
from combinations import Recorder, singled_out

import solera as so
from solera.core.errors import DataError, GateRefusal

LEAST = 5


def test_a_person_in_the_span_of_sets_is_singled_out() -> None:
    sets = [frozenset(one) for one in ({1, 2, 3, 4}, {1, 2, 3}, {5, 6}, {5, 6, 1}, {7, 8, 9})]
    assert sorted(singled_out(sets)) == [1, 4]
    ring = [frozenset({i, (i + 1) % 5}) for i in range(5)]
    assert sorted(singled_out(ring)) == [0, 1, 2, 3, 4], "an odd ring of pairs can be solved"
    assert singled_out([frozenset({i, (i + 1) % 6}) for i in range(6)]) == []


def frame(persons: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({f"x{i}": rng.normal(size=persons).round(1) for i in range(5)})
    rows["ward"] = rng.choice(list("abcd"), persons)
    rows["sex"] = rng.choice(["f", "m"], persons)
    noise = rng.normal(size=(persons, 2))
    rows["died"] = np.where(rows.x0 + noise[:, 0] > 0, "yes", "no")
    rows["fell"] = np.where(rows.x1 - rows.x2 + noise[:, 1] > 0, "yes", "no")
    return rows


POPULATIONS = """
[populations.high]
x0 = { min = 0.0 }
[populations.women]
sex = { in = ["f"] }
"""


def learner(rng: Any) -> Any:
    """A learner that makes cells of its own; None: a description."""
    depth = int(rng.integers(1, 4))
    makers = (
        lambda: so.FedHistGBDT(rounds=int(rng.integers(1, 12)), max_depth=depth),
        lambda: so.Pipeline(so.FedBins(int(rng.integers(2, 8))), so.FedID3(max_depth=depth)),
        lambda: so.Pipeline(so.FedImputer(), so.FedEncoder(), so.FedScaler(), so.FedHEONN()),
        lambda: None,
    )
    return makers[int(rng.integers(len(makers)))]()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("jobs", [24, pytest.param(400, marks=pytest.mark.slow)])
def test_many_jobs_single_out_no_more_persons_than_the_owners_page_says(
    monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """The page says: up to as many as there are numbers told, or persons. It is no more than that,
    and not far less either: two dozen honest jobs are enough for most of 300 persons."""
    rows = frame()
    agreed = so.epochs.draft(rows, target="died").toml() + POPULATIONS
    options = {"clients": 4, "seed": 0, "policy": EXACT}
    federation = so.simulate(
        rows, target="died", dictionary=so.epochs.Dictionary.parse(agreed), **options
    )
    epoch = federation.configuration.epoch
    assert federation.atoms
    recorder = Recorder(monkeypatch)
    rng = np.random.default_rng(1)
    alone: list[int] = []
    for job in range(jobs):
        federation = so.simulate(
            rows, target=str(rng.choice(["died", "fell"])), dictionary=epoch,
            test=float(rng.choice([0, 0.1, 0.2])), validation=float(rng.choice([0, 0.1, 0.2])),
            population=str(rng.choice(["all", "high", "women"])), **options,
        )  # fmt: skip
        fits = learner(rng)
        with suppress(GateRefusal, DataError):  # some are refused at this size
            so.describe(federation) if fits is None else fits.fit(federation, progress=False)
        if job in (0, 3, jobs - 1):
            alone.append(len(singled_out(recorder.sets)))
            assert alone[-1] <= min(len(recorder.sets), len(rows))
    assert min(map(len, recorder.cells)) >= LEAST
    assert alone[0] == 0
    assert alone[-1] > 0.8 * len(rows), "277 after 24 jobs, all after 400"
