"""What a person must know of a fit that has ended: one sentence for each thing, the worst first.

Training has diverged where the loss or the model is not finite, where a row of classes or labels
costs more than 1,000 (to predict nothing costs the logarithm of their number), and where the loss
for another target is 10,000 times that of the first round: other clients and noise change it less.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from solera.core.federation import Federation
from solera.core.payload import is_finite
from solera.core.rounds import Callback
from solera.core.topology import Peers

log = logging.getLogger("solera")

_SENSELESS = 1e3
_GROWN = 1e4
_ROUNDING = 1e-6
"""Losses below this may grow."""
_NAMED = 5
_NOT_LEARNING = (
    "data.",
    "board.",
    "secure.",
    "learner.evaluate",
    "learner.score_counts",
    "metric.",
)
"""What is asked before training, to add up in secret, and to judge the model."""


def warn(learner: Any, federation: Federation, asks: int, unheard: Sequence[Callback]) -> list[str]:
    """Log what went wrong without an error or had no effect; it is in the history as well.

    ``asks`` were made before the fit, ``unheard`` are callbacks that nothing has called. The steps
    of a pipeline have warned already.
    """
    if steps := vars(learner).get("steps_"):
        facts = [step._trained_with or {} for step in steps]
        return [warning for fact in facts for warning in fact.get("warnings", ())]
    history = learner.history_
    problems = list(_diverged(learner))
    if history and not any(entry.get("clients", 1) for entry in history):
        problems.append(f"nobody took part in {len(history)} rounds: the model is as it began")
    problems += _left_out(federation, asks)
    problems += vars(learner).pop("_remarks", ())
    topology = federation.topology
    masked = federation.secure is not None and len(topology.groups(federation.clients)) > 1
    if masked or (isinstance(topology, Peers) and not learner.without_server):
        problems.append(f"one server asked all clients, as in a star: {topology!r} had no effect")
    problems += [f"there were no rounds for {type(callback).__name__}" for callback in unheard]
    warnings = [f"{type(learner).__name__}: {text}" for text in problems]
    for warning in warnings:
        log.warning("%s", warning)
    if warnings and history:
        history[-1]["warnings"] = warnings
    return warnings


def _diverged(learner: Any) -> Iterator[str]:
    losses = [entry["loss"] for entry in learner.history_ if "loss" in entry] or [0.0]
    first, last = losses[0], losses[-1]
    counted = learner.schema_.target in ("classes", "labels")
    most = _SENSELESS if counted else _GROWN * max(first, _ROUNDING)
    if not last <= most or not is_finite(getattr(learner, "get_model", dict)()):
        yield (
            f"training diverged, from a loss of {first:.3g} after the first round to {last:.3g}; "
            "lower lr, or scale columns and target (so.FedScaler())"
        )


def _left_out(federation: Federation, asks: int) -> Iterator[str]:
    """Clients that never answered a task by which the model learns, or all of them a selector."""
    records = federation.meter.records[asks:]
    if all(len(record.replied) == len(record.clients) for record in records):
        return
    for task in dict.fromkeys(record.task for record in records):
        asked = [record for record in records if record.task == task]
        if task.startswith(_NOT_LEARNING) or asked[0].round:
            continue  # or the first rounds were in an earlier run
        replied = np.concatenate([record.replied for record in asked])
        silent = np.setdiff1d(np.concatenate([record.clients for record in asked]), replied)
        if task.startswith("select."):
            if not len(replied):
                yield f"nobody ever answered {task!r}: the selector had nothing to go by"
        elif len(silent):
            named = ", ".join(federation.names_of(silent[:_NAMED]))
            yield f"the model lacks {named} ({len(silent):,} in all): no answer to {task!r}"
