"""Vertical learning: joined rows, the parties apart, and the label owner alone.

Chapter 5 of 002 describes vertical learning and prints no number: none of the tools that its author
tried could be made to run. This is the experiment that it asks for. Columns are divided evenly
between two parties, the first of which holds the labels. What the parties learn together without
showing their columns stands between what scikit-learn learns from all columns in one place and from
the label owner's own, all judged on the same rows.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import solera as so
from solera.data.dataset import Dataset
from solera.data.vertical_data import frame_of
from solera.study.run.progress import SILENT, Progress
from solera_studies.rows import OURS, Rows, quiet, row
from solera_studies.theses import Cell

TITLE = "Vertical learning: joined, apart, and the label owner alone (chapter 5 of 002)"
TABLES = ()
SCALE_DOWN = "By default heart and German credit; --full: credit2 and Adult as well."
DIFFERS = "every row is ours: the chapter prints no number"
ERRATA = ("The chapter reports that no tool could be made to run; it has no numbers to compare.",)
SIZES = {False: "whole sets", True: "whole sets"}
LEFT_OUT: dict[str, str] = {}
TEST = 0.25


def planned(full: bool) -> list[Cell]:
    """No thesis prints such a number."""
    return []


def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """The area under the ROC curve on a quarter of the rows, of every learner and scheme."""
    lines = []
    names = ("heart_cleveland", "german_credit", *(("credit2", "adult") if full else ()))
    with quiet():
        for name in names:
            data = so.datasets.load(name)
            for kind in LEARNERS:
                progress.stage(f"{name}, {kind}")
                for scheme, auc in _compared(data, kind).items():
                    label = f"{name}, {kind}, {scheme}"
                    lines.append(row(label, None, auc, protocol=OURS, form=".3f"))
    return lines


def _split_network() -> Any:
    return so.SplitNN(8, epochs=15, lr=0.01, optimiser="adam", batch_size=64, test=TEST)


LEARNERS: dict[str, Any] = {
    "network": _split_network,
    "logistic regression": lambda: so.VerticalLogisticRegression(test=TEST),
    "boosting": lambda: so.SecureBoost(rounds=20, test=TEST),
}


def _compared(data: Dataset, kind: str, seed: int = 0) -> dict[str, float]:
    """The area under the curve of every scheme, on the rows that the federation sets aside."""
    frame = frame_of(data, target="target", id="id")
    first = np.unique(np.asarray(frame["target"]))[0]
    frame["target"] = np.asarray(frame["target"] != first).astype(int)
    features = [c for c in frame.columns if c not in ("target", "id")]
    half = (len(features) + 1) // 2
    columns = {"owner": features[:half], "other": features[half:]}
    fed = so.simulate_vertical(frame, columns=columns, target="target", id="id", seed=seed)
    model = LEARNERS[kind]().fit(fed)
    found = {"apart": float(model.evaluate(fed, scores=True)["auroc"])}
    kept = model.part(fed, "owner")["trained"]
    identifiers = fed.data.parties[0].identifiers[kept["order"]]
    rows = frame.set_index("id").loc[identifiers]
    train, test = rows[: kept["ends"][0]], rows[kept["ends"][1] :]
    found["joined"] = _in_one_place(kind, train, test, features)
    found["label owner alone"] = _in_one_place(kind, train, test, columns["owner"])
    return found


def _in_one_place(kind: str, train: Any, test: Any, columns: list[str]) -> float:
    """What scikit-learn's own learner of the kind makes of these columns."""
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    text = [c for c in columns if train[c].dtype.kind not in "fiu"]
    numbers = [c for c in columns if c not in text]
    prepare = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), text),
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
    )
    learner: Any = {
        "network": MLPClassifier((16, 32), max_iter=15, batch_size=64, random_state=0),
        "logistic regression": LogisticRegression(max_iter=1000),
        "boosting": HistGradientBoostingClassifier(
            max_iter=20, max_depth=3, max_bins=32, early_stopping=False
        ),
    }[kind]
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # as many epochs
        fitted = make_pipeline(prepare, learner).fit(train[columns], train["target"])
    return float(roc_auc_score(test["target"], fitted.predict_proba(test[columns])[:, 1]))
