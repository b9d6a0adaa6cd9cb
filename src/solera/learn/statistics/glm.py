"""FedGLM: generalised linear models with standard errors, as on the pooled rows.

Iteratively reweighted least squares (McCullagh & Nelder 1989, §2.5): with η = Zβ + o, μ = g⁻¹(η)
and, for every row, the working weight w = a (dμ/dη)² / V(μ) and residual r = (y − μ) / (dμ/dη),

    β ← β + (Σ_k Z_kᵀ W_k Z_k)⁻¹ Σ_k Z_kᵀ W_k r_k

o is an offset and a a prior weight. Both sums are over rows, hence over clients, so the estimates
are those of all rows in one place; so does DataSHIELD's ds.glm (Jones et al. 2012).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Array, FloatArray
from solera.core.constraints import Count, Positive
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.schema import Schema
from solera.learn.base import Predictor
from solera.learn.closed import is_closed
from solera.learn.rows import dense
from solera.learn.statistics.families import FAMILIES, Name
from solera.learn.statistics.glm_rows import (
    LEAST,
    design_columns,
    likelihood_sums,
    named_column,
    step_sums,
)
from solera.learn.statistics.linear_terms import covariance, growing_terms, newton_step
from solera.learn.statistics.private_steps import damped_step
from solera.learn.statistics.summary import Summary
from solera.privacy.dp.mechanism import DP
from solera.trust.members import symmetric

CONVERGED = 1e-11
"""A step that moves the linear predictor by so small a share of itself is the last."""
_LEAST_WEIGHT = 1.0
_MOST_STEPS, _SLOW = 12, 1e-6
"""Where classes overlap, Newton's steps are smaller than this long before."""


