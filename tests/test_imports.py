"""Importing Solera is quick and needs none of the extras."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("sklearn", "scipy", "matplotlib", "pandas", "torch", "tenseal", "datasets")


def test_heavy_libraries_are_imported_when_used():
    code = f"import sys, solera; print([m for m in {HEAVY} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_everything_public_exists_and_is_documented():
    import solera as so

    assert len(set(so.__all__)) == len(so.__all__)
    for name in so.__all__:
        assert (getattr(so, name).__doc__ or "").strip(), f"so.{name} has no docstring"
