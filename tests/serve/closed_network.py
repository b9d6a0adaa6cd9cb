"""Four owners who have signed an epoch, as processes with TLS, and their simulation."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from network import Network, Program
from sqlalchemy import create_engine, text

import solera as so
from solera.core.component import describe_fitted
from solera.core.payload import encode
from solera.data.dictionary_tables import read_table
from solera.data.epoch_rows import snapshot_of
from solera.learn.closed_losses import mean_loss
from solera.serve.agent import home
from solera.serve.agent.epoch_boards import CoordinatorBoard
from solera.serve.agent.epoch_files import fetch_agreed
from solera.serve.agent.epoch_signing import Signing, settle_epoch
from solera.serve.identity import Identity
from solera.trust.epoch import Draft, Epoch
from solera.trust.epoch.bases import Base
from solera.trust.epoch.runtime import pinned_environment

NAMES = ("north", "south", "east", "west")
AGENT = """
import logging
import sys
import numpy as np
import pandas as pd
import solera as so
from solera.data.dictionary_tables import read_table
from solera.serve.agent.agent import Agent
from solera.serve.agent.policy_file import PolicyFile
from solera.serve.agent.worker import Worker
folder, data, policy = sys.argv[1:4]


def table(dictionary):
    return read_table(dictionary, pd.read_csv(data))


def rows():
    frame = pd.read_csv(data)
    return so.data.FederatedData(frame.iloc[:, :-1].to_numpy(), None, np.array([0, len(frame)]))


logging.basicConfig(level=logging.WARNING)
agent = Agent(folder, Worker(rows, table=table, begin=False), PolicyFile(policy))
agent.run(wait=5)
"""
CLOCK = """
import sys, time
from pathlib import Path
real = time.time


def moved():
    ahead = Path(sys.argv[4]) if sys.argv[4] else None
    return real() + (float(ahead.read_text()) if ahead and ahead.exists() else 0.0)


