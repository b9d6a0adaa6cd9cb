"""What runs at clients, and what leaves them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from solera.core.clients import Client, FloatArray
from solera.core.disclosure.cipher import Cipher
from solera.core.disclosure.evidence import Sums, everyone
from solera.core.disclosure.gram import Gram, Member
from solera.core.disclosure.gram import Layout as Matrices
from solera.core.disclosure.noised import Noised
from solera.core.errors import DataError, Refusal, UsageError
from solera.core.release import Cells, Extremes, Facts
from solera.core.task import task
from solera.learn.heonn.activations import activation, levels
from solera.learn.heonn.hidden import hidden
from solera.learn.heonn.plan import KeyPlan, Plan, Rotations
from solera.learn.heonn.private import noised_statistics
from solera.learn.heonn.statistics import (
    Targets,
    check,
    rows_of_members,
    summarise,
    with_bias,
    with_ones,
)
from solera.learn.rows import dense
from solera.privacy import he
from solera.privacy.dp.sums import spent_by_sums
from solera.privacy.he import keys

_MATRICES: dict[str, Matrices] = {"shared": "one"}
_BETWEEN = 1000
"""Targets within bounds at which the largest moment is looked for."""


def _members(client: Client, ask: Any) -> Iterator[Member]:
    """What the rows give to every member."""
    rows = client.data.part("train")
    targets = Targets.of(rows.y, ask)
    Z = with_ones(hidden(rows.X, ask["hidden"]))
    if ask["patches"] is None:
        yield _member(Z, np.ones(len(Z)), targets, ask)
        return
    drawn = rows_of_members(client, len(Z), ask)
    for columns, taken in zip(with_bias(ask["patches"]), drawn, strict=True):
        times = np.bincount(taken, minlength=len(Z)).astype(float)
        yield _member(Z[:, columns], times, targets, ask)


def _member(Z: FloatArray, times: FloatArray, targets: Targets, ask: Any) -> Member:
    every = np.ones((len(Z), 1))
    weights = {
        "shared": every * targets.scale,
        "classes": targets.present,
        "labels": np.concatenate([every, targets.present], axis=1),
        "outputs": targets.weight,
    }[targets.layout]
    base = None
    if ask["target"] != "numbers":
        weight, moment = levels(activation(ask["activation"], ask["derivative"]))
        base = float(moment[0]), float(moment[0] ** 2 / weight[0])
    return Member(
        Z,
        times,
        weights * times[:, None],
        targets.moment * times[:, None],
        targets.square * times[:, None],
        _MATRICES.get(targets.layout, targets.layout),  # type: ignore[arg-type]
        base,
        exclusive=ask["target"] == "classes",
    )


def _plain(client: Client, ask: Any) -> dict[str, Any]:
    return summarise(client, client.data.part("train"), ask)


def _sealed(ask: Any, plain: Mapping[str, Any]) -> dict[str, Any]:
    sealed = {key: value for key, value in plain.items() if key != "squares"}
    return {**sealed, "moments": seal_moments(plain["moments"], ask["encrypt"])}


def _rows(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    return {"rows": everyone(len(client.data))}


@task(
    "heonn.statistics",
    ask=Plan,
    release=[
        Noised(
            Cipher(
                Gram("shape", "moments", "squares", "few", members=_members),
                sealed=lambda ask: ask["encrypt"] is not None,
                plain=_plain,
                seal=_sealed,
            ),
            spends=spent_by_sums,
        ),
        Noised(Cells("rows", behind=_rows), spends=lambda client, ask: ()),
    ],
)
def statistics(client: Client, ask: Any) -> dict[str, Any]:
    """Gram matrices (or a factor of them, where that is smaller), moments and the number of rows.

    The coordinator sees G. With fewer rows than columns G tells the rows up to a rotation, and with
    a single row the row itself: ``min_rows`` in the ask, or the client's policy
    (:class:`~solera.core.disclosure.gram.Gram`), refuses then.
    """
    check(client, client.data.part("train"), ask)
    if "privacy" in ask:
        return noised_statistics(client, client.data.part("train"), ask)
    plain = _plain(client, ask)
    return plain if ask["encrypt"] is None else _sealed(ask, plain)


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


def _bound(client: Client, ask: Any, bounds: Mapping[str, Any]) -> dict[str, Any]:
    """The exponents from the owner's bounds, for columns as they reach the task.

    A column that an encoder made is named ``column=category`` and holds marks; hidden features are
    at most 1; a target of numbers is bounded under the name "".
    """
    largest = []
    for feature in client.data.schema.features if ask["hidden"] is None else ():
        if feature.name not in bounds and "=" not in feature.name:
            raise _no_bound(feature.name)
        largest.append(np.abs(bounds.get(feature.name, (0.0, 1.0))).max())
    if ask["hidden"] is not None:
        largest = [1.0] * ask["hidden"]["width"]
    return {"exponent": _exponents(np.array(largest), len(client.data), _most(ask, bounds))}


def _most(ask: Any, bounds: Mapping[str, Any]) -> float:
    """The largest |f′² d̄| of any target that is possible."""
    f = activation(ask["activation"], ask["derivative"])
    if ask["target"] != "numbers":
        return float(np.abs(levels(f)[1]).max())
    if "" not in bounds:
        raise _no_bound("")
    least, most = bounds[""]
    d = np.clip(np.linspace(float(least), float(most), _BETWEEN), f.low, f.high)
    d = f.within(d, ask["activation"])
    return float(np.abs(f.slope(d) ** 2 * f.inverse(d)).max())


def _no_bound(name: str) -> Refusal:
    what = f"column {name!r}" if name else "the target"
    return Refusal(
        f"powers of two above {what} are extremes, and the policy gives no bounds for it",
        hint=f'add "{name}" = [least, largest] to the bounds of the policy',
    )


def _exponents(largest: FloatArray, rows: int, moment: float) -> Any:
    bound = np.concatenate([[1.0], largest]) * (rows * moment)
    return np.frexp(bound)[1].astype(np.int64)


@task(
    "heonn.agree_key",
    ask=KeyPlan,
    release=[Facts("fingerprint", "parameters"), Extremes("exponent", bound=_bound)],
)
def agree_key(client: Client, ask: Any) -> dict[str, Any]:
    """Which key pair this client holds, and powers of two above the moments of every column.

    |m_j| ≤ n · max|z_j| · max|f′² d̄|, rounded up to a power of two, is all that is said of them;
    behind a gate the maxima are the bounds of the owner's policy.
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
        "fingerprint": [pair.fingerprint.hex()],
        "parameters": [repr(pair.parameters.to_list())],
        "exponent": _exponents(largest, len(rows), moment),
    }


@task("heonn.rotation_keys", ask=Rotations, release=[Facts("rotations")])
def rotation_keys(client: Client, ask: Any) -> dict[str, Any]:
    """What a coordinator needs to multiply ciphertexts of that shape; it cannot decrypt with it."""
    from solera.privacy.he.products import rotations_for

    return {"rotations": rotations_for(keys.find(ask["key"]), ask["shape"]).to_bytes()}
