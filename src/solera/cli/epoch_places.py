"""What ``solera dictionary`` works on: a draft, where it is, and an owner's rows and keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from solera.cli.client import check_folder
from solera.cli.serve import extra
from solera.core.errors import UsageError

if TYPE_CHECKING:
    from solera.serve.agent.epoch_boards import EpochBoard
    from solera.serve.agent.epoch_signing import Signing
    from solera.serve.agent.policy import OwnerPolicy
    from solera.trust.epoch import Dictionary

_PATIENCE = 20.0


@contextmanager
def board_of(file: Path | None, folder: Path) -> Iterator[EpochBoard]:
    """Where the draft is: at the coordinator of a client that has joined, or in a file."""
    with extra("signing an epoch"):
        from contextlib import closing

        from solera.serve.agent.epoch_boards import CoordinatorBoard, FileBoard
        from solera.serve.agent.home import connect_to, find_place
        from solera.serve.identity import Identity
        from solera.trust.epoch import Draft

    place = find_place(folder) if folder.is_dir() else None
    if place is None:
        if file is None:
            raise UsageError("which dictionary?", hint="solera dictionary show dictionary.toml")
        yield FileBoard(file)
        return
    with closing(connect_to(place, Identity.load(folder), _PATIENCE)) as connection:
        draft = None if file is None else Draft.read(file)
        board = CoordinatorBoard(connection, place.federation, draft)
        if draft is None:
            board = CoordinatorBoard(connection, place.federation, board.look().draft)
        yield board


@contextmanager
def signing_of(
    file: Path | None, data: str | None, policy: Path | None, name: str | None, folder: Path
) -> Iterator[Signing]:
    with extra("signing an epoch"):
        from solera.data.epoch_rows import snapshot_of
        from solera.serve.agent.epoch_signing import Signing
        from solera.serve.agent.home import read_secret
        from solera.serve.agent.sources import owned_table
        from solera.serve.identity import FILE, Identity

    source, rules = rows_of(data, policy, folder)
    known = (folder / FILE).exists()
    identity = Identity.load(folder) if known else Identity.create(folder)
    with board_of(file, folder) as board:
        dictionary = board.look().draft.dictionary
        table = owned_table(source, folder, rules, dictionary)
        snapshot = snapshot_of(read_secret(folder), dictionary, table)
        yield Signing(folder, name_of(name, folder), identity, snapshot, board, rules.rules.refresh)


def dictionary_of(file: Path | None, folder: Path) -> Dictionary:
    if file is not None:
        from solera.trust.epoch import Dictionary

        return Dictionary.read(file)
    with board_of(file, folder) as board:
        return board.look().draft.dictionary


def rows_of(data: str | None, policy: Path | None, folder: Path) -> tuple[str, OwnerPolicy]:
    """Where the rows are and the policy: as given, or as the agent was started."""
    with extra("reading an owner's rows"):
        from solera.serve.agent.policy import OwnerPolicy
        from solera.serve.agent.started import recall

    started = recall(folder) if folder.is_dir() else None
    source = data or (started.data if started else None)
    path = policy or (Path(started.policy) if started else None)
    if source is None:
        raise UsageError("whose rows?", hint="--data heart.csv, or --folder of an agent")
    rules = OwnerPolicy.read(path) if path else OwnerPolicy.parse('policy = "sums"')
    return source, rules


def name_of(name: str | None, folder: Path) -> str:
    from solera.serve.agent.home import find_place

    check_folder(folder)
    place = find_place(folder)
    if place is not None:
        return place.name
    if name is None:
        raise UsageError("who is this owner?", hint="--name, as the draft calls it")
    return name
