"""A federation of four owners who have signed an epoch, as processes with TLS, and its simulation."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import solera as so
from network import Network, Program
from solera.core.component import describe_fitted
from solera.core.payload import encode
from solera.data.dictionary_tables import read_table
from solera.data.epoch_rows import snapshot_of
from solera.serve.agent import home
from solera.serve.agent.closed.epochs import FILE
from solera.serve.driver.closed.driver import ClosedDriver
from solera.serve.driver.closed.researcher import Researcher
from solera.serve.identity import Identity
from solera.trust.epoch import Draft, Epoch, Owner, SignedEpoch
from solera.trust.epoch.selection import Selection
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
folder, data, policy = sys.argv[1:]


def table(dictionary):
    return read_table(dictionary, pd.read_csv(data))


def rows():
    frame = pd.read_csv(data)
    return so.data.FederatedData(frame.iloc[:, :-1].to_numpy(), None, np.array([0, len(frame)]))


logging.basicConfig(level=logging.WARNING)
agent = Agent(folder, Worker(rows, table=table), PolicyFile(policy))
agent.run(wait=5)
"""
POLICY = 'policy = "sums"\nexact_training = true\n[approval]\nmode = "auto"\n'


class ClosedNetwork(Network):
    """Four owners with the rows of a frame, whose last column is the target."""

    def __init__(self, folder: Path, frame: pd.DataFrame, **options: Any) -> None:
        super().__init__(folder)
        self.frame = frame
        self.parts = np.array_split(np.arange(len(frame)), len(NAMES))
        self.dictionary = so.epochs.draft(frame, target=frame.columns[-1])
        self.secrets: dict[str, bytes] = {}
        self.start(**options)
        for name, part in zip(NAMES, self.parts, strict=True):
            self.enrol(name)
            frame.iloc[part].to_csv(self.folder / f"{name}.rows", index=False)
            (self.folder / f"{name}.toml").write_text(POLICY)
        self.epoch = self.sign()
        for name in NAMES:
            self.work(name)

    def sign(self) -> Epoch:
        """All owners sign the epoch of their rows."""
        identities = {name: Identity.load(self.folder / name) for name in NAMES}
        owners = []
        for name in NAMES:
            self.secrets[name] = home.read_secret(self.folder / name)
            table = read_table(self.dictionary, pd.read_csv(self.folder / f"{name}.rows"))
            snapshot = snapshot_of(self.secrets[name], self.dictionary, table)
            key = identities[name].sign_key
            owners.append(Owner(name, key, snapshot.commitment, snapshot.person_count))
        epoch = Epoch(Draft(self.dictionary, NAMES, self.federation), tuple(owners))
        signed = SignedEpoch(epoch, tuple(epoch.sign(identities[name]) for name in NAMES))
        for name in NAMES:
            (self.folder / name / FILE).write_bytes(signed.encode())
        return epoch

    def work(self, name: str) -> None:
        files = [str(self.folder / f"{name}.{end}") for end in ("rows", "toml")]
        self.agents[name] = Program(AGENT, str(self.folder / name), *files)

    def closed(self, repeat: int = 0, **selected: Any) -> ClosedDriver:
        """A researcher's side of closed jobs."""
        key = self.folder / "researcher.key"
        who = Researcher.load("ana", key)
        driver = ClosedDriver(self.driver(), self.federation, who, repeat, Selection.of(**selected))
        driver._epoch = self.epoch
        return driver

    def simulation(self, seed: int = 0, **options: Any) -> so.Federation:
        """What the federation's closed jobs must come to, byte for byte."""
        owner = np.repeat(NAMES, [len(part) for part in self.parts])
        return so.simulate(
            self.frame.assign(owner=owner),
            group="owner",
            dictionary=self.epoch,
            policy={"policy": "sums", "exact_training": True},
            secrets=self.secrets,
            seed=seed,
            **options,
        )


def learned(model: Any) -> bytes:
    return encode(describe_fitted(model))


def digest(model: Any) -> str:
    return hashlib.sha256(learned(model)).hexdigest()


__all__ = ["AGENT", "NAMES", "ClosedNetwork", "digest", "json", "learned", "pinned_environment"]
