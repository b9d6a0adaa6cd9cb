"""A federation on one machine."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from solera.core.clients import IntArray, Source
from solera.core.constraints import Count, check_arguments, names_checked
from solera.core.engine import find_engine
from solera.core.errors import DataError, UsageError
from solera.core.federation import Configuration, Federation
from solera.core.payload import DEFAULT_LIMITS, Limits
from solera.core.schema import Feature, Kind, Schema, Unknown, class_codes, infer, infer_target
from solera.core.topology import Topology
from solera.data.adapters import from_pandas
from solera.data.arrays import check_rows
from solera.data.dataset import Dataset
from solera.data.dictionary_tables import Table
from solera.data.federated import FederatedData
from solera.data.frames import check_columns, encode_frame, is_frame, target_array, to_pandas
from solera.data.partition import IID, Partition
from solera.data.partition_groups import ByGroup
from solera.data.samples import (
    Labels,
    Samples,
    federated_samples,
    is_samples,
    labels_of,
)
from solera.data.stored import StoredData
from solera.robust.attacked import AttackedEngine, poisoned
from solera.robust.attacks import Attack, RowAttack, UpdateAttack
from solera.simulate.clock import VirtualClock
from solera.simulate.epochs import (
    SimulatedEpoch,
    check_epoch_arguments,
    dealable,
    dictionary_of,
    simulated_epoch,
)
from solera.simulate.failures import Failures
from solera.simulate.owners import EpochOwners, closed_engine, closed_seed
from solera.trust.board.engine import BoardEngine
from solera.trust.epoch import Dictionary, Epoch, SignedEpoch
from solera.trust.epoch.selection import Selection
from solera.trust.policy import Policy


class Simulation(Federation):
    """A federation whose clients live on this machine; ``data`` is what they hold.

    To scikit-learn's cross-validation it is a matrix of all rows that clients train on, client
    after client: some of them are again a federation, configured as this one. Clients none of
    whose rows are chosen are left out, as by :meth:`without`: the others keep their ids, and so
    attackers, draws and resources are theirs. Rows that were set aside stay with their clients,
    but ``score`` counts the chosen ones alone.
    """

    def __init__(self, data: Any, configuration: Configuration) -> None:
        super().__init__(_engine(data, configuration), configuration)
        self.data = data
        self._closed: list[BoardEngine] = []

    def closed_job(self, learner: str) -> Self:
        """The owners on the engine of closed jobs, unless their policy trusts the driver."""
        configuration = self.configuration
        if configuration.policy is None or configuration.policy.trusts_the_driver:
            return self
        if isinstance(self.engine, BoardEngine):
            return self
        if not self._closed:
            self._closed.append(closed_engine(self.data, configuration))
        seed = closed_seed(configuration, learner)
        return self._view(engine=self._closed[0], configuration=replace(configuration, seed=seed))

    @property
    def atoms(self) -> Any:
        """The atoms of the epoch in which the owners' closed jobs run."""
        return getattr(self.closed_job("").engine, "atoms", None)

    @property
    def attackers(self) -> IntArray:
        """The clients that lie, where there is an attack."""
        return np.array(self.configuration.attackers, dtype=np.int64)

    def _facts(self) -> list[tuple[str, str]]:
        summary = getattr(self.data, "summary", None)
        lines = [] if summary is None else str(summary()).splitlines()
        about = [(name, text.strip()) for name, _, text in (line.partition(":") for line in lines)]
        return super()._facts() + [fact for fact in about if fact[0] != "clients"]

    @property
    def row_owners(self) -> IntArray:
        """Whose each row is that clients train on, client after client."""
        sizes = self.data.sizes("train")
        if sizes is None:
            raise AttributeError("rows that are generated lazily have no number")
        return np.repeat(self.clients, sizes[self.clients])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows that clients train on, and columns."""
        schema = self.schema
        assert schema is not None
        return len(self.row_owners), schema.width

    def __getitem__(self, rows: Any) -> Self:
        if not isinstance(self.data, FederatedData):
            raise UsageError(
                f"some rows of {self.data!r} are no federation",
                hint="rows in memory, of which all clients hold the same columns, can be chosen",
            )
        everything = np.arange(self.shape[0])
        numbers = np.atleast_1d(everything[rows[0] if isinstance(rows, tuple) else rows])
        data = self.data.some_rows(numbers, self.clients)
        view = self._view(**vars(Simulation(data, self.configuration)))
        if len(numbers) < len(everything):
            view.scored_parts = ("train",)
        emptied = data.sizes("train") < np.minimum(self.data.sizes("train"), 1)
        return view.without(*np.flatnonzero(emptied).tolist())


@names_checked
def simulate(
    X: Any,
    y: Any = None,
    *,
    labels: Labels = None,
    clients: int | Sequence[str] | None = None,
    partition: Partition | None = None,
    validation: float = 0.0,
    test: float = 0.0,
    seed: int = 0,
    engine: str = "local",
    workers: Count | None = None,
    engine_options: Mapping[str, Any] | None = None,
    failures: Failures | None = None,
    attack: Attack | None = None,
    clock: VirtualClock | None = None,
    topology: Topology | None = None,
    target: str | Sequence[str] | None = None,
    group: str | None = None,
    columns: Sequence[str] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    unknown: Unknown | None = None,
    features: Sequence[Feature | str] | None = None,
    schema: Schema | None = None,
    classes: Sequence[Any] | None = None,
    positive: Any = None,
    memory: Count | None = None,
    limits: Limits = DEFAULT_LIMITS,
    policy: str | Path | Mapping[str, Any] | Policy | None = None,
    dictionary: Dictionary | Epoch | SignedEpoch | None = None,
    secrets: Mapping[Any, bytes] | None = None,
    population: str | None = None,
    secure: Any = False,
) -> Simulation:
    """A federation of simulated clients.

    Parameters
    ----------
    X, y: the rows to deal out (arrays, a CSR matrix or a data frame), or, as ``X`` alone, a frame
        with its target, a :class:`Dataset`, a list of pairs (X, y), one for each client, a
        :class:`FederatedData`, :class:`LazyData` or what :func:`from_files` returns. Of a data
        set the training rows are dealt out, with its classes by their names. Arrays keep their
        shape. A data set of PyTorch or Hugging Face is dealt out sample by sample; a list or a
        table by names of such is one for each client.
    labels: of samples, for partitions and learners that need them: an array or a function of a
        sample. By default what the data set itself calls ``targets``, or the second of two tensors.
    clients: how many, or their names, unless the partition says so itself; 10 by default for
        :class:`IID`.
    partition: who gets which rows; :class:`IID` by default.
    validation, test: fractions of every client's rows to set aside.
    seed: fixes the partition, the splits, the failures and every draw of every task.
    engine, workers: ``"local"`` runs in this process, ``"processes"`` in ``workers`` others (the
        number of cores by default). Other packages add engines by entry points
        ``solera.engines``; ``engine_options`` are for theirs.
    failures: what goes wrong.
    attack: clients that lie, such as ``so.robust.SignFlip(share=0.2, factor=5)``.
    clock: virtual time, and what clients can do in it.
    topology: the shape of the federation; a star by default.
    target, columns, kinds, unknown: how to read a frame; see :func:`solera.from_pandas`.
    group: the column of a frame, or the groups of a data set, that say whose row it is: every
        value becomes a client of that name.
    features, schema: names and kinds of the columns, or the whole schema. A frame is read by the
        schema that is given, such as that of a model to go on with.
    classes: all classes, in the order of a network's outputs; those of the rows, sorted, by
        default.
    positive: which of two classes counts as positive, such as ``"died"``: sensitivity, curves and
        odds are of it. The second one by default.
    memory: bytes that the clients of one ``many=`` call may hold together.
    limits: the largest payload that may be sent.
    policy: None, or what the owners let out: the name of a policy (``"sums"``, ``"noise"``,
        ``"trusted"``), a policy file, or a table with what one may hold.
    dictionary: what the owners have agreed on, ``so.epochs``: a dictionary, or an epoch that they
        have signed, which decides who the clients are and in which order. ``validation`` and
        ``test`` are then whole folds, tenths of the persons that follow from each client's secret;
        ``columns`` and ``target`` choose among the dictionary's. Under ``policy="sums"`` or
        ``"noise"`` one is drafted from all rows where none is given.
    secrets: 32 bytes for every client, by its name or number, as its agent holds them; they follow
        from ``seed`` by default.
    population: the rows to take, by the name that the dictionary gives them.
    secure: True, or a :class:`SecureSum`: whatever adds up is folded so that nobody sees a single
        reply, and what does not is an error.
    """
    given = {"engine": engine, "workers": workers, "memory": memory}
    check_arguments(simulate, partition=partition, attack=attack, **given)
    reading: dict[str, Any] = {
        "target": target,
        "columns": columns,
        "kinds": kinds,
        "unknown": unknown,
    }
    reading = {name: value for name, value in reading.items() if value is not None}
    if _are_pairs(X):
        X = _from_pairs(X, y, clients, partition)
    elif is_samples(X) or _are_samples(X):
        X, y = _from_samples(X, y, labels, clients, partition)
    elif labels is not None:
        raise UsageError(f"simulate(labels=…) is of samples of a data set, X is {type(X).__name__}")
    rules = None if policy is None else Policy.of(policy)
    agreed = dictionary is not None or (rules is not None and not rules.trusts_the_driver)
    check_epoch_arguments(agreed, secrets=secrets, population=population)
    if agreed and classes is not None:
        raise UsageError(
            "simulate(classes=…): the dictionary of the owners orders classes",
            hint="leave classes= out, or the policy 'trusted'",
        )
    selection = Selection()
    if agreed:
        chosen = (columns, target) if dictionary is not None else (None, None)
        selection = Selection.of(*chosen, population=population, validation=validation, test=test)
    rows: Table | None = None
    table = X
    if is_frame(X) and dictionary is not None:
        if y is not None or schema is not None or set(reading) - {"target", "columns"}:
            raise UsageError(
                "simulate(dictionary=…) says how the frame is read: no y, kinds, schema"
            )
        table = to_pandas(X)
        if group is not None:
            check_columns([group], table.columns)
            partition, group = ByGroup(table[group].to_numpy()), None
        rows, y = dealable(dictionary_of(dictionary), table, target)
        X = np.arange(float(len(rows)))[:, None]
    elif is_frame(X):
        table = to_pandas(X)
        if schema is not None:
            reading["target"] = _one_or_all(schema.target_names) if y is None else None
            reading["columns"] = [feature.name for feature in schema.features]
        X = from_pandas(table, group=group, **reading)
        if schema is not None:
            X = replace(X, X=encode_frame(table, schema))
    elif reading and dictionary is None:
        raise UsageError(
            f"simulate({next(iter(reading))}=…) says how to read a data frame, "
            f"X is {type(X).__name__}"
        )
    if isinstance(X, Dataset):
        table = X.X if table is X else table
        X, y, schema, partition = _open(X, y, schema, partition, group)
    elif group is not None:
        raise UsageError(
            f"simulate(group={group!r}) names a column of a data frame, X is {type(X).__name__}",
            hint="partition=so.partitions.ByGroup(…) takes a value for every row",
        )
    source = _source(X, y, clients, partition, features, schema, seed, table)
    if classes is not None:
        source = _with_classes(source, classes)
    agreed_epoch: SimulatedEpoch | None = None
    if agreed:
        agreed_epoch = simulated_epoch(
            source,
            rows,
            dictionary,
            selection,
            seed=seed,
            secrets=secrets,
            min_count=Policy.min_count if rules is None else rules.min_count,
        )
        source = agreed_epoch.data
    elif validation or test:
        if not isinstance(source, FederatedData | StoredData):
            raise UsageError("validation and test parts need rows that are not generated lazily")
        source = source.split(validation=validation, test=test, seed=seed)
    if clock is not None:
        clock.check_params()
        source = copy(source)
        source.resources = clock.model()  # type: ignore[attr-defined]
    if memory is None and isinstance(source, StoredData):
        memory = source.memory
    attackers: tuple[int, ...] = ()
    if attack is not None:
        attack.check_params()
        attackers = tuple(attack.attackers(seed, source.clients).tolist())
    if isinstance(attack, UpdateAttack) and secure:
        raise UsageError(
            f"{attack!r} changes updates, which a secure sum masks before anybody sees them",
            hint="an attack on rows, such as so.robust.LabelFlip(share=0.2)",
        )
    if isinstance(attack, RowAttack):
        source = poisoned(source, attack, attackers, seed)
    configuration = Configuration(
        seed=seed,
        topology=topology,
        limits=limits,
        secure=secure,
        clock=clock,
        names=getattr(source, "names", ()),
        positive=positive,
        policy=rules,
        epoch=agreed_epoch and agreed_epoch.epoch,
        owners=agreed_epoch and EpochOwners(agreed_epoch),
        secrets=agreed_epoch.secrets if agreed_epoch else (),
        selection=selection if agreed else None,
        attack=attack,
        attackers=attackers,
        failures=failures,
        engine=engine,
        engine_options={"workers": workers, "memory": memory, **(engine_options or {})},
    )
    return Simulation(source, configuration)


def _engine(source: Source, configuration: Configuration) -> Any:
    """The engine that carries asks to these clients, with those options that are given."""
    name, attack = configuration.engine, configuration.attack
    engine = find_engine(name)
    takes = inspect.signature(engine).parameters
    if "source" not in takes:
        raise UsageError(f"the engine {name!r} cannot simulate clients", hint="see so.connect")
    options = {
        "fault_model": configuration.failures,
        "policy": configuration.policy,
        **configuration.engine_options,
    }
    options = {option: value for option, value in options.items() if value is not None}
    for option, value in options.items():
        if option not in takes:
            raise UsageError(
                f"simulate({option}={value!r}): the engine {name!r} has no {option}",
                hint="another one may, such as engine='processes'",
            )
    carrier = engine(source, **options)
    if isinstance(attack, UpdateAttack):
        return AttackedEngine(carrier, attack, configuration.attackers)
    return carrier


def _one_or_all(names: tuple[str, ...]) -> Any:
    return names[0] if len(names) == 1 else list(names) or None


def _open(
    dataset: Dataset, y: Any, schema: Schema | None, partition: Partition | None, group: str | None
) -> tuple[Any, Any, Schema, Partition | None]:
    """Rows, target, schema and partition of a data set; its classes by their names."""
    if group is not None:
        if partition is not None:
            raise UsageError(f"simulate(group={group!r}): a group is a partition already")
        if group not in dataset.groups:
            known = ", ".join(dataset.groups) or "none"
            raise UsageError(
                f"simulate(group={group!r}): the data has no such group", hint=f"it has {known}"
            )
        partition = ByGroup(dataset.groups[group])
    if y is not None:
        if dataset.y is not None:
            raise UsageError("simulate: the data has a target already, leave y out")
        column = getattr(y, "name", None)
        names = (column,) if isinstance(column, str) else ()
        y = target_array(y)
        target, classes, outputs = infer_target(y)
        agreed = Schema(dataset.schema.features, target, classes, outputs, names)
        agreed = replace(agreed, unknown=dataset.schema.unknown)
        return dataset.X, y, schema or agreed, partition
    named = dataset.with_class_names()
    agreed = replace(named.schema, target_names=dataset.target_names or named.schema.target_names)
    return named.X, named.y, schema or agreed, partition


def _with_classes(source: Any, classes: Sequence[Any]) -> Any:
    """The same rows with these classes, in this order."""
    listed = np.asarray(classes)
    if not isinstance(source, FederatedData) or source.schema.target != "classes":
        raise UsageError("simulate(classes=…) orders the classes of rows in memory that have some")
    if len(np.unique(listed)) < len(listed):
        raise UsageError(f"simulate(classes={list(classes)!r}): a class is there twice")
    class_codes(source.y, listed)  # every row's is among them
    view = copy(source)
    view.schema = replace(source.schema, classes=listed, outputs=len(listed))
    return view


def _are_pairs(X: Any) -> bool:
    """Whether it is a list of the rows and targets of clients."""
    return (
        isinstance(X, list | tuple)
        and bool(X)
        and all(isinstance(pair, tuple) and len(pair) == 2 for pair in X)
        and all(hasattr(rows, "shape") and np.ndim(rows) >= 2 for rows, _ in X)
    )


def _from_pairs(X: Any, y: Any, clients: Any, partition: Any) -> FederatedData:
    """Every pair (X, y) is a client's."""
    if any(option is not None for option in (y, clients, partition)):
        raise UsageError("simulate: a list of pairs (X, y) has its clients already")
    pairs = [check_rows(*pair) for pair in X]
    for client, (rows, _) in enumerate(pairs):
        if rows.shape[1:] != pairs[0][0].shape[1:]:
            raise DataError(f"client {client} has rows of shape {rows.shape[1:]}, others differ")
    sizes = [len(rows) for rows, _ in pairs]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    X, y = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return FederatedData(X, y, offsets)


