"""``solera dictionary``: owners agree on columns and populations, and sign an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from solera.cli.client import FOLDER, Folder
from solera.cli.data import AsJson, Target, parameters
from solera.cli.epoch_places import board_of, dictionary_of, name_of, rows_of, signing_of
from solera.cli.output import print_json, print_table, stderr
from solera.cli.serve import extra
from solera.core.errors import UsageError

if TYPE_CHECKING:
    from solera.serve.agent.epoch_signing import Signing
    from solera.trust.epoch import Changes, Dictionary, Draft, Epoch, SignedEpoch
    from solera.trust.epoch.agreement import Agreement

app = typer.Typer(
    no_args_is_help=True,
    help="What the columns of a federation are, and the data freeze that all owners sign.",
)

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
    table: Annotated[
        str | None,
        typer.Argument(help="A CSV or Parquet file, a folder of them, or sql:URL#SELECT …."),
    ] = None,
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
    base: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A base model for FedLoRA to adapt; may be repeated."),
    ] = None,
    owner: Annotated[
        list[str] | None, typer.Option(help="Who is to sign, 3 to 64 names; may be repeated.")
    ] = None,
    federation: Annotated[str, typer.Option("--federation", "-f", help="The federation.")] = "",
    min_count: Annotated[
        int, typer.Option(min=2, help="The fewest persons of all owners behind a number.")
    ] = 5,
    after: Annotated[
        bool,
        typer.Option("--next", help="The epoch after the current one, to be changed, of no table."),
    ] = False,
    folder: Folder = FOLDER,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where it goes; printed by default.")
    ] = None,
) -> None:
    """Write a dictionary of what a table holds, to be read and changed before others see it.

    Bounds are rounded outwards. Categories that few rows have are named on stderr: take them out
    unless everybody may know of them.
    """
    if after:
        _write(_next(folder).toml(), out)
        return
    from solera.data.dictionary_tables import draft as drafted
    from solera.data.own_tables import read_table
    from solera.trust.epoch import Draft

    if table is None:
        raise UsageError("of which table?", hint="solera dictionary draft heart.csv, or --next")
    frame = read_table(table)
    answers: Any = target[0] if target and len(target) == 1 else target
    made = drafted(
        frame,
        target=answers,
        identifier=identifier,
        time=time,
        columns=column,
        kinds=parameters(kind or []) or None,
    )
    if base:
        from solera.learn.averaging.training.adapters import listed

        made = replace(made, bases=tuple(map(listed, base)))
    for name, rare in _rare(made, frame, min_count):
        stderr().print(f"{name}: {rare}", markup=False, soft_wrap=True)
    signed_by = Draft(made, tuple(owner), federation, min_count) if owner else made
    _write(signed_by.toml(), out)


def _write(text: str, out: Path | None) -> None:
    if out is None:
        typer.echo(text, nl=False)
        return
    out.write_text(text, encoding="utf-8")
    typer.echo(f"{out}: read it before you send it to anybody")


def _next(folder: Path) -> Draft:
    """The draft after the epoch in which this owner is."""
    from solera.serve.agent.epoch_files import EpochFiles

    signed = EpochFiles(folder).all()
    if not signed:
        raise UsageError(f"no epoch was signed in {folder}", hint="solera dictionary draft TABLE")
    epoch = signed[-1].epoch
    return replace(epoch.draft, previous=epoch.hash.hex())


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
    with board_of(file, folder) as board:
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
        from solera.data.misfits import Misfit, misfits
        from solera.learn.averaging.lora import base_faults
        from solera.serve.agent.sources import owned_frame

    dictionary = dictionary_of(file, folder)
    source, rules = rows_of(data, policy, folder)
    frame = owned_frame(source, folder, rules, dictionary.identifier)
    found = misfits(dictionary, frame, sources={n: c.source for n, c in rules.columns.items()})
    found += [Misfit(f"base {n}", why) for n, why in base_faults(dictionary.bases).items()]
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
    with the other owners by voice before you say yes. Nothing about a row leaves. Once all have
    signed, their agents find the atoms by themselves; where they failed, sign again.
    """
    with signing_of(file, data, policy, name, folder) as signing:
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
        _say_atoms(signing, done)


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
    with signing_of(file, data, policy, name, folder) as signing:
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

    with board_of(file, folder) as board:
        signed = board.look().signed()
        if signed is None:
            raise UsageError("the owners of the new epoch have yet to enter their parts")
        said = leave_epoch(
            folder, name_of(name, folder), Identity.load(folder), signed.epoch, board
        )
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
    """Signed before: keep what others have signed since, and let agents look for atoms again."""
    from solera.serve.agent.epoch_files import EpochFiles

    signed = seen.signed()
    assert signed is not None
    EpochFiles(signing.folder).complete(signed)
    missing = ", ".join(signed.missing)
    typer.echo(f"you have signed; still to sign: {missing}" if missing else "signed by all")
    if signed.epoch.atoms is None and not missing:
        signing.remind(signed)
    _say_atoms(signing, signed)


def _say_atoms(signing: Signing, signed: SignedEpoch) -> None:
    """How the atoms are found, once all have signed the rest."""
    from solera.serve.agent.epoch_boards import FileBoard

    if signed.missing or not signed.unsettled:
        return
    if isinstance(signing.board, FileBoard):
        typer.echo(
            "the atoms are sums over all owners, which files do not carry: once all have joined a "
            f"coordinator, each owner: solera dictionary sign {signing.board.draft} --folder …"
        )
    else:
        typer.echo("the owners' agents find the atoms now and sign them: solera dictionary show")
