"""Horizontal partitions: nothing lost, nothing doubled, same seed same rows, and clear refusals."""

from __future__ import annotations

import time
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import solera as so
from solera.core.component import build, describe
from solera.core.errors import DataError, UsageError
from solera.data.dealing import at_least, divide, draw, even, group
from solera.data.partition import IID, ClientWeights, Overlap, Partition, QuantitySkew, Unlabelled
from solera.data.partition_groups import ByCluster, ByGroup, Explicit
from solera.data.partition_labels import Dirichlet, LabelsPerClient, LabelWeights, Shards
from solera.data.summary import class_counts, summarise

ROWS, CLASSES = 300, 5
Y = np.arange(ROWS) % CLASSES
X = np.random.default_rng(0).normal(size=(ROWS, 3)) + 8 * (np.arange(ROWS) % 3)[:, None]
seeds = st.integers(0, 2**32)


def named(value):
    """The class of a partition, or the number of clients."""
    return type(value).__name__ if isinstance(value, Partition) else repr(value)


def blocks_of_fifty(X, y, rng):
    return np.arange(len(y)) // 50


# Every row goes to exactly one client.
COMPLETE = [
    (IID(), 7),
    (ClientWeights([0.5, 0.3, 0.2]), None),
    (QuantitySkew(0.5), 7),
    (QuantitySkew(0.1, min_rows=5), 20),
    (LabelWeights(np.full((4, CLASSES), 0.25)), None),
    (LabelsPerClient(2), 6),
    (LabelsPerClient((1, 3)), 9),
    (LabelsPerClient([[0, 1], [1, 2], [3, 4]]), None),
    (Dirichlet(0.1), 12),
    (Dirichlet(0.1, min_rows=10), 12),
    (Shards(3), 11),
    (ByGroup(np.array(["north", "south", "west"])[Y % 3]), None),
    (ByCluster(3), None),
    (ByCluster(3), 8),
    (ByCluster(blocks_of_fifty), 10),
    (Explicit(np.split(np.arange(ROWS), 4)), None),
]
# Rows are left over, or go to several clients, because the rule says so.
INCOMPLETE = [
    (ClientWeights([0.2, 0.1]), None),
    (LabelsPerClient([[0], [3]]), None),
    (LabelWeights(np.eye(3, CLASSES)), None),
    (Explicit({1: [5, 4], 0: [9, 1]}), None),
]
SHARING = [
    (ClientWeights([0.9, 0.3, 0.5, 1.0], replacement=True), None),
    (LabelWeights(np.full((4, CLASSES), 0.6), replacement=True), None),
    (LabelsPerClient(2, replacement=True), 10),
    (Explicit([[1, 2, 3], [3, 4]], allow_overlap=True), None),
    (Overlap(IID(), fraction=0.25), 6),
    (Overlap(Explicit(np.split(np.arange(ROWS), 4)), fraction=1.0), None),
]
EVERY = COMPLETE + INCOMPLETE + SHARING


def assign(partition, clients=None, seed=0, rows=ROWS, y=Y):
    return partition.assign(rows, y, X=X, clients=clients, seed=seed)


def same(a, b):
    return np.array_equal(a.index, b.index) and np.array_equal(a.offsets, b.offsets)


@pytest.mark.parametrize(("partition", "clients"), EVERY, ids=named)
def test_an_assignment_is_well_formed_and_counts_what_it_leaves_over(partition, clients):
    assignment = assign(partition, clients)
    assert assignment.index.dtype == assignment.offsets.dtype == np.int64
    assert assignment.offsets[0] == 0
    assert assignment.offsets[-1] == len(assignment.index)
    assert (assignment.sizes >= 0).all()
    if clients is not None:
        assert assignment.clients == clients
    assert assignment.left_over == ROWS - len(set(assignment.index.tolist()))
    for client in range(assignment.clients):
        rows = assignment.rows_of(client)
        assert len(np.unique(rows)) == len(rows)


@pytest.mark.parametrize(("partition", "clients"), COMPLETE, ids=named)
def test_no_row_is_lost_or_doubled(partition, clients):
    assignment = assign(partition, clients)
    assert np.array_equal(np.sort(assignment.index), np.arange(ROWS))
    assert assignment.sizes.min() > 0