def _are_samples(X: Any) -> bool:
    """Whether it is a list of data sets, or a table of them by the names of clients."""
    if not isinstance(X, list | tuple | dict) or hasattr(X, "tocsr") or not X:
        return False  # a sparse matrix may be a dict
    return all(map(is_samples, X.values() if isinstance(X, dict) else X))


def _from_samples(
    X: Any, y: Any, labels: Labels, clients: Any, partition: Partition | None
) -> tuple[Any, Any]:
    """Samples and their labels; of several data sets, one for each client, all that is known."""
    if y is not None:
        raise UsageError("simulate: a data set has its targets already", hint="labels=, not y")
    if is_samples(X):
        return Samples([X]), labels_of([X], labels)
    if any(option is not None for option in (clients, partition)):
        raise UsageError("simulate: a list of data sets has its clients already")
    datasets = list(X.values()) if isinstance(X, dict) else list(X)
    names = tuple(map(str, X)) if isinstance(X, dict) else ()
    empty = [str(names[i] if names else i) for i, data in enumerate(datasets) if not len(data)]
    if empty:
        raise DataError(f"the data set of client {empty[0]} has no samples")
    offsets = np.concatenate([[0], np.cumsum([len(d) for d in datasets])]).astype(np.int64)
    samples, target = Samples(datasets), labels_of(datasets, labels)
    return federated_samples(samples, target, offsets, names), None


