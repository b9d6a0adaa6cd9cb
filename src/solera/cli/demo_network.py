"""``solera demo --network``: four owners sign an epoch and run two closed jobs, as processes."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from solera.cli.output import print_table, stderr
from solera.cli.serve import extra
from solera.core.errors import SoleraError
from solera.core.private_files import write_file
from solera.engines.child import end
from solera.trust.policy import PROMISE

if TYPE_CHECKING:
    from solera.serve.agent.epoch_boards import EpochBoard
    from solera.trust.epoch import Epoch, SignedEpoch

OWNERS = ("north", "south", "east", "west")
FEDERATION = "cardio"
ROWS = 200
POLICY = """\
# What this owner lets out: approved jobs, and of them sums over all owners. `solera policy explain`
policy = "sums"
exact_training = true   # models of many rounds, such as networks: read sentences 3 and 4 first

[data]
unit = "person"

[approval]
mode = "ask"
[approval.approvers]
{name} = "{key}"
"""
SIMULATION = """\
import hashlib, sys
import solera as so
from solera.core.component import build, describe_fitted
from solera.core.payload import decode, encode
from solera.trust.epoch import SignedEpoch
given = decode(open(sys.argv[1], "rb").read())
import pandas as pd
frame = pd.read_csv(given["rows"])
fed = so.simulate(frame, group="owner", dictionary=SignedEpoch.decode(given["epoch"]),
                  policy={"policy": "sums", "exact_training": True}, secrets=given["secrets"])
