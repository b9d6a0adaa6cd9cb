"""The script that compares what learners compute: it sees a change of one bit, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from tests.programs import run_program

TOOL = Path(__file__).resolve().parents[2] / "tools" / "golden.py"
ONE = "partition Shards"


@pytest.fixture(scope="module")
def golden():
    spec = importlib.util.spec_from_file_location("golden", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_values_are_compared_to_the_bit(golden):
    one = np.array([1.0, 2.0, 3.0])
    assert golden.alike(one, one.copy(), network=False) == "same"
    assert "within 1e-12" in golden.alike(one, np.nextafter(one, 9), network=False)
    assert "differs by 1" in golden.alike(one, one + 1, network=False)
    assert "became" in golden.alike(one, one.astype(np.float32), network=False)
    assert "shape" in golden.alike(one, one[:2], network=False)


def test_networks_may_be_laid_out_in_another_way(golden):
    one = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert golden.alike(one, np.nextafter(one, 9), network=True) == "close"
    assert golden.alike(one, one.T, network=True) == "reordered"
    assert "became" in golden.alike(one, one.T + 1, network=True)


def test_names_that_changed_are_the_same_name(golden):
    old, new = np.array("HistGBDT(rounds=3)"), np.array("FedHistGBDT(rounds=3)")
    assert golden.alike(old, new, network=False) == "same"
    assert "became" in golden.alike(old, np.array("FedForest(rounds=3)"), network=False)


def test_written_and_compared(tmp_path):
    def run(action):
        arguments = (action, str(tmp_path), "--only", ONE)
        # numbers do not depend on the seed, without which it would start itself once more
        return run_program(TOOL, *arguments, folder=tmp_path, seconds=600, PYTHONHASHSEED="0")

    written = run("write")
    assert written.returncode == 0, written.stderr
    same = run("compare")
    assert same.returncode == 0, same.stdout + same.stderr
    (file,) = tmp_path.glob("*.npz")
    kept = dict(np.load(file))
    kept["index 1"][0] += 1
    np.savez(file, **kept)
    changed = run("compare")
    assert changed.returncode == 1
    assert f"{ONE}: 1 differences\n    index 1: differs by 1" in changed.stdout
