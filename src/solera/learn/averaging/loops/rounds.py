"""The rounds of loops: what clients are asked, and what becomes of their replies."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import Array, BoolArray
from solera.core.component import describe
from solera.core.constraints import Count, NonNegative, Positive
from solera.core.errors import DataError, NotEnoughReplies, TaskError, UsageError
from solera.core.federation import Federation
from solera.core.replies import Failure
from solera.core.rounds import Round
from solera.core.schema import Schema
from solera.core.selection import Selector
from solera.evaluation.figure import Figure
from solera.learn.averaging.base import Entries
from solera.learn.averaging.loops.client_side import start, train
from solera.learn.averaging.loops.evaluation import figures_of, totals_at
from solera.learn.averaging.loops.functions import register_function
from solera.learn.averaging.loops.metrics import LoopMean, means_of
from solera.learn.averaging.loops.networks import Places
from solera.learn.averaging.server_optimisers import ServerOptimiser, server_step
from solera.learn.averaging.update_averaging import UpdateAveraging
from solera.learn.averaging.updates import UpdateStep
from solera.privacy.dp.mechanism import DP
from solera.robust.rules import Rule

log = logging.getLogger("solera")


class LoopRounds(UpdateAveraging, abstract=True):
    """Averaging of what loops of a user's make of a network; see :class:`~solera.FedTorch`."""

    update = train
    closed_job = "a loop of one's own is code, which waits for bundles; so.FedAvg(so.nn.mlp(…))"
    precision: ClassVar = "float32"
    send: ClassVar = "difference"  # type: ignore[misc]
    buffers_: Array
    layout_: dict[str, Any]
    """Names and shapes of ``parameters`` and ``buffers``, the digest of what is ``frozen``, and
    the ``seed`` that networks are made with."""
    control_: Array
    server_: dict[str, Array]
    clients_: int
    stored_as: ClassVar[Mapping[str, str]] = {
        "train": "train_function",
        "evaluate": "evaluate_function",
        "predict": "predict_function",
    }

    def __init__(
        self,
        model: Any,
        *,
        train: Any,
        evaluate: Any = None,
        predict: Any = None,
        data: Any = None,
        rounds: int = 10,
        per_round: int | None = None,
        select: Selector | None = None,
        config: Any = None,
        batch_size: Count | None = 32,
        collate: Any = None,
        weight: Any = "examples",
        private: Sequence[str] = (),
        mu: NonNegative = 0.0,
        scaffold: bool = False,
        server: ServerOptimiser | None = None,
        server_lr: Positive = 1.0,
        update_steps: Sequence[UpdateStep] = (),
        dp: DP | None = None,
        aggregate: Rule | None = None,
        metrics: Sequence[str] | None = None,
        errors: Literal["raise", "skip"] = "raise",
        device: str | None = None,
        threads: Count | None = 1,
    ) -> None:
        self.model = model
        self.train_function = train
        self.evaluate_function = evaluate
        self.predict_function = predict
        self.data = data
        self.rounds = rounds
        self.per_round = per_round
        self.select = select
        self.config = config
        self.batch_size = batch_size
        self.collate = collate
        self.weight = weight
        self.private = private
        self.mu = mu
        self.scaffold = scaffold
        self.server = server
        self.server_lr = server_lr
        self.update_steps = update_steps
        self.dp = dp
        self.aggregate = aggregate
        self.metrics = metrics
        self.errors = errors
        self.device = device
        self.threads = threads

    @property
    def keeps_shape(self) -> bool:
        return True

    def check_schema(self, schema: Schema) -> None:
        """Rows of any kind: the loop reads them."""

    def begin(self, federation: Federation) -> None:
        for name in ("_hidden", "_hidden_buffers"):
            vars(self).pop(name, None)  # left from an earlier fit
        self.clients_ = len(federation)
        self._secure = federation.secure is not None
        first = self._first_values(federation)
        self.layout_ = {
            **{name: first[name] for name in ("parameters", "buffers", "frozen")},
            "seed": federation.seed,
        }
        self._first = first
        if self.private and self._hidden is not None and self._hidden.all():
            raise UsageError(f"{self!r} keeps every parameter private")
        if self.private and (self._hidden is None or not self._hidden.any()):
            names = ", ".join(name for name, _ in first["parameters"][:8])
            raise UsageError(
                f"private={list(self.private)!r} names no parameter", hint=f"there are {names}"
            )
        if self.dp is not None and first["mixes_rows"]:
            raise UsageError(
                f"FedTorch(dp=…): {first['mixes_rows']} keeps statistics of rows, which would "
                "leave without noise",
                hint="a network without batch normalisation, such as with nn.GroupNorm",
            )
        super().begin(federation)
        self._see_held_out(federation)

    def _first_values(self, federation: Federation) -> Entries:
        """The network as the first client that replies makes it with the federation's seed."""
        ask = {"model": self._names["model"], "seed": federation.seed}
        for client in federation.clients.tolist():
            replies = federation.ask(start, ask, to=[client], quorum=0)
            for reply in replies:
                first: Entries = reply.payload
                return first
            failure = replies.failures[0]
            if failure.kind == "failed":
                raise _raised(failure)
        raise NotEnoughReplies("no client made the model", replies.failures)

    def _see_held_out(self, federation: Federation) -> None:
        """Which rows are evaluated in every round; a warning where there are none."""
        sizes = {part: federation.engine.sizes(part) for part in ("validation", "test")}
        aside = [p for p, rows in sizes.items() if rows is None or rows[federation.clients].any()]
        self._part = aside[0] if aside and self.evaluate_function is not None else None
        if self.evaluate_function is not None and not aside:
            log.warning(
                "FedTorch(evaluate=…): no client keeps rows aside, so that nothing is evaluated; "
                "so.simulate(…, test=0.2) sets some aside"
            )

    def first_model(self, seed: int) -> Entries:
        if self.scaffold:
            self.control_ = np.zeros_like(self._first["weights"])
        first = self._first
        del self._first
        return self._entries(first["weights"], np.asarray(first["buffer_values"]))

    def get_model(self) -> Entries:
        return self._entries(self.weights_, self.buffers_)

    def _entries(self, weights: Array, buffers: Array) -> Entries:
        entries = {"weights": weights, "buffers": buffers}
        return {**entries, "control": self.control_} if self.scaffold else entries

    def set_model(self, model: Entries) -> None:
        self.weights_, self.buffers_ = model["weights"], model["buffers"]

    def round_config(self, round: int) -> Entries:
        return {
            **self._loop_config(round),
            "train": self._names["train"],
            "send": self.send,
            "steps": describe(list(self.update_steps)),
        }

    def _loop_config(self, round: int) -> Entries:
        """What every loop is told besides the model."""
        layout = vars(self).get("layout_", {})
        return {
            **{name: self._names[name] for name in ("model", "data", "collate")},
            "start_seed": layout.get("seed", 0),
            "frozen": layout.get("frozen", ""),
            "training": self._training(round),
            "classes": self.schema_.classes,
            "private": self._private,
            "metrics": None if self.metrics is None else list(self.metrics),
            "secure": vars(self).get("_secure", False),
            "device": self.device,
            "threads": self.threads,
        }

    def _training(self, round: int) -> Entries:
        config = self.config(round) if callable(self.config) else self.config
        return {
            "rounds": self.rounds,
            "batch_size": self.batch_size,
            "mu": float(self.mu),
            "config": dict(config or {}),
        }

    def round_aggregation(self) -> Aggregation:
        entries = ["rows"]
        if self.dp is not None and self.dp.adaptive is not None:
            entries = ["rows", "below"]
        hidden = 0 if self._hidden is None else int(self._hidden.sum())
        buffers = len(self.buffers_)
        if self._hidden_buffers is not None:
            buffers -= int(self._hidden_buffers.sum())
        return LoopMean(
            len(self.weights_) - hidden,
            steps=self.update_steps,
            weight="rows" if self.weighting == "examples" else self.weighting,
            entries=entries,
            plain={"control": len(self.weights_)} if self.scaffold else None,
            beside={"buffers": buffers} if buffers and self.dp is None else None,
            largest=self.largest_update(),
        )

    def round_origin(self) -> Entries | None:
        return None

    def fold_round(self, round: Round) -> Entries:
        try:
            mean = self._folded(round)
        except NotEnoughReplies as silence:
            failed = [failure for failure in silence.failures if failure.kind == "failed"]
            if not failed:
                raise
            raise _raised(failed[0]) from silence
        self.see_failures(round.failures)
        return mean

    def see_failures(self, failures: Sequence[Failure]) -> None:
        """End the fit at the first client whose loop failed, unless it is to go on without it."""
        failed = [failure for failure in failures if failure.kind == "failed"]
        if failed and self.errors == "raise":
            raise _raised(failed[0])

    def apply_update(self, mean: Entries) -> None:
        super().apply_update(mean)
        if "buffers" in mean:
            buffers = np.array(self.buffers_)
            shared = slice(None) if self._hidden_buffers is None else ~self._hidden_buffers
            buffers[shared] = mean["buffers"]
            self.buffers_ = buffers
        if self.scaffold:
            self.control_ = self.control_ + mean["count"] / self.clients_ * mean["control"]

    def server_step(self, change: Array) -> Array:
        if self.server is None:
            return super().server_step(change)
        memory = vars(self).get("server_", {})
        step, self.server_ = server_step(self.server, change, memory, float(self.server_lr))
        return np.asarray(step)

    def account(self, round: Round, mean: Entries) -> None:
        if self.dp is not None:
            super().account(round, mean)
            return
        metrics = means_of(mean.get("metrics", {}))
        metrics |= {n.partition(".")[2]: v for n, v in mean.items() if n.startswith("metrics.")}
        about = self.rows_of_loss(round)
        round.log(**{n: Figure(v, metric=n, **about) for n, v in metrics.items()})

    def after_round(self, round: Round) -> None:
        if self._part is None or self.dp is not None:
            return
        total = totals_at(self, round.federation, [self._part], round.clients, round.index)
        figures = figures_of(total, self._part, total["replied"], len(round.clients))
        round.log(**{f"{self._part}_{name}": figure for name, figure in figures.items()})

    def question(self, round: int) -> Entries:
        """What clients are told to evaluate the model, but for the model and the part."""
        return {**self._loop_config(round), "evaluate": self._names["evaluate"]}

    # --- names and places ---

    @cached_property
    def _names(self) -> dict[str, Any]:
        """The names under which tasks find what is the user's."""
        params = self.get_params(deep=False)
        roles = ("model", "train", "evaluate", "predict", "data", "collate")
        return {role: register_function(params[role]) for role in roles}

    @property
    def _private(self) -> list[str]:
        return list(self.private)

    @cached_property
    def _hidden(self) -> BoolArray | None:
        if not self.private:
            return None
        return Places.from_payload(self.layout_["parameters"]).select(self._private)

    @cached_property
    def _hidden_buffers(self) -> BoolArray | None:
        if not self.private:
            return None
        return Places.from_payload(self.layout_["buffers"]).select(self._private)


def _raised(failure: Failure) -> Exception:
    """The error that a client's loop ended in."""
    if isinstance(failure.error, DataError | UsageError | TaskError):
        return failure.error
    return TaskError(failure.reason)
