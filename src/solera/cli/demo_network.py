"""``solera demo --network``: a coordinator that is killed, and three clients, as processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import typer

from solera.cli.output import print_table, stderr
from solera.cli.serve import extra
from solera.core.errors import SoleraError
from solera.core.private_files import write_file
from solera.engines.child import end

CLIENTS = ("north", "south", "west")
FEDERATION = "digits"
POLICY = """\
# What this client lets out. See: solera policy explain
policy = "trusted"  # the driver may read rows: digits are no secret, patients are
"""
JOB = """\
name = "averaging"
federation = "digits"
owner = "demo"
clients = 3
evaluate = "train"

[learner]
kind = "FedLinear"
rounds = 40
epochs = 2
lr = 0.001
"""
_KILL_AFTER = 15


def demo_network(folder: Path) -> None:
    """Train over a real network, kill the coordinator on the way, and say what happened."""
    with extra("the demonstration over a network"):
        import httpx  # noqa: F401  the coordinator's client
        import uvicorn  # noqa: F401  its server
    with ExitStack() as stack:
        here = _Demo(folder, stack)
        typer.secho("1. A coordinator and three clients", bold=True)
        here.begin()
        typer.echo(here.described())

        typer.secho("\n2. One encrypted message of every client", bold=True)
        typer.echo(here.closed_form())

        typer.secho("\n3. Rounds of averaging, and a coordinator that dies", bold=True)
        typer.echo(here.averaging())

        typer.secho("\n4. What was written down", bold=True)
        print_table(["log of", ">lines", "state"], here.logs())
        typer.echo(
            f"\neverything is in {folder}\n\n"
            "What to try next\n"
            f"  solera policy check {folder / 'policy.toml'}\n"
            f"  tail -1 {folder / 'north' / 'audit.log'}\n"
            "  solera serve --help"
        )


class _Demo:
    """The processes of the demonstration, in a folder of their own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        from solera.data import datasets

        if (folder / "coordinator").exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self.stack = stack
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca = str(self.folder / "tls" / "ca.pem")
        self.digits = datasets.load("digits")
        self.coordinator: subprocess.Popen[bytes]

    def begin(self) -> None:
        from solera.privacy.he import keys

        with stderr().status("starting processes"):
            self._solera("tls", "init", "--folder", str(self.folder / "tls"))
            self.start()
            (self.folder / "policy.toml").write_text(POLICY, encoding="utf-8")
            self.keys = self.folder / "keys"
            self.keys.mkdir(mode=0o700)
            if _has_encryption():
                keys.create(self.keys, "demo")
            parts = np.array_split(np.arange(len(self.digits.X)), len(CLIENTS))
            self.rows = [len(part) for part in parts]
            for name, part in zip(CLIENTS, parts, strict=True):
                self._join(name, part)
            self._wait(lambda: len(self._get(f"/v1/federations/{FEDERATION}")["clients"]) == 3)

    def start(self) -> None:
        """Start the coordinator, or start it again."""
        tls = self.folder / "tls"
        certificate = ("--certificate", tls / "coordinator.pem", "--key", tls / "coordinator.key")
        home = ("--folder", self.folder / "coordinator", "--port", self.port)
        self.coordinator = self._process("coordinator", "serve", *home, *certificate)

        def reachable() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        self._wait(reachable)

    def _join(self, name: str, part: Any) -> None:
        home = self.folder / name
        home.mkdir(mode=0o700)
        columns = [f"pixel{k}" for k in range(self.digits.X.shape[1])]
        header = ",".join([*columns, "digit"])
        rows = np.column_stack([self.digits.X[part], self.digits.y[part]])
        np.savetxt(home / "rows.csv", rows, "%g", delimiter=",", header=header, comments="")
        invited = self._solera("invite", name, "-f", FEDERATION, *self._driver()).strip()
        write_file(home / "invitation", invited.encode(), 0o600, overwrite=True)
        self._process(
            name, "join", self.url, "--token-file", home / "invitation",
            "--ca", self.ca, "--folder", home,
            "--data", home / "rows.csv", "--target", "digit",
            "--policy", self.folder / "policy.toml",
        )  # fmt: skip

    def described(self) -> str:
        rows = ", ".join(f"{n} with {r:,} rows" for n, r in zip(CLIENTS, self.rows, strict=True))
        return (
            f"{self.url} with TLS, and the agents of {rows}.\n"
            "Each is a process of its own; the agents only connect outwards, and run what\n"
            f"{self.folder / 'policy.toml'} allows."
        )

    def closed_form(self) -> str:
        """FedHEONN, encrypted under a key that only the clients have."""
        from solera.learn.heonn.encryption import Encryption
        from solera.learn.heonn.learner import FedHEONN

        encrypted = _has_encryption()
        encrypt = Encryption("demo") if encrypted else None
        began = time.perf_counter()
        with stderr().status("asking for statistics"):
            model = FedHEONN(encrypt=encrypt).fit(self._connect("closed-form"))
        took = time.perf_counter() - began
        os.environ["SOLERA_KEYS"] = str(self.keys)  # from here on this process is a key holder
        score = model.score(self.digits.X_test, self.digits.y_test)
        how = (
            "The coordinator added up ciphertexts and has no key."
            if encrypted
            else "NOT ENCRYPTED: the extra 'he' is not installed (pip install 'solera[he]')."
        )
        return f"FedHEONN: accuracy {score:.3f} on rows no client has, in {took:.1f} s. {how}"

    def averaging(self) -> str:
        """A job that the coordinator runs itself; it is killed and started again on the way."""
        import solera as so

        path = self.folder / "job.toml"
        path.write_text(JOB, encoding="utf-8")
        self._solera("job", "start", str(path), *self._driver())
        with stderr().status("training"):
            self._wait(lambda: self._get("/v1/jobs/averaging")["progress"]["asks"] > _KILL_AFTER)
            asks = self._get("/v1/jobs/averaging")["progress"]["asks"]
            self.coordinator.send_signal(signal.SIGKILL)
            self.coordinator.wait()
            self.start()
            self._wait(lambda: self._get("/v1/jobs/averaging")["state"] not in _OPEN, 120)
        job = self._get("/v1/jobs/averaging")
        if job["state"] != "finished":
            raise SoleraError(f"the job is {job['state']}: {job['reason']}")
        out = self.folder / "averaging.sol"
        self._solera("job", "model", "averaging", "--out", str(out), *self._driver())
        model = so.load(out)
        calm = so.FedLinear(rounds=40, epochs=2, lr=0.001).fit(self._connect("undisturbed"))
        same = np.array_equal(calm.coef_, model.coef_)
        return (
            f"FedLinear: accuracy {model.score(self.digits.X_test, self.digits.y_test):.3f} after "
            f"{len(model.history_)} rounds.\nThe coordinator was killed (kill -9) after {asks} "
            "asks and started again.\nThe model "
            + (
                "has the same bits as one that was trained without the kill."
                if same
                else "DIFFERS from one that was trained without the kill."
            )
        )

    def logs(self) -> list[list[str]]:
        from solera.serve.audit import verify
        from solera.serve.identity import Identity

        homes = {"coordinator": self.folder / "coordinator" / "identity"}
        homes |= {name: self.folder / name for name in CLIENTS}
        rows = []
        for name, home in homes.items():
            report = verify(self.folder / name / "audit.log", Identity.load(home).sign_key)
            state = "signed, nothing was changed" if report.ok else "; ".join(report.problems)
            rows.append([name, f"{report.head.n:,}", state])
        return rows

    # --- talking to the coordinator ---

    @property
    def token(self) -> str:
        return (self.folder / "coordinator" / "driver.token").read_text()

    def _driver(self) -> Sequence[str]:
        return ("--url", self.url, "--ca", self.ca)

    def _connect(self, job: str) -> Any:
        from solera.serve.driver.driven import connect

        return connect(
            self.url, federation=FEDERATION, token=self.token, ca=self.ca, job=job, owner="demo"
        )

    def _get(self, path: str) -> Any:
        from solera.serve.connection import Connection

        headers = {"Authorization": f"Bearer {self.token}"}
        with closing(
            Connection(self.url, lambda *_: headers, ca=self.ca, patience=20)
        ) as connection:
            return connection.request("GET", path).json()

    # --- processes ---

    def _solera(self, *arguments: str) -> str:
        """A command, run to its end."""
        token = self.folder / "coordinator" / "driver.token"
        known = {"SOLERA_TOKEN": token.read_text()} if token.exists() else {}
        done = subprocess.run(
            [*_COMMAND, *arguments], env={**os.environ, **known}, capture_output=True, text=True
        )
        if done.returncode:
            raise SoleraError(f"solera {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def _process(self, name: str, *arguments: Any) -> subprocess.Popen[bytes]:
        """A command that goes on until the demonstration ends; its output goes to a file."""
        environment = {k: v for k, v in os.environ.items() if k != "SOLERA_KEYS"}
        if name in CLIENTS:
            environment["SOLERA_KEYS"] = str(self.keys)
        with (self.folder / f"{name}.out").open("ab") as output:
            process = subprocess.Popen(
                [*_COMMAND, *map(str, arguments)],
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self.stack.callback(end, process, 5)
        return process

    def _wait(self, ready: Any, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                raise SoleraError(
                    "the demonstration waited in vain", hint=f"look at {self.folder}/*.out"
                )
            time.sleep(0.1)


_COMMAND = (sys.executable, "-m", "solera.cli.app")
_OPEN = ("created", "waiting", "running")


def _has_encryption() -> bool:
    from importlib.util import find_spec

    return find_spec("tenseal") is not None