@pytest.mark.parametrize(("partition", "clients"), INCOMPLETE, ids=named)
def test_rows_are_left_over_but_never_doubled(partition, clients):
    assignment = assign(partition, clients)
    assert 0 < assignment.left_over == ROWS - len(assignment.index)


@pytest.mark.parametrize(("partition", "clients"), EVERY, ids=named)
def test_same_seed_same_rows_other_seed_other_rows(partition, clients):
    first = assign(partition, clients, seed=1)
    assert same(first, assign(partition.clone(), clients, seed=1))
    if not isinstance(partition, Explicit):
        assert not same(first, assign(partition, clients, seed=2))


@pytest.mark.parametrize(("partition", "clients"), EVERY, ids=named)
def test_partitions_are_components(partition, clients):
    assert clone(partition) == partition
    assert type(partition).__name__ in repr(partition)
    if not callable(getattr(partition, "cluster", None)):
        rebuilt = build(describe(partition))
        assert same(assign(rebuilt, clients), assign(partition, clients))


@pytest.mark.parametrize(
    ("partition", "clients"),
    [case for case in EVERY if not isinstance(case[0], Explicit)],
    ids=named,
)
def test_rows_of_a_client_are_in_random_order(partition, clients):
    assignment = assign(partition, clients)
    rising = np.diff(assignment.index) > 0
    assert 0.3 < rising.mean() < 0.7


@pytest.mark.parametrize("partition", [Dirichlet(1e3), LabelsPerClient(5), Shards(50)], ids=named)
def test_classes_of_a_client_are_mixed(partition):
    labels = Y[assign(partition, 3).rows_of(1)]
    assert np.mean(labels[1:] == labels[:-1]) < 0.4


# Arithmetic ---------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 10**6), st.lists(st.floats(0, 1), min_size=1, max_size=30), seeds)
def test_divide_is_within_one_of_the_exact_share(total, weights, seed):
    fractions = np.array(weights) / max(sum(weights), 1)
    sizes = divide(total, fractions, np.random.default_rng(seed))
    assert (np.abs(sizes - total * fractions) <= 1 + 1e-6).all()
    assert abs(sizes.sum() - total * fractions.sum()) <= 0.5 + 1e-6


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=40), st.data())
def test_at_least_keeps_the_total_and_raises_only_the_small(sizes, data):
    sizes = np.array(sizes)
    least = data.draw(st.integers(0, int(sizes.sum()) // len(sizes)))
    raised = at_least(sizes, least, np.random.default_rng(0))
    assert raised.sum() == sizes.sum()
    assert raised.min() >= least
    assert (raised[sizes <= least] == least).all()
    assert (raised <= np.maximum(sizes, least)).all()


@settings(deadline=None)
@given(st.integers(1, 12), st.data(), seeds)
def test_draw_gives_every_client_different_numbers(below, data, seed):
    sizes = np.array(data.draw(st.lists(st.integers(0, below), min_size=1, max_size=12)))
    drawn = np.split(draw(sizes, below, np.random.default_rng(seed)), np.cumsum(sizes)[:-1])
    assert [len(part) for part in drawn] == sizes.tolist()
    for part in drawn:
        assert len(set(part.tolist())) == len(part)
        assert set(part.tolist()) <= set(range(below))


@pytest.mark.parametrize("size", [2, 4, 7])
def test_draw_gives_every_number_the_same_chance(size):
    clients, below = 20_000, 8
    drawn = draw(np.full(clients, size), below, np.random.default_rng(0))
    expected = clients * size / below
    assert np.abs(np.bincount(drawn, minlength=below) - expected).max() < 5 * np.sqrt(expected)


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 50))
def test_even_parts_differ_by_at_most_one(total, parts):
    sizes = even(total, parts)
    assert sizes.sum() == total
    assert np.ptp(sizes) <= 1


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=60))
def test_group_is_a_stable_sort(owners):
    owners = np.array(owners, dtype=np.int64)
    values, offsets = group(np.arange(len(owners)), owners, 8)
    assert np.array_equal(values, np.argsort(owners, kind="stable"))
    assert np.array_equal(np.diff(offsets), np.bincount(owners, minlength=8))


# What each rule promises --------------------------------------------------------------------------


