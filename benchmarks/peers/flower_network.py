"""A SuperLink and SuperNodes of Flower as processes on loopback, for a test and a benchmark.

Flower's pins do not fit those of this project, so it has an environment of its own: ``flower`` or
``flwr`` in the folder that SOLERA_PEERS names (by default ``.peers``, see set_up.sh). Its programs
find Solera, and what that needs, after their own packages.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import solera

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120
"""For a program to listen, on a busy machine."""
CUSTOMIZE = """
import sys
sys.path += {paths!r}
"""


def find_flower() -> Path | None:
    """The folder of Flower's programs, if there is one."""
    peers = Path(os.environ.get("SOLERA_PEERS", ROOT / ".peers"))
    for name in ("flower", "flwr"):
        if (peers / name / "bin" / "flower-superlink").exists():
            return peers / name / "bin"
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class FlowerNetwork:
    """One SuperLink and its SuperNodes, in a folder; ``with`` ends them."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self.binaries, self.folder = binaries, folder
        self.port = free_port()
        self.running: list[subprocess.Popen[bytes]] = []
        installed = [path for path in sys.path if path.endswith("-packages")]
        paths = [str(Path(solera.__file__).parents[1]), str(ROOT), *installed]
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(CUSTOMIZE.format(paths=paths))
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n'
            f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "PYTHONPATH": str(folder / "site"),
        }

    def start(self, nodes: Sequence[str]) -> None:
        """The SuperLink, and a SuperNode for each node configuration."""
        own = ["--insecure", "--host", "127.0.0.1"]
        self._start("flower-superlink", *own, "--port", str(self.port))
        self._wait(self.port)
        for config in nodes:
            link = ["--superlink", f"127.0.0.1:{self.port}", "--node-config", config]
            self._start("flower-supernode", *own, *link, "--port", str(free_port()))

    def _start(self, command: str, *arguments: str) -> None:
        with open(self.folder / f"{command}-{len(self.running)}.log", "wb") as log:
            self.running.append(
                subprocess.Popen(
                    [str(self.binaries / command), *arguments],
                    env=self.environment,
                    cwd=self.folder,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _wait(self, port: int) -> None:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise TimeoutError(f"nothing listens at {port}:\n{self.logs()}")

    def run(self, app: Path, done: Path, seconds: float, config: str = "") -> None:
        """``flwr run`` an app to its end, at which it has written ``done``."""
        more = ["--run-config", config] if config else []
        with open(self.folder / "flwr-run.log", "wb") as log:
            subprocess.run(
                [str(self.binaries / "flwr"), "run", str(app), "here", "--stream", *more],
                env=self.environment,
                stdout=log,
                stderr=log,
                timeout=seconds,
            )
        if not done.exists():
            raise RuntimeError(f"{app} has not written {done.name}:\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def close(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
            process.wait()
        self.running.clear()

    def __enter__(self) -> FlowerNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
