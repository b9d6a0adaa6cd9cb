"""FedTorch: a training loop of one's own, federated (McMahan et al. 2017, Algorithm 1).

Every round the chosen clients get the model, run the loop on their own rows and send what it
changed; the coordinator moves the model by the weighted mean of that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Self

from solera.core.errors import DataError, Refusal, UsageError
from solera.core.federation import Federation
from solera.evaluation.evaluation import Evaluation
from solera.learn.averaging.loops.client_side import put_private
from solera.learn.averaging.loops.evaluation import evaluation_of
from solera.learn.averaging.loops.functions import stable_name
from solera.learn.averaging.loops.prediction import Prediction
from solera.learn.averaging.loops.rounds import LoopRounds
from solera.learn.averaging.private_rounds import check_dp
from solera.learn.averaging.update_averaging import UNTRAINED
from solera.learn.averaging.updates import check_steps
from solera.learn.client_models import PRIVATE

log = logging.getLogger("solera")


class FedTorch(LoopRounds):
    """Federated averaging of a PyTorch model by a training loop of one's own.

    The loop may use any optimiser, several losses or networks, mixed precision: whatever it does to
    ``model.parameters()`` is averaged. All else is as in :class:`FedAvg`.

    >>> import numpy as np, torch, solera as so
    >>> def model():
    ...     return torch.nn.Linear(4, 2)
    >>> def train(model, loader, context):
    ...     optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     for X, y in loader:
    ...         optimiser.zero_grad()
    ...         loss = torch.nn.functional.cross_entropy(model(X), y)
    ...         loss.backward()
    ...         optimiser.step()
    ...     return {"loss": loss}
    >>> X = np.random.default_rng(0).normal(size=(60, 4))
    >>> fed = so.simulate(X, (X[:, 0] > 0).astype(int), clients=3, seed=0)
    >>> so.FedTorch(model, train=train, rounds=5).fit(fed).predict(X).shape
    (60, 2)

    Parameters
    ----------
    model: a function that makes the network, an ``nn.Module`` or a table of them by name; in
        simulation also the network itself. Parameters that are frozen then are no part of the
        federated model: every client makes the same.
    train: ``train(model, loader, context)`` trains the model that it is given. It returns nothing
        or metrics: numbers, or pairs of a number and its weight; ``"examples"`` is how many rows
        the client counts for. The :class:`context <solera.learn.averaging.loops.context.Context>`
        knows round, device, classes, config and what the client keeps.
    evaluate: ``evaluate(model, loader, context)`` returns metrics of rows that are not trained on:
        in every round those of its clients' validation rows, or else of their test rows.
    predict: ``predict(model, batch, context)``; by default ``model(batch[0])``.
    data: ``data(client, part)`` makes a Dataset, an IterableDataset or a DataLoader of what a
        client holds. By default the samples of data sets as they are, and arrays in their own
        shape, with classes as indices.
    rounds, per_round, select: how often clients are asked, how many at a time, and who.
    config: what loops find in ``context.config``: a table, or a function from a round to one.
    batch_size, collate: rows of a batch (None: all), and what makes a batch of samples.
    weight: ``"examples"``, None for equal weights, or a function from a reply to its weight.
    private: names of layers or parameters that stay with each client.
    mu: FedProx's pull towards the model that was sent.
    scaffold: whether control variates take the drift of unlike clients out of their steps.
    server, server_lr: what the coordinator makes of the mean change, None, ``"momentum"``,
        ``"adam"``, ``"yogi"`` or ``"adagrad"``, and its step size, of the last three about 0.01.
    update_steps, dp, aggregate: as for :class:`FedAvg`. With ``dp=`` no metric leaves.
    metrics: the names of all metrics, which secure sums need to know.
    errors: ``"raise"`` ends the fit at the first client whose loop fails, ``"skip"`` goes on
        without it.
    device: where models are trained; by default a GPU where there is one.
    threads: of PyTorch at a client; with 1 every engine gives the same bits.

    Attributes
    ----------
    weights_, buffers_: trained parameters, and running statistics and counters, as vectors.
    """

    # --- the model ---

    def with_part(self, part: Mapping[str, Any] | None, owner: str = "") -> Self:
        if self._hidden is None or self._hidden_buffers is None:
            return self
        if part is None:
            raise UsageError("FedTorch trains no common head", hint="model.at(client) has its own")
        if PRIVATE not in part:
            raise Refusal(UNTRAINED)
        weights, buffers = self.weights_.copy(), self.buffers_.copy()
        put_private(weights, buffers, (self._hidden, self._hidden_buffers), part[PRIVATE])
        model = self._with(weights, owner)
        model.buffers_ = buffers
        return model

    def for_prediction(self) -> Self:
        model = self.clone()
        for name in ("schema_", "weights_", "buffers_", "layout_", "owner_"):
            if name in vars(self):
                setattr(model, name, getattr(self, name))
        return model

    def module(self) -> Any:
        """The trained network, ready to predict; of several a table by name."""
        return self._prediction().network

    def state_dict(self) -> dict[str, Any]:
        """The ``state_dict`` of the trained network; of several a table of them."""
        network = self.module()
        if isinstance(network, Mapping):
            return {name: part.state_dict() for name, part in network.items()}
        return dict(network.state_dict())

    def predict(self, X: Any) -> Any:
        """What ``predict=`` gives for the batches of rows, a data set or a loader.

        Arrays and tensors are concatenated; whatever else comes is a list, one entry a batch.
        """
        return self._prediction().predict(X)

    def _prediction(self) -> Prediction:
        self.check_fitted()
        self.check_common()
        return Prediction(self)

    def score(self, X: Any, y: Any = None) -> float:
        """The first of the metrics that ``evaluate=`` gives; see :meth:`evaluate`."""
        figures = self.evaluate(X, "all", y=y).metrics
        if not figures:
            raise DataError("evaluate= gave no metric of these rows")
        named = [name for name in self.metrics or figures if name in figures]
        return float(figures[named[0]])

    def evaluate(
        self,
        federation: Any,
        part: Any = "test",
        *,
        y: Any = None,
        per_client: bool = True,
        scores: Any = False,
        metrics: Sequence[str] = (),
    ) -> Evaluation:
        """What ``evaluate=`` says of the rows of a federation's clients, or of rows at hand."""
        if scores or metrics:
            raise UsageError("scores= and metrics= are of classes: evaluate= says what is measured")
        self.check_fitted()
        if self.evaluate_function is None:
            raise UsageError(
                "FedTorch was given no evaluate=, and knows no metric of its own",
                hint="so.FedTorch(…, evaluate=lambda model, loader, context: {…})",
            )
        if isinstance(federation, Federation):
            return evaluation_of(self, federation, part, per_client)
        return Evaluation(self._prediction().evaluate(federation, y), {}, {})

    # --- parameters ---

    def described_params(self) -> dict[str, Any]:
        described = self.get_params(deep=False)
        for role in ("model", "train", "evaluate", "predict", "data", "collate"):
            described[role] = stable_name(described[role])
        if callable(self.config):
            described["config"] = stable_name(self.config)
        return described

    def needs_to_load(self) -> list[str]:
        return ["so.load(path, model=…) takes what makes the network"]

    def check_params(self) -> None:
        super().check_params()
        vars(self).pop("_names", None)
        for role in ("train", "evaluate", "predict", "data", "collate"):
            function = self.get_params(deep=False)[role]
            needed = role == "train"
            if not (callable(function) or isinstance(function, str) or not needed):
                raise UsageError.of(self, role, function, "must be a function")
        if self.weight not in ("examples", None) and not callable(self.weight):
            raise UsageError.of(
                self, "weight", self.weight, "must be 'examples', None or a function"
            )
        check_steps(self.update_steps)
        if self.dp is None:
            return
        if self.aggregate is not None:
            raise UsageError(
                "dp= counts the noise of a mean; what a rule in its place tells is not counted",
                hint="leave aggregate= or dp= out",
            )
        if self.dp.level == "record":
            raise UsageError.of(
                self.dp, "level", "record", "must be 'client': the loop makes the gradients"
            )
        if self.scaffold:
            raise UsageError("scaffold= sends more than an update, which dp= does not protect")
        check_dp(self, self.dp)
