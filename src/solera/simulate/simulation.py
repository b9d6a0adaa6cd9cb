"""A federation on one machine."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from solera.core.clients import Source
from solera.core.constraints import Count, check_arguments
from solera.core.engine import find_engine
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.gate import ReleaseLimits, find_limits
from solera.core.payload import DEFAULT_LIMITS, Limits
from solera.core.schema import Feature, Schema
from solera.core.topology import Topology
from solera.data.adapters import from_pandas
from solera.data.federated import FederatedData, check_rows
from solera.data.partition import IID, Partition
from solera.simulate.clock import VirtualClock
from solera.simulate.failures import Failures


class Simulation(Federation):
    """A federation whose clients live on this machine; ``data`` is what they hold."""

    data: Any


def simulate(
    X: Any,
    y: Any = None,
    *,
    clients: int | None = None,
    partition: Partition | None = None,
    validation: float = 0.0,
    test: float = 0.0,
    seed: int = 0,
    engine: str = "local",
    workers: Count | None = None,
    engine_options: Mapping[str, Any] | None = None,
    failures: Failures | None = None,
    clock: VirtualClock | None = None,
    topology: Topology | None = None,
    features: Sequence[Feature | str] | None = None,
    schema: Schema | None = None,
    memory: Count | None = None,
    limits: Limits = DEFAULT_LIMITS,
    policy: str | ReleaseLimits | None = None,
) -> Simulation:
    """A federation of simulated clients.

    Parameters
    ----------
    X, y: the rows to deal out (arrays, a CSR matrix or a pandas frame), or, as ``X`` alone, a
        :class:`FederatedData` or :class:`LazyData`.
    clients: how many, unless the partition says so itself; 10 by default for :class:`IID`.
    partition: who gets which rows; :class:`IID` by default.
    validation, test: fractions of every client's rows to set aside.
    seed: fixes the partition, the splits, the failures and every draw of every task.
    engine, workers: ``"local"`` runs in this process, ``"processes"`` in ``workers`` others (the
        number of cores by default). Other packages add engines by entry points
        ``solera.engines``; ``engine_options`` are for theirs.
    failures: what goes wrong.
    clock: virtual time, and what clients can do in it.
    topology: the shape of the federation; a star by default.
    features, schema: names and kinds of the columns, or the whole schema.
    memory: bytes that the clients of one ``many=`` call may hold together.
    limits: the largest payload that may be sent.
    policy: None, or what the owners let out: the name of a policy (``"training"``) or limits of
        one's own. Every ask and reply then passes the gate that stands at real clients.
    """
    check_arguments(simulate, engine=engine, workers=workers, memory=memory)
    source = _source(X, y, clients, partition, features, schema, seed)
    if validation or test:
        if not isinstance(source, FederatedData):
            raise UsageError("validation and test parts need rows that are not generated lazily")
        source = source.split(validation=validation, test=test, seed=seed)
    if clock is not None:
        clock.check_params()
        source = copy(source)
        source.resources = clock.model()  # type: ignore[attr-defined]
    release_limits = None if policy is None else find_limits(policy)
    options = {
        "workers": workers,
        "memory": memory,
        "fault_model": failures,
        "limits": release_limits,
    }
    carrier = _engine(engine, source, {**options, **(engine_options or {})})
    federation = Simulation(carrier, seed=seed, topology=topology, limits=limits)
    federation.data, federation.clock = source, clock
    return federation


def _engine(name: str, source: Source, options: Mapping[str, Any]) -> Any:
    """The engine of that name, with those options that are given."""
    engine = find_engine(name)
    takes = inspect.signature(engine).parameters
    if "source" not in takes:
        raise UsageError(f"the engine {name!r} cannot simulate clients", hint="see so.connect")
    given = {option: value for option, value in options.items() if value is not None}
    for option, value in given.items():
        if option not in takes:
            raise UsageError(
                f"simulate({option}={value!r}): the engine {name!r} has no {option}",
                hint="another one may, such as engine='processes'",
            )
    return engine(source, **given)


def _source(
    X: Any,
    y: Any,
    clients: int | None,
    partition: Partition | None,
    features: Sequence[Feature | str] | None,
    schema: Schema | None,
    seed: int,
) -> Source:
    if hasattr(X, "segments"):
        if any(option is not None for option in (y, clients, partition, features, schema)):
            raise UsageError("simulate: data that has its clients already takes no partition")
        source: Source = X
        return source
    table = X
    if hasattr(X, "iloc"):
        frame = from_pandas(X)
        features = frame.schema.features if features is None else features
        X = frame.X
    X, y = check_rows(X, y)
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
    return FederatedData.of(X, y, assignment, features=features, schema=schema)
