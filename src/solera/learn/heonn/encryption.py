"""FedHEONN whose moments, and with them the weights, the coordinator cannot read.

Who sees what, by ``finish``:

=============== ============================================= ===================================
finish          coordinator                                   key holders (the clients)
=============== ============================================= ===================================
``client``      each client's G and rows, [[Σ m]]             Σ G, Σ m and the weights
``coordinator`` each client's G and rows, [[Σ m]], [[w]]      the weights
``compat``      as ``coordinator``                            the weights
=============== ============================================= ===================================

Who holds no key can still predict, through one who does; see :mod:`.key_holder`.

In all of them the G of each client reaches the coordinator in the clear: with fewer rows than
columns it tells the rows up to a rotation (see ``min_rows``). Clients share one key pair, so the
coordinator together with any client can read everybody's moments. Decrypted numbers must not be
sent back to the coordinator (Li & Micciancio 2021).

With a Gram matrix shared by all classes, the moments of the last class are not sent: all of them
add up to Σ_c m_c = (d̄₊ + (C − 1) d̄₋)·G₀, with G₀ the first row of G, which the coordinator knows.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from solera.core.aggregation import Extremes, Fields, Union
from solera.core.clients import FloatArray
from solera.core.component import Component
from solera.core.errors import UsageError
from solera.core.federation import Federation
from solera.learn.heonn.algebra import inverses, invert, solve
from solera.learn.heonn.key_holder import in_squares
from solera.learn.heonn.statistics import with_bias
from solera.learn.heonn.tasks import agree_key, rotation_keys
from solera.privacy import he
from solera.privacy.he import keys

Open = Callable[[list[he.Encrypted]], list[FloatArray]]
"""What decrypts, somewhere else."""


class Encryption(Component):
    """Encrypt the moments under the key pair ``key`` that all clients keep in their key stores.

    Make the pair with ``so.keys.create(folder, name, parameters)``: ``so.keys.CLIENT`` (the
    default) suits ``finish="client"``, where the coordinator returns the encrypted sum and key
    holders decrypt and solve; ``so.keys.COORDINATOR`` suits ``finish="coordinator"``, where the
    coordinator multiplies by (G + λI)⁻¹ under encryption; ``so.keys.COMPAT`` suits ``"compat"``,
    the two products of the thesis, to compare with. ``so.keys.SMALL`` and ``SMALL_CLIENT`` are for
    devices. ``spare_bits`` leave room for clients that join later with up to 2^spare_bits times as
    many rows as the largest of the first; each costs a bit of precision.
    """

    def __init__(
        self,
        key: str,
        *,
        finish: Literal["client", "coordinator", "compat"] = "client",
        spare_bits: int = 4,
    ) -> None:
        self.key = key
        self.finish = finish
        self.spare_bits = spare_bits

    def agree(
        self, federation: Federation, clients: ArrayLike | None, plan: dict[str, Any]
    ) -> dict[str, Any]:
        """What all clients must do alike: the pair, the scaling and the layout of ciphertexts."""
        fields = {"fingerprint": Union(), "parameters": Union(), "exponent": Extremes()}
        ask = {**plan, "key": self.key}
        held = federation.ask(agree_key, ask, to=clients).fold(Fields(fields))
        pairs = held["fingerprint"]
        if len(pairs) != 1:
            raise keys.WrongKey(
                f"clients hold {len(pairs)} different key pairs named {self.key!r}",
                hint="give all of them the same secret file",
            )
        parameters = he.Parameters.from_list(literal_eval(held["parameters"][0]))
        exponent = held["exponent"]["max"] + self.spare_bits
        patches, outputs = plan["patches"], plan["outputs"]
        outputs -= spares_one(plan["layout"], plan["target"])
        exponent = exponent[None] if patches is None else exponent[with_bias(patches)]
        members, columns = exponent.shape
        shared = plan["layout"] == "shared"
        shape = (members, outputs, columns) if shared else (members * outputs, 1, columns)
        scaling = exponent[:, None]
        if not shared and patches is not None:
            scaling = np.repeat(scaling, outputs, axis=0)
        agreed: dict[str, Any] = {
            "key": self.key,
            "fingerprint": bytes.fromhex(pairs[0]),
            "shape": list(shape),
            "outputs": outputs,
            "exponent": scaling,
            "layout": "flat",
            "rotations": None,
        }
        if self.finish == "client":
            return agreed
        self._check_depth(parameters)
        one_block = shape[0] == 1 and outputs * columns <= parameters.degree
        if self.finish == "coordinator" and one_block:
            return agreed | {"shape": list(shape[1:]), "exponent": scaling[0]}
        holder = federation.clients[:1] if clients is None else np.atleast_1d(clients)[:1]
        ask = {"key": self.key, "shape": list(shape)}
        reply = federation.ask(rotation_keys, ask, to=holder).collect()[0]
        return agreed | {"layout": "systems", "rotations": reply["rotations"]}

    def _check_depth(self, parameters: he.Parameters) -> None:
        needed = 2 if self.finish == "compat" else 1
        if parameters.depth < needed:
            raise UsageError(
                f"Encryption(finish={self.finish!r}): key {self.key!r} allows {parameters.depth} "
                f"products, {needed} are needed",
                hint="make it with so.keys.COORDINATOR, or so.keys.COMPAT for 'compat'",
            )

    def close(self, total: Any, problem: Problem, agreed: dict[str, Any]) -> dict[str, Any]:
        """The coordinator's last step: what key holders need for the weights."""
        moments, shape = total["moments"], total["shape"]
        if self.finish == "client":
            return {"moments": moments, "shape": shape}
        G = problem.grams(shape)
        A = inverses(G, problem.lam)
        sealed: dict[str, Any] = {"weights": self._multiply(moments, G, A, problem.lam, agreed)}
        if problem.spares_one:
            sealed["sum"] = (A[:, 0] @ problem.sum_of_moments(G)[..., None])[..., 0]
        return sealed

    def _multiply(
        self, moments: Any, G: FloatArray, A: FloatArray, lam: float, agreed: dict[str, Any]
    ) -> he.Encrypted:
        """[[A m]] by the product that suits: one system, many, or the two steps of the thesis."""
        from solera.privacy.he.products import multiply_factors

        moments = he.Encrypted.from_payload(moments)
        d = G.shape[-1]
        if self.finish == "coordinator":
            return self._apply(moments, A.reshape(-1, d, d), agreed)
        rotations = keys.Rotations.from_bytes(agreed["rotations"])
        values, vectors = np.linalg.eigh(G.reshape(-1, d, d))
        total = np.maximum(values, 0) + lam
        floor = d * np.finfo(float).eps * total[:, -1:]
        return multiply_factors(moments, vectors, invert(total, total > floor), rotations)

    def _apply(
        self, moments: he.Encrypted, matrices: FloatArray, agreed: dict[str, Any]
    ) -> he.Encrypted:
        """[[A m]] for a matrix per system."""
        from solera.privacy.he.products import multiply, multiply_single

        if agreed["rotations"] is None:
            return multiply_single(moments, matrices[0])
        return multiply(moments, matrices, keys.Rotations.from_bytes(agreed["rotations"]))

    def outputs(
        self, total: Any, problem: Problem, agreed: dict[str, Any], Z: FloatArray, open_: Open
    ) -> FloatArray:
        """z of every member, T × n × C, of rows Z, T × n × d; ``open_`` decrypts at a key holder.

        [[z]] = Z (G + λI)⁻¹ [[m]] in one product of the moments, since [[w]] was one already.
        """
        if self.finish == "client":
            raise UsageError(
                "Encryption(finish='client') leaves no product: only key holders can predict",
                hint="use finish='coordinator' and a pair made with so.keys.COORDINATOR",
            )
        G = problem.grams(total["shape"])
        A = inverses(G, problem.lam)
        d = A.shape[-1]
        moments = he.Encrypted.from_payload(total["moments"])
        matrices = [(piece[:, None] @ A).reshape(-1, d, d) for piece in in_squares(Z)]
        sealed = [self._apply(moments, each, agreed) for each in matrices]
        known = problem.outputs - problem.spares_one
        opened = [each.reshape(-1, known, d).swapaxes(1, 2) for each in open_(sealed)]
        z = np.concatenate(opened, axis=1)[:, : Z.shape[1]]
        if not problem.spares_one:
            return problem.complete(z, None)
        last = A[:, 0] @ problem.sum_of_moments(G)[..., None]
        return problem.complete(z, (Z @ last)[..., 0])

    def open(self, sealed: Any, problem: Problem) -> FloatArray:
        """A key holder's last step: the weights, T × d × C."""
        try:
            pair = keys.find(self.key)
        except UsageError as error:
            raise UsageError(
                f"the weights are encrypted and this process does not hold the key {self.key!r}",
                hint="predict where the key is kept, or set SOLERA_KEYS to its folder",
            ) from error
        inside = sealed["moments"] if self.finish == "client" else sealed["weights"]
        plain = he.decrypt(pair, he.Encrypted.from_payload(inside, pair))
        plain = plain.reshape(-1, problem.outputs - problem.spares_one, plain.shape[-1])
        plain = plain.swapaxes(1, 2)
        if self.finish != "client":
            return problem.complete(plain, sealed.get("sum"))
        G = problem.grams(sealed["shape"])
        return solve(G, problem.complete(plain, problem.sum_of_moments(G)), problem.lam)


@dataclass(frozen=True, slots=True)
class Problem:
    """What both last steps need to know of the learner.

    ``spares_one``: the moments of the last output are not sent, see :func:`spares_one`.
    ``inverse_levels`` are f⁻¹ of the targets of an absent and of a present class.
    """

    grams: Callable[[Any], FloatArray]
    lam: float
    outputs: int
    spares_one: bool
    inverse_levels: tuple[float, float]

    def sum_of_moments(self, G: FloatArray) -> FloatArray:
        """Σ_c m_c from the first row of G: T × d."""
        absent, present = self.inverse_levels
        return np.asarray(G[:, 0, 0] * (present + (self.outputs - 1) * absent))

    def complete(self, known: FloatArray, total: FloatArray | None) -> FloatArray:
        """T × d × C with the last output where it was spared: the total less the others."""
        if not self.spares_one:
            return np.ascontiguousarray(known)
        assert total is not None
        last = total[..., None] - known.sum(axis=2, keepdims=True)
        return np.concatenate([known, last], axis=2)


def spares_one(layout: str, target: str) -> bool:
    """Whether the moments of the last class follow from the others and the Gram matrix."""
    return layout == "shared" and target == "classes"
