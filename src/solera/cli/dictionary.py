"""``solera dictionary``: owners agree on columns and populations, and sign an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from solera.cli.client import FOLDER, Folder, check_folder
from solera.cli.data import AsJson, Table, Target, parameters
from solera.cli.output import print_json, print_table, stderr
from solera.cli.serve import extra
from solera.core.errors import UsageError

if TYPE_CHECKING:
    from solera.serve.agent.epoch_boards import EpochBoard
    from solera.serve.agent.epoch_signing import Signing
    from solera.serve.agent.policy import OwnerPolicy
    from solera.trust.epoch import Changes, Dictionary, Epoch
    from solera.trust.epoch.agreement import Agreement

app = typer.Typer(
    no_args_is_help=True,
    help="What the columns of a federation are, and the data freeze that all owners sign.",
)
_PATIENCE = 20.0

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="DICTIONARY.toml",
        help="The draft; by default the newest that the coordinator shows.",
    ),
]
Source = Annotated[
    str | None,
    typer.Option("--data", metavar="SOURCE", help="The rows; by default those of the agent."),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="The policy; by default that of the agent."),
]
OwnerName = Annotated[
    str | None,
    typer.Option("--name", help="What this owner is called, where it has not joined yet."),
]


@app.command("draft", epilog="Example: solera dictionary draft heart.csv --target died --owner "
             "north --owner south --owner east --owner west --out dictionary.toml")  # fmt: skip
def draft(
    table: Table,
    target: Target = None,
    identifier: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column that says whose row it is.")
    ] = "",
    time: Annotated[str, typer.Option(metavar="COLUMN", help="The time axis.")] = "",
    column: Annotated[
        list[str] | None, typer.Option(help="A column to take, of all; may be repeated.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=KIND", help="numeric, categorical or date; may be repeated."),
    ] = None,
    owner: Annotated[
        list[str] | None, typer.Option(help="Who is to sign, 3 to 64 names; may be repeated.")
    ] = None,
    federation: Annotated[str, typer.Option("--federation", "-f", help="The federation.")] = "",
    min_count: Annotated[
        int, typer.Option(min=2, help="The fewest persons of all owners behind a number.")
    ] = 5,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where it goes; printed by default.")
    ] = None,
) -> None:
    """Write a dictionary of what a table holds, to be read and changed before others see it.

    Bounds are rounded outwards. Categories that few rows have are named on stderr: take them out
    unless everybody may know of them.
    """
    from solera.data.dictionary_tables import draft as drafted
    from solera.data.own_tables import read_table
    from solera.trust.epoch import Draft

    frame = read_table(table)
    answers: Any = target[0] if target and len(target) == 1 else target
    made = drafted(frame, target=answers, identifier=identifier, time=time, columns=column,
                   kinds=parameters(kind or []) or None)  # fmt: skip
    text = made.toml()
    if owner:
        previous = Draft(made, tuple(owner), federation, min_count)
        text = previous.toml()
    for name, rare in _rare(made, frame, min_count):
        stderr().print(f"{name}: {rare}", markup=False, soft_wrap=True)
    if out is None:
        typer.echo(text, nl=False)
        return
    out.write_text(text, encoding="utf-8")
    typer.echo(f"{out}: {len(made.columns)} columns; read it before you send it to anybody")


def _rare(dictionary: Dictionary, frame: Any, min_count: int) -> Iterator[tuple[str, str]]:
    """Categories of which a draft tells although few rows have them."""
    from solera.data.frames import category_texts, some_of, typed

    for column in dictionary.columns:
        if column.kind == "categorical" and column.name in frame.columns:
            texts = category_texts(typed(frame[column.name])).tolist()
            rare = [name for name in column.categories if 0 < texts.count(name) < min_count]
            if rare:
                yield column.name, f"fewer than {min_count} rows are {some_of(rare)}"


@app.command("show", epilog="Example: solera dictionary show --folder agent")
def show(file: File = None, folder: Folder = FOLDER, as_json: AsJson = False) -> None:
    """An epoch on one screen: its words, who has signed, columns and populations."""
    with _board(file, folder) as board:
        _show(board.look(), as_json=as_json)


@app.command("check", epilog="Example: solera dictionary check dictionary.toml --data heart.csv")
def check(
    file: File = None,
    data: Source = None,
    policy: PolicyFile = None,
    folder: Folder = FOLDER,
    as_json: AsJson = False,
) -> None:
    """What of this owner's table does not fit, column by column, and what would mend it.

    It ends with 1 where something does not fit. Nothing leaves.
    """
    with extra("reading an owner's rows"):
        from solera.data.misfits import misfits
        from solera.serve.agent.sources import owned_frame

    dictionary = _dictionary(file, folder)
    source, rules = _rows(data, policy, folder)
    frame = owned_frame(source, folder, rules, dictionary.identifier)
    found = misfits(dictionary, frame, sources={n: c.source for n, c in rules.columns.items()})
    if as_json:
        print_json(found)
    elif not found:
        typer.echo(f"all {len(dictionary.columns)} columns fit, in {len(frame):,} rows")
    else:
        print_table(["column", "what does not fit"], [(m.column, m.what) for m in found])
        for title, inside in (("[columns] of the policy", False), ("the dictionary", True)):
            lines = [m.mend for m in found if m.mend and m.in_dictionary == inside]
            if lines:
                typer.echo("\n".join([f"\nwould mend it, in {title}:", *lines]))
    if found:
        raise typer.Exit(1)


@app.command("sign", epilog="Example: solera dictionary sign --folder agent")
def sign(
    file: File = None,
    data: Source = None,
    policy: PolicyFile = None,
    name: OwnerName = None,
    words: Annotated[
        str | None,
        typer.Option(help="The words that the other owners read, as they said them by voice."),
    ] = None,
    consent: Annotated[
        bool,
        typer.Option("--consent", help="Consent in writing to what `dictionary change` shows."),
    ] = False,
    folder: Folder = FOLDER,
) -> None:
    """Enter this owner's part of an epoch and, once all owners have, sign it.

    Run it twice: the first time it enters the key, a commitment to the rows and what this machine
    computes with. When the parts of all are there it shows the epoch and its words: compare them
    with the other owners by voice before you say yes. Nothing about a row leaves.
    """
    with _signing(file, data, policy, name, folder) as signing:
        seen = signing.enter()
        signed = seen.signed()
        if signed is None:
            typer.echo(f"entered; still to enter: {', '.join(seen.waiting)}")
            return
        _show(seen)
        if signing.name not in signed.missing:
            _settle(signing, seen)
            return
        told = signing.changes(signed.epoch)
        told.check(told.consent if consent else "")
        _compare(signed.epoch, words)
        done = signing.sign(signed.epoch, consent=told.consent if consent else "")
        still = f"; still to sign: {', '.join(done.missing)}" if done.missing else " by all"
        typer.echo(f"signed{still}")


@app.command("change", epilog="Example: solera dictionary change --folder agent")
def change(
    file: File = None,
    data: Source = None,
    policy: PolicyFile = None,
    name: OwnerName = None,
    leave: Annotated[
        bool,
        typer.Option("--leave", help="This owner is no longer in it, and consents in writing."),
    ] = False,
    folder: Folder = FOLDER,
    as_json: AsJson = False,
) -> None:
    """What a new epoch changes beside those signed here, and what needs this owner's consent.

    Nothing is signed, unless with --leave: then what the others can tell of this owner alone is
    shown, and consented to.
    """
    if leave:
        _leave(file, name, folder)
        return
    with _signing(file, data, policy, name, folder) as signing:
        from solera.serve.agent.epoch_files import current_epoch

        seen = signing.board.look()
        signed, before = seen.signed(), current_epoch(folder)
        lines = _differences(before.epoch.dictionary, seen.draft.dictionary) if before else []
        told = signing.changes(signed.epoch) if signed else None
    if as_json:
        print_json({"columns": lines, "faults": told.faults if told else (),
                    "consent": told.reasons if told else ()})  # fmt: skip
        return
    for line in lines:
        typer.echo(line)
    if told is None:
        typer.echo(f"what it tells of rows shows when all have entered: {', '.join(seen.waiting)}")
        return
    _tell(told)


def _tell(told: Changes) -> None:
    for fault in told.faults:
        typer.echo(f"cannot be signed: {fault}")
    for reason in told.reasons:
        typer.echo(f"needs consent: {reason}")
    if not told.faults and not told.reasons:
        typer.echo("signing tells nothing of fewer persons than may be told")


def _differences(before: Dictionary, after: Dictionary) -> list[str]:
    """What columns and populations are others, as a diff has it."""
    from difflib import unified_diff

    old, new = before.toml().splitlines(), after.toml().splitlines()
    marks = ("---", "+++", "@@ ")
    lines = unified_diff(old, new, n=0, lineterm="")
    return [line for line in lines if not line.startswith(marks)]


def _leave(file: Path | None, name: str | None, folder: Path) -> None:
    from solera.serve.agent.epoch_signing import leave_epoch
    from solera.serve.identity import Identity

    with _board(file, folder) as board:
        signed = board.look().signed()
        if signed is None:
            raise UsageError("the owners of the new epoch have yet to enter their parts")
        said = leave_epoch(folder, _name(name, folder), Identity.load(folder), signed.epoch, board)
    typer.echo(f"consented: {said}")


def _show(seen: Agreement, *, as_json: bool = False) -> None:
    from solera.serve.epoch_view import EpochView, epoch_view

    view = epoch_view(seen)
    if as_json:
        print_json(view)
        return
    typer.echo(f"{view.title}: {view.state}")
    if view.words:
        typer.echo(f"words: {view.words}")
    for header, rows in (
        (EpochView.OWNERS, view.owners),
        (EpochView.COLUMNS, view.columns),
        (EpochView.POPULATIONS, view.populations),
    ):
        typer.echo()
        print_table(header, rows)
    typer.echo()
    for line in view.notes:
        typer.echo(line)


def _compare(epoch: Epoch, words: str | None) -> None:
    """An error unless somebody says that all owners read the same words."""
    if words is None:
        if not typer.confirm("Do all other owners read the same words to you?"):
            raise UsageError("not signed: somebody between the owners shows them another epoch")
    elif words.split() != epoch.words().split():
        raise UsageError(
            f"not signed: the words are {epoch.words()}, the others read {words}",
            hint="somebody between the owners shows them another epoch: do not sign",
        )


def _settle(signing: Signing, seen: Agreement) -> None:
    """Signed before: keep what others have signed since."""
    from solera.serve.agent.epoch_files import EpochFiles

    signed = seen.signed()
    assert signed is not None
    EpochFiles(signing.folder).complete(signed)
    missing = ", ".join(signed.missing)
    typer.echo(f"you have signed; still to sign: {missing}" if missing else "signed by all")


# --- what commands work on ---


@contextmanager
def _board(file: Path | None, folder: Path) -> Iterator[EpochBoard]:
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
def _signing(
    file: Path | None, data: str | None, policy: Path | None, name: str | None, folder: Path
) -> Iterator[Signing]:
    with extra("signing an epoch"):
        from solera.data.epoch_rows import snapshot_of
        from solera.serve.agent.epoch_signing import Signing
        from solera.serve.agent.home import read_secret
        from solera.serve.agent.sources import owned_table
        from solera.serve.identity import FILE, Identity

    source, rules = _rows(data, policy, folder)
    known = (folder / FILE).exists()
    identity = Identity.load(folder) if known else Identity.create(folder)
    with _board(file, folder) as board:
        dictionary = board.look().draft.dictionary
        table = owned_table(source, folder, rules, dictionary)
        snapshot = snapshot_of(read_secret(folder), dictionary, table)
        yield Signing(folder, _name(name, folder), identity, snapshot, board, rules.rules.refresh)


def _dictionary(file: Path | None, folder: Path) -> Dictionary:
    if file is not None:
        from solera.trust.epoch import Dictionary

        return Dictionary.read(file)
    with _board(file, folder) as board:
        return board.look().draft.dictionary


def _rows(data: str | None, policy: Path | None, folder: Path) -> tuple[str, OwnerPolicy]:
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


def _name(name: str | None, folder: Path) -> str:
    from solera.serve.agent.home import find_place

    check_folder(folder)
    place = find_place(folder)
    if place is not None:
        return place.name
    if name is None:
        raise UsageError("who is this owner?", hint="--name, as the draft calls it")
    return name
