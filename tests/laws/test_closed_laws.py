"""Every registered learner is a closed job, the same bytes over a board, or says what to use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import learner_cases, rows, small_transformer

import solera as so
from solera.core.errors import PolicyRefusal
from solera.core.payload import decode
from solera.data.dictionary_tables import draft_of
from solera.simulate.simulation import Simulation
from solera.trust.board.engine import NotClosed

sys.path.insert(0, str(Path(__file__).parents[1] / "trust" / "board"))
from board_owners import EXACT, Job

CASES = {name: (make, target) for name, make, target in learner_cases()}
CLOSED = {
    *("FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedBN", "FedCox", "FedEncoder"),
    *("FedGLM", "FedHEONN", "FedImputer", "FedKMeans", "FedLinear", "FedLoRA", "FedNova"),
    *("FedPer", "FedProx", "FedRep", "FedSGD", "FedScaler", "FedSelect", "FedYogi", "Ditto"),
    *("FedBins", "FedHistGBDT", "FedID3", "MLFedAvg", "Pipeline", "Scaffold"),
}
"""Learners whose examples must be closed jobs."""
REFUSED = {"FedAvg-module-classes", "FedKMeans-local-classes", "FedKMeans-batches-labels"}
"""Examples of code, of single rows or of steps over batches, which no closed job has."""
pytestmark = pytest.mark.filterwarnings("ignore::solera.simulate.epochs.DraftedDictionary")


def owners(target: str) -> Simulation:
    dealt = rows(target, seed=24)
    whole = so.data.FederatedData(dealt.X, dealt.y, dealt.offsets, schema=dealt.schema)
    drafted = draft_of(dealt.schema, dealt.X, dealt.y) if target == "tokens" else None
    if drafted is not None:
        drafted = so.epochs.Dictionary.parse(drafted.toml() + so.nn.list_base(small_transformer()))
    return so.simulate(whole, seed=5, policy=EXACT, test=0.1, dictionary=drafted)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def closable(learner: Any) -> Any:
    """The example without what no closed job has, where it can be left out."""
    given = {
        **dict.fromkeys(("per_round", "select", "aggregate", "encrypt", "stop")),
        **dict.fromkeys(("dp", "epsilon", "clip_residuals")),
        "batch_size": 8,
        "lam": 0.1,
        "representation": "gram",
        "share": True,
    }
    for name, value in learner.get_params().items():
        if isinstance(value, np.ndarray):
            learner.set_params(**{name: value.tolist()})
        last = "" if name.startswith("select__") else name.rpartition("__")[2]
        if last in given and value is not None and (last != "lam" or isinstance(value, list)):
            learner.set_params(**{name: given[last]})
    return learner


@pytest.mark.parametrize("name", CASES)
def test_a_learner_is_a_closed_job_or_says_what_to_use(name: str) -> None:
    make, target = CASES[name]
    federation = owners(target)
    refusal = ""
    try:
        closable(make()).fit(federation, progress=False)
    except (NotClosed, PolicyRefusal) as refused:
        refusal = str(refused)
    must_close = name.partition("-")[0] in CLOSED and name not in REFUSED
    assert not (must_close and refusal)
    if refusal:
        assert "policy 'trusted'" in refusal
        return
    job = Job(closable(make()), federation)
    expected = job.simulated()
    assert "model" in decode(expected)
    ends = job.run()
    assert [end.why for end in ends] == [""] * job.owners
    assert {end.closed.result for end in ends if end.closed} == {expected}
