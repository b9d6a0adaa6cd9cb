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
        self.rows_ = federation.ask("acme.rows").fold(so.Sum())["rows"]
"""
ENTRY_POINTS = "[solera.tasks]\nacme = acme\n[solera.learners]\nacme = acme\n"
PROGRAM = """
import sys, numpy as np, solera as so
from solera.core.component import build
assert "acme" not in sys.modules
fed = so.simulate(np.zeros((30, 2)), clients=3)
assert fed.ask("acme.rows").fold(so.Sum()) == {"rows": 30}
learner = build({"$component": "AcmeCount", "params": {}})
assert learner.fit(fed).rows_ == 30
print("ok")
"""


def test_tasks_and_learners_of_an_installed_package_are_found(tmp_path):
    (tmp_path / "acme.py").write_text(PLUGIN)
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"],
        capture_output=True,
        text=True,
    )
    assert run.stdout == "ok\n", run.stderr