class FedGLM(Predictor):
    """A generalised linear model: the estimates and standard errors of the pooled rows.

    Every client answers in every round, or the fit ends with an error that says who did not: with
    another set of rows in between the estimates would be those of none.

    Parameters
    ----------
    family: "gaussian" (identity link), "binomial" (logit; two classes, the odds are those of the
        second, or of the one that the federation calls positive),
        "poisson" (log) or "gamma" (log).
    offset: the name of a column that is added to the linear predictor with coefficient 1, such as
        the logarithm of an exposure.
    weights: the name of a column of prior weights aᵢ: the variance of a row is φ V(μ) / aᵢ.
    rounds: the most steps; a fit that has not converged by then is an error.
    dp: None, or :class:`so.DP <solera.privacy.dp.mechanism.DP>` with ``level="record"`` and
        ``clip``, the longest that the columns of a row may be (:mod:`.private_steps`). Then all
        ``rounds`` are asked for, five are enough, and neither standard errors nor a likelihood
        are known.
    clip_residuals: with ``dp`` and another family than the binomial: the largest |y − μ| (gamma:
        |y − μ| / μ) that counts. Targets should be centred, for a step moves the mean by no more.

    Attributes
    ----------
    params_: the intercept and one coefficient per column that is no offset and no weights.
    covariance_: of the estimates, φ (ZᵀWZ)⁻¹.
    scale_: φ, Pearson's χ² over the residual degrees of freedom; 1 for binomial and Poisson.
    deviance_, log_likelihood_: of all rows; the scale in the likelihood of the normal is χ² / n.
    rows_: how many there are.
    """

    encoder = "so.FedEncoder('dummy')"
    params_: FloatArray
    covariance_: FloatArray
    scale_: float
    deviance_: float
    log_likelihood_: float
    rows_: int

    def __init__(
        self,
        family: Name = "gaussian",
        *,
        offset: str | None = None,
        weights: str | None = None,
        rounds: Count = 50,
        dp: DP | None = None,
        clip_residuals: Positive | None = None,
    ) -> None:
        self.family = family
        self.offset = offset
        self.weights = weights
        self.rounds = rounds
        self.dp = dp
        self.clip_residuals = clip_residuals

    def check_params(self) -> None:
        super().check_params()
        if self.offset is not None and self.offset == self.weights:
            raise UsageError(f"FedGLM: {self.offset!r} is both the offset and the weights")
        if (self.dp is not None and self.family != "binomial") != (self.clip_residuals is not None):
            raise UsageError(
                f"FedGLM({self.family!r}): clip_residuals= bounds what one row changes with dp=, "
                "for all families but the binomial, where it is bounded",
                hint="FedGLM('poisson', dp=so.DP(…), clip_residuals=5.0)",
            )
        if self.dp is not None:
            self.dp.need_clip(self, "the length of the columns of a row")
            if self.weights is not None:
                raise UsageError.of(self, "weights", self.weights, "let a row count for many")

    def parameters_of_output(self, schema: Schema) -> int:
        return 1 + int(design_columns(schema, self.offset, self.weights).sum())

    def train(self, federation: Federation) -> None:
        self._check_target()
        names = self._terms()
        self.params_ = np.zeros(len(names))
        if self.dp is not None:
            self._train_privately(federation)
            return
        for r in self.each_round(federation, rounds=self.rounds):
            payload = {**self._standing(), "start": r.index == 0}
            total = r.ask(step_sums, payload, quorum=len(r.clients)).fold(Sum())
            gram, moment = total["gram"], total["moment"][:, 0]
            step = newton_step(gram, moment, names)
            self.params_ = self.params_ + step
            self.covariance_, self.rows_ = covariance(gram), int(total["rows"])
            size = self._moved(step, gram)
            if self.family == "binomial" and is_closed(federation):
                self._check_separation(r.index, size, step, float(gram[0]))
            r.log(step=size)
            if size <= CONVERGED and r.index > 0:
                r.stop("the estimates do not change any more")
        if self.history_[-1]["step"] > CONVERGED or len(self.history_) < 2:
            raise DataError(
                f"FedGLM has not converged in {self.rounds} rounds",
                hint="more rounds=; or a column tells the classes apart without error",
            )
        self._ask_likelihood(federation)

    def _check_separation(self, round: int, size: float, step: FloatArray, weight: float) -> None:
        """Refuse a fit that tells the classes apart, or would for some rows: it fixes their labels.

        Then Σ w = Σ μ (1 − μ) goes to 0, or coefficients grow by about as much in every step
        (Albert & Anderson 1984), where a fit of overlapping classes converges in a few.
        """
        apart = round > 0 and weight < _LEAST_WEIGHT
        if not apart and not (round >= _MOST_STEPS and size > _SLOW):
            return
        names = growing_terms(step[1:], self.params_[1:], self._terms()[1:])
        by = "all columns together" if apart else names
        raise DataError(
            f"FedGLM: the classes are told apart without error, by {by}: the fit would fix labels "
            "of single persons",
            hint="leave such columns out (so.learn.FedSelect), or so.FedHEONN(lam=0.1)",
        )

    def _train_privately(self, federation: Federation) -> None:
        for r in self.each_round(federation, rounds=self.rounds):
            replies = r.ask(step_sums, {**self._bounded(), "start": r.index == 0})
            total = replies.fold(Sum())
            gram, moment = total["gram"], total["moment"][:, 0]
            self.params_ = self.params_ + damped_step(gram, moment, replies.ask.payload)
            self.rows_ = int(total["rows"])

    def _moved(self, step: FloatArray, gram: FloatArray) -> float:
        """How far a step moved the linear predictor, as a share of it; lengths are √(bᵀ ZᵀWZ b).

        Where the scale is known, no less than a standard error is taken for the whole of it.
        """
        information = symmetric(gram)
        least = LEAST if FAMILIES[self.family].dispersed else 1.0
        whole = float(self.params_ @ information @ self.params_)
        moved = float(step @ information @ step)
        return float(np.sqrt(max(moved, 0.0) / max(whole, least)))

    def _ask_likelihood(self, federation: Federation) -> None:
        """The scale and what depends on it; twice where it is estimated."""
        if self.df_residual <= 0:
            raise DataError(f"{self.rows_} rows are too few for {len(self.params_)} terms")
        self.scale_, scale = 1.0, 1.0
        for _ in range(2 if FAMILIES[self.family].dispersed else 1):
            payload = {**self._standing(), "scale": scale}
            replies = federation.ask(likelihood_sums, payload, quorum=len(federation))
            total = replies.fold(Sum())
            if FAMILIES[self.family].dispersed:
                self.scale_ = float(total["pearson"]) / self.df_residual
                by = self.rows_ if self.family == "gaussian" else self.df_residual
                scale = max(float(total["pearson"]) / by, LEAST)
        self.covariance_ = self.scale_ * self.covariance_
        self.deviance_ = float(total["deviance"])
        self.log_likelihood_ = float(total["likelihood"])

    def _model(self) -> dict[str, Any]:
        return {"family": self.family, "offset": self.offset, "weights": self.weights}

    def _standing(self) -> dict[str, Any]:
        return {**self._model(), "coef": self.params_, "classes": self.schema_.classes}

    def _bounded(self) -> dict[str, Any]:
        bound = {} if self.clip_residuals is None else {"clip_residuals": self.clip_residuals}
        return {**self._standing(), **bound}

    def _check_target(self) -> None:
        """Raise :class:`DataError` for a target that the family is not of."""
        schema, family = self.schema_, FAMILIES[self.family]
        wanted = ("classes", 2) if self.family == "binomial" else ("numbers", 1)
        if (schema.target, schema.outputs) != wanted:
            raise DataError(
                f"FedGLM({self.family!r}) needs a target of {family.responses}, here are "
                f"{schema.outputs} {schema.target}",
                hint="whole numbers are read as classes: y.astype(float) makes them numbers",
            )

    def _terms(self) -> list[str]:
        used = design_columns(self.schema_, self.offset, self.weights)
        features = zip(self.schema_.features, used, strict=True)
        return ["intercept", *(feature.name for feature, is_used in features if is_used)]

    # --- what was learned ---

    @property
    def df_residual(self) -> int:
        """Rows less terms."""
        return self.rows_ - len(self.params_)

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2 terms − 2 log-likelihood; a scale is not counted as a term."""
        self._check_judged()
        return 2 * len(self.params_) - 2 * self.log_likelihood_

    @property
    def standard_errors(self) -> FloatArray:
        """Of the intercept and every coefficient."""
        self._check_judged()
        return np.sqrt(np.diag(self.covariance_))

    def summary(self, level: float = 0.95) -> Summary:
        """Estimates, standard errors, p-values and confidence intervals.

        Statistics are t where the scale is estimated, normal for binomial and Poisson.
        """
        self._check_judged()
        family = FAMILIES[self.family]
        of_class = f", odds of {self.schema_.positive!r}" if self.schema_.positive else ""
        return Summary(
            f"{self.family} model{of_class}",
            self._terms(),
            self.params_,
            self.standard_errors,
            float(self.df_residual) if family.dispersed else None,
            level,
            [
                ("rows", self.rows_),
                ("deviance", self.deviance_),
                ("scale", self.scale_),
                ("log-likelihood", self.log_likelihood_),
                ("AIC", self.aic),
            ],
            family.ratios,
        )

    def _check_judged(self) -> None:
        """Raise :class:`UsageError` where only the estimates are known."""
        self.check_fitted()
        if self.dp is not None:
            raise UsageError(
                "FedGLM(dp=…): standard errors and the likelihood would cost privacy and were not "
                "asked for",
                hint="params_ and predict",
            )

    def _repr_html_(self) -> str:
        fitted = "covariance_" in vars(self) and "deviance_" in vars(self)
        return self.summary()._repr_html_() if fitted else super()._repr_html_()

    def _means(self, X: Any) -> FloatArray:
        X = dense(self.check_rows(X)).astype(np.float64)
        used = design_columns(self.schema_, self.offset, self.weights)
        offset = named_column(X, self.schema_, self.offset, 0.0)
        eta = X[:, used] @ self.params_[1:] + self.params_[0] + offset
        return FAMILIES[self.family].mean(eta)

    def predict(self, X: Any) -> Array:
        """The expected response of every row, or its more likely class."""
        mu = self._means(X)
        if self.schema_.target != "classes":
            return mu
        chosen: Array = self.schema_.classes[(mu > 0.5).astype(np.int64)]
        return chosen

    def predict_proba(self, X: Any) -> FloatArray:
        """The probabilities of the two classes of a binomial model, rows × 2."""
        self.check_has_classes()
        mu = self._means(X)
        return np.column_stack([1 - mu, mu])
