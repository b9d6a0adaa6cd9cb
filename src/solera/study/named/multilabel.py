"""MLFedAvg on the multi-label sets of its thesis (Tables 5.5 and 5.10: macro-F1, global test).

Three aggregations as published, an improved variant and clients alone. The improved variant has an
asymmetric loss, keeps the best round, fits the private heads to the final core and chooses
thresholds on validation rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.data import datasets
from solera.data.federated import FederatedData
from solera.data.multilabel import LabelData, deal_labels
from solera.learn.averaging import nn
from solera.learn.averaging.multilabel import MLFedAvg
from solera.simulate.simulation import simulate
from solera.study.named.rows import row
from solera.study.runner import Progress

TITLE = "MLFedAvg: shared core, private labels (Tables 5.5 and 5.10)"
SCALE_DOWN = (
    "Default: scene and yeast, one seed. --full: all sets at hand, 5 seeds (thesis: 30). At most "
    "100 rounds (thesis: 1,000). HumanPseAAC and mediamill are not at hand."
)
ERRATA = (
    "What the thesis prints as subset accuracy is Keras's categorical accuracy (argmax hits).",
    "tmc2007_500 has 7,077 rows that repeat others; only the first 21,519 are used.",
    "The thesis evaluates before the last aggregation, we after it.",
)
SETS: dict[str, tuple[int, ...]] = {
    "scene": (3, 3),
    "yeast": (4, 4, 3, 3),
    "slashdot": (10, 6, 4, 2),
    "reuters_k500": (13,) * 7 + (12,),
    "corel5k": (234, 80, 40, 20),
    "yahoo_education_brfs500": (10, 8, 6, 5, 4),
    "tmc2007_500": (5, 5, 4, 4, 4),
    "ng20": (5, 4, 4, 4, 3),
}
PUBLISHED = {  # uniform, samples, samples_labels, alone
    "scene": (0.7520, 0.7504, 0.7524, 0.7389),
    "yeast": (0.4355, 0.4377, 0.4362, 0.4771),
    "slashdot": (0.2631, 0.2850, 0.2007, 0.3657),
    "reuters_k500": (0.0441, 0.0295, 0.0594, 0.1113),
    "corel5k": (0.0163, 0.0123, 0.0146, 0.0546),
    "yahoo_education_brfs500": (0.3061, 0.2934, 0.3116, 0.2796),
    "tmc2007_500": (0.6476, 0.6125, 0.6213, 0.6614),
    "ng20": (0.7768, 0.7530, 0.7398, 0.7567),
}
SHARED: dict[str, Any] = {"rounds": 100, "batch_size": 64, "lr": 5e-3}
METHODS: dict[str, dict[str, Any]] = {
    "uniform": {"aggregation": "uniform"},
    "samples": {"aggregation": "samples"},
    "samples_labels": {"aggregation": "samples_labels"},
    "alone": {"share": False, "stop": "patience"},
    "improved": {
        "stop": "patience",
        "patience": 10,
        "label_loss": "asymmetric",
        "fine_tune": 5,
        "thresholds": True,
    },
}


def run(full: bool = False, progress: Progress | None = None) -> list[dict[str, Any]]:
    """Mean macro-F1 over clients and seeds for every set and method."""
    rows = []
    for name in SETS if full else ("scene", "yeast"):
        scores = [one_seed(name, seed) for seed in range(5 if full else 1)]
        for i, method in enumerate(METHODS):
            thesis = PUBLISHED[name][i] if i < 4 else None
            mean = float(np.mean([score[method] for score in scores]))
            rows.append(row(f"{name}, {method}", thesis, mean, form=".4f"))
        if progress is not None:
            progress.stage(name)
    return rows


def one_seed(name: str, seed: int, part: str = "macro_f1") -> dict[str, float]:
    """The score of every method on the global test rows, mean over clients."""
    X, y = datasets.load(name, test=0.0).all
    data = deal_labels(X, y, SETS[name], seed=seed)
    core = nn.mlp(X.shape[1], 100, 20)
    found: dict[str, float] = {}
    stopped = 10
    for method, options in METHODS.items():
        learner = MLFedAvg(core, **{**SHARED, **options})
        if method == "alone":
            each = [
                _score(
                    learner.set_params(patience=stopped).clone(), data.clients.only(k), data, seed
                )
                for k in range(data.clients.clients)
            ]
            found[method] = float(np.mean([score[part] for score in each if score]))
            continue
        score = _score(learner, data.clients, data, seed)
        found[method] = score[part]
        stopped = max(1, int(score["rounds_"]))
    return found


def _score(
    learner: MLFedAvg, clients: FederatedData, data: LabelData, seed: int
) -> dict[str, float]:
    federation = simulate(clients, seed=seed)
    learner.fit(federation)
    scores = learner.evaluate_clients(federation, data.X_test, data.y_test).values()
    names = next(iter(scores), {})
    mean = {name: float(np.mean([score[name] for score in scores])) for name in names}
    return {**mean, "rounds_": float(learner.rounds_)} if mean else {}
