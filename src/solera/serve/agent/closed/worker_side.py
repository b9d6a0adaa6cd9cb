"""Closed jobs in the process that has the rows: what they add to a sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from solera.core.component import build
from solera.core.engine import Fit
from solera.core.errors import DataError, GateRefusal, SoleraError
from solera.core.payload import encode
from solera.data.dictionary_tables import Table
from solera.data.epoch_rows import selected_rows, snapshot_of
from solera.engines.asks import ask_from_payload
from solera.engines.owner import OwnerAnswer, OwnerWorker
from solera.serve.agent.closed.price import price_of_text
from solera.trust.board.text import JobText, parse
from solera.trust.epoch.dictionary import Dictionary
from solera.trust.epoch.epoch import Epoch
from solera.trust.epoch.selection import Selection
from solera.trust.epoch.snapshot import Snapshot
from solera.trust.policy import Policy

_ROUNDING = 1 + 1e-6
"""Of ε, which is computed in one go beforehand, and sum by sum."""

TableSource = Callable[[Dictionary], Table]
"""Reads an owner's rows by a dictionary."""


class ClosedTasks:
    """Answers the agent's orders, see :class:`~.terms.OwnTerms`; one job's rows at a time.

    What a job has told so far comes with every order: this process may be a new one.
    """

    def __init__(self, table: TableSource | None, policy: Policy) -> None:
        self._table, self._policy = table, policy
        self._epoch: bytes = b""
        self._rows: tuple[Table, Snapshot] | None = None
        self._text: bytes = b""
        self._worker: OwnerWorker | None = None
        self._fits: dict[int, Fit] = {}
        self._answer: tuple[tuple[int, bytes], OwnerAnswer] | None = None

    def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """What became of an order; the reason of a failure is for this owner alone."""
        state = order["state"]
        try:
            worker = self._worker_for(order)
            if order["method"] == "check":
                return {"kind": "replied", "reply": b"", "state": state}
            terms, after = self._terms(worker, order)
            return {"kind": "replied", "reply": encode(terms), "state": {"state": after}}
        except MemoryError:
            raise
        except GateRefusal as error:
            return {"kind": "refused", "reason": str(error), "state": state}
        except Exception as error:
            reason = str(error) if isinstance(error, SoleraError) else repr(error)
            return {"kind": "failed", "reason": reason, "state": state}

    def _terms(self, worker: OwnerWorker, order: Mapping[str, Any]) -> tuple[Any, bytes]:
        question = order["question"]
        if self._answer is None or self._answer[0] != (order["fit"], question):
            fit = self._fits.setdefault(order["fit"], Fit())
            worker.restore(order["state"]["state"], fit)
            ask = ask_from_payload({**order["ask"], "fit": fit})
            aggregation = build(order["aggregation"])
            self._answer = (order["fit"], question), worker.answer(question, ask, aggregation)
        answer = self._answer[1]
        return answer.first() if order["method"] == "first" else answer.told(order["supports"])

    def _worker_for(self, order: Mapping[str, Any]) -> OwnerWorker:
        """The job's rows; those of another job are let go."""
        text = order["text"]
        if self._worker is None or (self._epoch, self._text) != (order["epoch"], text):
            self._worker, self._answer = None, None
            self._worker = self._new_worker(order, parse(text))
            self._text, self._fits = text, {}
        self._worker.persons = order["persons"]
        return self._worker

    def _new_worker(self, order: Mapping[str, Any], text: JobText) -> OwnerWorker:
        epoch, secret = Epoch.decode(order["epoch"]), order["secret"]
        if self._table is None:
            raise DataError("this agent has no table that a dictionary could read")
        if self._rows is None or self._epoch != order["epoch"]:
            table = self._table(epoch.dictionary)
            self._rows = table, snapshot_of(secret, epoch.dictionary, table)
            self._epoch = order["epoch"]
        if self._rows[1].commitment != epoch.owners[order["owner"]].commitment:
            raise DataError(
                "the rows are not those that the epoch was signed for",
                hint="solera dictionary change",
            )
        rows = selected_rows(epoch.dictionary, [self._rows], selection_of(text))
        owners = len(epoch.owners)
        price = price_of_text(order["text"], owners)
        budget = None if price is None else (price.epsilon * _ROUNDING, price.delta)
        return OwnerWorker(rows, replace(self._policy, budget=budget), secret, owners)


def selection_of(text: JobText) -> Selection:
    """Which rows and columns of an epoch a text is about."""
    return Selection(
        columns=text.columns,
        target=text.target,
        population=text.population,
        training=text.training,
        validation=text.validation,
        test=text.test,
    )
