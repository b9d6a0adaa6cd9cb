"""The tables of a study file as what they describe: data, engine, search, budget, a variant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from solera.core.checkpoint import fingerprint
from solera.core.component import describe
from solera.core.config import Problem, Where, build_table, check_call, choose, component
from solera.core.constraints import Count, Positive, ProperFraction, violation
from solera.core.engine import installed_engines
from solera.core.schema import Kind
from solera.data import datasets
from solera.data.own_tables import digest, own, table_name, target_columns
from solera.data.partition import IID, Partition
from solera.data.partition_groups import ByGroup
from solera.learn.base import Learner
from solera.robust.attacks import Attack, UpdateAttack

TomlTable = Mapping[str, Any]
"""A table of a file as it was written."""
Scheme = Literal["alone", "federated", "centralised"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
"""Who trains: every client by itself, all together, or one place that has all rows."""
_OWN_ENTRIES = ("name", "clients", "client_test", "positive")
SECTIONS = ("data", "partition", "attack", "learner")
"""The tables that a file may have several of."""


@dataclass(frozen=True)
class DataSpec:
    """Which rows, over how many clients; ``options`` are those of the data set's loader.

    Rows of one's own have a ``file`` among the options, which are those of
    :func:`solera.data.own_tables.own`. ``client_test`` is the share of its rows that every client
    keeps to judge the model by. ``positive`` is the one of two classes that counts as positive.
    """

    name: str
    clients: Count | None = None
    client_test: ProperFraction = 0.0
    options: TomlTable = field(default_factory=dict)
    positive: str | None = None

    @property
    def group(self) -> str | None:
        """The column of one's own rows that says whose they are."""
        return self.options.get("group")

    def identity(self) -> dict[str, Any]:
        """What the rows depend on: of a file its content, wherever it lies."""
        options = dict(self.options)
        if "file" in options:
            if "target" in options:
                options["target"] = target_columns(options["file"], options["target"])
            options["file"] = digest(options["file"])
        return options


@dataclass(frozen=True)
class EngineSpec:
    """How messages travel; ``options`` are those of the engine."""

    kind: str = "local"
    options: TomlTable = field(default_factory=dict)


@dataclass(frozen=True)
class SearchSpec:
    """Which points of the grid are run.

    ``random`` draws ``draws`` of them. ``halving`` (Jamieson & Talwalkar 2016) starts with all, or
    with ``draws`` of them, gives each ``least`` of the ``resource`` (a whole-number parameter of
    the learner, or "seeds"), keeps the best 1/``factor`` by validation rows, gives these ``factor``
    times as much, and so on up to ``most``.
    """

    kind: Literal["grid", "random", "halving"] = "grid"
    draws: Count | None = None
    seed: int = 0
    resource: str = "rounds"
    least: Count = 1
    most: Count | None = None
    factor: Annotated[int, Meta(ge=2)] = 3


@dataclass(frozen=True)
class BudgetSpec:
    """When to stop: so many cells, seconds or watt-hours of all cells together."""

    cells: Count | None = None
    seconds: Positive | None = None
    wh: Positive | None = None


@dataclass(frozen=True)
class Variant:
    """One choice of data, partition and learner; ``params`` are its values on axes of the grid."""

    data: DataSpec
    learner: Learner
    partition: Partition = field(default_factory=IID)
    engine: EngineSpec = EngineSpec()
    attack: Attack | None = None
    secure: bool = False
    params: TomlTable = field(default_factory=dict, compare=False)
    label: str = field(default="", compare=False)
    """What the file calls the learner, if it does."""

    @property
    def method(self) -> str:
        """What tables call the learner."""
        return self.label or repr(self.learner)

    @property
    def setting(self) -> str:
        """How rows are divided, who attacks, and whether only sums are seen."""
        attacked = [] if self.attack is None else [f"attacked by {self.attack!r}"]
        secret = ["in secure sums"] if self.secure else []
        return ", ".join([repr(self.partition), *attacked, *secret])

    @cached_property
    def key(self) -> str:
        """A digest of all that decides what training comes to, apart from the seed."""
        data = self.data
        attack = [] if self.attack is None else [describe(self.attack)]
        return fingerprint(
            data.name,
            data.clients,
            data.client_test,
            data.identity(),
            describe(self.partition),
            describe(self.learner),
            self.engine.kind,
            *attack,
            *([] if data.positive is None else [data.positive]),
            *(["secure"] if self.secure else []),
        )[:12]


