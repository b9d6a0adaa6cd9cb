"""What a fitted loop says of rows at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from solera.core.errors import UsageError
from solera.data.frames import encode_target, is_frame
from solera.data.samples import is_samples
from solera.evaluation.figure import Figure
from solera.learn.averaging.loops.client_side import moved, seeded
from solera.learn.averaging.loops.context import Context
from solera.learn.averaging.loops.functions import find_function
from solera.learn.averaging.loops.metrics import examples_of, means_of, totals_of
from solera.learn.averaging.loops.networks import build_network, parameters_of
from solera.learn.averaging.loops.rows import TensorRows, loader_of, rows_in, tensors_of
from solera.learn.averaging.training.devices import find_device, torch

if TYPE_CHECKING:
    from solera.learn.averaging.loops.learner import FedTorch


class Prediction:
    """A fitted model with its network."""

    def __init__(self, learner: FedTorch) -> None:
        self.learner = learner
        layout = learner.layout_
        self._names = learner._names
        built = build_network(self._names["model"], layout["seed"], layout["frozen"])
        built.check_layout(layout)
        device = find_device(learner.device)
        self.network = moved(built.copy(learner.weights_, learner.buffers_), device)
        parts = self.network.values() if isinstance(self.network, Mapping) else [self.network]
        for part in parts:
            part.eval()
        ask = {"training": learner._training(0), "classes": learner.schema_.classes}
        self.context = Context(None, ask, device)

    def predict(self, X: Any) -> Any:
        """The answers for all batches, concatenated where they are arrays."""
        own = self._names["predict"]
        function = _first_output if own is None else find_function(own)
        with self._calm():
            loader = self._loader(X, None)
            answers = [function(self.network, batch, self.context) for batch in loader]
        return _together(answers)

    def evaluate(self, X: Any, y: Any) -> dict[str, Figure]:
        """Metrics of rows at hand."""
        if y is None and is_frame(X):
            y = self.learner._target_of(X)
        with self._calm():
            loader = self._loader(X, y)
            rows = rows_in(loader, 0)
            function = find_function(self._names["evaluate"])
            metrics = {**(function(self.network, loader, self.context) or {})}
        metrics = {**self.context.logged, **metrics}
        totals = totals_of(metrics, examples_of(metrics, rows, "evaluate"), "evaluate")
        about = {"part": "rows", "rows": rows}
        return {n: Figure(v, metric=n, **about) for n, v in means_of(totals).items()}

    @contextmanager
    def _calm(self) -> Iterator[None]:
        """No gradients, no draws that anybody else would notice."""
        with seeded(self.learner.layout_["seed"], self.learner.threads), torch().no_grad():
            yield

    def _loader(self, X: Any, y: Any) -> Any:
        t, learner = torch(), self.learner
        data = t.utils.data
        if not (is_samples(X) or isinstance(X, data.DataLoader | data.IterableDataset)):
            if not hasattr(X, "detach"):
                X = learner.check_rows(X)
                X = X.toarray() if hasattr(X, "tocsr") else X
            target = None if y is None else encode_target(y, learner.schema_)
            first = next(iter(parameters_of(self.network).values()))
            dtype = first.dtype if learner.weights_.dtype == np.float64 else t.float32
            schema = learner.schema_
            X = TensorRows(*tensors_of(X, target, schema.target, schema.classes, dtype))
        elif y is not None:
            raise UsageError("a data set has its targets already, leave y out")
        collate = None if learner.collate is None else find_function(self._names["collate"])
        return loader_of(X, learner.batch_size, collate, False, "predict")


def _first_output(network: Any, batch: Any, context: Context) -> Any:
    """The model of the first part of a batch; of a table, of its entries by name."""
    if isinstance(network, Mapping):
        raise UsageError(
            f"the model is a table of {', '.join(network)}",
            hint="predict= says which of them answers",
        )
    if isinstance(batch, Mapping):
        return network(**{n: v.to(context.device) for n, v in batch.items()})
    rows = batch[0] if isinstance(batch, tuple | list) else batch
    return network(rows.to(context.device) if hasattr(rows, "to") else rows)


def _together(answers: list[Any]) -> Any:
    plain = [a.detach().cpu().numpy() if hasattr(a, "detach") else a for a in answers]
    arrays = [a for a in plain if isinstance(a, np.ndarray) and a.ndim]
    if len(arrays) == len(plain) and len({a.shape[1:] for a in arrays}) == 1:
        return np.concatenate(arrays)
    return list(_flat(plain))


def _flat(answers: list[Any]) -> Iterator[Any]:
    """Lists of a batch's answers one after the other; anything else as it is."""
    for answer in answers:
        if isinstance(answer, list):
            yield from answer
        else:
            yield answer
