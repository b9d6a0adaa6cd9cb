"""FedKMeans: k-means over rows that stay with their owners (Kumar, Karthik & Nair 2020)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from solera.core.aggregation import Sum
from solera.core.clients import FloatArray, IntArray
from solera.core.constraints import Count, NonNegative, PositiveFraction
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.selection import Selector
from solera.core.task import Task
from solera.learn.base import Learner
from solera.learn.closed import as_job, check_jobs, count_all_persons, elsewhere, is_closed
from solera.learn.cluster import seeding
from solera.learn.cluster.assignment import nearest
from solera.learn.cluster.partition import partition
from solera.learn.cluster.tasks import assign, cost, inertia, silhouette, steps
from solera.learn.preprocess.atom_counts import prepared_edges
from solera.learn.warm_start import continued_model
from solera.privacy.dp.mechanism import DP
from solera.simulate.simulation import simulate
from solera.trust.board.engine import NotClosed

Init = Literal["k-means||", "atoms", "k-means++", "random"]
_SEEDINGS = {
    "k-means||": seeding.parallel,
    "atoms": seeding.from_groups,
    "k-means++": seeding.plus_plus,
    "random": seeding.random_start,
}


class FedKMeans(Learner):
    """k centroids such that rows are close to the nearest one.

    Every round the chosen clients send Λ_i, the number of rows of each cluster, and Λ_i Γ_i, the
    sums of these rows; with several epochs, mini-batches or a client rate below 1, Γ_i are the
    centroids as the client has moved them. Then

        Γ* = Σ_i Λ_i Γ_i / Σ_i Λ_i,      Γ ← Γ + α (Γ* − Γ)

    for every cluster. A cluster without rows keeps its centroid. With one epoch, whole batches,
    both rates 1 and all clients this is Lloyd's algorithm on all rows.

    In a closed job nothing is told of a cluster, whose rows change from round to round by a few:
    sums tell the groups of a k-d partition, each of at least ``min_count`` persons, and k-means
    over their means needs no further sum (:mod:`solera.learn.cluster.partition`). ``rounds``,
    ``tolerance`` and ``server_rate`` then mean nothing, ``counts_`` are the rows of whole groups,
    and ``inertia_`` is that of all rows.

    Parameters
    ----------
    k: number of clusters.
    rounds: how often clients are asked, at most.
    per_round: clients per round, as a number or, below 1, as a fraction C; all by default.
    epochs, batch_size: passes of a client over its rows, and rows per step (None: all of them).
    server_rate, client_rate: the steps α and β towards new centroids, above 0 and at most 1.
    init: ``"k-means||"``, ``"atoms"`` (the groups of a k-d partition, from sums alone),
        ``"k-means++"`` at the clients, ``"random"``, or k centroids. A closed job takes
        ``"atoms"`` in the place of ``"k-means||"``, and says so.
    tolerance: stop when no centroid moves farther in a round.
    select: which clients take part; :class:`Uniform` by default.
    dp: None, or :class:`so.DP <solera.privacy.dp.mechanism.DP>` with ``level="record"`` and
        ``clip``, the longest that a row may be. Then ``init`` must be k centroids, clients take
        one step over all their rows, and nobody is told the inertia.

    Attributes
    ----------
    centroids_: the centroids, k × columns.
    inertia_: Σ d² of all rows of all clients to their nearest centroids.
    counts_: rows of each cluster.
    """

    centroids_: FloatArray
    inertia_: float
    counts_: IntArray

    can_start = True
    judged_by = "so.metrics.jaccard compares clusters; model.silhouette(federation) judges them"

    def __init__(
        self,
        k: Count = 3,
        *,
        rounds: Count = 100,
        per_round: Count | PositiveFraction | None = None,
        epochs: Count = 1,
        batch_size: Count | None = None,
        server_rate: PositiveFraction = 1.0,
        client_rate: PositiveFraction = 1.0,
        init: Init | ArrayLike = "k-means||",
        tolerance: NonNegative = 1e-3,
        select: Selector | None = None,
        dp: DP | None = None,
    ) -> None:
        self.k = k
        self.rounds = rounds
        self.per_round = per_round
        self.epochs = epochs
        self.batch_size = batch_size
        self.server_rate = server_rate
        self.client_rate = client_rate
        self.init = init
        self.tolerance = tolerance
        self.select = select
        self.dp = dp

    def check_params(self) -> None:
        super().check_params()
        if isinstance(self.init, str) and self.init not in _SEEDINGS:
            names = ", ".join(map(repr, _SEEDINGS))
            raise UsageError.of(self, "init", self.init, f"must be {names} or k centroids")
        if self.dp is not None:
            self._check_dp(self.dp)

    def _check_dp(self, dp: DP) -> None:
        dp.need_clip(self, "the length of a row")
        dp.check_selector(self)
        if isinstance(self.init, str):
            hint = "k centroids that do not come from these rows"
            raise UsageError.of(self, "init", self.init, "would tell rows without noise", hint=hint)
        if self._task is not assign:
            raise UsageError(
                "FedKMeans(dp=…) takes one step over all rows",
                hint="epochs=1, batch_size=None, client_rate=1.0",
            )
        if self.per_round is not None:
            raise UsageError.of(self, "per_round", self.per_round, "must be None with dp=")

    def why_not_closed(self) -> str | None:
        if self._task is not assign:
            return "steps over batches are no sums; leave epochs=, batch_size=, client_rate= out"
        if isinstance(self.init, str) and self.init == "k-means++":
            return "k-means++ starts from single rows; init='atoms' starts from sums"
        return None

    def train(self, federation: Federation) -> None:
        if is_closed(federation) and self.dp is None:
            self._train_on_groups(federation)
            return
        order = self._order()
        self.centroids_ = self._centroids_to_start(federation)
        rounds = self.each_round(
            federation,
            rounds=self.rounds,
            per_round=self._budget(len(federation)),
            select=self.select,
        )
        for r in rounds:
            total = r.ask(self._task, {**order, "centroids": self.centroids_}).fold(Sum())
            before = self.centroids_
            self.apply_update(total)
            moved = float(np.sqrt(((self.centroids_ - before) ** 2).sum(axis=1)).max())
            r.log(moved=moved)
            if self.dp is None:
                loss = np.sum(total["inertia"]) / max(int(total["counts"].sum()), 1)
                r.log(loss=float(loss))
            else:
                self.counts_ = np.maximum(total["counts"], 0)
            if moved <= self.tolerance:
                r.stop(f"no centroid moved farther than {self.tolerance:g}")
        if self.dp is not None:  # nobody is told the inertia
            return
        final = federation.ask(cost, {"centroids": self.centroids_}).fold(Sum())
        if final["counts"].sum() < self.k:
            hint = f"{final['counts'].sum()} rows are there"
            raise DataError(f"FedKMeans(k={self.k}): more clusters than rows", hint=hint)
        self.inertia_, self.counts_ = float(final["inertia"].sum()), final["counts"]

    def _train_on_groups(self, federation: Federation) -> None:
        """Lloyd's algorithm over the means of groups of rows, which are told once."""
        rows, means = partition(federation, self.k, prepared_edges(federation, self.schema_))
        if len(rows) < self.k:
            raise DataError(
                f"FedKMeans(k={self.k}): the rows of all owners fall into {len(rows)} groups of "
                "enough persons",
                hint=f"k={len(rows)}, or more rows",
            )
        start: Any = "k-means++"
        if self._start is not None or not isinstance(self.init, str) or self.init == "random":
            start = self._centroids_to_start(federation)
        elif self.init == "k-means||":
            self.remark("a closed job starts from sums of groups of rows: init='atoms'")
        with threadpool_limits(1):  # sums in one order
            self.centroids_ = seeding.reduced(federation, means, rows, self.k, start)
        label, _ = nearest(means, self.centroids_)
        self.counts_ = np.bincount(label, weights=rows, minlength=self.k).astype(np.int64)
        for r in self.each_round(federation, rounds=1):
            total = r.ask(inertia, {"centroids": self.centroids_}).fold(Sum())
            self.inertia_ = float(total["inertia"])
            r.log(loss=self.inertia_ / int(total["rows"]))

    def _centroids_to_start(self, federation: Federation) -> FloatArray:
        if self._start is None:
            return self._first_centroids(federation)
        first = {"centroids": np.empty((self.k, self.schema_.width))}
        known = {"centroids": vars(self._start).get("centroids_")}
        centroids: FloatArray = continued_model(self, first, known)["centroids"]
        return centroids

    @property
    def _task(self) -> Task:
        """What clients are asked in a round: one step over all rows is a sum, others are not."""
        one_step = (self.epochs, self.batch_size, self.client_rate) == (1, None, 1.0)
        return assign if one_step else steps

    def _order(self) -> dict[str, Any]:
        """What clients are told in every round besides the centroids."""
        if self._task is assign:
            return {}
        return {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "rate": float(self.client_rate),
        }

    def apply_update(self, total: Any) -> None:
        """Γ ← Γ + α (Γ* − Γ) with the summed replies of a round."""
        counts = total["counts"][:, None]
        target = np.where(counts > 0, total["sums"] / np.maximum(counts, 1), self.centroids_)
        if self.dp is not None and self.dp.clip is not None:  # where no row is, no mean is
            lengths = np.linalg.norm(target, axis=1, keepdims=True)
            target = target * np.minimum(1.0, self.dp.clip / np.maximum(lengths, 1e-300))
        self.centroids_ = self.centroids_ + self.server_rate * (target - self.centroids_)

    def losses(self, X: Any, y: Any = None) -> FloatArray:
        """The squared distance of every row to its nearest centroid."""
        _, distance = nearest(self.check_rows(X), self.centroids_)
        return distance

    def start(self, federation: Federation) -> FloatArray:
        """The centroids that ``fit`` would start from, to give several learners the same ones."""
        learner = self.clone()
        learner.check_params()
        with federation.announced(self):
            learner.schema_ = learner.agree_on_rows(federation)
            return learner._first_centroids(federation)

    def predict(self, X: Any) -> IntArray:
        """The number of the nearest centroid of every row."""
        label, _ = nearest(self.check_rows(X), self.centroids_)
        return label

    def silhouette(self, federation: Any) -> float:
        """The mean silhouette (b − a) / max(a, b) of all rows, in its simplified form.

        Rows of one's own may take the place of the federation.

        a and b are distances to the own and the nearest other centroid (Hruschka, de Castro &
        Campello 2004); distances between rows of different clients would have to leave them.
        """
        self.check_fitted()
        if len(self.centroids_) < 2:
            raise UsageError("a silhouette needs at least two clusters")
        if not isinstance(federation, Federation):
            federation = simulate(self.check_rows(federation), clients=1)
        federation = as_job(self, federation)
        if is_closed(federation):
            if elsewhere(federation) is not None:
                raise NotClosed(
                    "silhouette(federation): over a network it is no job",
                    hint="model.silhouette(rows) of rows at hand; inertia_ is of all owners' rows",
                )
            check_jobs(federation, "evaluation")
            count_all_persons(federation)
        with federation.announced(self):
            total = federation.ask(silhouette, {"centroids": self.centroids_}).fold(Sum())
        return float(total["total"] / total["rows"])

    def plot(self, *, shape: tuple[int, int] | None = None) -> Any:
        """The centroids as a matplotlib figure: a heat map, or a picture each of that shape."""
        self.check_fitted()
        from solera.learn.cluster.plots import plot_centroids

        return plot_centroids(self.centroids_, self.counts_, self.schema_, shape)

    def _first_centroids(self, federation: Federation) -> FloatArray:
        if isinstance(self.init, str):
            if federation.secure is not None and self.init not in ("atoms", "random"):
                rule = (
                    "looks at single clients; a secure federation takes 'atoms', 'random' or k "
                    "centroids"
                )
                raise UsageError.of(self, "init", self.init, rule)
            return _SEEDINGS[self.init](federation, self.k)
        start = np.array(self.init, dtype=np.float64)
        if start.shape != (self.k, self.schema_.width):
            raise UsageError(
                f"FedKMeans: init is of shape {start.shape}, not {self.k} centroids x "
                f"{self.schema_.width} columns"
            )
        if not np.isfinite(start).all():
            raise DataError("FedKMeans: the initial centroids are not finite")
        return start

    def _budget(self, clients: int) -> int | None:
        """Clients per round; a fraction C of K clients is max(C K, 1), rounded."""
        if isinstance(self.per_round, float):
            return max(1, round(self.per_round * clients))
        return self.per_round
