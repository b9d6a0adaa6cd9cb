"""What an owner's learner computes for a closed job, and what it leaves.

The result is a payload ``{"kind": …, "model" | "metrics" | "table": …}``; or ``{"failed": …}``
where totals allow no result, which all owners sign like any other.
"""

from __future__ import annotations

from typing import Any

from solera.core.component import build, build_fitted, describe_fitted
from solera.core.federation import Federation
from solera.core.payload import decode, encode
from solera.learn.describe import describe
from solera.trust.board.engine import BoardEngine, Exchange
from solera.trust.board.text import JobText, parse, seed_of
from solera.trust.epoch.epoch import Epoch


def carry_out(order: dict[str, Any], exchange: Exchange) -> bytes:
    """The result of an ``order``: a text, the epoch, and of an evaluation the model's result."""
    text, epoch = parse(order["text"]), Epoch.decode(order["epoch"])
    federation = federation_of(text, epoch, exchange)
    if text.kind == "training":
        learner = build(text.learner)
        learner.fit(federation, callbacks=[build(callback) for callback in text.callbacks])
        return _result("training", model=describe_fitted(learner), history=learner.history_)
    if text.kind == "evaluation":
        model = build_fitted(decode(order["model"])["model"])
        found = model.evaluate(federation, "test", per_client=False, metrics=text.metrics)
        metrics = {name: figure.to_payload() for name, figure in found.metrics.items()}
        return _result("evaluation", metrics=metrics, counts=found.counts, notes=list(found.notes))
    return _result("statistics", table=describe(federation).to_dict())


def federation_of(text: JobText, epoch: Epoch, exchange: Exchange) -> Federation:
    """All owners as a learner without rows sees them: sums, and what the dictionary says."""
    schema = epoch.dictionary.schema(text.columns, text.target)
    names = tuple(owner.name for owner in epoch.owners)
    engine = BoardEngine(exchange, schema, len(epoch.owners), names=names)
    name = text.learner["$component"] if isinstance(text.learner, dict) else text.kind
    return Federation(engine, seed=seed_of(epoch.hash, name, text.repeat), names=names)


def failed(reason: str, hint: str | None = None) -> bytes:
    """The result of a learner that cannot learn from these totals."""
    return encode({"failed": reason, "hint": hint or ""})


def _result(kind: str, **content: Any) -> bytes:
    return encode({"kind": kind, **content})
