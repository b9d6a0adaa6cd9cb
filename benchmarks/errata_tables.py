"""Experiments on tables: dropout (002), clients of Dry Bean (000), three dozen tweets (003)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import solera as so
from sizes import sized
from solera_studies import dropout
from solera_studies.heonn_protocol import THESIS, score_of, split
from solera_studies.rows import quiet


def dropout_rate(program: Path | None) -> None:
    """The dropout network where 76 % drop out, as in the thesis: stayers left out at random."""
    whole = so.datasets.xuetangx_actions16k(test=0)
    stayed, left = np.flatnonzero(whole.y == 0), np.flatnonzero(whole.y == 1)
    kept = np.random.default_rng(0).permutation(stayed)[: round(len(left) * 0.24 / 0.76)]
    rows = np.sort(np.concatenate([kept, left]))[:: sized(1, tiny=12)]
    students = dropout.Students(
        np.log1p(whole.X[rows]), whole.y[rows], np.arange(len(rows)), None, range(1)
    )
    make = dropout.learners(students.width)[dropout.NETWORK]
    with quiet():
        lines = dropout._rounds_and_epochs(students, dropout.NETWORK, make, lambda words: None)
    print(f"  {len(rows):,} rows, {students.y.mean():.2f} drop out")
    for line in lines:
        if line["cell"] is not None or "best epoch" in line["label"]:
            print(f"  {line['label']}: {line['measured']:.3f}, thesis {line['thesis']}")


def beans(program: Path | None) -> None:
    """Dry Bean with the rows that 1,000 and 50 clients of equal size can have, in ten orders."""
    X, y, X_test, y_test = split("drybean")
    for clients in (1000, 50):
        size = len(X) // clients
        found = []
        for seed in range(sized(10, tiny=2)):
            rows = np.random.default_rng(seed).permutation(len(X))[: clients * size]
            fed = so.simulate(X[rows], y[rows], clients=1, seed=0)  # in any grouping the same
            with quiet():
                found.append(score_of(so.FedHEONN(lam=0.01, **THESIS).fit(fed), X_test, y_test))
        print(f"  {clients:,} clients of {size} rows: {min(found):.2f} to {max(found):.2f}")


def tweets(program: Path | None) -> None:
    """How often 36 or 29 tweets come out as Table 1.4 prints them, by the accuracy of 2,000."""
    from scipy.stats import binom

    for framework, accuracy, right, of in (("TFF", 0.765, 32, 36), ("Flower", 0.769, 28, 29)):
        chance = binom.sf(right - 1, of, accuracy)
        print(
            f"  {framework}: {right} or more of {of} right with {accuracy}: one of {1 / chance:.0f}"
        )
