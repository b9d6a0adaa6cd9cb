"""FedCox: proportional hazards with a baseline of each client's own, or one of all.

The partial likelihood of a model that is stratified by client (Cox 1972; Kalbfleisch & Prentice
2002, §4.4) is a product over clients, each with risk sets of its own rows, so its logarithm, its
gradient u and its information I are sums over clients, and Newton's step is

    β ← β + (Σ_k I_k)⁻¹ Σ_k u_k

Ties are Efron's (1977): of d events at one time, the l-th sees the risk set less l/d of them. The
estimates are those of one Cox model over all rows with the client as stratum, or in a closed job
without strata, with times on its grid (:mod:`.cox_pooled`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import BoolArray, Client, FloatArray
from solera.core.constraints import Count
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.rounds import Round
from solera.core.schema import Schema
from solera.core.task import task
from solera.learn.base import Learner
from solera.learn.closed import is_closed
from solera.learn.rows import dense, refuse_empty
from solera.learn.statistics.cox_pooled import PooledRiskSets
from solera.learn.statistics.linear_terms import covariance, growing_terms, newton_step
from solera.learn.statistics.risk_sets import partial_likelihood
from solera.learn.statistics.summary import Summary
from solera.learn.statistics.survival import check_survival
from solera.learn.statistics.survival_grid import (
    LEAST,
    estimated,
    find_grid,
    times_and_events,
)
from solera.trust.constructors import count_by, update

CONVERGED = 1e-9
"""A step that is so small in standard errors is the last."""
_MOST_STEPS, _SLOW = 12, 1e-6
"""Where estimates have a bound, Newton's steps are smaller than this long before."""

SumsOf = Callable[[Round, FloatArray], FloatArray]
"""Partial log-likelihood, gradient and the information's triangle for coefficients."""

# --- the client's side ---


def _rows(client: Client) -> tuple[FloatArray, FloatArray, BoolArray]:
    rows = client.data.part("train")
    refuse_empty(client.id, len(rows))
    X = dense(rows.X).astype(np.float64)
    return X - X.mean(axis=0), *times_and_events(rows.y)


@task("cox.step", version=3)
@np.errstate(divide="ignore", invalid="ignore")
def _step(client: Client, ask: Any) -> dict[str, Any]:
    """Events, partial log-likelihood, gradient and information over this client's risk sets.

    No row gives an addend of its own: what it gives depends on who is at risk with it.
    """
    X, time, event = _rows(client)
    sums = partial_likelihood(X, time, event, ask["coef"])
    if not np.isfinite(sums).all():
        raise DataError("the partial likelihood is not finite", hint="so.FedScaler() before it")
    sums = np.append(np.count_nonzero(event), sums)
    return {"sums": update(sums, solves=X.shape[1]), "rows": count_by(None)}


# --- the coordinator's side ---