@settings(deadline=None)
@given(rows=st.integers(1, 400), clients=st.integers(1, 60), seed=seeds)
def test_iid_sizes_are_near_equal(rows, clients, seed):
    if clients > rows:
        with pytest.raises(UsageError, match=f"use at most {rows} clients"):
            IID().assign(rows, clients=clients, seed=seed)
        return
    assignment = IID().assign(rows, clients=clients, seed=seed)
    assert np.ptp(assignment.sizes) <= 1
    assert np.array_equal(np.sort(assignment.index), np.arange(rows))


@settings(deadline=None)
@given(
    alpha=st.floats(1e-6, 1e6),
    clients=st.integers(1, 40),
    min_rows=st.integers(0, 7),
    labelled=st.booleans(),
    seed=seeds,
)
def test_dirichlet_sizes_keep_min_rows(alpha, clients, min_rows, labelled, seed):
    rule = Dirichlet if labelled else QuantitySkew
    assignment = assign(rule(alpha, min_rows=min_rows), clients, seed)
    assert assignment.sizes.min() >= min_rows
    assert np.array_equal(np.sort(assignment.index), np.arange(ROWS))


def test_min_rows_moves_nothing_when_every_client_has_enough():
    assert same(assign(Dirichlet(5.0), 4), assign(Dirichlet(5.0, min_rows=0), 4))


@settings(deadline=None)
@given(weights=st.lists(st.floats(0, 1), min_size=1, max_size=12), seed=seeds)
def test_client_weights_are_kept_to_a_row(weights, seed):
    weights = np.array(weights) / max(sum(weights), 1)
    assignment = assign(ClientWeights(weights), seed=seed)
    assert (np.abs(assignment.sizes - ROWS * weights) <= 1 + 1e-6).all()
    assert assignment.left_over == ROWS - len(assignment.index)


def test_label_weights_are_kept_in_every_class():
    weights = np.array([[0.5, 0, 1, 0.25, 0], [0.5, 1, 0, 0.25, 0]])
    assignment = assign(LabelWeights(weights))
    counts = class_counts(Y, assignment.index, assignment.offsets)
    assert np.array_equal(counts, ROWS / CLASSES * weights)
    assert assignment.left_over == 30 + 60


def test_replacement_changes_who_shares_but_not_how_many():
    weights = np.full((3, CLASSES), 0.3)
    alone, shared = (assign(LabelWeights(weights, replacement=r)) for r in (False, True))
    assert np.array_equal(alone.sizes, shared.sizes)
    assert len(np.unique(shared.index)) < len(shared.index)


@settings(deadline=None)
@given(clients=st.integers(1, 30), low=st.integers(1, 5), high=st.integers(1, 5), seed=seeds)
def test_labels_per_client_draws_that_many_and_leaves_no_class_out(clients, low, high, seed):
    low, high = min(low, high), max(low, high)
    assignment = assign(LabelsPerClient((low, high)), clients, seed)
    seen = (class_counts(Y, assignment.index, assignment.offsets) > 0).sum(axis=1)
    assert seen.min() >= low
    assert seen.max() <= high
    if clients * low >= CLASSES:
        assert assignment.left_over == 0


def test_listed_labels_are_divided_among_their_owners():
    names = np.array(["a", "b", "c", "d", "e"])[Y]
    assignment = assign(LabelsPerClient([["a", "b"], ["b"], ["b", "e"]]), y=names)
    counts = class_counts(names, assignment.index, assignment.offsets)
    assert counts.tolist() == [[60, 20, 0, 0, 0], [0, 20, 0, 0, 0], [0, 20, 0, 0, 60]]
    assert assignment.left_over == 120


def test_shards_see_few_labels():
    y = np.repeat(np.arange(10), 100)
    assignment = Shards(2).assign(1000, y, clients=50, seed=0)
    seen = (class_counts(y, assignment.index, assignment.offsets) > 0).sum(axis=1)
    assert seen.max() == 2
    assert (assignment.sizes == 20).all()


def test_shards_sort_regression_targets_too():
    y = np.random.default_rng(0).normal(size=ROWS)
    assignment = assign(Shards(1), 10, y=y)
    spans = sorted(
        (y[assignment.rows_of(k)].min(), y[assignment.rows_of(k)].max()) for k in range(10)
    )
    assert all(end < start for (_, end), (start, _) in pairwise(spans))