model = build(given["learner"]).fit(fed)
print(hashlib.sha256(encode(describe_fitted(model))).hexdigest())
"""


def demo_network(folder: Path) -> None:
    """Sign an epoch, approve two texts, kill what there is to kill, and say what happened."""
    with extra("the demonstration over a network"):
        import httpx  # noqa: F401  the coordinator's client
        import uvicorn  # noqa: F401  its server
    with ExitStack() as stack:
        here = _Demo(folder, stack)
        typer.secho("1. What every owner reads first", bold=True)
        for number, sentence in enumerate(PROMISE, 1):
            typer.echo(f"  {number}. {sentence}")

        typer.secho("\n2. A coordinator, four owners, and the epoch that they sign", bold=True)
        here.begin()
        typer.echo(here.sign())

        typer.secho("\n3. The pages", bold=True)
        typer.echo(here.pages())

        typer.secho(
            "\n4. A logistic regression: every owner approves the text, then it runs", bold=True
        )
        typer.echo(here.glm())

        typer.secho("\n5. A network, while the coordinator and an agent are killed", bold=True)
        typer.echo(here.network())

        typer.secho("\n6. What was written down", bold=True)
        print_table(["log of", ">lines", "state"], here.logs())
        typer.echo(
            f"\neverything is in {here.folder}\n\n"
            "What to try next\n"
            f"  solera policy explain {here.folder / 'north.toml'}\n"
            f"  solera dictionary show --folder {here.folder / 'north'}\n"
            f"  tail -1 {here.folder / 'north' / 'audit.log'}"
        )
        if sys.stdin.isatty() and sys.stdout.isatty():
            typer.echo("\nThe pages stay until Ctrl-C.")
            signal.pause()


class _Demo:
    """The processes of the demonstration, in a folder of their own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        if (folder / "coordinator").exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.stack = folder.resolve(), stack
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca = str(self.folder / "tls" / "ca.pem")
        self.frame = cohort()
        self.epoch: Epoch
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    # --- who takes part ---

    def begin(self) -> None:
        """The coordinator, and four owners that have joined."""
        from solera.serve.agent.approvals import Approver
        from solera.serve.tls import issue, make_ca

        with stderr().status("starting processes"):
            make_ca(self.folder / "tls")
            issue(self.folder / "tls", "coordinator", ["127.0.0.1"])
            self.start()
            self.frame.to_csv(self.folder / "all.csv", index=False)
            for name, rows in self.frame.groupby("owner", sort=False):
                rows.drop(columns="owner").to_csv(self.folder / f"{name}.csv", index=False)
                person = Approver.create(self.folder / f"{name}.key", f"ana-{name}")
                policy = POLICY.format(name=person.name, key=person.public)
                (self.folder / f"{name}.toml").write_text(policy, encoding="utf-8")
                (self.folder / str(name)).mkdir(mode=0o700)
                self._invite(str(name))
                self.join(str(name))
            self._wait(
                lambda: all(m["policy"] for m in self._members()) and len(self._members()) == 4
            )

    def start(self) -> None:
        """Start the coordinator, or start it again."""
        tls = self.folder / "tls"
        certificate = ("--certificate", tls / "coordinator.pem", "--key", tls / "coordinator.key")
        home = ("--folder", self.folder / "coordinator", "--port", self.port)
        self._process("coordinator", "serve", *home, *certificate)

        def reachable() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        self._wait(reachable)

    def join(self, name: str) -> None:
        """Start an owner's agent, or start it again."""
        self._process(
            name, "join", self.url, "--token-file", self.folder / f"{name}.invitation",
            "--ca", self.ca, "--folder", self.folder / name,
            "--data", self.folder / f"{name}.csv", "--target", "died",
            "--policy", self.folder / f"{name}.toml",
        )  # fmt: skip

    def _invite(self, name: str) -> None:
        from solera.serve.wire import Invite, NewInvite

        with self._connection() as connection:
            path = f"/v1/federations/{FEDERATION}/invites"
            token = connection.call("POST", path, Invite, NewInvite(name)).token
        write_file(self.folder / f"{name}.invitation", token.encode(), 0o600, overwrite=True)

    def sign(self) -> str:
        """All owners enter their parts, compare the words, and sign."""
        from solera.data.dictionary_tables import draft
        from solera.data.epoch_rows import snapshot_of
        from solera.serve.agent import home
        from solera.serve.agent.epoch_boards import CoordinatorBoard
        from solera.serve.agent.epoch_signing import Signing
        from solera.serve.agent.policy import OwnerPolicy
        from solera.serve.agent.sources import owned_table
        from solera.serve.identity import Identity
        from solera.trust.epoch import Draft

        dictionary = draft(self.frame.drop(columns="owner"), target="died", identifier="person")
        agreed = Draft(dictionary, OWNERS, FEDERATION)
        signings = []
        for name in OWNERS:
            folder = self.folder / name
            policy = OwnerPolicy.read(self.folder / f"{name}.toml")
            table = owned_table(str(self.folder / f"{name}.csv"), folder, policy, dictionary)
            snapshot = snapshot_of(home.read_secret(folder), dictionary, table)
            identity = Identity.load(folder)
            connection = home.connect_to(home.read_place(folder), identity, 10.0)
            self.stack.callback(connection.close)
            board = CoordinatorBoard(connection, FEDERATION, agreed)
            signings.append(Signing(folder, name, identity, snapshot, board))
        for signing in signings:
            seen = signing.enter()
        entered = seen.signed()
        assert entered is not None
        self.epoch = entered.epoch
        for signing in signings:
            self.signed = signing.sign(self.epoch)
        self._wait(lambda: not self._signed_epoch(signing.board).unsettled)
        self.signed = self._signed_epoch(signing.board)
        self.epoch = self.signed.epoch
        atoms = self.epoch.atoms
        assert atoms is not None
        counted = [f"{atoms.count(c.name)} of {c.name}" for c in dictionary.columns]
        rows = ", ".join(f"{owner.name} with {owner.persons}" for owner in self.epoch.owners)
        return (
            f"{self.url} with TLS, and the agents of {rows} persons.\n"
            f"All have signed epoch {self.epoch.hash.hex()[:16]}; the words that they read to each "
            f"other by voice: {self.epoch.words()}\n"
            "Their agents have found and signed its atoms, the cells with enough persons of all: "
            f"{', '.join(counted)}"
        )

    def _signed_epoch(self, board: EpochBoard) -> SignedEpoch:
        signed = board.look().signed()
        assert signed is not None
        return signed

    def pages(self) -> str:
        """The coordinator's page, and the one of the first owner."""
        from solera.serve.coordinator.store.store import Store
        from solera.serve.coordinator.web.visitors import new_account

        password = secrets.token_urlsafe(9)
        with Store(f"sqlite:///{self.folder / 'coordinator' / 'coordinator.sqlite'}") as store:
            store.add_account(new_account("demo", password, "viewer", None), "demo")
        name = OWNERS[0]
        self._process(
            "owner page", "owner", "--folder", self.folder / name,
            "--policy", self.folder / f"{name}.toml", "--key", self.folder / f"{name}.key",
        )  # fmt: skip
        said = self.folder / "owner page.out"
        self._wait(lambda: "http" in said.read_text())
        link = next(word for word in said.read_text().split() if word.startswith("http"))
        federation = f"{self.url}/federations/{FEDERATION}"
        return f"coordinator: {federation} (demo, {password})\nowner {name}: {link} (works once)"

    # --- closed jobs ---

    def glm(self) -> str:
        """One fit, approved by four people."""
        from solera.learn.statistics.glm import FedGLM

        model, seconds = self._fit(FedGLM("binomial"), lambda jid: None)
        names = [feature.name for feature in model.schema_.features]
        odds = zip(names, np.exp(model.params_[1:]), strict=True)
        told = ", ".join(f"{name} {ratio:.3f}" for name, ratio in odds)
        return f"FedGLM in {seconds:.1f} s; odds ratios: {told}\n{self._compared(model)}"

    def network(self) -> str:
        """Many rounds; who dies on the way goes on."""
        from solera.learn.averaging import nn
        from solera.learn.averaging.learner import FedAvg
        from solera.learn.linear import FedLinear

        width = self.frame.shape[1] - 3
        learner: Any = FedLinear(rounds=40)
        if find_spec("torch") is not None:
            learner = FedAvg(nn.mlp(width, 8, 2), rounds=25, lr=0.05, batch_size=32)
        killed: list[str] = []

        def trouble(jid: str) -> None:
            self._wait(lambda: self._job(jid)["sums"] >= 6)
            for name, again in (("coordinator", self.start), ("west", lambda: self.join("west"))):
                sums = self._job(jid)["sums"]
                self.processes[name].send_signal(signal.SIGKILL)
                self.processes[name].wait()
                again()
                killed.append(f"{name} after {sums} sums")

        model, seconds = self._fit(learner, trouble)
        kind = type(model).__name__
        return (
            f"{kind} of {len(model.history_)} rounds in {seconds:.1f} s; killed (kill -9) and "
            f"started again: {', '.join(killed)}.\n{self._compared(model)}"
        )

    def _fit(self, learner: Any, meanwhile: Callable[[str], None]) -> tuple[Any, float]:
        """What a researcher's program does, while owners approve its text."""
        done: list[Any] = []
        began = time.perf_counter()
        known = {job["jid"] for job in self._jobs()}

        def fit() -> None:
            try:
                done.append(learner.fit(self._connect()))
            except BaseException as error:
                done.append(error)

        program = threading.Thread(target=fit, daemon=True)
        program.start()
        self._wait(lambda: {job["jid"] for job in self._jobs()} - known or done)
        jid = next(iter({job["jid"] for job in self._jobs()} - known), "")
        for name in OWNERS if jid else ():
            self._approve(name, jid)
        typer.echo(f"  {self.url}/closed/{jid}")
        if not done:
            meanwhile(jid)
        program.join()
        if isinstance(done[0], BaseException):
            raise done[0]
        return done[0], time.perf_counter() - began

    def _approve(self, name: str, jid: str) -> None:
        """``solera approve JID --key NAME.key --policy NAME.toml --folder NAME``."""
        from solera.serve.agent.approvals import Approver
        from solera.serve.agent.closed.held import held_texts
        from solera.serve.agent.decisions import decide
        from solera.serve.agent.policy import OwnerPolicy

        folder = self.folder / name
        self._wait(lambda: any(held.hash == jid for held in held_texts(folder)))
        person = Approver.load(self.folder / f"{name}.key")
        decide(folder, OwnerPolicy.read(self.folder / f"{name}.toml"), person, jid, "approved")

    def _compared(self, model: Any) -> str:
        """Whether a simulation of these owners gives the same bytes, on the pinned path."""
        import hashlib

        from solera.core.component import describe, describe_fitted
        from solera.core.payload import encode
        from solera.serve.agent import home
        from solera.trust.epoch.runtime import pinned_environment

        given = {
            "rows": str(self.folder / "all.csv"),
            "epoch": self.signed.encode(),
            "secrets": {name: home.read_secret(self.folder / name) for name in OWNERS},
            "learner": describe(model),
        }
        order = self.folder / "simulation"
        write_file(order, encode(given), 0o600, overwrite=True)
        command = [sys.executable, "-W", "ignore", "-c", SIMULATION, str(order)]
        environment = {**os.environ, **pinned_environment()}
        made = subprocess.run(command, env=environment, capture_output=True, text=True)
        order.unlink()
        if made.returncode:
            raise SoleraError(f"the simulation failed: {made.stderr.strip()[-300:]}")
        own = hashlib.sha256(encode(describe_fitted(model))).hexdigest()
        return (
            'It has the same bytes as so.simulate(dictionary=EPOCH, policy="sums", secrets=…).'
            if made.stdout.strip() == own
            else "It DIFFERS from its simulation."
        )

    def logs(self) -> list[list[str]]:
        from solera.serve.audit import verify
        from solera.serve.identity import Identity

        homes = {"coordinator": self.folder / "coordinator" / "identity"}
        homes |= {name: self.folder / name for name in OWNERS}
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

    def _connect(self) -> Any:
        from solera.serve.driver.driven import connect

        return connect(
            self.url, federation=FEDERATION, token=self.token, ca=self.ca, owner="vega",
            researcher_key=self.folder / "researcher.key",
        )  # fmt: skip

    def _connection(self) -> Any:
        from solera.serve.connection import Connection

        headers = {"Authorization": f"Bearer {self.token}"}
        return closing(Connection(self.url, lambda *_: headers, ca=self.ca, patience=20))

    def _get(self, path: str) -> Any:
        with self._connection() as connection:
            return connection.request("GET", path).json()

    def _members(self) -> Sequence[Mapping[str, Any]]:
        members: Sequence[Mapping[str, Any]] = self._get(f"/v1/federations/{FEDERATION}")["clients"]
        return members

    def _jobs(self) -> Sequence[Mapping[str, Any]]:
        jobs: Sequence[Mapping[str, Any]] = self._get(f"/v1/federations/{FEDERATION}/closed")
        return jobs

    def _job(self, jid: str) -> Mapping[str, Any]:
        job: Mapping[str, Any] = self._get(f"/v1/closed/{jid}")
        return job

    # --- processes ---

    def _process(self, name: str, *arguments: Any) -> None:
        """A command that goes on until the demonstration ends; its output goes to a file."""
        from solera.trust.epoch.runtime import pinned_environment

        with (self.folder / f"{name}.out").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "solera.cli.app", *map(str, arguments)],
                stdout=output,
                stderr=output,
                env={**os.environ, **pinned_environment()},
                start_new_session=True,
            )
        self.processes[name] = process
        self.stack.callback(end, process, 5)

    def _wait(self, ready: Callable[[], Any], seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > until:
                raise SoleraError(
                    "the demonstration waited in vain", hint=f"look at {self.folder}/*.out"
                )
            time.sleep(0.1)


def cohort() -> Any:
    """Persons of four hospitals, drawn once for all: nobody's data."""
    import pandas

    draw = np.random.default_rng(28)
    rows = len(OWNERS) * ROWS
    frame = pandas.DataFrame(
        {
            "owner": np.repeat(OWNERS, ROWS),
            "person": [f"p{i:04d}" for i in range(rows)],
            "age": draw.normal(62, 11, rows).round(),
            "pressure": draw.normal(135, 18, rows).round(),
            "cholesterol": draw.normal(5.4, 1.0, rows).round(1),
            "bmi": draw.normal(27, 4, rows).round(1),
            "smoker": draw.integers(0, 2, rows).astype(float),
        }
    )
    score = 0.06 * (frame.age - 62) + 0.02 * (frame.pressure - 135) + 0.7 * frame.smoker - 0.6
    frame["died"] = np.where(score + draw.logistic(size=rows) > 0, "yes", "no")
    return frame
