"""Write down the versions that a development set-up installs: `python tools/lock.py FILE`.

pip resolves the extras `dev` and `docs` without installing anything; what it would install becomes
a file of constraints. Constraints bind only what is installed anyway, so the file serves every
Python that the package supports.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = """\
# Versions that `make` installs; made by `make lock`, not by hand.
# The package itself accepts wider ranges: see pyproject.toml.
"""


def resolved() -> dict[str, str]:
    """Name and version of everything that pip would install, without local labels (+cpu)."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--quiet", "--disable-pip-version-check"]
        options += ["--report", str(report), "-c", str(ROOT / "constraints.txt")]
        wanted = f"{ROOT}[dev,docs]"
        command = [sys.executable, "-m", "pip", "install", *options, wanted]
        subprocess.run(command, check=True, stdout=sys.stderr)
        installed = json.loads(report.read_text())["install"]
    packages = [item["metadata"] for item in installed]
    return {p["name"]: p["version"].partition("+")[0] for p in packages if p["name"] != "solera"}


def main() -> None:
    versions = resolved()
    lines = [f"{name}=={versions[name]}\n" for name in sorted(versions, key=str.lower)]
    Path(sys.argv[1]).write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    main()
