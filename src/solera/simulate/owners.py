"""Owners of a simulated epoch: the sums of a closed job, without a board.

Every owner works out its terms as in earnest, by its own rows, secret and policy, and the words of
all are added up; only masks and signatures, which cancel and prove, are left out. So a run over a
board gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import Source
from solera.core.engine import Ask, Fit
from solera.core.errors import PayloadError
from solera.core.federation import Configuration, Federation
from solera.core.topology import Star
from solera.data.epoch_rows import selected_rows
from solera.data.federated import FederatedData
from solera.engines.owner import OwnerWorker
from solera.robust.attacks import UpdateAttack
from solera.simulate.epochs import SimulatedEpoch
from solera.trust.board.atoms import NAME as ATOMS
from solera.trust.board.atoms import atoms_text, find_atoms
from solera.trust.board.engine import BoardEngine, NotClosed
from solera.trust.board.hashing import digest
from solera.trust.board.sums import Own, Total, sums_of
from solera.trust.board.text import parse, seed_of
from solera.trust.board.words import add_words, numbers_of, words_of
from solera.trust.epoch import Atoms
from solera.trust.epoch.selection import Selection
from solera.trust.policy import Policy

FEWEST, MOST = 3, 64
"""Owners of an epoch."""


class SimulatedOwners:
    """The exchange of owners who live on this machine, one worker each."""

    def __init__(self, workers: list[OwnerWorker]) -> None:
        self.workers = workers

    def total(self, question: bytes, ask: Ask, aggregation: Aggregation) -> Total:
        """What all owners come to; each takes the same steps as over a board."""
        runs = [
            sums_of(question, aggregation, answer)
            for answer in (
                worker.answer(question, ask, aggregation, keep=False) for worker in self.workers
            )
        ]
        own = [next(run)[1] for run in runs]
        totals: list[Total] = []
        while not totals:
            total = added_up(own)
            own = []
            for run in runs:
                try:
                    own.append(run.send(total)[1])
                except StopIteration as end:
                    totals.append(end.value)
        return totals[0]

    def keeps(self, fit: Fit) -> bool:
        """Whether owners keep anything of a fit."""
        return any(worker.keeps(fit) for worker in self.workers)


class EpochOwners:
    """The owners of a simulated epoch with all their rows, whichever a job takes."""

    def __init__(self, simulated: SimulatedEpoch) -> None:
        self._simulated = simulated

    @cached_property
    def _found(self) -> Atoms:
        epoch = self._simulated.epoch
        if epoch.atoms is not None:
            return epoch.atoms
        return find_atoms(self.job(atoms_text()), epoch.dictionary, epoch.min_count)

    def atoms(self) -> Atoms:
        """The atoms that owners have signed, or found here, once."""
        return self._found

    def job(self, content: bytes) -> Federation:
        """The owners as the job of a text meets them, which needs no atoms."""
        epoch, text = self._simulated.epoch, parse(content)
        selection = Selection(text.columns, text.target)
        rows = selected_rows(epoch.dictionary, self._simulated.owners, selection)
        policy, owners = Policy("sums", min_count=epoch.min_count), len(epoch.owners)
        workers = [
            OwnerWorker(rows.only(i), policy, secret, owners)
            for i, secret in enumerate(self._simulated.secrets)
        ]
        engine = BoardEngine(SimulatedOwners(workers), rows.schema, owners)
        return Federation(engine, seed=seed_of(epoch.agreed.hash, ATOMS, text.repeat))


def added_up(own: list[Own]) -> Any:
    """What the words of all owners add up to, modulo 2^64."""
    total, form = words_of(own[0]()[0], len(own))
    for terms in own[1:]:
        if not add_words(terms()[0], form, total, len(own)):
            raise PayloadError("the terms of owners are not of one form")
    return numbers_of(total, form, len(own))


def closed_seed(configuration: Configuration, learner: str) -> int:
    """What fixes the draws of a learner: the seed, in an epoch as its repeat."""
    epoch = configuration.epoch
    if epoch is None:
        return configuration.seed
    return seed_of(epoch.agreed.hash, learner, configuration.seed)


def closed_engine(data: Source, configuration: Configuration) -> BoardEngine:
    """The engine on which the learners of a closed job run, over simulated owners."""
    policy: Policy = configuration.policy
    if not isinstance(data, FederatedData):
        raise NotClosed(
            f"a closed job needs rows of owners in memory, not {type(data).__name__}",
            hint="so.simulate(X, y, clients=4, policy='sums')",
        )
    for name, what in _no_part(configuration).items():
        raise NotClosed(
            f"simulate({name}=…, policy={policy.policy!r}): {what}",
            hint=f"leave {name}= out, or policy='trusted'",
        )
    if not FEWEST <= data.clients <= MOST or data.clients <= policy.min_peers:
        raise NotClosed(
            f"a closed job has {max(FEWEST, policy.min_peers + 1)} to {MOST} owners, here are "
            f"{data.clients}",
            hint="clients=4",
        )
    workers = [
        OwnerWorker(data.only(i), policy, secret, data.clients)
        for i, secret in enumerate(_secrets_of(data, configuration))
    ]
    schema = data.schema.with_positive(configuration.positive)
    owners: EpochOwners | None = configuration.owners
    epoch = configuration.epoch
    return BoardEngine(
        SimulatedOwners(workers),
        schema,
        data.clients,
        gaps=_gaps(data, epoch),
        names=data.names,
        bases=() if epoch is None else epoch.dictionary.bases,
        **({} if owners is None else {"atoms": owners.atoms}),
    )


def _no_part(configuration: Configuration) -> dict[str, str]:
    """What of a simulation no closed job has, by the name of the option."""
    failures = "an owner that is away is waited for, nothing is lost"
    attack = configuration.attack
    found = {
        "attack": isinstance(attack, UpdateAttack) and "owners are trusted to answer truthfully",
        "topology": None if isinstance(configuration.topology, Star) else "there is no other way",
        "secure": configuration.secure and "only sums are shared already",
        "failures": configuration.failures and failures,
        "clock": configuration.clock and "there is no virtual time",
        "engine": configuration.engine != "local" and "owners run one after the other, here",
    }
    return {name: what for name, what in found.items() if what}


def _secrets_of(data: FederatedData, configuration: Configuration) -> Sequence[bytes]:
    """Every owner's secret; derived from the seed where none is given."""
    derived = tuple(digest("secret", configuration.seed, i) for i in range(data.clients))
    return configuration.secrets or derived


def _gaps(data: FederatedData, epoch: Any) -> tuple[str, ...]:
    """The columns in which the dictionary allows values to be missing, or some row misses one."""
    names = [feature.name for feature in data.schema.features]
    if epoch is not None:
        return tuple(c.name for c in epoch.dictionary.columns if c.missing and c.name in names)
    X = data.X
    values = X.data if hasattr(X, "indptr") else X
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return ()
    if hasattr(X, "indptr"):
        columns = np.unique(X.indices[~np.isfinite(X.data)])
    else:
        columns = np.flatnonzero(~np.isfinite(X.reshape(len(X), -1)).all(axis=0))
    return tuple(names[int(column)] for column in columns)
