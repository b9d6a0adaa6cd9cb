"""What runs at clients, and what leaves them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from solera.core.clients import Client, ClientGroup, FloatArray, IntArray, Rows, take_rows
from solera.core.errors import DataError, Refusal, UsageError
from solera.core.replies import Stacked, map_leaves
from solera.core.task import task
from solera.learn.heonn.statistics import (
    Factors,
    Targets,
    check,
    contributions_of,
    has_few,
    wants_factor,
)
from solera.learn.rows import dense
from solera.privacy import he
from solera.privacy.he import keys
from solera.trust.cells import Behind
from solera.trust.constructors import count_by, fact
from solera.trust.open_asks import numbers_of

_FEW = 256
"""Clients of more rows gain nothing together."""


def _stacks(ask: Any) -> bool:
    """Whether a reply takes no more room than the rows: that of others waits for few at a time."""
    alone = ask["patches"] is None and ask["hidden"] is None and ask["encrypt"] is None
    return alone and ask["layout"] == "shared" and ask["representation"] != "gram"


def _statistics_of_many(group: ClientGroup, ask: Any) -> list[Any]:
    """The same for many clients: those with as many rows are members of one table."""
    data, clients = group.data, list(group)
    replies: list[Any] = [None] * len(group)
    for size in np.unique(data.sizes).tolist():
        alike = np.flatnonzero(data.sizes == size)
        if size > _FEW:
            for i in alike.tolist():
                replies[i] = numbers_of(statistics, clients[i], ask, statistics(clients[i], ask))
            continue
        client, index = clients[alike[0]], data.starts[alike, None] + np.arange(size)
        rows = take_rows(data.X, data.y, index.ravel())
        for some in (data[int(alike[0])], rows):
            check(client, some, ask)  # whose rows these are is found out one by one
        told = _sums(client, rows, ask, np.arange(index.size).reshape(index.shape))
        behind = Behind(len(rows))
        numbers = map_leaves(lambda leaf, b=behind: leaf.unjudged(b)[:, None], told)
        few = int(has_few(size, ask))
        for i, reply in zip(alike.tolist(), Stacked(numbers), strict=True):
            replies[i] = {**reply, "rows": size, "few": few}
    return replies


def _sums(client: Client, rows: Rows, ask: Any, owned: IntArray | None = None) -> dict[str, Any]:
    matrices, moments, squares = contributions_of(client, rows, ask, owned)
    shape = {"grams": matrices}
    if wants_factor(ask, matrices.X):
        shape = {"factors": Factors.of_matrices(matrices)}
    return {"shape": shape, "moments": moments, "squares": squares}


@task("heonn.statistics", version=2, many=_statistics_of_many, stacks=_stacks)
def statistics(client: Client, ask: Any) -> dict[str, Any]:
    """Gram matrices (or a factor of them, where that is smaller), moments and the number of rows.

    The coordinator sees G. With fewer rows than columns G tells the rows up to a rotation, and with
    a single row the row itself: ``min_rows`` in the ask refuses then.
    """
    rows = client.data.part("train")
    check(client, rows, ask)
    if "privacy" in ask:
        return _with_noise(client, ask)
    sums = _sums(client, rows, ask)
    few = fact(int(has_few(len(rows), ask)))
    told = {"shape": sums.pop("shape"), "rows": count_by(None), "few": few}
    if ask["encrypt"] is None:
        return {**told, **sums}
    moments = sums["moments"].numbers(Behind(len(rows)))
    return {**told, "moments": seal_moments(moments, ask["encrypt"])}


def _with_noise(client: Client, ask: Any) -> dict[str, Any]:
    """Matrices and moments, the only ones to have noise; what only a list of λ needs is 0."""
    privacy = ask["privacy"]
    gaussian = privacy["mechanism"] == "gaussian" and "clip" in privacy
    alone = ask["patches"] is None and ask["encrypt"] is None
    if not (gaussian and alone and ask["target"] != "numbers"):
        raise Refusal("FedHEONN adds Gaussian noise for classes or labels, to one layer in clear")
    matrices, moments, _ = contributions_of(client, client.data.part("train"), ask)
    none = {"squares": fact(np.zeros((1, 1, ask["outputs"]))), "rows": fact(0), "few": fact(0)}
    return {"shape": {"grams": matrices}, "moments": moments, **none}


def seal_moments(moments: FloatArray, agreed: Mapping[str, Any]) -> dict[str, Any]:
    """Moments, T × d × C, encrypted with the key of this client's store."""
    pair = keys.find(agreed["key"])
    if pair.fingerprint != agreed["fingerprint"]:
        raise keys.WrongKey(f"key {agreed['key']!r} here is not the one the clients agreed on")
    systems = moments.swapaxes(1, 2)[:, : agreed["outputs"]].reshape(agreed["shape"])
    try:
        sealed = he.encrypt(pair, systems, magnitude=agreed["exponent"], layout=agreed["layout"])
    except UsageError as error:
        raise DataError(
            f"the moments are larger than the first clients agreed on: {error.message}",
            hint="fit again with all clients, or leave more room with Encryption(spare_bits=…)",
        ) from error
    return sealed.to_payload()


def _exponents(largest: FloatArray, rows: int, moment: float) -> Any:
    bound = np.concatenate([[1.0], largest]) * (rows * moment)
    return np.frexp(bound)[1].astype(np.int64)


@task("heonn.agree_key", alone=True)
def agree_key(client: Client, ask: Any) -> dict[str, Any]:
    """Which key pair this client holds, and powers of two above the moments of every column.

    |m_j| ≤ n · max|z_j| · max|f′² d̄|, rounded up to a power of two, is all that is said of them.
    """
    rows = client.data.part("train")
    check(client, rows, ask)
    pair = keys.find(ask["key"])
    if ask["hidden"] is None:
        largest = np.abs(dense(rows.X)).max(axis=0)
    else:
        largest = np.ones(ask["hidden"]["width"])
    moment = np.abs(Targets.of(rows.y, ask).moment).max()
    return {
        "fingerprint": fact([pair.fingerprint.hex()]),
        "parameters": fact([repr(pair.parameters.to_list())]),
        "exponent": _exponents(largest, len(rows), moment),
    }


@task("heonn.rotation_keys", alone=True)
def rotation_keys(client: Client, ask: Any) -> dict[str, Any]:
    """What a coordinator needs to multiply ciphertexts of that shape; it cannot decrypt with it."""
    from solera.privacy.he.products import rotations_for

    rotations = rotations_for(keys.find(ask["key"]), ask["shape"])
    return {"rotations": fact(rotations.to_bytes())}
