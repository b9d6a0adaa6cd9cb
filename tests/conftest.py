"""Fixtures for all tests."""

from __future__ import annotations

import gc
import io
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:  # the workers share the cores
    workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    threads = max(1, (os.cpu_count() or 1) // workers)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # of libraries that are loaded later
    threadpool_limits(int(os.environ["OMP_NUM_THREADS"]))  # NumPy is there already


def _in_memory() -> str | None:
    """A folder in memory that has room, and in which programs may be run."""
    try:
        place = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    room = place.f_bavail * place.f_frsize
    return "/dev/shm" if room >= 8 << 30 and not place.f_flag & os.ST_NOEXEC else None


if "TMPDIR" not in os.environ and (memory := _in_memory()) is not None:
    # All that is stored durably waits for the disk; most of the seconds of an ask went there.
    os.environ["TMPDIR"] = tempfile.tempdir = memory

REAL_DATA = "SOLERA_TEST_DATA"
"""Names the folder of real data sets, which tests get that are marked to need them."""
CACHE: str | None = None
if REAL_DATA not in os.environ:  # workers of pytest-xdist inherit it
    os.environ[REAL_DATA] = os.environ.pop("SOLERA_DATA", "")
    # Nobody else, programs that tests start included, finds a set or asks the network for one.
    CACHE = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="solera-cache-")
    os.environ["SOLERA_OFFLINE"] = "1"


def pytest_unconfigure():
    if CACHE is not None:
        shutil.rmtree(CACHE, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """The folder of real data is there for a test with the marker ``data``, and for no other."""
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("data"):
            patch.setenv("SOLERA_DATA", os.environ[REAL_DATA])
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Before its fixtures: seed what is drawn, and skip a test whose data sets are not there."""
    # Global generators give the same whichever tests came before, on whichever worker.
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    needed = [name for marker in item.iter_markers("data") for name in marker.args]
    if not needed:
        return
    from solera.data import datasets

    sets = {info.name: info for info in datasets.available()}
    for name in needed:
        if not sets[name].at_hand:
            pytest.skip(f"{sets[name].file} is not in the folder SOLERA_DATA")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Without a search for garbage: what is imported for the tests stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter):
    """How many cells of the surface laws were right, refused, and wrong as is known."""
    reports = [r for found in terminalreporter.stats.values() for r in found]
    each = [dict(getattr(r, "user_properties", ())).get("surface", {}) for r in reports]
    total = sum(map(Counter, each), Counter())
    if total:
        counts = ", ".join(f"{number:,} {what}" for what, number in sorted(total.items()))
        terminalreporter.write_line(f"surface laws: {counts}")


# The same examples in every run, and no judgement of how busy the machine is.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


@pytest.fixture(scope="module")
def unrendered():
    """Pictures of reports are composed, but not rendered, which is most of a report's time.

    For tests that look at other things; tests/study/report looks at pictures.
    """
    from matplotlib.figure import Figure

    render = Figure.savefig

    def savefig(figure, file, **options):
        if isinstance(file, io.StringIO):
            file.write("<svg></svg>")
        else:
            render(figure, file, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        yield
