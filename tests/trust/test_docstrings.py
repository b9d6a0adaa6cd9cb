"""The examples in the docstrings of `solera.trust` run and print what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

import solera as so
from solera.core import task

MODULES = ("solera.trust.constructors", "solera.trust.cells")
CONTRIBUTIONS = ("count_by", "sum_by", "gram", "update", "fact", "intervals")


def examples(module: str) -> list[doctest.DocTest]:
    """The docstrings of a module that hold examples; each imports what it uses."""
    found = doctest.DocTestFinder().find(importlib.import_module(module), globs={})
    return [each for each in found if each.examples]


@pytest.mark.parametrize(
    "example", [each for module in MODULES for each in examples(module)], ids=lambda each: each.name
)
def test_example(example, monkeypatch):
    monkeypatch.setattr(task, "_tasks", dict(task._tasks))
    said: list[str] = []
    results = doctest.DocTestRunner().run(example, out=said.append)
    assert results.failed == 0, "".join(said)


@pytest.mark.parametrize("name", CONTRIBUTIONS)
def test_every_contribution_has_an_example_with_a_federation(name):
    text = getattr(so, name).__doc__
    assert "import solera as so" in text
    assert "so.simulate(" in text
    assert f"so.{name}(" in text
