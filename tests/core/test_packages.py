"""Another package adds both sides of a learner through entry points."""

from __future__ import annotations

import subprocess
import sys

PLUGIN = """
import solera as so

@so.task("acme.rows")
def rows(client, ask):
    '''Number of rows.'''
    return {"rows": len(client.data)}

class AcmeCount(so.Learner):
    def train(self, federation):
        self.rows_ = federation.ask("acme.rows").fold(so.aggregations.Sum())["rows"]
"""
ENTRY_POINTS = "[solera.tasks]\nacme = acme\n[solera.learners]\nacme = acme\n"
PROGRAM = """
import sys, numpy as np, solera as so
from solera.core.component import build
assert "acme" not in sys.modules
fed = so.simulate(np.zeros((30, 2)), clients=3)
assert fed.ask("acme.rows").fold(so.aggregations.Sum()) == {"rows": 30}
learner = build({"$component": "AcmeCount", "params": {}})
assert learner.fit(fed).rows_ == 30
print("ok")
"""


def test_tasks_and_learners_of_an_installed_package_are_found(tmp_path):
    (tmp_path / "acme.py").write_text(PLUGIN)
    _install(tmp_path, ENTRY_POINTS)
    assert _run(tmp_path, PROGRAM) == "ok\n"


def _install(folder, entry_points):
    info = folder / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def _run(folder, program):
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{program}"],
        capture_output=True,
        text=True,
    )
    assert not run.stderr
    return run.stdout


ENGINE = """
from solera.engines.local import LocalEngine

class LoudEngine(LocalEngine):
    def __init__(self, source, *, fault_model=None, memory=1 << 20, volume=1):
        super().__init__(source, fault_model=fault_model, memory=memory)
        self.volume = volume
"""
ASKING_IT = """
import numpy as np, solera as so
fed = so.simulate(np.zeros((30, 2)), clients=3, engine="loud", engine_options={"volume": 11})
assert fed.engine.volume == 11
print("ok")
"""


def test_an_engine_of_another_package_is_found_by_its_name(tmp_path):
    (tmp_path / "loud.py").write_text(ENGINE)
    _install(tmp_path, "[solera.engines]\nloud = loud:LoudEngine\n")
    assert _run(tmp_path, ASKING_IT) == "ok\n"
