"""What learners of trees share: classes or one number, predicted by one tree or by many."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from solera.core.clients import Array, FloatArray
from solera.core.errors import DataError
from solera.learn.base import Predictor


class TreePredictor(Predictor, abstract=True):
    """A learner of classes, or of one number, whose model is a tree or many."""

    allows_missing = True
    takes_categories = True
    closed_job: ClassVar[str | None] = (
        "trees of single clients are no sum; so.FedHistGBDT() or so.FedID3()"
    )

    @abstractmethod
    def outputs(self, X: Any) -> FloatArray:
        """Probabilities of the classes, or one number: rows × outputs."""

    @property
    @abstractmethod
    def feature_importances_(self) -> FloatArray:
        """Share of each column in what the trees' splits gain."""

    def predict_proba(self, X: Any) -> FloatArray:
        """Probability of every class."""
        self.check_has_classes()
        return self.outputs(X)

    def predict(self, X: Any) -> Array:
        outputs = self.outputs(X)
        if self.schema_.target == "classes":
            return np.asarray(self.schema_.classes[outputs.argmax(axis=1)])
        return outputs[:, 0]

    def report_sections(self) -> list[tuple[str, Any]]:
        """What a report shows of the trees: the importance of columns."""
        from solera.learn.trees.plots import plot_importance

        return [("Importance", plot_importance(self.feature_importances_, self.schema_))]

    def check_target(self) -> None:
        """Refuse a target other than classes or one number."""
        target, outputs = self.schema_.target, self.schema_.outputs
        if target != "classes" and (target, outputs) != ("numbers", 1):
            raise DataError(
                f"{type(self).__name__} learns classes or one number, the target is "
                f"{outputs} {target}",
                hint="FedLinear, FedHEONN and FedAvg learn labels and several numbers",
            )
