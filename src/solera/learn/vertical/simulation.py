"""A vertical federation on one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.constraints import Count, check_arguments, names_checked
from solera.core.errors import DataError, UsageError
from solera.core.rng import generator
from solera.data.dataset import Dataset
from solera.data.frames import check_columns, is_frame, to_pandas
from solera.data.vertical import VerticalPartition, VerticalSplit
from solera.data.vertical_data import VerticalData, frame_of, party_data
from solera.privacy.simulated_keys import SimulatedKeys
from solera.simulate.failures import Failures
from solera.simulate.simulation import Simulation, simulate
from solera.trust.policy import Policy


def check_vertical(policy: Policy) -> None:
    """Refuse owners whose policy lets no vertical learner run."""
    if "vertical" not in policy.jobs:
        raise UsageError(
            "vertical learners exchange messages of rows, which is no sum",
            hint='policy = "trusted" with jobs = ["vertical"]',
        )


@names_checked
def simulate_vertical(
    df: Any,
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    target: str = "target",
    id: str | None = None,
    labels: str | Sequence[str] | None = None,
    partition: VerticalPartition | None = None,
    clients: int | None = None,
    seed: int = 0,
    engine: str = "local",
    workers: Count | None = None,
    failures: Failures | None = None,
    policy: str | Path | Mapping[str, Any] | Policy | None = None,
) -> Simulation:
    """A federation of simulated clients that hold different columns of the same people.

    >>> fed = so.simulate_vertical(df, columns={"bank": ["age", "balance"], "shop": ["basket"]},
    ...                            target="defaulted", id="customer")   # doctest: +SKIP

    Parameters
    ----------
    df: one table to divide, or every client's own table by its name; or a :class:`Dataset`, all
        rows of which are taken, and which gets a column ``id`` if it has none.
    columns: which columns of the one table each client holds.
    target: the column to predict.
    id: the column that says who a row is about. Each client holds its rows in an order of its own
        then, and finds the common ones by private set intersection. Without it, all clients hold
        the same rows in the same order.
    labels: the client, or clients, that hold the target; the first one by default, or whose own
        table has it.
    partition, clients: a vertical partition of rows and columns in the place of ``columns``, such
        as ``so.partitions.TransferSplit(…)``; clients are called ``c0``, ``c1``, ….
    seed, engine, workers, failures, policy: as for :func:`solera.simulate`.
    """
    check_arguments(simulate_vertical, target=target)
    if policy is not None:
        check_vertical(Policy.of(policy))
    if isinstance(df, Dataset):
        df = frame_of(df, target=target, id=id)
    if isinstance(df, Mapping) and not is_frame(df):
        tables = {str(name): to_pandas(frame) for name, frame in df.items()}
        if columns is not None or partition is not None or clients is not None:
            raise UsageError("simulate_vertical: tables of clients are divided already")
        owners = _owners(labels, tuple(tables))
    else:
        owners = _owners(labels, tuple(columns or ()))
        tables = _divide(to_pandas(df), columns, partition, clients, target, id, owners, seed)
    held = {
        name: party_data(frame, target=_kept(target, name, frame, owners), id=id)
        for name, frame in tables.items()
    }
    if not any(data.y is not None for data in held.values()):
        raise DataError(f"no client holds the target {target!r}", hint="give one the column")
    options: dict[str, Any] = {"failures": failures, "workers": workers, "policy": policy}
    options = {name: value for name, value in options.items() if value is not None}
    federation = simulate(VerticalData(held), seed=seed, engine=engine, **options)
    federation.engine.seal_with(SimulatedKeys(seed))  # type: ignore[attr-defined]
    return federation


def _owners(labels: str | Sequence[str] | None, names: tuple[str, ...]) -> tuple[str, ...]:
    owners = (labels,) if isinstance(labels, str) else tuple(labels or ())
    for owner in owners:
        if names and owner not in names:
            raise UsageError(
                f"simulate_vertical(labels={labels!r}): there is no client {owner!r}",
                hint=f"there are {', '.join(names)}",
            )
    return owners


def _kept(target: str, name: str, frame: Any, owners: tuple[str, ...]) -> str | None:
    """The target where this client holds it; a table that has it beside others' may not be said."""
    if target not in frame.columns:
        if name in owners:
            raise DataError(f"the table of {name!r} has no column {target!r}")
        return None
    if owners and name not in owners:
        raise DataError(
            f"{name!r} holds the target {target!r} as well",
            hint=f"leave the column out of its table, or name it in labels={list(owners)!r}",
        )
    return target


def _divide(
    frame: Any,
    columns: Mapping[str, Sequence[str]] | None,
    partition: VerticalPartition | None,
    clients: int | None,
    target: str,
    id: str | None,
    owners: tuple[str, ...],
    seed: int,
) -> dict[str, Any]:
    """Every client's own table out of one."""
    check_columns([*filter(None, (target, id))], frame.columns)
    features = [str(c) for c in frame.columns if c not in (target, id)]
    names: tuple[str, ...] = ()
    if columns is not None:
        if partition is not None or clients is not None:
            raise UsageError("simulate_vertical: columns= divides already, leave partition= out")
        names = tuple(columns)
        listed = [[c for c in columns[name] if c not in (target, id)] for name in names]
        holding = [name for name in names if target in columns[name]]
        owners = owners or tuple(holding) or names[:1]
        partition = VerticalSplit(listed, label_owner=[names.index(owner) for owner in owners])
    partition = VerticalSplit() if partition is None else partition
    dealt = partition.assign(len(frame), features, clients=clients, seed=seed)
    names = names or tuple(f"c{i}" for i in range(dealt.clients))
    tables = {}
    for k, name in enumerate(names):
        rows = dealt.rows[k]
        if id is not None:
            rows = generator(seed, "vertical rows", 0, k).permutation(rows)
        own = [features[c] for c in dealt.columns[k]]
        keeps = k in dealt.label_owners if not owners else name in owners
        kept = [*filter(None, [id]), *own, *([target] if keeps else [])]
        tables[name] = frame.iloc[np.asarray(rows)][kept].reset_index(drop=True)
    return tables