def build_variant(tables: TomlTable, places: Mapping[str, Where], params: TomlTable) -> Variant:
    """The variant that tables describe; ``places`` says where in the file each of them stands."""
    data = _data(tables["data"], places["data"])
    partition = component(Partition, tables["partition"], places["partition"])
    if data.group is not None:
        if partition != IID():
            raise Problem(
                places["partition"],
                f"{partition!r} divides rows that group = {data.group!r} divides already",
                hint="leave [partition] or group out",
            )
        partition = ByGroup(data.group)
    return Variant(
        data=data,
        partition=partition,
        learner=component(Learner, without_label(tables["learner"]), places["learner"]),
        engine=_engine(tables.get("engine", {})),
        attack=_attack(tables, places["attack"]),
        secure=tables.get("secure", False),
        params=params,
        label=_label(tables["learner"], places["learner"], params),
    )


def _attack(tables: TomlTable, where: Where) -> Attack | None:
    if tables["attack"] is None:
        return None
    attack: Attack = component(Attack, tables["attack"], where)
    if tables.get("secure") and isinstance(attack, UpdateAttack):
        raise Problem(
            where,
            f"{attack!r} changes updates, which secure = true masks before anybody sees them",
            hint='an attack on rows, such as kind = "LabelFlip"',
        )
    return attack


def without_label(table: TomlTable) -> dict[str, Any]:
    """The table of a component, without what the file calls it."""
    return {key: value for key, value in table.items() if key != "label"}


def _label(table: TomlTable, where: Where, params: TomlTable) -> str:
    """What the file calls the learner; values on axes of the grid are added to it."""
    label = table.get("label", "")
    if "label" in table and (not isinstance(label, str) or not label.strip() or "\n" in label):
        raise Problem((*where, "label"), f"label = {label!r} is not a line of text")
    varied = [f"{k.rpartition('.')[2]}={v}" for k, v in params.items() if k.startswith("learner.")]
    return " ".join([label, *varied]) if label else ""


def _data(table: TomlTable, where: Where) -> DataSpec:
    if "file" in table:
        return _own_data(table, where)
    if "name" not in table:
        raise Problem(
            where,
            "[data] has no name",
            hint="'solera data list' shows the data sets; file = \"…\" is for a table of your own",
        )
    loaders = {info.name: getattr(datasets, info.name) for info in datasets.available()}
    loader = choose(loaders, table["name"], "data set", (*where, "name"))
    given = {key: table[key] for key in _OWN_ENTRIES if key in table}
    options = {key: value for key, value in table.items() if key not in given}
    spec = build_table(DataSpec, "[data]", {**given, "options": options}, where)
    check_call(loader, f"data set {table['name']}", options, where, also=_OWN_ENTRIES)
    return spec


def _own_data(table: TomlTable, where: Where) -> DataSpec:
    """A table of one's own; a ``name`` is what it is called."""
    options = {key: v for key, v in table.items() if key not in _OWN_ENTRIES}
    check_call(own, "[data] with a file", options, where, also=_OWN_ENTRIES)
    kinds = options.get("kinds", {})
    for column, kind in kinds.items() if isinstance(kinds, dict) else [("", kinds)]:
        if rule := violation(kind, Kind):
            raise Problem((*where, "kinds"), f"kinds: {column} = {kind!r} {rule}")
    given = {key: table[key] for key in _OWN_ENTRIES if key in table}
    named = {"name": table_name(table["file"]), **given, "options": options}
    return build_table(DataSpec, "[data]", named, where)


def _engine(table: TomlTable) -> EngineSpec:
    options = dict(table)
    kind = options.pop("kind", "local")
    engine = choose(installed_engines(), kind, "engine", ("engine", "kind")).load()
    check_call(engine, f"engine {kind}", options, ("engine",), passed=("source", "fault_model"))
    return EngineSpec(kind, options)
