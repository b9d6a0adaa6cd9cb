"""What runs at clients, and what leaves them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from solera.core.clients import Client, FloatArray
from solera.core.errors import DataError, Refusal, UsageError
from solera.core.task import task
from solera.learn.heonn.activations import activation, levels
from solera.learn.heonn.plan import KeyPlan, Plan, Rotations
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
from solera.trust.contributions import Contribution
from solera.trust.release import Cipher, Extremes

_BETWEEN = 1000
"""Targets within bounds at which the largest moment is looked for."""


def _moments(client: Client, ask: Any) -> dict[str, Contribution]:
    if ask["encrypt"] is None:
        return {}
    _, moments, _ = contributions_of(client, client.data.part("train"), ask)
    return {"moments": moments}


@task(
    "heonn.statistics",
    ask=Plan,
    version=2,
    leaves="gram",
    release=[Cipher("moments", inside=_moments, of="gram")],
)
def statistics(client: Client, ask: Any) -> dict[str, Any]:
    """Gram matrices (or a factor of them, where that is smaller), moments and the number of rows.

    The coordinator sees G. With fewer rows than columns G tells the rows up to a rotation, and with
    a single row the row itself: ``min_rows`` in the ask, or the client's policy, refuses then.
    """
    rows = client.data.part("train")
    check(client, rows, ask)
    if "privacy" in ask:
        return _with_noise(client, ask)
    matrices, moments, squares = contributions_of(client, rows, ask)
    shape = {"grams": matrices}
    if wants_factor(ask, matrices.X):
        shape = {"factors": Factors.of_matrices(matrices)}
    told = {"shape": shape, "rows": count_by(None), "few": fact(int(has_few(len(rows), ask)))}
    if ask["encrypt"] is None:
        return {**told, "moments": moments, "squares": squares}
    return {**told, "moments": seal_moments(moments.numbers(Behind(len(rows))), ask["encrypt"])}


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
        return float(np.abs(levels(ask["activation"], ask["derivative"])[1]).max())
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
    leaves="facts",
    release=[Extremes("exponent", bound=_bound)],
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
        "fingerprint": fact([pair.fingerprint.hex()]),
        "parameters": fact([repr(pair.parameters.to_list())]),
        "exponent": _exponents(largest, len(rows), moment),
    }


@task("heonn.rotation_keys", ask=Rotations, leaves="facts")
def rotation_keys(client: Client, ask: Any) -> dict[str, Any]:
    """What a coordinator needs to multiply ciphertexts of that shape; it cannot decrypt with it."""
    from solera.privacy.he.products import rotations_for

    rotations = rotations_for(keys.find(ask["key"]), ask["shape"])
    return {"rotations": fact(rotations.to_bytes())}
