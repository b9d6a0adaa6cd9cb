"""k-means over rows that stay where they are gives the clusters of all rows in one place.

Ten clients hold different wines. In every round they send, per cluster, the number of their rows
and their sum. From the same start the centroids are those of scikit-learn on the joined rows,
however the rows are spread.

    python examples/clusters_without_rows.py
"""

from __future__ import annotations

import numpy as np
from sklearn.cluster import KMeans

import solera as so


def main() -> None:
    X, y = so.datasets.load("wine").all
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    together = KMeans(3, n_init=10, random_state=0).fit(X)

    fed = so.simulate(X, y, clients=10, partition=so.Dirichlet(0.5, min_rows=3), seed=1)
    found = so.Pipeline(so.FedScaler(), so.FedKMeans(3)).fit(fed)
    clusters = found.predict(X)
    print("rows of every wine in the clusters")
    for wine in range(3):
        print(
            f"  wine {wine}  ", *(f"{n:4}" for n in np.bincount(clusters[y == wine], minlength=3))
        )

    start = X[[0, 70, 150]]
    federated = so.FedKMeans(3, init=start, tolerance=1e-9).fit(fed)
    joined = KMeans(3, init=start, n_init=1, tol=0).fit(X)
    difference = np.abs(federated.centroids_ - joined.cluster_centers_).max()
    rounds = len(federated.history_)
    print(f"{rounds} rounds from the same start; centroids differ by {difference:.0e}")
    print(
        f"sum of squared distances: {federated.inertia_:.1f}, best of ten {together.inertia_:.1f}"
    )
    print(
        f"bytes a client sends in a round: {fed.meter.total().up // len(fed.meter.records) // 10:,}"
    )


if __name__ == "__main__":
    main()
