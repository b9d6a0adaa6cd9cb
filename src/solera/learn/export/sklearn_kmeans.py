"""scikit-learn's k-means for rows of any type of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import cluster
from sklearn.utils import check_array


class KMeans(cluster.KMeans):  # type: ignore[misc]
    """k-means whose centroids of float64 take float32 rows too, which its base refuses."""

    def predict(self, X: Any) -> Any:
        return super().predict(check_array(X, accept_sparse="csr", dtype=np.float64))
