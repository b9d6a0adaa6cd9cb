"""Sentiment of tweets (FLEX thesis, use case 2): a frozen representation and a small head.

Offline the representation is hashed character and word n-grams (scikit-learn); no row leaves a
client for it, because hashing needs no vocabulary.
"""

from __future__ import annotations

import csv
import gzip
from typing import Any

import numpy as np

import solera as so
from solera.core.errors import DatasetUnavailable
from solera.core.rng import generator
from solera.data.files import find
from solera.published.rows import Rows, row
from solera.study.run.progress import SILENT, Progress

TITLE = "Sentiment of tweets: hashed n-grams and a small head"
SCALE_DOWN = (
    "Default: 1,024 hashed features and 5 rounds. --full: 4,096 and 40. 20,000 tweets are at hand."
)
ERRATA = ("The thesis used a pre-trained encoder; offline the representation is hashed n-grams.",)


_FILE = "sentiment140_20k.csv.gz"


def load(width: int) -> tuple[Any, Any, Any, Any]:
    """Hashed n-grams of tweets and their sentiment; a tenth of the rows is held out."""
    path = find(_FILE)
    if path is None:
        raise DatasetUnavailable(
            f"Sentiment140 is not at hand: {_FILE}", hint="put it into the folder $SOLERA_DATA"
        )
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    texts = [line["text"] for line in lines]
    y = np.array([int(line["label"]) for line in lines])
    X = hashed(texts, width)
    order = generator(0, "text").permutation(len(y))
    cut = len(y) // 10
    test, train = order[:cut], order[cut:]
    return X[train], y[train], X[test], y[test]


def hashed(texts: list[str], width: int) -> Any:
    """Rows of hashed word and character n-grams, of length one each."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import HashingVectorizer

    words = HashingVectorizer(n_features=width // 2, ngram_range=(1, 2), alternate_sign=False)
    signs = HashingVectorizer(
        n_features=width // 2, ngram_range=(3, 4), analyzer="char_wb", alternate_sign=False
    )
    rows = [vectorizer.transform(texts) for vectorizer in (words, signs)]
    return hstack(rows, format="csr").astype(np.float32)


def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """The table: accuracy of 100 clients together, and of all rows in one place."""
    width, rounds = (4096, 40) if full else (1024, 5)
    X, y, X_test, y_test = load(width)
    rows = []
    for case, clients in (("100 clients", 100), ("centralised", 1)):
        fed = so.simulate(X, y, clients=clients, seed=0)
        learner = so.FedAvg(
            so.nn.text_head(X.shape[1], 1),
            rounds=rounds if clients > 1 else max(3, rounds // 8),
            per_round=min(20, clients),
            lr=3e-3,
            optimiser="adam",
            batch_size=32,
        )
        accuracy = learner.fit(fed).score(X_test, y_test)
        rows.append(row(case, None, accuracy))
        progress.stage(case)
    return rows