def test_groups_are_clients_in_sorted_order():
    values = np.array(["south", "north", "west"])[np.arange(ROWS) % 3]
    assignment = assign(ByGroup(values))
    for client, name in enumerate(["north", "south", "west"]):
        assert set(values[assignment.rows_of(client)]) == {name}
    table = np.column_stack([X, np.arange(ROWS) % 3])
    assert same(
        ByGroup(3).assign(ROWS, X=table, seed=0), ByGroup(np.arange(ROWS) % 3).assign(ROWS, seed=0)
    )


def test_groups_may_be_a_column_of_a_frame_or_of_a_sparse_matrix():
    pd = pytest.importorskip("pandas")
    sparse = pytest.importorskip("scipy.sparse")
    codes = np.arange(ROWS) % 3
    expected = ByGroup(codes).assign(ROWS, seed=0)
    frame = pd.DataFrame({"age": X[:, 0], "site": codes})
    assert same(expected, ByGroup("site").assign(ROWS, X=frame, seed=0))
    assert same(expected, ByGroup(1).assign(ROWS, X=frame, seed=0))
    matrix = sparse.csr_array(frame.to_numpy())
    assert same(expected, ByGroup(1).assign(ROWS, X=matrix, seed=0))


def test_explicit_rows_keep_their_order():
    assignment = assign(Explicit({1: [5, 4], 0: [9, 1, 7]}))
    assert assignment.rows_of(0).tolist() == [9, 1, 7]
    assert assignment.rows_of(1).tolist() == [5, 4]
    assert assign(Explicit([[0], []])).sizes.tolist() == [1, 0]


@pytest.mark.parametrize("clients", [3, 4, 30, ROWS])
def test_clients_of_a_cluster_stay_within_it(clients):
    clusters = np.repeat([0, 1, 2], [200, 90, 10])
    assignment = assign(ByCluster(lambda X, y, rng: clusters), clients)
    kinds = [set(clusters[assignment.rows_of(k)]) for k in range(clients)]
    assert all(len(kind) == 1 for kind in kinds)
    assert set.union(*kinds) == {0, 1, 2}


def test_kmeans_finds_the_blobs():
    assignment = assign(ByCluster(3))
    assert {tuple(np.unique(assignment.rows_of(k) % 3)) for k in range(3)} == {(0,), (1,), (2,)}


@settings(deadline=None)
@given(fraction=st.floats(0, 1), seed=seeds)
def test_overlap_gives_a_fraction_of_every_client_to_one_other(fraction, seed):
    base = assign(IID(), 6, seed)
    shared = assign(Overlap(IID(), fraction=fraction), 6, seed)
    copies = len(shared.index) - ROWS
    assert abs(copies - fraction * ROWS) <= 6
    assert np.bincount(shared.index).max() <= 2
    for client in range(6):
        mine = set(base.rows_of(client).tolist())
        assert mine <= set(shared.rows_of(client).tolist())
        elsewhere = [r for k in range(6) if k != client for r in shared.rows_of(k) if r in mine]
        assert abs(len(elsewhere) - fraction * len(mine)) < 1 + 1e-9


def test_small_alpha_is_farther_from_iid():
    distances = []
    for alpha in (0.05, 0.5, 5.0, 500.0):
        assignment = assign(Dirichlet(alpha), 10)
        counts = class_counts(Y, assignment.index, assignment.offsets)
        distances.append(summarise(assignment.sizes, counts).distance)
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.5
    assert distances[-1] < 0.1


def test_dirichlet_proportions_have_the_right_spread():
    """The share of one of K clients has variance (K − 1) / (K² (K·alpha + 1))."""
    clients, alpha, y = 10, 0.5, np.repeat(np.arange(200), 100)
    assignment = Dirichlet(alpha, min_rows=0).assign(len(y), y, clients=clients, seed=0)
    shares = class_counts(y, assignment.index, assignment.offsets) / 100
    expected = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert shares.var() == pytest.approx(expected, rel=0.1)


def test_rounding_does_not_favour_the_same_clients_in_every_class():
    sizes = assign(Dirichlet(1e6, min_rows=0), 100).sizes
    assert np.mean(sizes == 0) < 0.1


