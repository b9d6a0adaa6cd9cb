"""FedCox: proportional hazards with a baseline of each client's own.

The partial likelihood of a model that is stratified by client (Cox 1972; Kalbfleisch & Prentice
2002, §4.4) is a product over clients, each with risk sets of its own rows, so its logarithm, its
gradient u and its information I are sums over clients, and Newton's step is

    β ← β + (Σ_k I_k)⁻¹ Σ_k u_k

Ties are Efron's (1977): of d events at one time, the l-th sees the risk set less l/d of them. The
estimates are those of one Cox model over all rows with the client as stratum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import BoolArray, Client, FloatArray
from solera.core.constraints import Count
from solera.core.errors import DataError
from solera.core.federation import Federation
from solera.core.task import task
from solera.learn.base import Learner
from solera.learn.rows import dense, refuse_empty
from solera.learn.statistics.linear_terms import covariance, newton_step
from solera.learn.statistics.summary import Summary
from solera.learn.statistics.survival import check_survival, times_and_events
from solera.learn.whole_fields import WholeFields
from solera.trust.constructors import count_by, update

CONVERGED = 1e-9
"""A step that is so small in standard errors is the last."""

# --- the client's side ---


def partial_likelihood(
    X: FloatArray, time: FloatArray, event: BoolArray, coef: FloatArray
) -> FloatArray:
    """The logarithm of Efron's partial likelihood, its gradient, and the information's triangle.

    One after the other in a vector.
    """
    order = np.argsort(-time, kind="stable")
    X, time, event = X[order], time[order], event[order]
    eta = X @ coef
    eta = eta - eta.max()
    r = np.exp(eta)
    upper = np.triu_indices(X.shape[1])
    # for every row: 1, x and the products of its columns, times its hazard
    row = np.column_stack([np.ones(len(X)), X, X[:, upper[0]] * X[:, upper[1]]]) * r[:, None]
    at, ties = np.unique(-time[event], return_counts=True)
    at_risk = np.cumsum(row, axis=0)[np.searchsorted(-time, at, side="right") - 1]
    tied = np.add.reduceat(row[event], np.cumsum(ties) - ties, axis=0) if len(at) else at_risk
    slot = np.repeat(np.arange(len(at)), ties)
    before = (np.arange(len(slot)) - np.repeat(np.cumsum(ties) - ties, ties)) / ties[slot]
    sums = at_risk[slot] - before[:, None] * tied[slot]
    width = X.shape[1]
    mean = sums[:, 1 : 1 + width] / sums[:, :1]
    products = sums[:, 1 + width :] / sums[:, :1]
    likelihood = eta[event].sum() - np.log(sums[:, 0]).sum()
    score = X[event].sum(axis=0) - mean.sum(axis=0)
    information = (products - mean[:, upper[0]] * mean[:, upper[1]]).sum(axis=0)
    return np.concatenate([[likelihood], score, information])


def _rows(client: Client) -> tuple[FloatArray, FloatArray, BoolArray]:
    rows = client.data.part("train")
    refuse_empty(client.id, len(rows))
    X = dense(rows.X).astype(np.float64)
    return X - X.mean(axis=0), *times_and_events(rows.y)


@task("cox.step", version=2)
@np.errstate(divide="ignore", invalid="ignore")
def _step(client: Client, ask: Any) -> dict[str, Any]:
    """Partial log-likelihood, gradient and information over this client's risk sets.

    No row gives an addend of its own: what it gives depends on who is at risk with it.
    """
    X, time, event = _rows(client)
    sums = partial_likelihood(X, time, event, ask["coef"])
    if not np.isfinite(sums).all():
        raise DataError("the partial likelihood is not finite", hint="so.FedScaler() before it")
    return {"sums": update(sums), "rows": count_by(None), "events": count_by(event)}


# --- the coordinator's side ---

_WHOLE = WholeFields({"sums": Sum(), "rows": Sum(), "events": Sum()})


class FedCox(Learner):
    """Cox's proportional hazards model, stratified by client, with Efron's ties.

    The target is two columns of numbers, time and event (1, or 0 where censored). Every client
    answers in every round, or the fit ends with an error that says who did not.

    Parameters
    ----------
    rounds: the most Newton steps; a fit that has not converged by then is an error.

    Attributes
    ----------
    params_: the logarithm of the hazard ratio of every column.
    covariance_: of these, the inverse of the information.
    log_likelihood_: the partial log-likelihood.
    rows_, events_: how many there are.
    """

    encoder = "so.FedEncoder('dummy')"
    closed_job = "counts by time wait for the next version"
    judged_by = "model.summary() holds hazard ratios, intervals and the log-likelihood"
    params_: FloatArray
    covariance_: FloatArray
    log_likelihood_: float
    rows_: int
    events_: int

    def __init__(self, *, rounds: Count = 30) -> None:
        self.rounds = rounds

    def train(self, federation: Federation) -> None:
        check_survival(self.schema_)
        names = [feature.name for feature in self.schema_.features]
        self.params_ = np.zeros(len(names))
        for r in self.each_round(federation, rounds=self.rounds):
            payload = {"coef": self.params_}
            total = r.ask(_step, payload, quorum=len(r.clients)).fold(_WHOLE)
            likelihood, score, information = np.split(total["sums"], [1, 1 + len(names)])
            step = newton_step(information, score, names)
            size = float(np.sqrt(max(float(score @ step), 0.0)))
            self.params_ = self.params_ + step
            self.covariance_ = covariance(information)
            self.log_likelihood_ = float(likelihood[0])
            self.rows_, self.events_ = int(total["rows"]), int(total["events"])
            r.log(step=size)
            if size <= CONVERGED:
                r.stop("the estimates do not change any more")
        if self.history_[-1]["step"] > CONVERGED:
            raise DataError(
                f"FedCox has not converged in {self.rounds} rounds",
                hint="more rounds=; or a column tells who has the event without error",
            )

    # --- what was learned ---

    @property
    def standard_errors(self) -> FloatArray:
        """Of the logarithms of the hazard ratios."""
        self.check_fitted()
        return np.sqrt(np.diag(self.covariance_))

    def summary(self, level: float = 0.95) -> Summary:
        """Estimates, hazard ratios, standard errors, p-values and confidence intervals."""
        self.check_fitted()
        event = " = ".join([*self.schema_.target_names[1:], "1"])
        return Summary(
            f"Cox model of {event}, stratified by client",
            [feature.name for feature in self.schema_.features],
            self.params_,
            self.standard_errors,
            level=level,
            facts=[
                ("rows", self.rows_),
                ("events", self.events_),
                ("log-likelihood", self.log_likelihood_),
            ],
            ratios="hazard ratio",
        )

    def _repr_html_(self) -> str:
        fitted = "covariance_" in vars(self)
        return self.summary()._repr_html_() if fitted else super()._repr_html_()

    def predict(self, X: Any) -> FloatArray:
        """The hazard of every row relative to one with 0 in all columns, exp(xᵀβ)."""
        X = dense(self.check_rows(X)).astype(np.float64)
        return np.asarray(np.exp(X @ self.params_))
