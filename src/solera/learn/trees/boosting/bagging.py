"""FedBagging: boosted trees of XGBoost or LightGBM at every client, one ensemble of all."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

import numpy as np

from solera.core.aggregation import Collect
from solera.core.clients import Array, Client, FloatArray, IntArray
from solera.core.constraints import Count
from solera.core.errors import DataError, MissingExtra
from solera.core.federation import Federation
from solera.core.task import task
from solera.learn.averaging.training.losses import targets_of
from solera.learn.base import Predictor
from solera.learn.rows import dense

Library = Literal["xgboost", "lightgbm"]
Value = bool | int | float | str


@task("trees.bag")
def boost(client: Client, ask: Any) -> dict[str, Any]:
    """Trees boosted on this client's rows alone, in the library's own format: no sum."""
    rows = client.data.part("train")
    classes = ask["classes"]
    y = targets_of(rows.y, "softmax" if len(classes) else "squared", classes, np.float64).ravel()
    X, seed = dense(rows.X), int(client.rng.integers(2**31))
    library = _library(ask["library"])
    if ask["library"] == "xgboost":
        kind = {"objective": "multi:softprob", "num_class": len(classes)}
        params = {"nthread": 1, "seed": seed, **(kind if len(classes) else {}), **ask["params"]}
        booster = library.train(params, library.DMatrix(X, y), ask["trees"])
        frame = bytes(booster.save_raw("ubj"))
    else:
        kind = {"objective": "multiclass", "num_class": len(classes)}
        kind = kind if len(classes) else {"objective": "regression"}
        quiet = {"num_threads": 1, "verbosity": -1, "deterministic": True, "seed": seed}
        booster = library.train(
            {**quiet, **kind, **ask["params"]}, library.Dataset(X, y), ask["trees"]
        )
        frame = booster.model_to_string().encode()
    return {"booster": np.frombuffer(frame, np.uint8), "rows": len(rows)}


class FedBagging(Predictor):
    """Every client boosts trees of its own by XGBoost or LightGBM; all of them predict together.

    Probabilities, or numbers, are the mean of the clients', weighted by their rows (Breiman 1996).
    Boosters do not add up: each is read by itself, which needs the policy ``trusted`` and no secure
    sum. :class:`FedHistGBDT` boosts one ensemble by sums. Needs the extra ``boosting``.

    Parameters
    ----------
    library: ``"xgboost"`` or ``"lightgbm"``.
    trees: rounds of boosting at every client.
    params: the library's own parameters, such as ``{"max_depth": 4, "learning_rate": 0.1}``.

    Attributes
    ----------
    boosters_, rows_: every client's booster in the library's format, and its rows.
    """

    allows_missing = True
    closed_job = (
        "boosters of clients are read one by one, which is no sum; so.FedGLM(), so.FedHEONN() or "
        "so.FedLinear()"
    )
    boosters_: list[Array]
    rows_: IntArray

    def __init__(
        self,
        library: Library = "xgboost",
        *,
        trees: Count = 50,
        params: Mapping[str, Value] | None = None,
    ) -> None:
        self.library = library
        self.trees = trees
        self.params = params

    def train(self, federation: Federation) -> None:
        replies = federation.ask(boost, self._ask()).fold(Collect())
        self.boosters_ = [reply["booster"] for reply in replies.values()]
        self.rows_ = np.array([reply["rows"] for reply in replies.values()], dtype=np.int64)

    def _ask(self) -> dict[str, Any]:
        target, outputs = self.schema_.target, self.schema_.outputs
        if target not in ("classes", "numbers") or (target == "numbers" and outputs > 1):
            raise DataError(f"FedBagging needs classes or one number, the target is {target}")
        _library(self.library)
        return {
            "library": self.library,
            "trees": self.trees,
            "params": dict(self.params or {}),
            "classes": self.schema_.classes,
        }

    def _outputs(self, X: Any) -> FloatArray:
        X = dense(self.check_rows(X))
        library = _library(self.library)
        total: Any = 0.0
        for frame, rows in zip(self.boosters_, self.rows_.tolist(), strict=True):
            if self.library == "xgboost":
                booster = library.Booster()
                booster.load_model(bytearray(frame.tobytes()))
                total = total + rows * booster.predict(library.DMatrix(X))
            else:
                booster = library.Booster(model_str=frame.tobytes().decode())
                total = total + rows * booster.predict(X)
        return np.asarray(total / self.rows_.sum(), dtype=np.float64)

    def predict_proba(self, X: Any) -> Array:
        """Probability of every class."""
        self.check_has_classes()
        return self._outputs(X)

    def predict(self, X: Any) -> Array:
        self.check_fitted()
        outputs = self._outputs(X)
        if self.schema_.target == "numbers":
            return outputs
        return np.asarray(self.schema_.classes[outputs.argmax(axis=1)])


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra.of(f"boosting by {name}", "boosting") from error