class FedCox(Learner):
    """Cox's proportional hazards model with Efron's ties.

    The target is two columns of numbers, time and event (1, or 0 where censored). Every client
    answers in every round, or the fit ends with an error that says who did not.

    Parameters
    ----------
    strata: "client": every client has a baseline hazard of its own. None: all rows have one, in a
        closed job, with times on the grid of the epoch (:mod:`.cox_pooled`).
    rounds: the most Newton steps; a fit that has not converged by then is an error.

    Attributes
    ----------
    params_: the logarithm of the hazard ratio of every column.
    covariance_: of these, the inverse of the information.
    log_likelihood_: the partial log-likelihood.
    rows_, events_: how many there are.
    times_: where all rows have one baseline: the times of the grid, an event counts at the next.
    censored_times_: pairs, up to when rows were censored and at which of the times they count.

    Examples
    --------
    >>> import numpy as np
    >>> import solera as so
    >>> draw = np.random.default_rng(0)
    >>> X = draw.normal(size=(400, 2))
    >>> time, end = draw.exponential(np.exp(-0.5 * X[:, 0])), draw.exponential(2.0, 400)
    >>> y = np.column_stack([np.minimum(time, end), time <= end]).astype(float)
    >>> so.FedCox().fit(so.simulate(X, y, clients=3, seed=0)).params_.round(2).tolist()
    [0.46, 0.07]
    """

    encoder = "so.FedEncoder('dummy')"
    judged_by = "model.summary() holds hazard ratios, intervals and the log-likelihood"
    params_: FloatArray
    covariance_: FloatArray
    log_likelihood_: float
    rows_: int
    events_: int
    times_: FloatArray
    censored_times_: FloatArray

    def __init__(self, *, strata: Literal["client"] | None = "client", rounds: Count = 30) -> None:
        self.strata = strata
        self.rounds = rounds

    def parameters_of_output(self, schema: Schema) -> int:
        return len(schema.features)

    def train(self, federation: Federation) -> None:
        check_survival(self.schema_)
        names = [feature.name for feature in self.schema_.features]
        sums_of = self._stratified(federation) if self.strata else self._pooled(federation)
        self.params_ = np.zeros(len(names))
        for r in self.each_round(federation, rounds=self.rounds):
            sums = sums_of(r, self.params_)
            likelihood, score, information = np.split(sums, [1, 1 + len(names)])
            step = newton_step(information, score, names)
            size = float(np.sqrt(max(float(score @ step), 0.0)))
            self.params_ = self.params_ + step
            self.covariance_ = covariance(information)
            self.log_likelihood_ = float(likelihood[0])
            r.log(step=size)
            if size <= CONVERGED:
                r.stop("the estimates do not change any more")
            elif r.index >= _MOST_STEPS and size > _SLOW:
                self._refuse_separation(step, names)
        if self.history_[-1]["step"] > CONVERGED:
            raise DataError(
                f"FedCox has not converged in {self.rounds} rounds", hint="more rounds="
            )

    def _stratified(self, federation: Federation) -> SumsOf:
        """Sums of clients' steps over their risk sets."""
        if is_closed(federation):
            _, _, kinds = estimated(federation, np.empty(0))
            if kinds[0, 1] < LEAST:
                raise DataError(f"all owners together have fewer than about {LEAST} events")

        def sums_of(r: Round, coef: FloatArray) -> FloatArray:
            total = r.ask(_step, {"coef": coef}, quorum=len(r.clients)).fold(Sum())
            self.rows_, self.events_ = int(total["rows"]), int(total["sums"][0])
            sums: FloatArray = total["sums"][1:]
            return sums

        return sums_of

    def _pooled(self, federation: Federation) -> SumsOf:
        """Sums over all owners' risk sets."""
        if not is_closed(federation):
            raise UsageError(
                "FedCox(strata=None) has the times of an epoch, which closed jobs have",
                hint='so.simulate(…, policy="sums"), or strata="client"',
            )
        grid = find_grid(federation, self.schema_.target_names[0])
        pooled = PooledRiskSets(grid, len(self.schema_.features))
        self.rows_, self.events_ = pooled.rows, int(pooled.events.sum())
        self.times_, self.censored_times_ = pooled.times, pooled.censored
        return pooled.sums

    def _refuse_separation(self, step: FloatArray, names: Sequence[str]) -> None:
        """Refuse a fit whose coefficients grow by about as much in every step.

        Then some column, or several together, orders all events: there is no largest likelihood
        (Heinze & Schemper 2001).
        """
        columns = growing_terms(step, self.params_, names)
        raise DataError(
            f"FedCox: {columns} tells who has the event without error, no estimate is finite",
            hint="leave such columns out, so.learn.FedSelect([…])",
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
            f"Cox model of {event}, {self._baseline()}",
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

    def _baseline(self) -> str:
        if self.strata is not None:
            return "stratified by client"
        late = "" if np.isinf(self.times_[-1]) else ", later events counted as censored"
        return f"on {len(self.times_)} intervals of the epoch's times{late}"

    def _repr_html_(self) -> str:
        fitted = "covariance_" in vars(self)
        return self.summary()._repr_html_() if fitted else super()._repr_html_()

    def predict(self, X: Any) -> FloatArray:
        """The hazard of every row relative to one with 0 in all columns, exp(xᵀβ)."""
        X = dense(self.check_rows(X)).astype(np.float64)
        return np.asarray(np.exp(X @ self.params_))