def test_quantity_skew_keeps_labels_alike():
    rows = 20_000
    y = np.arange(rows) % 4
    assignment = QuantitySkew(0.5, min_rows=5).assign(rows, y, clients=10, seed=0)
    counts = class_counts(y, assignment.index, assignment.offsets)
    assert assignment.sizes.max() > 3 * np.median(assignment.sizes)
    assert summarise(assignment.sizes, counts).distance < 0.05


# Refusals -----------------------------------------------------------------------------------------

LABELLED = [Dirichlet(1.0), Shards(), LabelsPerClient(2), LabelWeights(np.full((2, 5), 0.5))]


@pytest.mark.parametrize(
    ("make", "clients", "message"),
    [
        (lambda: Dirichlet(0), 3, r"Dirichlet\(alpha=0\): alpha must be a number in"),
        (lambda: Dirichlet(float("nan")), 3, "alpha must be a number in"),
        (lambda: QuantitySkew("1"), 3, "alpha must be a number in"),
        (lambda: QuantitySkew(float("inf")), 3, "alpha must be a number in"),
        (lambda: Dirichlet(1, min_rows=-1), 3, "min_rows must be a whole number of at least 0"),
        (lambda: Dirichlet(1, min_rows=40), 10, "use at most 7 clients or a smaller min_rows"),
        (lambda: QuantitySkew(), ROWS + 1, f"use at most {ROWS} clients"),
        (lambda: IID(), None, "the number of clients is missing"),
        (lambda: IID(), 0, "clients must be a whole number of at least 1"),
        (lambda: IID(), 2.5, "clients must be a whole number of at least 1"),
        (lambda: ClientWeights([0.5, 0.5]), 3, "clients=3 but there are 2 weights"),
        (lambda: ClientWeights([0.5, -0.5]), None, r"weights=-0.5\): weights must be >= 0"),
        (lambda: ClientWeights([0.5, np.nan]), None, "weights must be >= 0"),
        (lambda: ClientWeights([3, 1]), None, "weights sum to 4, more than all rows .*divide them"),
        (lambda: ClientWeights([[0.5]]), None, r"shape \(1, 1\) \(give one weight per client"),
        (lambda: ClientWeights([]), None, r"shape \(0,\)"),
        (lambda: ClientWeights(["a"]), None, "not an array of numbers"),
        (lambda: ClientWeights([1.5], replacement=True), None, "fractions between 0 and 1"),
        (lambda: LabelWeights([[0.5, 0.5]]), None, "2 columns but y has 5 classes"),
        (lambda: LabelWeights([[0.5], [0.5, 1]]), None, "not an array of numbers"),
        (lambda: LabelWeights(np.full((3, 5), 0.5)), None, "weights sum to 1.5"),
        (
            lambda: LabelWeights(np.full((2, 5), 0.5)),
            4,
            "clients=4 but there are 2 rows of weights",
        ),
        (lambda: LabelsPerClient(6), 3, "must be between 1 and the 5 classes"),
        (lambda: LabelsPerClient((3, 2)), 3, "must be between 1 and the 5 classes"),
        (lambda: LabelsPerClient("ab"), 3, "labels must be a whole number, .* or a list"),
        (lambda: LabelsPerClient(1.5), 3, "labels must be a whole number, .* or a list"),
        (lambda: LabelsPerClient(["ab", "cd"]), 2, "labels must be a whole number, .* or a list"),
        (lambda: LabelsPerClient([[0], [7]]), None, r"labels=7\): labels is not in y"),
        (lambda: LabelsPerClient([[0], []]), None, r"client 1 has the labels \[\]"),
        (lambda: LabelsPerClient([[0, 0], [1]]), None, "client 0 has the labels"),
        (lambda: LabelsPerClient([[0], [1]]), 3, "clients=3 but there are 2 lists of labels"),
        (lambda: LabelsPerClient(1), ROWS + 1, "get no row of their labels"),
        (lambda: Shards(0), 3, "per_client must be a whole number of at least 1"),
        (lambda: Shards(2), 200, "300 rows are too few for 400 shards .*at most 150 clients"),
        (lambda: ByGroup(np.arange(ROWS) % 3), 4, "clients=4 but there are 3 groups"),
        (lambda: ByGroup(9), None, "must be below the 3 columns"),
        (lambda: ByGroup("site"), None, "is not a column of X"),
        (lambda: ByCluster(4), 2, "2 clients cannot hold 4 clusters"),
        (lambda: ByCluster(0), None, "cluster must be a whole number of at least 1 or"),
        (lambda: ByCluster(ROWS + 1), None, "at most the 300 rows"),
        (lambda: ByCluster(2), ROWS + 1, "too few"),
        (
            lambda: Explicit([[0, 1], [1]]),
            None,
            "row 1 is listed for clients 0 and 1 .*allow_overlap",
        ),
        (lambda: Explicit([[0, 0]], allow_overlap=True), None, "row 0 is listed twice"),
        (lambda: Explicit([[0], [ROWS]]), None, "client 1 lists row 300 of 300 rows"),
        (lambda: Explicit([[-1]]), None, "lists row -1"),
        (lambda: Explicit([[0.5]]), None, "not whole"),
        (lambda: Explicit([Y == 0]), None, "np.flatnonzero"),
        (lambda: Explicit([]), None, "no client is given"),
        (lambda: Explicit({0: [1], 2: [3]}), None, "number the clients from 0"),
        (lambda: Explicit([[0], [1]]), 3, "clients=3 but there are 2 lists of rows"),
        (lambda: Overlap(IID(), fraction=1.5), 3, "fraction must be a number in"),
        (lambda: Overlap(IID()), 1, "nobody to share with"),
        (lambda: Overlap("iid"), 3, "partition must be a Partition"),
        (lambda: Overlap(ClientWeights([0.9, 0.9], replacement=True)), None, "share rows already"),
    ],
)
def test_contradictions_are_refused(make, clients, message):
    with pytest.raises(UsageError, match=message):
        assign(make(), clients)


