"""Importing Solera is quick and needs none of the extras."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import solera as so

NAMESPACES = [
    "aggregations",
    "audit",
    "callbacks",
    "data",
    "energy",
    "learn",
    "messages",
    "metrics",
    "partitions",
    "robust",
    "selectors",
    "simulation",
    "updates",
]
HEAVY = ("sklearn", "scipy", "matplotlib", "pandas", "torch", "tenseal", "datasets")


def test_heavy_libraries_are_imported_when_used():
    code = f"import sys, solera; print([m for m in {HEAVY} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_everything_public_exists_and_is_documented():
    assert len(set(so.__all__)) == len(so.__all__)
    for name in so.__all__:
        assert (getattr(so, name).__doc__ or "").strip(), f"so.{name} has no docstring"


def test_what_a_user_looks_for_fits_on_a_screen():
    assert dir(so) == sorted(so.__all__)
    assert len(dir(so)) < 67
    assert {"FedAvg", "Pipeline", "connect", "datasets", "load", "simulate", "task"} < {*dir(so)}


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_namespace_holds_what_it_says(namespace):
    module = importlib.import_module(f"solera.{namespace}")
    assert getattr(so, namespace) is module
    for name in module.__all__:
        assert (getattr(module, name).__doc__ or "").strip(), f"so.{namespace}.{name}"


def test_a_name_that_is_looked_for_in_the_wrong_place_says_where_it_is():
    with pytest.raises(AttributeError, match=r"it is so\.partitions\.Explicit"):
        getattr(so, "Explicit")  # noqa: B009
    with pytest.raises(AttributeError, match=r"no attribute 'Explict'$"):
        getattr(so, "Explict")  # noqa: B009


def test_learners_can_be_imported_from_their_package():
    from solera.learn import FedAvg

    assert FedAvg is so.FedAvg
