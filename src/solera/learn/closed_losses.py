"""Mean losses of a model over the rows of all owners: a sum, for judging and for stopping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Client
from solera.core.component import describe_fitted
from solera.core.errors import DataError
from solera.core.rounds import Callback, Round
from solera.core.task import task
from solera.learn.client_models import own_model
from solera.trust.constructors import count_by, sum_by


@task("learner.losses")
def sum_losses(client: Client, ask: Any) -> dict[str, Any]:
    """The losses of the rows of a part, and how many there are."""
    rows, part = client.data.part(ask["part"]), ask["part"]
    if rows.y is None:
        raise DataError("rows without a target cannot be evaluated")
    model = own_model(client, ask["model"])
    losses = np.asarray(model.losses(rows.X, rows.y)) if len(rows) else np.zeros(0)
    return {"rows": count_by(None, part=part), "loss": sum_by(None, losses, part=part)}


class ValidationLoss(Callback):
    """Logs ``validation_loss`` after every round, for what stops by it: a sum over all owners."""

    def on_round(self, learner: Any, round: Round) -> None:
        ask = {"model": describe_fitted(learner.for_prediction()), "part": "validation"}
        total = round.federation.ask(sum_losses, ask, round=round.index).fold(Sum())
        round.log(validation_loss=float(total["loss"] / total["rows"]))


def with_validation(callbacks: Sequence[Callback]) -> list[Callback]:
    """The callbacks of a closed job, after the one that logs what they watch."""
    watched = {getattr(callback, "metric", None) for callback in callbacks}
    logged = any(isinstance(callback, ValidationLoss) for callback in callbacks)
    wanted = "validation_loss" in watched and not logged
    return [*([ValidationLoss()] if wanted else []), *callbacks]
