"""Epochs that an older version has signed are refused by name; what they told still counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.trust.epoch.hospitals import epoch_of, four

from solera.serve.agent.epoch_files import EpochFiles, current_epoch
from solera.trust.epoch import EpochError, SignedEpoch, changes

VERSIONS = sorted(path for path in Path(__file__).parent.glob("*/epochs") if path.is_dir())

pytestmark = pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.parent.name)


@pytest.fixture
def agent(version, tmp_path):
    shutil.copytree(version / "agent", tmp_path / "agent")
    for path in (tmp_path / "agent").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return tmp_path / "agent"


def test_a_signed_epoch_of_before_is_refused_by_name(version):
    data = (version / "heart.epoch").read_bytes()
    with pytest.raises(EpochError, match="earlier version, which had no atoms") as refused:
        SignedEpoch.decode(data)
    assert "solera dictionary draft --next" in refused.value.hint
    assert "solera dictionary sign" in refused.value.hint


def test_no_job_runs_in_an_epoch_of_before(agent):
    assert current_epoch(agent) is None


def test_what_an_epoch_of_before_told_counts_when_the_next_is_signed(agent):
    """One person less than then needs this owner's consent."""
    hospitals = four()
    files = EpochFiles(agent)
    assert len(files.all()) == 1
    north = hospitals[0]
    north.values, north.persons = north.values[1:], north.persons[1:]
    epoch = epoch_of(hospitals)
    told = changes(epoch, north.part(), north.snapshot(), files.earlier(epoch))
    assert "1 persons came, left" in told.consent
