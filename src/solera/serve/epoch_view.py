"""An epoch on one screen: who signs, the words to compare, columns with atoms, populations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from solera.trust.epoch import Atoms, Dictionary, DictionaryColumn, EpochError, SignedEpoch
from solera.trust.epoch.agreement import Agreement
from solera.trust.epoch.dictionary_file import column_entry, value_text
from solera.trust.epoch.epoch import RECOMMENDED_OWNERS

_SHOWN = 8
_MOST_LINES = 24


@dataclass(frozen=True)
class EpochView:
    """What people see of an epoch, by sections.

    ``state`` is in words; ``words`` are empty until all parts are there. Tables are rows of text
    below ``OWNERS``, ``COLUMNS`` and ``POPULATIONS``.
    """

    title: str
    state: str
    words: str
    notes: list[str]
    owners: list[tuple[str, str, str, str]]
    columns: list[tuple[str, str, str, str, str]]
    populations: list[tuple[str, str]]

    OWNERS = ("owner", ">persons", "key", "state")
    COLUMNS = ("column", "kind", "values", "use", "atoms")
    POPULATIONS = ("population", "who is in it")


def epoch_view(agreement: Agreement, *, most: int = _MOST_LINES) -> EpochView:
    """The view of a draft, and of the epoch that it has become."""
    draft, dictionary = agreement.draft, agreement.draft.dictionary
    notes = [f"nothing is told about fewer than {draft.min_count} persons of all owners"]
    if len(draft.owners) < RECOMMENDED_OWNERS:
        notes.append("with three owners, each reads the sum of the two others: four are better")
    notes += [
        f"base model {base.name}: {len(base.layers)} layers may be adapted, digest {base.digest}"
        for base in dictionary.bases
    ]
    words, signers, consents = "", set(), {}
    atoms_state = ""
    try:
        signed = agreement.signed()
    except EpochError as error:
        signed = None
        notes.append(error.message)
    if signed is not None:
        words = signed.epoch.words()
        signers = {name for name in draft.owners if name not in signed.missing}
        consents = {each.key: each.consent for each in signed.signatures if each.consent}
        names = {owner.key: owner.name for owner in signed.epoch.owners}
        atoms_state = _atoms_state(agreement, signed)
        notes += [f"{names.get(key, 'one that leaves')} consents: {said}"
                  for key, said in consents.items()]  # fmt: skip
    owners = []
    for name in draft.owners:
        part = agreement.parts.get(name)
        state = "signed" if name in signers else "entered" if part else "not yet there"
        persons, key = (f"{part.persons:,}", part.key.hex()[:16]) if part else ("", "")
        owners.append((name, persons, key, state))
    lines = _columns(dictionary, agreement.atoms)
    if len(lines) > most:
        lines = [*lines[:most], (f"and {len(lines) - most:,} more", "", "", "", "")]
    name = signed.epoch.hash.hex()[:16] if signed else f"draft {draft.hash.hex()[:16]}"
    return EpochView(
        f"{draft.federation or 'epoch'} {name}",
        _state(agreement, signers) + atoms_state,
        words,
        notes,
        owners,
        lines,
        [("all", "everyone"), *_populations(dictionary)],
    )


def _state(agreement: Agreement, signers: set[str]) -> str:
    if agreement.waiting:
        return f"waits for the part of {', '.join(agreement.waiting)}"
    missing = [name for name in agreement.draft.owners if name not in signers]
    return f"waits for the signature of {', '.join(missing)}" if missing else "signed by all"


def _atoms_state(agreement: Agreement, signed: SignedEpoch) -> str:
    """How far the owners' agents are with the atoms, once all owners have signed the rest."""
    if signed.missing or not signed.unsettled:
        return ""
    if agreement.atoms is not None:
        return f"; the agents of {', '.join(signed.unsettled)} have yet to sign the atoms"
    if agreement.search in ("waiting", "running"):
        return "; their agents look for the atoms"
    if agreement.search:
        return f"; their agents failed at the atoms ({agreement.search}): to look again, sign again"
    return "; the atoms are found by agents, at a coordinator"


def _columns(dictionary: Dictionary, atoms: Atoms | None) -> list[tuple[str, str, str, str, str]]:
    """A line for a column, or for several in a row that are alike but for their names."""
    uses = dict.fromkeys(dictionary.target, "target")
    if dictionary.time:
        uses[dictionary.time] = "time axis"

    def alike(column: DictionaryColumn) -> tuple[str, str, str]:
        use = uses.get(column.name, "")
        return column_entry(replace(column, name="")), use, _atoms(column, atoms)

    lines: list[tuple[str, str, str, str, str]] = []
    for (_, use, cells), group in groupby(dictionary.columns, alike):
        same = list(group)
        name = same[0].name
        if len(same) > 1:
            name += f" … {same[-1].name} ({len(same)})"
        lines.append((name, same[0].kind, _values(same[0]), use, cells))
    if dictionary.identifier:
        lines.append((dictionary.identifier, "identifier", "never shown", "whose row it is", ""))
    return lines


def _atoms(column: DictionaryColumn, atoms: Atoms | None) -> str:
    """How many atoms a column has, where they end, and which categories are one."""
    if atoms is None:
        return ""
    count = atoms.count(column.name)
    if column.kind != "categorical":
        ends = [column.feature.text(edge) for edge in atoms.edges(column.name).tolist()]
        return f"{count}: {_shortened(ends)}" if ends else "1"
    groups = atoms.groups(column.name).tolist()
    other = [c for c, g in zip(column.categories, groups, strict=True) if groups.count(g) > 1]
    return f"{count}, other: {_shortened(other)}" if other else f"{count}"


def _values(column: DictionaryColumn) -> str:
    if column.kind == "categorical":
        text = _shortened(column.categories)
    else:
        assert column.bounds is not None
        low, high = (value_text(end, column.kind) for end in column.bounds)
        text = f"{low} to {high}" + (f" {column.unit}" if column.unit else "")
    return f"{text}, may be missing" if column.missing else text


def _populations(dictionary: Dictionary) -> list[tuple[str, str]]:
    shown = []
    for population in dictionary.populations:
        parts = []
        for c in population.criteria:
            kind = dictionary.by_name[c.column].kind
            if c.categories:
                parts.append(f"{c.column} is {' or '.join(c.categories)}")
                continue
            ends = (("at least", c.low), ("at most", c.high))
            said = [f"{word} {value_text(v, kind)}" for word, v in ends if abs(v) != float("inf")]
            parts.append(f"{c.column} {' and '.join(said)}")
        shown.append((population.name, "; ".join(parts)))
    return shown


def _shortened(words: Sequence[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
