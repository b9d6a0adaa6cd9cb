"""The description of a job travels whole, and its hash is of this job alone."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

pytest.importorskip("cryptography", reason="the extra 'serve' is not installed")

from solera.core.errors import PayloadError
from solera.core.payload import decode, encode
from solera.serve.description import Description, job_hash

JOB = Description(
    job="readmission",
    federation="cardio",
    kind="managed",
    owner="dr. vega",
    seed=3,
    learner={"kind": "FedLinear", "rounds": 10, "start": np.arange(3.0)},
    seconds=60.0,
    toml='name = "readmission"',
)


def test_a_description_travels_whole():
    again = Description.from_bytes(JOB.to_bytes())
    assert again.to_bytes() == JOB.to_bytes()
    assert again.learner["start"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"job": "../x"},
        {"kind": "other"},
        {"seed": -1},
        {"unknown": 1},
        {"owner": "o" * 201},
    ],
)
def test_what_is_no_description_is_not_taken_for_one(change):
    with pytest.raises(PayloadError, match="not one"):
        Description.from_bytes(encode({**decode(JOB.to_bytes()), **change}))
    with pytest.raises(PayloadError, match="not one"):
        Description.from_bytes(encode([1]))


def test_a_description_of_an_earlier_version_opens():
    """It says besides what the job would ask, which nothing is compared with any more."""
    old = encode({**decode(JOB.to_bytes()), "plan": [{"task": "linear.train", "most": 3}]})
    assert Description.from_bytes(old).to_bytes() == JOB.to_bytes()


def test_the_hash_is_of_federation_name_and_every_byte():
    spec = "ab" * 32
    seen = {job_hash(f, j, s) for f in "fg" for j in "jk" for s in (spec, "ac" * 32)}
    assert len(seen) == 8
    assert replace(JOB, seed=4).to_bytes() != JOB.to_bytes()