@pytest.mark.parametrize("partition", LABELLED, ids=named)
@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "there is no y"),
        (Y[:10], r"shape \(10,\), not one value for 300 rows"),
        (np.eye(CLASSES, dtype=int)[Y], r"shape \(300, 5\), but one label per row"),
        (np.where(Y == 3, np.nan, Y), "y is missing in 60 rows, the first is row 3"),
        (np.array(["a", None, 3] * 100, dtype=object), "cannot be compared"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(partition, y, message):
    clients = None if isinstance(partition, LabelWeights) else 2
    with pytest.raises(DataError, match=message):
        partition.assign(ROWS, y, clients=clients, seed=0)


def test_data_that_cannot_be_used_is_refused():
    with pytest.raises(DataError, match=r"numbers .*not classes"):
        assign(Dirichlet(1.0), 3, y=Y / 2)
    with pytest.raises(DataError, match="groups is missing in 1 rows"):
        assign(ByGroup(np.r_[np.nan, np.zeros(ROWS - 1)]))
    with pytest.raises(DataError, match="missing, infinite or non-numeric"):
        ByCluster(2).assign(ROWS, X=np.where(X > 9, np.nan, X), seed=0)
    with pytest.raises(UsageError, match="needs X"):
        ByCluster(2).assign(ROWS, seed=0)
    with pytest.raises(UsageError, match="there is no X"):
        ByGroup(0).assign(ROWS, seed=0)
    with pytest.raises(DataError, match="no rows to divide"):
        IID().assign(0, clients=1, seed=0)


# Scale --------------------------------------------------------------------------------------------


def test_a_million_clients_take_seconds():
    clients = 1_000_000
    start = time.process_time()
    assignment = IID().assign(2 * clients, clients=clients, seed=0)
    assert time.process_time() - start < 10
    assert (assignment.sizes == 2).all()


@pytest.mark.parametrize(
    "partition",
    [IID(), QuantitySkew(), Dirichlet(0.3), LabelsPerClient(2), Shards(), Overlap(IID())],
    ids=named,
)
def test_memory_is_proportional_to_rows_and_clients(partition):
    clients, rows = 100_000, 500_000
    y = np.arange(rows) % 10
    tracemalloc.start()
    start = time.process_time()
    try:
        assignment = partition.assign(rows, y, clients=clients, seed=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 10
    assert peak < 200 * (rows + clients)
    assert assignment.sizes.min() > 0
    assert assignment.left_over == 0


# --- FLEX's options ---


def test_weights_are_normalised_and_rounded_down_as_flex_does():
    weights = np.array([0.9, 0.6, 0.35])
    dealt = assign(ClientWeights(weights, normalise=True, floor=True))
    assert dealt.sizes.tolist() == [int(ROWS * w / weights.sum()) for w in weights]
    assert dealt.left_over == ROWS - dealt.sizes.sum() > 0
    below = assign(ClientWeights([0.5, 0.333], normalise=True, floor=True))
    assert below.sizes.tolist() == [150, 99]  # sums below 1 stay
    with pytest.raises(UsageError, match="normalise=True"):
        assign(ClientWeights(weights))


def test_weights_per_label_are_normalised_all_together():
    weights = np.full((3, CLASSES), 0.1)
    weights[:, 0] = [1.0, 0.5, 0.5]  # one class sums to 2: FLEX divides every class by its sum
    dealt = assign(LabelWeights(weights, normalise=True, floor=True))
    counts = class_counts(Y, dealt.index, dealt.offsets)
    assert counts[:, 0].tolist() == [30, 15, 15]
    assert (counts[:, 1:] == 20).all()
    zero = assign(LabelWeights(np.array([[1.0, 0, 0, 0, 0], [1, 1, 0, 0, 0]]), normalise=True))
    assert class_counts(Y, zero.index, zero.offsets).tolist() == [
        [30, 0, 0, 0, 0],
        [30, 60, 0, 0, 0],
    ]


def test_labels_per_client_with_weights():
    labels, weights = [[0, 1], [1], [1, 2, 3]], [0.5, 0.25, 0.9]
    dealt = assign(LabelsPerClient(labels, weights=weights, floor=True))
    counts = class_counts(Y, dealt.index, dealt.offsets)
    assert counts.tolist() == [[15, 15, 0, 0, 0], [0, 15, 0, 0, 0], [0, 18, 18, 18, 0]]
    heavy = LabelsPerClient([[0], [0], [0, 1]], weights=[1.0, 1.0, 1.0])
    with pytest.raises(UsageError, match=r"sum to 2\.5"):
        assign(heavy)
    shared = assign(heavy.set_params(normalise=True))
    counts = class_counts(Y, shared.index, shared.offsets)
    assert counts.tolist() == [[24, 0, 0, 0, 0], [24, 0, 0, 0, 0], [12, 60, 0, 0, 0]]
    with pytest.raises(UsageError, match="there are 3 clients"):
        assign(LabelsPerClient(labels, weights=[0.5]))


def test_clients_have_names():
    dealt = assign(IID(), ["north", "south", "west"])
    assert (dealt.names, dealt.clients) == (("north", "south", "west"), 3)
    assert same(dealt, assign(IID(), 3))
    with pytest.raises(UsageError, match="names one twice"):
        assign(IID(), ["north", "north"])
    with pytest.raises(UsageError, match="but there are 2 weights"):
        assign(ClientWeights([0.5, 0.5]), ["north", "south", "west"])
    fed = so.simulate(X, Y, clients=["north", "south", "west"])
    assert fed.names == ("north", "south", "west")
    assert len(fed.without("south")) == 2


def test_clients_without_labels():
    fed = so.simulate(X, Y, clients=6, partition=Unlabelled(IID(), clients=[4, 1]), test=0.2)
    labels = [actor.data.y is None for actor in so.pool(fed).clients]
    assert labels == [False, True, False, False, True, False]
    assert so.pool(fed).clients[4].data.test.y is None
    assert fed.data.class_counts()[[1, 4]].sum() == 0
    assert len(np.unique(so.FedKMeans(3, rounds=5).fit(fed).predict(X))) == 3
    scaled = fed.prepared(so.FedScaler().fit(fed))
    for learner in (so.FedHEONN(), so.FedAvg(so.nn.mlp(3, CLASSES), rounds=1)):
        for each in (fed, scaled):
            with pytest.raises(DataError, match=r"clients without labels: 1, 4"):
                learner.fit(each)
    rest = fed.without(1, 4)
    model = so.FedHEONN().fit(rest)
    assert model.evaluate(rest).metrics["accuracy"] > 0
    with pytest.raises(DataError, match="without labels"):
        model.evaluate(fed)
    with pytest.raises(UsageError, match="names client 6 of 0 … 5"):
        assign(Unlabelled(IID(), clients=[6]), 6)
