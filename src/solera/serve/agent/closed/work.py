"""What an owner's learner computes for a closed job, and what it leaves.

The result is a payload, the same bytes at every owner: ``{"model": …, "history": …}``,
``{"evaluation": …}``, ``{"description": …}``; or ``{"refused": …}`` where totals allow none.
"""

from __future__ import annotations

from typing import Any

from solera.core.component import build, build_fitted
from solera.core.errors import SoleraError
from solera.core.federation import Federation
from solera.core.payload import decode, encode
from solera.learn.closed import closed_result
from solera.learn.closed_description import describe_closed
from solera.trust.board.engine import BoardEngine, Exchange
from solera.trust.board.text import JobText, parse, seed_of
from solera.trust.epoch.epoch import Epoch

_DESCRIBE = "Describe"


def carry_out(order: dict[str, Any], exchange: Exchange) -> bytes:
    """The result of an ``order``: a text, the epoch, and the earlier result that the text names."""
    text, epoch = parse(order["text"]), Epoch.decode(order["epoch"])
    model = None if order["model"] is None else build_fitted(decode(order["model"])["model"])
    if text.kind == "training":
        learner = build(text.learner)
        federation = federation_of(text, epoch, exchange, type(learner).__name__)
        callbacks = [build(callback) for callback in text.callbacks]
        return closed_result(learner, federation, callbacks=callbacks, start=model)
    try:
        if text.kind == "statistics":
            return encode(
                {"description": _described(federation_of(text, epoch, exchange, _DESCRIBE))}
            )
        federation = federation_of(text, epoch, exchange, type(model).__name__)
        return encode({"evaluation": _evaluated(model, federation, text)})
    except SoleraError as error:
        return encode({"refused": str(error)})


def federation_of(text: JobText, epoch: Epoch, exchange: Exchange, name: str) -> Federation:
    """All owners as a learner without rows sees them: sums, and what the dictionary says."""
    dictionary = epoch.dictionary
    names = tuple(owner.name for owner in epoch.owners)
    engine = BoardEngine(
        exchange,
        dictionary.schema(text.columns, text.target),
        len(names),
        gaps=dictionary.gaps(text.columns),
        names=names,
    )
    return Federation(engine, seed=seed_of(epoch.agreed.hash, name, text.repeat), names=names)


def _evaluated(model: Any, federation: Federation, text: JobText) -> dict[str, Any]:
    found = model.evaluate(federation, metrics=text.metrics)
    metrics = {name: figure.to_payload() for name, figure in found.metrics.items()}
    told = {"metrics": metrics, "counts": found.counts, "notes": list(found.notes)}
    return {**told, "positive": found.positive}


def _described(federation: Federation) -> dict[str, Any]:
    found = describe_closed(federation)
    return {
        "rows": found.rows,
        "gaps": list(found.gaps),
        "mean": found.mean,
        "deviation": found.deviation,
    }
