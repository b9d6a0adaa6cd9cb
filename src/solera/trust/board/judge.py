"""What of an owner's contributions may be added up over all owners, by their form.

Sums over all rows of a part are told where the owners together have ``min_count`` persons in it;
what rests on some rows by its support (:mod:`.supports`). Gram matrices solve a model at once: they
take at most a sixth of all persons as parameters of one output (a third fixes labels of single
rows). What takes many steps needs ``exact_training``. What carries the noise of ``dp=`` needs none
of it: every owner adds its share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from solera.core.clients import Client, Part
from solera.core.errors import PolicyRefusal
from solera.core.task import Task
from solera.trust.board.supports import is_of_some_rows, support_of
from solera.trust.cells import Marks
from solera.trust.contributions import (
    Contribution,
    Counts,
    Fact,
    Joint,
    Sums,
    Supports,
    Update,
    entries_of,
)
from solera.trust.grams import Gram
from solera.trust.noise import noise_table
from solera.trust.open_asks import behind, numbers_of, with_entry
from solera.trust.policy import Policy

SHARE = 6
"""Persons that a parameter of one output needs."""
NEXT = "waits for the next version"

Persons = Mapping[str, Any]
"""How many persons all owners have together in each part, and under ``"rows"`` how many rows."""


class Keyed(Protocol):
    """The owner whose supports carry noise by cell."""

    secret: bytes
    owners: int

    def keys(self, client: Client, part: Part) -> Any:
        """A number of every row of a part, the same for all rows of a person."""


@dataclass(frozen=True)
class Judged:
    """A reply as numbers, and by entry the supports, unless all of it is about all rows.

    All counts and sums have one or none: whether one leaves rows out may differ between owners.
    """

    numbers: Any
    supports: dict[str, Any]


def judge(
    task: Task,
    client: Client,
    payload: Any,
    reply: Any,
    policy: Policy,
    persons: Persons | None,
    keyed: Keyed,
) -> Judged:
    """The numbers of a reply, or a :class:`PolicyRefusal` before anything of it is posted.

    ``persons`` are known but while they are counted.
    """
    if (privacy := noise_table(payload)) is not None:
        _check_noised(task, privacy, reply, policy)
        return Judged(numbers_of(task, client, payload, reply), {})
    numbers, supports = reply, {}
    entries = list(entries_of(reply))
    some_rows = any(isinstance(leaf, Contribution) and is_of_some_rows(leaf) for _, leaf in entries)
    for entry, leaf in entries:
        if not isinstance(leaf, Contribution):
            _refuse_bare(task, entry)
        _check_form(task, entry, leaf, payload, policy)
        if persons is not None and leaf.about_rows:
            _check_persons(task, entry, leaf, policy, persons[leaf.part])
        rows = behind(client, leaf, policy.unit)
        if isinstance(leaf, Supports):
            keys = keyed.keys(client, leaf.part)
            support = support_of(leaf, rows, keys, False, keyed.secret, keyed.owners)
            numbers = with_entry(numbers, entry, support.share)
            continue
        numbers = with_entry(numbers, entry, leaf.numbers(rows))
        if some_rows and isinstance(leaf, Counts | Sums | Joint):
            several = persons is not None and persons["rows"][leaf.part] > persons[leaf.part]
            keys = keyed.keys(client, leaf.part)
            supports[entry] = support_of(leaf, rows, keys, several, keyed.secret, keyed.owners)
    return Judged(numbers, supports)


def _check_noised(task: Task, privacy: Mapping[str, Any], reply: Any, policy: Policy) -> None:
    """Refuse what this owner's share of noise, which stands in the place of supports, hides not.

    Noise hides every person, however few are behind a number and however many rounds there are.
    """
    if policy.honest_peers is not None and privacy["share"] > policy.honest_peers:
        _refuse(
            task,
            f"it counts on the noise of {privacy['share']} other owners, the policy on "
            f"{policy.honest_peers}",
            f"so.DP(…, honest_peers={policy.honest_peers})",
        )
    for entry, leaf in entries_of(reply):
        if not isinstance(leaf, Contribution):
            _refuse_bare(task, entry)


def _check_form(task: Task, entry: str, leaf: Contribution, payload: Any, policy: Policy) -> None:
    """Refuse what no sum of this version may hold."""
    if isinstance(leaf, Gram | Update) and leaf.rows is not None:
        _refuse(task, f"{_named(entry)} numbers of some rows only, which {NEXT}", "leave rows= out")
    elif isinstance(leaf, Update) and leaf.solves is None:
        _check_update(task, entry, payload, policy)
    elif isinstance(leaf, Joint):
        for one in leaf.sums:
            _check_form(task, entry, one, payload, policy)
    elif isinstance(leaf, Counts | Sums) and isinstance(leaf.cells, Marks):
        if not isinstance(leaf, Supports):
            _refuse(
                task,
                f"{_named(entry)} cells by marks, which may overlap: two that differ by one person "
                "would tell that person",
                "numbers of cells, each row in one: so.count_by(marks.astype(int), 2)",
            )
    elif not isinstance(leaf, Fact | Gram | Update | Counts | Sums):
        _refuse_bare(task, entry)


def _check_update(task: Task, entry: str, payload: Any, policy: Policy) -> None:
    if not policy.exact_training:
        _refuse(
            task,
            f"{_named(entry)} the parameters of a model that takes many rounds; many exact sums "
            "together can give away a person's target",
            'exact_training = true in the policy, in a simulation policy={"policy": "sums", '
            '"exact_training": True}',
        )
    batch = batch_size_of(payload)
    if batch is not None and batch < policy.min_count:
        _refuse(
            task,
            f"batches of {batch} rows, fewer than min_count = {policy.min_count}",
            f"batch_size={policy.min_count}",
        )


def batch_size_of(payload: Any) -> int | None:
    """How many rows a step takes, where the payload says so."""
    for table in (payload, payload.get("training") if isinstance(payload, Mapping) else None):
        if isinstance(table, Mapping) and isinstance(table.get("batch_size"), int):
            return int(table["batch_size"])
    return None


def _check_persons(
    task: Task, entry: str, leaf: Contribution, policy: Policy, persons: int
) -> None:
    if persons < policy.min_count:
        _refuse(
            task,
            f"{_named(entry)} something about the part {leaf.part!r}, in which all owners together "
            f"have fewer than min_count = {policy.min_count} persons",
            "another part, or more persons",
        )
    parameters = int(leaf.X.shape[1]) if isinstance(leaf, Gram) else getattr(leaf, "solves", None)
    if parameters:
        check_sixth(parameters, persons, f"task {task.name!r}")


def check_sixth(parameters: int, persons: int, what: str) -> None:
    """Refuse a model, solved exactly, of more parameters of one output than a sixth of persons."""
    if SHARE * parameters > persons:
        raise PolicyRefusal(
            f"{what}: {parameters:,} parameters of one output need {SHARE * parameters:,} persons "
            f"of all owners, there are {persons:,}: more parameters would fix targets of single "
            "persons",
            hint=f"at most {persons // SHARE:,} columns with the intercept, so.learn.FedSelect; "
            "or the policy 'trusted'",
        )


def _refuse_bare(task: Task, entry: str) -> NoReturn:
    name = f"entry {entry!r}" if entry else "the reply"
    _refuse(
        task,
        f"nothing says which rows gave {name}",
        "return so.sum_by(None, values), so.count_by(None), so.gram(X), so.update(model), or "
        "so.fact(value) where it does not depend on rows",
    )


def _named(entry: str) -> str:
    return f"{entry!r} holds" if entry else "the reply holds"


def _refuse(task: Task, why: str, instead: str) -> NoReturn:
    raise PolicyRefusal(f"a closed job cannot add up task {task.name!r}: {why}", hint=instead)
