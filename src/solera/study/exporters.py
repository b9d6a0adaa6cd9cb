"""Numbers of a training in other people's tools: TensorBoard and MLflow.

    model.fit(federation, callbacks=[so.callbacks.TensorBoard("logs"), so.callbacks.MLflow("sqlite:///mlflow.db")])

``solera runs export`` sends a stored run through the same two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from solera.core.errors import MissingExtra
from solera.core.rounds import Callback, Round

Numbers = Mapping[str, Any]


class Exporter(Callback):
    """Sends the numbers of every round elsewhere; :meth:`send` says where."""

    def open(self, params: Numbers) -> None:
        """Before the first number."""

    def send(self, name: str, value: float, step: int) -> None:
        """One number of a round."""

    def close(self) -> None:
        """After the last number."""

    def send_all(self, numbers: Numbers, step: int) -> None:
        """Every number among some values."""
        for name, value in numbers.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and name != "round":
                self.send(name, float(value), step)

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        params = {name: repr(value) for name, value in learner.get_params(deep=False).items()}
        self.open({"learner": type(learner).__name__, **params})

    def on_round(self, learner: Any, round: Round) -> None:
        self.send_all(round.metrics, round.index)

    def on_end(self, learner: Any) -> None:
        self.close()


class TensorBoard(Exporter):
    """Writes event files that ``tensorboard --logdir FOLDER`` shows (extra ``tensorboard``)."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def open(self, params: Numbers) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError:
            raise MissingExtra.of("TensorBoard", "tensorboard") from None
        self._writer = Writer(str(self.folder))

    def send(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class MLflow(Exporter):
    """Logs a run to an MLflow server or database (extra ``mlflow``).

    ``uri`` is the tracking URI, for example ``"sqlite:///mlflow.db"``; ``run`` names the run.
    ``run_id_`` is its id when it has been opened.
    """

    run_id_: str

    def __init__(self, uri: str, *, experiment: str = "solera", run: str | None = None) -> None:
        self.uri = uri
        self.experiment = experiment
        self.run = run

    def open(self, params: Numbers) -> None:
        try:
            from mlflow import MlflowClient
        except ImportError:
            raise MissingExtra.of("MLflow", "mlflow") from None
        self._connection = MlflowClient(tracking_uri=self.uri)
        known = self._connection.get_experiment_by_name(self.experiment)
        experiment = (
            self._connection.create_experiment(self.experiment)
            if known is None
            else known.experiment_id
        )
        self.run_id_ = self._connection.create_run(experiment, run_name=self.run).info.run_id
        for name, value in params.items():
            if value is not None:
                self._connection.log_param(self.run_id_, name, str(value)[:500])

    def send(self, name: str, value: float, step: int) -> None:
        self._connection.log_metric(self.run_id_, name, value, step=step)

    def close(self) -> None:
        self._connection.set_terminated(self.run_id_)
