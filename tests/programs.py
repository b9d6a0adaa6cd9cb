"""Python programs in processes of their own, forked from one that has imported what they need.

A program that starts from nothing spends most of its seconds on imports. Here they are paid once
for all programs of a test worker; each still has its own process, arguments, folder, environment
and exit code.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
"""Other tests have the other cores."""
PRELOADED = ("torch", "scipy.linalg", "sklearn.datasets", "sklearn.linear_model", "solera")


def run_program(
    path: Path, *arguments: str, folder: Path, seconds: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What a program prints and how it ends; it is killed after so many seconds."""
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        program = {
            "argv": [str(path), *arguments],
            "folder": str(folder),
            "environment": {**os.environ, **ALONE, **environment},
            "out": str(out),
            "err": str(err),
            "seconds": seconds,
        }
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(program) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        said = [file.read_text(encoding="utf-8") for file in (out, err)]
    return subprocess.CompletedProcess(program["argv"], code, *said)


@cache
def _server() -> subprocess.Popen[str]:
    """The process that forks, until this one ends."""
    source = Path(importlib.import_module("solera").__file__ or "").parents[1]
    paths = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))
    server = subprocess.Popen(
        [sys.executable, __file__],
        env={**os.environ, **ALONE, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)  # the end of its input is its end
    return server


# --- in the server ---


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in PRELOADED:
        with suppress(ImportError):  # an extra that is not installed
            importlib.import_module(name)
    for line in sys.stdin:
        program = json.loads(line)
        pid = os.fork()
        if pid == 0:
            answers.close()
            _become(program)
        print(_end(pid, program["seconds"]), file=answers, flush=True)


def _end(pid: int, seconds: float) -> int:
    """The exit code of a process, which may take so long."""

    def give_up(*_: Any) -> None:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _become(program: dict[str, Any]) -> None:
    """Be that program, to the end."""
    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(program["folder"])
        os.environ.clear()
        os.environ.update(program["environment"])
        for number, name in ((0, os.devnull), (1, program["out"]), (2, program["err"])):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
        sys.argv = program["argv"]
        sys.path[0] = str(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
