"""What an owner's learner computes for a closed job, and what it leaves.

The result is a payload, the same bytes at every owner: ``{"model": …, "history": …}``,
``{"evaluation": …}``, ``{"description": …}``, ``{"statistics": …}``, ``{"atoms": …}``; or
``{"refused": …}`` where totals allow none.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from solera.core.component import build, build_fitted
from solera.core.errors import SoleraError
from solera.core.federation import Federation
from solera.core.payload import decode, encode
from solera.learn.closed import closed_grid, closed_result
from solera.learn.closed_description import describe_closed
from solera.learn.closed_evaluation import evaluate_closed, to_payload
from solera.trust.board.atoms import NAME as ATOMS
from solera.trust.board.atoms import find_atoms
from solera.trust.board.engine import BoardEngine, Exchange
from solera.trust.board.text import JobText, parse, seed_of
from solera.trust.epoch.epoch import Epoch

_DESCRIBE = "Describe"


def carry_out(order: dict[str, Any], exchange: Exchange) -> tuple[bytes, Any]:
    """The result of an ``order``: a text, the epoch, and the earlier result that the text names.

    With it comes the model that was fitted, if one was.
    """
    text, epoch = parse(order["text"]), Epoch.decode(order["epoch"])
    if text.kind == "atoms":
        federation = federation_of(text, epoch, exchange, ATOMS)
        return encode({"atoms": find_atoms(federation, epoch.dictionary, epoch.min_count)}), None
    model = None if order["model"] is None else build_fitted(decode(order["model"])["model"])
    if text.kind == "training":
        learners = [build(learner) for learner in text.learners]
        options = {"callbacks": [build(callback) for callback in text.callbacks], "start": model}

        def federations(learner: Any) -> Federation:
            return federation_of(text, epoch, exchange, type(learner).__name__)

        if isinstance(text.learner, list):
            return closed_grid(learners, federations, **options)
        (learner,) = learners
        return closed_result(learner, federations(learner), **options), learner
    try:
        if text.kind == "statistics":
            return _statistics(text, epoch, exchange), None
        federation = federation_of(text, epoch, exchange, type(model).__name__)
        assert model is not None  # the text of an evaluation names one
        federation = model.at_clients(federation) if model.is_personal else federation
        evaluation = evaluate_closed(model, federation, "test", text.metrics)
        return encode({"evaluation": to_payload(evaluation)}), None
    except SoleraError as error:
        return encode({"refused": str(error)}), None


def federation_of(text: JobText, epoch: Epoch, exchange: Exchange, name: str) -> Federation:
    """All owners as a learner without rows sees them: sums, and what the dictionary says."""
    dictionary = epoch.dictionary
    names = tuple(owner.name for owner in epoch.owners)
    positive = text.positive or None
    engine = BoardEngine(
        exchange,
        dictionary.schema(text.columns, text.target).with_positive(positive),
        len(names),
        gaps=dictionary.gaps(text.columns),
        names=names,
        atoms=lambda: epoch.atoms,
        bases=dictionary.bases,
    )
    seed = seed_of(epoch.agreed.hash, name, text.repeat)
    return Federation(engine, seed=seed, names=names, positive=positive)


def _statistics(text: JobText, epoch: Epoch, exchange: Exchange) -> bytes:
    if text.learner is None:
        federation = federation_of(text, epoch, exchange, _DESCRIBE)
        return encode({"description": describe_closed(federation).to_payload()})
    job = build(text.learner)
    federation = federation_of(text, epoch, exchange, type(job).__name__)
    return encode({"statistics": asdict(job.look(federation))})
