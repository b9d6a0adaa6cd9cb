"""FedHEONN: the coordinator's side."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import reduce
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from solera.core.aggregation import Aggregation, ByFold, Fields, Sum
from solera.core.clients import FloatArray, IntArray
from solera.core.constraints import Count, NonNegative, NonNegativeInt
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.rng import generator
from solera.core.schema import Schema
from solera.core.task import Task
from solera.learn.base import Additive, as_federation
from solera.learn.closed import is_closed
from solera.learn.heonn.activations import HIGH, LOW, Layout, Name, activation, layout_of, levels
from solera.learn.heonn.algebra import (
    Grams,
    SumOf,
    gram_of,
    per_output,
    solve,
    solve_factor,
    solve_path,
)
from solera.learn.heonn.choosing import choose_lam
from solera.learn.heonn.encryption import Encryption, Problem, spares_one
from solera.learn.heonn.ensemble import RandomPatches, decide, probabilities
from solera.learn.heonn.hidden import Kind, hidden
from solera.learn.heonn.key_holder import decrypt
from solera.learn.heonn.private import largest_eigenvalue, positive
from solera.learn.heonn.statistics import check_labels, with_bias, with_ones
from solera.learn.heonn.tasks import statistics
from solera.privacy.dp.mechanism import DP
from solera.privacy.he.ciphertexts import Encrypted
from solera.privacy.he.sums import EncryptedSum

log = logging.getLogger("solera")

MOST_FOLDS = 20
"""Clients are left out one by one, or, when there are more, in this many groups."""
SMALL_LAM = 1e-8
"""Below this λ a factor of the Gram matrix is kept rather than the matrix."""


class FedHEONN(Additive):
    """A one-layer network trained in closed form from one message of every client.

    For each output, w = (Σ_p X_pᵀ F_p² X_p + λI)⁻¹ Σ_p X_pᵀ F_p² d̄_p with d̄ = f⁻¹(d) and
    F = diag f′(d̄) (Fontenla-Romero, Guijarro-Berdiñas, Hernández-Pereira & Pérez-Sánchez 2023,
    *FedHEONN*). The sums do not care how rows are split over clients, in which order clients
    arrive or when: the result is that of the joined rows.

    Parameters
    ----------
    activation: f of the outputs: "logistic", "softplus" (also called "relu") or "linear".
        Numbers to predict must lie in its range; "linear" takes any.
    lam: λ ≥ 0, or several: the one with the least error on clients left out is chosen, from the
        same single message (see :attr:`lam_errors_`).
    derivative: "exact", or "thesis" for the slip described in :mod:`.activations`.
    ensemble: None, or :class:`RandomPatches`.
    vote: how members decide: "majority" of classes or labels (ties to the smaller one), or the
        "mean" of their outputs. Numbers are always averaged.
    rule: the class of an output vector: its largest ("argmax"), or the one "nearest" to 0.95.
    features: None, or random hidden features, "fourier" or "random_layer"; see :mod:`.hidden`.
    hidden, scale: number of hidden features, and the spread of their weights.
    representation: what clients send: "gram" matrices, "svd" for a factor of them, "auto" for the
        smaller of the two. With λ < 1e-8, "auto" and "svd" also solve from the factor, which
        is better for nearly collinear columns.
    encrypt: None, or :class:`Encryption` of the moments.
    min_rows: clients with fewer rows refuse; see :func:`.tasks.statistics` for why.
    dp: None, or :class:`so.DP <solera.privacy.dp.mechanism.DP>` with ``level="record"`` and
        ``clip``, the longest that the features of a row may be; see :mod:`.private`. For classes
        and labels; λ is at least the largest eigenvalue that the noise may have.

    Attributes
    ----------
    weights_: columns (bias first) × outputs, for an ensemble members × columns × outputs.
    lam_: the λ in use. lam_errors_: error of each λ that was tried.
    """

    contribution = statistics
    statistics_: Any
    agreed_: dict[str, Any]
    sealed_: dict[str, Any]
    solution_: FloatArray
    patches_: IntArray
    hidden_: dict[str, Any]
    lam_: NonNegative
    lam_errors_: dict[str, float]

    def __init__(
        self,
        activation: Name = "logistic",
        *,
        lam: float | Sequence[float] = 0.01,
        derivative: Literal["exact", "thesis"] = "exact",
        ensemble: RandomPatches | None = None,
        vote: Literal["majority", "mean"] = "majority",
        rule: Literal["argmax", "nearest"] = "argmax",
        features: Kind | None = None,
        hidden: Count = 1000,
        scale: float = 1.0,
        representation: Literal["auto", "gram", "svd"] = "auto",
        encrypt: Encryption | None = None,
        min_rows: NonNegativeInt = 1,
        dp: DP | None = None,
    ) -> None:
        self.activation = activation
        self.lam = lam
        self.derivative = derivative
        self.ensemble = ensemble
        self.vote = vote
        self.rule = rule
        self.features = features
        self.hidden = hidden
        self.scale = scale
        self.representation = representation
        self.encrypt = encrypt
        self.min_rows = min_rows
        self.dp = dp

    def check_params(self) -> None:
        super().check_params()
        lams = np.atleast_1d(np.asarray(self.lam, dtype=float))
        if not lams.size or not (lams >= 0).all():
            raise UsageError.of(self, "lam", self.lam, "must not be negative")
        if self.encrypt is not None and np.ndim(self.lam):
            raise UsageError("FedHEONN(lam=[…]) needs moments in the clear; choose lam beforehand")
        if self.dp is not None:
            self.dp.need_clip(self, "the length of the features of a row")
            if self.ensemble is not None or self.encrypt is not None or np.ndim(self.lam):
                raise UsageError("FedHEONN(dp=…) is for one layer in clear, and one lam")

    def why_not_closed(self) -> str | None:
        if np.ndim(self.lam):
            return "λ is chosen by owners that are left out one by one; give one lam="
        if self._by_factor:
            return "factors of single owners are no sum; representation='gram' and lam=1e-6 or more"
        return None

    def parameters_of_output(self, schema: Schema) -> int:
        if self.ensemble is not None:
            return 1 + int(self.ensemble.draw(schema.width, generator(0, "width")).shape[1])
        return 1 + (schema.width if self.features is None else self.hidden)

    # --- learning ---

    def partial_fit(
        self, federation: Any, y: Any = None, *, clients: ArrayLike | None = None
    ) -> Self:
        """Add what these clients have to tell (all of the federation by default).

        For clients that come late and for new rows of known ones; the result is that of a fit on
        all of them. A class that appears only later must be in the schema from the start.
        """
        if self.dp is not None:
            raise UsageError("FedHEONN(dp=…) asks once: fit knows how much noise that needs")
        federation = as_federation(federation, y)
        self._trained_with = None  # nobody counts who came before and comes later
        self._kept = None
        with federation.announced(self):
            if "statistics_" in vars(self):
                if federation.schema is not None:
                    self.check_width(federation.schema.width)
                aggregation = self.aggregation()
                more = self._ask(federation, clients, aggregation)
                self.conclude(aggregation.merge(self._earlier_statistics(), more))
                return self
            self.reset()
            self.history_ = []
            self.schema_ = self.agree_on_rows(federation)
            self.train(federation, clients)
        return self

    def agree_on_rows(self, federation: Federation) -> Schema:
        schema = super().agree_on_rows(federation)
        source = getattr(federation.engine, "source", None)
        if schema.target == "labels" and source is not None:
            for client in federation.clients.tolist():
                check_labels(client, source.segments(np.array([client]), "train").joined(), schema)
        return schema

    def train(self, federation: Federation, clients: ArrayLike | None = None) -> None:
        self.prepare(federation, clients)
        aggregation = self.aggregation()
        if np.ndim(self.lam):
            asked = np.unique(federation.clients if clients is None else clients)
            folds = min(len(asked), MOST_FOLDS)
            parts = self._ask(federation, clients, ByFold(aggregation, folds, asked.tolist()))
            self.lam_, self.lam_errors_ = choose_lam(
                np.asarray(self.lam, dtype=float), list(parts.values()), self._grams
            )
            self.conclude(reduce(aggregation.merge, parts.values()))
        else:
            self.conclude(self._ask(federation, clients, aggregation))

    def prepare(self, federation: Federation, clients: ArrayLike | None = None) -> None:
        self.check_params()
        self._check_target()
        if not np.ndim(self.lam):
            self.lam_ = float(self.lam)  # type: ignore[arg-type]
        if self.features is not None:
            self.hidden_ = {**self._hidden_layer(), "seed": federation.seed}
        if self.ensemble is not None:
            draw = generator(federation.seed, "heonn.patches")
            self.patches_ = self.ensemble.draw(self._columns - 1, draw)
        if self.encrypt is not None:
            self.agreed_ = self.encrypt.agree(federation, clients, self._plan())

    def noised_asks(self) -> int:
        return 1

    def _hidden_layer(self) -> dict[str, Any]:
        return {"kind": self.features, "width": self.hidden, "scale": float(self.scale)}

    def question(self) -> tuple[Task, dict[str, Any]]:
        if np.ndim(self.lam):
            raise UsageError(
                "FedHEONN(lam=[…]) chooses λ from all clients at once",
                hint="give one λ where clients contribute one by one",
            )
        if self.dp is not None:
            raise UsageError("FedHEONN(dp=…) asks all clients at once")
        return self.contribution, self._plan()

    def _earlier_statistics(self) -> Any:
        """What is known already; models of before 0.1 hold their squares as members × outputs."""
        known = self.statistics_
        if np.ndim(known.get("squares")) == 2:
            return {**known, "squares": known["squares"][:, None]}
        return known

    def conclude(self, total: Any) -> None:
        self.statistics_ = total
        if self.encrypt is not None:
            self.sealed_ = self.encrypt.close(total, self._problem(), self.agreed_)
            vars(self).pop("_unsealed", None)
            return
        shape, m = total["shape"], total["moments"]
        if self.dp is not None:
            ask = {**self._plan(), "privacy": self.accounts_}  # σ and C
            self.lam_ = max(self.lam_, largest_eigenvalue(ask, self._columns))
            self.solution_ = solve(positive(self._grams(shape)), m, self.lam_)
        elif self._by_factor and self._layout in ("shared", "outputs"):
            self.solution_ = solve_factor(shape["factors"], m, self.lam_)
        else:
            self.solution_ = solve(self._grams(shape), m, self.lam_)

    @property
    def _columns(self) -> int:
        """Columns of the layer below, with the bias."""
        return 1 + (self.schema_.width if self.features is None else self.hidden)

    @property
    def _member_columns(self) -> int:
        return self._columns if self.ensemble is None else 1 + self.patches_.shape[1]

    @property
    def _layout(self) -> Layout:
        return layout_of(self.schema_.target, self.activation, self.derivative)

    def _plan(self) -> dict[str, Any]:
        """What clients are asked."""
        ensemble = self.ensemble
        return {
            "width": self.schema_.width,
            "columns": self._columns,
            "outputs": self.schema_.outputs,
            "target": self.schema_.target,
            "classes": self.schema_.classes,
            "layout": self._layout,
            "activation": self.activation,
            "derivative": self.derivative,
            "representation": "svd" if self._by_factor else self.representation,
            "hidden": vars(self).get("hidden_"),
            "patches": vars(self).get("patches_"),
            "row_share": None if ensemble is None else float(ensemble.rows),
            "row_replacement": None if ensemble is None else ensemble.row_replacement,
            "min_rows": self.min_rows,
            "encrypt": self._agreed_with_clients(),
        }

    def _agreed_with_clients(self) -> dict[str, Any] | None:
        agreed = vars(self).get("agreed_")
        return agreed and {key: v for key, v in agreed.items() if key != "rotations"}

    @property
    def _by_factor(self) -> bool:
        """Whether the factor is kept to the end, for the sake of precision."""
        tiny = np.min(self.lam) < SMALL_LAM and self.encrypt is None and self.dp is None
        return self.representation == "svd" or (self.representation == "auto" and tiny)

    def aggregation(self) -> Aggregation:
        members = 1 if self.ensemble is None else len(self.patches_)
        outputs, columns = self.schema_.outputs, self._member_columns
        matrices = {"shared": 1, "labels": 1 + outputs}.get(self._layout, outputs)
        keep: Literal["gram", "factor"] = "factor" if self._by_factor else "gram"
        fields: dict[str, Aggregation] = {
            "shape": Grams(keep, [members, matrices, columns]),
            "rows": Sum(),
            "few": Sum(),
        }
        if self.encrypt is None:
            fields["moments"] = SumOf([members, columns, outputs])
            fields["squares"] = SumOf([members, 1, outputs])
        else:
            fields["moments"] = EncryptedSum(self.agreed_["fingerprint"])
        return Fields(fields)

    def _ask(
        self, federation: Federation, clients: ArrayLike | None, aggregation: Aggregation
    ) -> Any:
        replies = federation.ask(statistics, self._plan(), to=clients)
        total = replies.fold(aggregation)
        parts = total.values() if isinstance(aggregation, ByFold) else [total]
        few = sum(part["few"] for part in parts)
        if few and not is_closed(federation):
            log.warning(
                "%d clients have fewer rows than the layer has columns (%d): their Gram matrix "
                "shows the coordinator their rows up to a rotation; min_rows= turns them away",
                few,
                self._member_columns,
            )
        return total

    def _grams(self, shape: Any) -> FloatArray:
        """One matrix per member and output (or one for all outputs)."""
        weight, _ = levels(self.activation, self.derivative)
        G = gram_of(shape)
        return per_output(G, self._layout, u=float(weight[1]), v=float(weight[0]))

    def _problem(self) -> Problem:
        absent, present = activation(self.activation).inverse(np.array([LOW, HIGH]))
        return Problem(
            self._grams,
            self.lam_,
            self.schema_.outputs,
            spares_one(self._layout, self.schema_.target),
            (float(absent), float(present)),
        )

    def path(self, lams: Sequence[float]) -> FloatArray:
        """Weights for each of several λ from the clients' one message: λ × (members ×) …"""
        self.check_fitted()
        if self.encrypt is not None:
            raise UsageError("path: the moments are encrypted, only key holders can solve")
        G = self._grams(self.statistics_["shape"])
        weights = solve_path(G, self.statistics_["moments"], np.asarray(lams, dtype=float))
        return weights if self.ensemble is not None else weights[:, 0]

    # --- predicting ---

    @property
    def weights_(self) -> FloatArray:
        """The optimal weights; with encryption, only where the key is kept."""
        self.check_fitted()
        if self.encrypt is None:
            w = self.solution_
        else:
            if "_unsealed" not in vars(self):
                self._unsealed = self.encrypt.open(self.sealed_, self._problem())
            w = self._unsealed
        return w if self.ensemble is not None else w[0]

    def for_prediction(self) -> Self:
        state = self.get_state()
        for name in ("statistics_", "agreed_", "accounts_"):
            state.pop(name, None)
        return self.with_state(state)

    def outputs(self, X: Any) -> Any:
        """f of the layer for every member: members × rows × outputs."""
        f = activation(self.activation)
        Z = self._layer_below(X)
        if self.ensemble is None:
            return f.value(Z @ self.weights_)[None]
        members = zip(with_bias(self.patches_), self.weights_, strict=True)
        return f.value(np.stack([Z[:, columns] @ w for columns, w in members]))

    def _layer_below(self, X: Any) -> FloatArray:
        return with_ones(hidden(self.check_rows(X), vars(self).get("hidden_")))

    def predict(self, X: Any) -> Any:
        return decide(self.outputs(X), self.schema_, self.vote, self.rule)

    def predict_through(self, federation: Federation, X: Any, *, holder: int = 0) -> Any:
        """Predict where the weights cannot be read: client ``holder`` decrypts z of every row.

        For ``Encryption(finish="coordinator")`` or ``"compat"``, with the model as it was fitted:
        what :meth:`for_prediction` gives away has no moments. :mod:`.key_holder` says who sees
        what, and whom the key holder must trust.
        """
        Z = self._layer_below(X)
        if self.encrypt is None:
            raise UsageError("predict_through: the weights are not encrypted, use predict")
        if "statistics_" not in vars(self):
            raise UsageError("predict_through: this model was made for_prediction by key holders")
        Z = Z[None] if self.ensemble is None else Z[:, with_bias(self.patches_)].swapaxes(0, 1)
        key = self.encrypt.key

        def opened(sealed: list[Encrypted]) -> list[FloatArray]:
            asked = {"key": key, "sealed": [each.to_payload() for each in sealed]}
            return list(federation.ask(decrypt, asked, to=[holder]).collect()[0]["opened"])

        with federation.announced(self):
            z = self.encrypt.outputs(self.statistics_, self._problem(), self.agreed_, Z, opened)
        y = activation(self.activation).value(z)
        return decide(y, self.schema_, self.vote, self.rule)

    def predict_proba(self, X: Any) -> Any:
        """Share of the members' votes, or their mean output, scaled to add up to 1 for classes."""
        self.check_has_classes()
        return probabilities(self.outputs(X), self.schema_, self.vote, self.rule)

    def _check_target(self) -> None:
        if self.schema_.target == "classes" and len(self.schema_.classes) < 2:
            raise DataError("FedHEONN needs at least two classes, all rows are of one class")
        if self.encrypt is not None and self._layout in ("classes", "labels"):
            raise UsageError(
                f"FedHEONN(encrypt=…) hides nothing with activation={self.activation!r} and "
                f"derivative={self.derivative!r}: the Gram matrix of each class tells its moments",
                hint="use the exact derivative of 'logistic', or 'linear'",
            )