from solera.serve.agent.closed import connection as closed_connection
from types import SimpleNamespace
closed_connection.time = SimpleNamespace(time=moved, monotonic=time.monotonic)
"""
POLICY = 'policy = "sums"\nexact_training = true\n[approval]\nmode = "auto"\n'


class ClosedNetwork(Network):
    """Four owners with the rows of a frame, whose last column is the target."""

    def __init__(
        self,
        folder: Path,
        frame: pd.DataFrame,
        *,
        signed: int = 4,
        clock: bool = False,
        simd: Mapping[str, str] | None = None,
        agents_find_atoms: bool = False,
        working: Sequence[str] | None = None,
        policy: str = POLICY,
        bases: tuple[Base, ...] = (),
        **options: Any,
    ) -> None:
        """``agents_find_atoms``: in earnest; else they sign what a simulation finds. ``working``
        are the owners whose agents start at once, all by default.

        ``clock``: agents' clocks are ahead by what the file ``later`` says, in seconds.

        ``simd``: by owner, what NumPy may not use in its worker.
        """
        super().__init__(folder)
        self.clock, self.simd = clock, simd or {}
        self.frame = frame
        self.parts = np.array_split(np.arange(len(frame)), len(NAMES))
        drafted = so.epochs.draft(frame, target=frame.columns[-1])
        self.dictionary = replace(drafted, bases=bases)
        self.secrets: dict[str, bytes] = {}
        self.options = options
        self.start(**options)
        for name, part in zip(NAMES, self.parts, strict=True):
            self.enrol(name)
            frame.iloc[part].to_csv(self.folder / f"{name}.rows", index=False)
            (self.folder / f"{name}.toml").write_text(policy)
        self.epoch = self.sign(signed)
        if signed == len(NAMES) and not agents_find_atoms:
            self.epoch = self.settle()
        for name in NAMES if working is None else working:
            self.work(name)

    def sign(self, owners: int = 4) -> Epoch:
        """All owners enter their parts, and the first ones sign the epoch of their rows."""
        draft = Draft(self.dictionary, NAMES, self.federation)
        signings = []
        for name in NAMES:
            folder = self.folder / name
            identity, place = Identity.load(folder), home.read_place(folder)
            self.secrets[name] = home.read_secret(folder)
            table = read_table(self.dictionary, pd.read_csv(self.folder / f"{name}.rows"))
            snapshot = snapshot_of(self.secrets[name], self.dictionary, table)
            connection = home.connect_to(place, identity, 10.0)
            board = CoordinatorBoard(connection, self.federation, draft)
            signings.append(Signing(folder, name, identity, snapshot, board))
        seen = [signing.enter() for signing in signings][-1]
        signed = seen.signed()
        assert signed is not None
        for signing in signings[:owners]:
            signing.sign(signed.epoch)
        return signed.epoch

    def board(self, name: str) -> CoordinatorBoard:
        """The draft of the epoch, as an owner sees it at the coordinator."""
        folder = self.folder / name
        connection = home.connect_to(home.read_place(folder), Identity.load(folder), 10.0)
        draft = Draft(self.dictionary, NAMES, self.federation)
        return CoordinatorBoard(connection, self.federation, draft)

    def settle(self) -> Epoch:
        """All owners sign the atoms that a simulation finds: what their agents would come to."""
        atoms = self.simulation().atoms
        for name in NAMES:
            folder, board = self.folder / name, self.board(name)
            fetch_agreed(folder, board.connection, self.federation)
            settle_epoch(folder, Identity.load(folder), board, atoms)
        own = f"sqlite:///{self.folder}/coordinator/coordinator.sqlite"
        engine = create_engine(self.options.get("database", own))
        with engine.begin() as db:
            db.execute(text("DELETE FROM closed_jobs"))  # nobody has to look for them
        engine.dispose()
        return replace(self.epoch, atoms=atoms)

    def settled(self) -> Epoch:
        """The epoch whose atoms the owners' agents have found and signed, waited for."""
        board, patience = self.board(NAMES[0]), time.monotonic() + 120
        while (signed := board.look().signed()) is None or signed.unsettled:
            assert time.monotonic() < patience, board.look().search
            time.sleep(0.05)
        self.epoch = signed.epoch
        return self.epoch

    def work(self, name: str) -> None:
        files = [str(self.folder / f"{name}.{end}") for end in ("rows", "toml")]
        if name in self.simd:  # NumPy must not be loaded before
            environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": self.simd[name]}
            command = [sys.executable, "-W", "ignore", "-c", AGENT, str(self.folder / name), *files]
            self.agents[name] = subprocess.Popen(command, env=environment)
            return
        later = str(self.folder / "later") if self.clock else ""
        self.agents[name] = Program(CLOCK + AGENT, str(self.folder / name), *files, later)

    def closed(self, seed: int = 0, **selected: Any) -> so.Federation:
        """The owners, as a researcher reaches them."""
        key = self.folder / "researcher.key"
        return self.connect(seed=seed, owner="ana", researcher_key=key, **selected)

    def simulation(self, seed: int = 0, **options: Any) -> so.Federation:
        """What the federation's closed jobs must come to, byte for byte."""
        options = {"policy": {"policy": "sums", "exact_training": True}, **options}
        owner = np.repeat(NAMES, [len(part) for part in self.parts])
        return so.simulate(
            self.frame.assign(owner=owner),
            group="owner",
            dictionary=self.epoch,
            secrets=self.secrets,
            seed=seed,
            **options,
        )


def learned(model: Any) -> bytes:
    return encode(describe_fitted(model))


def validation_loss(model: Any, federation: so.Federation) -> float:
    """What a point of a grid is chosen by."""
    owners = federation.closed_job(type(model).__name__)
    return mean_loss(model, model.at_clients(owners) if model.is_personal else owners, "validation")


def digest(model: Any) -> str:
    return hashlib.sha256(learned(model)).hexdigest()


__all__ = [
    "AGENT",
    "NAMES",
    "ClosedNetwork",
    "digest",
    "json",
    "learned",
    "pinned_environment",
    "validation_loss",
]