def _source(
    X: Any,
    y: Any,
    clients: Any,
    partition: Partition | None,
    features: Sequence[Feature | str] | None,
    schema: Schema | None,
    seed: int,
    table: Any,
) -> Source:
    if hasattr(X, "segments"):
        if any(option is not None for option in (y, clients, partition, features, schema)):
            raise UsageError("simulate: data that has its clients already takes no partition")
        source: Source = X
        return source
    if not isinstance(X, Samples):
        X, y = check_rows(X, y)
    if features is not None and schema is not None:
        schema = replace(schema, features=infer(X, features=features).features)
    if partition is None:
        partition = IID()
    if clients is None and isinstance(partition, IID):
        clients = 10
    assignment = partition.assign(X.shape[0], y, X=table, clients=clients, seed=seed)
    empty = np.flatnonzero(assignment.sizes == 0)
    if len(empty):
        named = ", ".join(map(str, empty[:5])) + (" …" if len(empty) > 5 else "")
        raise DataError(
            f"{partition!r} leaves {len(empty)} of {assignment.clients} clients without rows: "
            f"{named}",
            hint="use fewer clients or a partition with min_rows=1",
        )
    if isinstance(X, Samples):
        index = assignment.index
        y = None if y is None else y[index]
        return federated_samples(X[index], y, assignment.offsets, assignment.names)
    return FederatedData.of(X, y, assignment, features=features, schema=schema)
