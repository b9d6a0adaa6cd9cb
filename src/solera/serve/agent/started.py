"""How an agent was started: its policy and where its rows come from, so that people can look."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from solera.core.errors import UsageError
from solera.core.private_files import read_private, write_file
from solera.data.dictionary_tables import Table
from solera.data.federated import FederatedData
from solera.serve.agent.policy import OwnerPolicy
from solera.serve.agent.sources import owned_rows, owned_table
from solera.trust.epoch.dictionary import Dictionary

FILE = "started.json"
_NO_FILES = ("sql:", "python:")


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """What ``solera join`` was told; see :mod:`~solera.serve.agent.sources`."""

    policy: str
    data: str
    target: str | list[str] | None = None
    id: str | None = None
    test: float = 0.0

    def rows(self, folder: Path, policy: OwnerPolicy) -> Callable[..., FederatedData]:
        """Reads the rows that tasks see under a policy."""
        return owned_rows(self.data, folder, policy, target=self.target, id=self.id, test=self.test)

    def table(self, folder: Path, policy: OwnerPolicy) -> Callable[[Dictionary], Table]:
        """Reads the rows by a dictionary, for closed jobs."""
        return partial(owned_table, self.data, folder, policy)

    def remember(self, folder: Path) -> None:
        """Write it into the client's folder, for its owner alone: a source may hold a password."""
        files = {"policy": str(Path(self.policy).resolve())}
        if not self.data.startswith(_NO_FILES):
            files["data"] = str(Path(self.data).resolve())
        content = msgspec.json.encode(msgspec.structs.replace(self, **files))
        write_file(folder / FILE, content, 0o600, overwrite=True)


def recall(folder: Path) -> Started | None:
    """How the agent of a folder was started last; None if that is not known."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_private(path), type=Started)
    except msgspec.MsgspecError:
        raise UsageError(f"{path} is damaged", hint="start the agent again") from None
