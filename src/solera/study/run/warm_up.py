"""A little of a training before it is measured, so that no learner pays for being the first."""

from __future__ import annotations

import logging
import warnings
from contextlib import suppress
from typing import Any

import numpy as np

from solera.core import rng
from solera.data.dataset import Dataset
from solera.simulate.simulation import simulate
from solera.study.files.tables import Variant
from solera.study.names import chain_of

_ROWS = 100
_REPEATED = ("rounds", "epochs", "trees")
_warm: set[tuple[str, ...]] = set()


def warm_up(variant: Variant, dataset: Dataset) -> None:
    """Fit the learner for one round to a few rows, once in a process for each kind and data set.

    Modules are imported and libraries begin their threads. What goes wrong with so few rows is of
    no concern, and nothing of it stays.
    """
    kinds = (variant.data.name, *(kind for kind, _ in chain_of(variant.learner)))
    if kinds in _warm or dataset.y is None:
        return
    _warm.add(kinds)
    log = logging.getLogger("solera")
    before, log.disabled = log.disabled, True
    try:
        with suppress(Exception), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            _train_a_little(variant.learner.clone(), dataset)
    finally:
        log.disabled = before


def _train_a_little(learner: Any, dataset: Dataset) -> None:
    names = [name for name in learner.get_params() if name.rpartition("__")[2] in _REPEATED]
    for name in names:
        with suppress(Exception):
            learner.set_params(**{name: 1})
    rows = dataset.X.shape[0]
    chosen = rng.generator(0, "study.warm_up").choice(rows, min(rows, _ROWS), replace=False)
    X, y = dataset.X[chosen], dataset.y[chosen]
    model = learner.fit(simulate(X, y, clients=2, schema=dataset.schema), progress=False)
    if model.predicts:
        (model.at(0) if model.is_personal else model).predict(X)
