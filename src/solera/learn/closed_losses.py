"""Mean losses of a model over the rows of all owners: a sum, for judging and for stopping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Client, Part
from solera.core.component import describe_fitted
from solera.core.errors import DataError
from solera.core.federation import Federation
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


def mean_loss(model: Any, federation: Federation, part: Part, round: int = 0) -> float:
    """The mean loss of a model over all rows of a part."""
    ask = {"model": describe_fitted(model.for_prediction()), "part": part}
    total = federation.ask(sum_losses, ask, round=round).fold(Sum())
    return float(total["loss"] / total["rows"])


class ValidationLoss(Callback):
    """Logs ``validation_loss`` after every round, for what stops by it: a sum over all owners."""

    def on_round(self, learner: Any, round: Round) -> None:
        federation = round.federation
        round.log(validation_loss=mean_loss(learner, federation, "validation", round.index))


def with_validation(callbacks: Sequence[Callback]) -> list[Callback]:
    """The callbacks of a closed job, after the one that logs what they watch."""
    watched = {getattr(callback, "metric", None) for callback in callbacks}
    logged = any(isinstance(callback, ValidationLoss) for callback in callbacks)
    wanted = "validation_loss" in watched and not logged
    return [*([ValidationLoss()] if wanted else []), *callbacks]
