"""What a user's function says of a model on the rows that clients keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from solera.core.errors import DataError
from solera.core.federation import Federation
from solera.evaluation.evaluation import Evaluation
from solera.evaluation.figure import Figure
from solera.learn.averaging.loops.client_side import evaluate
from solera.learn.averaging.loops.metrics import MetricTotals, means_of

if TYPE_CHECKING:
    from solera.learn.averaging.loops.rounds import LoopRounds


def evaluation_of(
    learner: LoopRounds, federation: Federation, part: Any, per_client: bool = False
) -> Evaluation:
    """Metrics of one part of the rows of all clients, or of "all" of them, and of each client."""
    at = learner.at_clients(federation) if learner.is_personal else federation
    sizes = {p: at.engine.sizes(p) for p in (at.scored_parts if part == "all" else [part])}
    parts = [p for p, rows in sizes.items() if rows is None or rows[at.clients].any()]
    if not parts:
        raise DataError(
            f"no client keeps {part} rows aside",
            hint="so.simulate(…, test=0.2), or evaluate(federation, 'train')",
        )
    total = totals_at(learner, at, parts, at.clients)
    each = total["clients"].items() if per_client else ()
    clients = {client: figures_of(figures, part, 1, 1) for client, figures in each}
    figures = figures_of(total, part, total["replied"], len(at))
    return Evaluation(figures, clients, {}, dict(enumerate(at.names)))


def totals_at(
    learner: LoopRounds,
    federation: Federation,
    parts: Sequence[Any],
    clients: Any,
    round: int | None = None,
) -> dict[str, Any]:
    """Metrics of rows of these parts as sums, and of each client where these may be read."""
    round = max(0, len(learner.history_) - 1) if round is None else round
    secure = federation.secure is not None
    ask = {**learner.question(round), **learner.get_model(), "secure": secure}
    ask.pop("control", None)
    totals = MetricTotals()
    merged, replied = None, len(clients)
    each: dict[int, Any] = {}
    for part in parts:
        replies = federation.ask(evaluate, {**ask, "part": part}, to=clients, round=round)
        if secure:
            merged = totals.merge(merged, replies.partial(totals))
        else:
            for reply in replies:
                partial = totals.lift(reply)
                merged = totals.merge(merged, partial)
                if partial["rows"]:
                    each[reply.client] = totals.merge(each.get(reply.client), partial)
        learner.see_failures(replies.failures)
        replied = min(replied, len(clients) - len(replies.failures))
    return {**totals.result(merged), "clients": each, "replied": replied}


def figures_of(total: Mapping[str, Any], part: Any, clients: int, asked: int) -> dict[str, Figure]:
    """Sums as figures of so many of the clients that were asked."""
    rows = {"part": part, "rows": round(total["rows"])}
    about = {**rows, "clients": clients, "asked": asked, "absent": asked - clients}
    means = means_of(total["metrics"])
    return {name: Figure(value, metric=name, **about) for name, value in means.items()}
