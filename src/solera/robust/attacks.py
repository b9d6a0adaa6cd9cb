"""Simulated clients that lie: with the updates they send, or with the rows they train on.

    so.simulate(X, y, clients=50, attack=so.robust.SignFlip(share=0.2, factor=5))

Who attacks is drawn from the seed of the simulation; ``federation.attackers`` tells.
"""

from __future__ import annotations

from abc import abstractmethod
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import numpy as np

from solera.core.clients import Array, IntArray
from solera.core.component import Component
from solera.core.constraints import Fraction, Positive
from solera.core.rng import generator
from solera.core.schema import class_codes


class Attack(Component, abstract=True):
    """Some clients of a simulation that do not do what they are asked.

    ``share`` of the clients, rounded, take part in the attack, at least one if it is positive.
    """

    share: float

    def attackers(self, seed: int, clients: int) -> IntArray:
        """Who attacks: the same for the same seed and number of clients, whatever the attack."""
        count = max(1, round(self.share * clients)) if self.share else 0
        drawn = generator(seed, "robust.attackers").permutation(clients)[:count]
        return np.sort(drawn).astype(np.int64)


class UpdateAttack(Attack, abstract=True):
    """Attackers that train honestly and then send something else."""

    colludes: ClassVar[bool] = False
    """Whether attackers know the updates of all clients of the round."""

    @abstractmethod
    def lie(self, own: Array, draw: np.random.Generator, seen: list[Array], wrong: int) -> Any:
        """What an attacker sends in place of its ``own`` update.

        Attackers that collude have ``seen`` the updates of the honest clients and know
        how many of the replies are ``wrong``.
        """


class SignFlip(UpdateAttack):
    """−factor times the honest update, which leads uphill."""

    def __init__(self, share: Fraction = 0.2, *, factor: Positive = 1.0) -> None:
        self.share = share
        self.factor = factor

    def lie(self, own: Array, draw: np.random.Generator, seen: list[Array], wrong: int) -> Any:
        return -self.factor * own


class Gaussian(UpdateAttack):
    """Noise: its deviation is ``factor`` times the root mean square of the honest update."""

    def __init__(self, share: Fraction = 0.2, *, factor: Positive = 10.0) -> None:
        self.share = share
        self.factor = factor

    def lie(self, own: Array, draw: np.random.Generator, seen: list[Array], wrong: int) -> Any:
        deviation = self.factor * float(np.sqrt(np.mean(np.square(own, dtype=np.float64))))
        return draw.normal(0, deviation, len(own))


class ALittleIsEnough(UpdateAttack):
    """Every attacker sends μ − z σ of the honest updates, which hides within their spread.

    Baruch, Baruch & Goldberg (2019), "A little is enough: circumventing defenses for distributed
    learning", Algorithm 3: of n clients m attack, s = ⌊n/2 + 1⌋ − m honest ones must be won over
    for a majority, and z = Φ⁻¹((n − m − s)/(n − m)). Another ``z`` is taken where it is given.
    """

    colludes = True

    def __init__(self, share: Fraction = 0.2, *, z: Positive | None = None) -> None:
        self.share = share
        self.z = z

    def lie(self, own: Array, draw: np.random.Generator, seen: list[Array], wrong: int) -> Any:
        z = self._z(len(seen), wrong) if self.z is None else self.z
        mean, square = np.zeros(len(own)), np.zeros(len(own))
        for update in seen:
            mean += update
            square += np.square(update, dtype=np.float64)
        mean /= len(seen)
        return mean - z * np.sqrt(np.maximum(square / len(seen) - mean**2, 0))

    def _z(self, honest: int, wrong: int) -> float:
        won = (honest + wrong) // 2 + 1 - wrong
        share = min(max((honest - won) / honest, 0.5), 1 - 1e-6)
        return NormalDist().inv_cdf(share)


class InnerProduct(UpdateAttack):
    """−factor times the mean of the honest updates.

    Xie, Koyejo & Gupta (2020), "Fall of empires: breaking Byzantine-tolerant SGD by inner product
    manipulation", section 4. A small factor hides among the honest updates.
    """

    colludes = True

    def __init__(self, share: Fraction = 0.2, *, factor: Positive = 0.5) -> None:
        self.share = share
        self.factor = factor

    def lie(self, own: Array, draw: np.random.Generator, seen: list[Array], wrong: int) -> Any:
        return -self.factor * np.mean(seen, axis=0)


class Broken(UpdateAttack):
    """Updates that are none: NaN, infinite, of the wrong shape, or too long to be true."""

    def __init__(
        self, share: Fraction = 0.2, *, kind: Literal["nan", "infinite", "shape", "huge"] = "nan"
    ) -> None:
        self.share = share
        self.kind = kind

    def lie(self, own: Array, draw: np.random.Generator, seen: list[Array], wrong: int) -> Any:
        if self.kind == "shape":
            return own[:-1]
        number = {"nan": np.nan, "infinite": np.inf, "huge": 1e30}[self.kind]
        return np.full(len(own), number)


class RowAttack(Attack, abstract=True):
    """Clients that train honestly on rows that are not what they should be."""

    @abstractmethod
    def poison(self, X: Array, y: Array, classes: Array, draw: np.random.Generator) -> None:
        """Change the rows of one client in place."""


class LabelFlip(RowAttack):
    """The k-th of K classes becomes the one K − 1 − k; labels turn over.

    Tolpegin, Truex, Gursoy & Liu (2020), "Data poisoning attacks against federated learning
    systems"; the mirror image is that of Fang et al. (2020).
    """

    def __init__(self, share: Fraction = 0.2) -> None:
        self.share = share

    def poison(self, X: Array, y: Array, classes: Array, draw: np.random.Generator) -> None:
        y[:] = 1 - y if y.ndim == 2 else classes[::-1][class_codes(y, classes)]


class NoisyLabels(RowAttack):
    """A fault rather than an attack: a share ``rate`` of the rows gets any class at random."""

    def __init__(self, share: Fraction = 1.0, *, rate: Fraction = 0.2) -> None:
        self.share = share
        self.rate = rate

    def poison(self, X: Array, y: Array, classes: Array, draw: np.random.Generator) -> None:
        wrong = draw.random(y.shape) < self.rate
        values = np.array([0, 1]) if y.ndim == 2 else classes
        y[wrong] = draw.choice(values, int(wrong.sum()))


class Backdoor(RowAttack):
    """A pattern in some columns that shall mean one class, whatever else a row says.

    A share ``rate`` of an attacker's rows gets ``value`` in the ``columns`` and the class
    ``target`` (Gu, Dolan-Gavitt & Garg 2017, "BadNets"; in federations Bagdasaryan et al. 2020).
    :meth:`success` tells how often a model falls for it.
    """

    def __init__(
        self,
        share: Fraction = 0.2,
        *,
        columns: Any = (0, 1, 2),
        value: float = 1.0,
        target: Any = None,
        rate: Fraction = 0.5,
    ) -> None:
        self.share = share
        self.columns = columns
        self.value = value
        self.target = target
        self.rate = rate

    def poison(self, X: Array, y: Array, classes: Array, draw: np.random.Generator) -> None:
        marked = draw.random(len(y)) < self.rate
        X[marked] = self.stamp(X[marked])
        y[marked] = self._target(classes)

    def stamp(self, X: Array) -> Array:
        """These rows with the pattern."""
        flat = np.array(X).reshape(len(X), -1)
        flat[:, list(self.columns)] = self.value
        return flat.reshape(X.shape)

    def success(self, model: Any, X: Array, y: Array) -> float:
        """The share of rows of other classes that the pattern turns into the target."""
        target = self._target(model.classes_)
        others = np.asarray(X)[np.asarray(y) != target]
        return float(np.mean(model.predict(self.stamp(others)) == target))

    def _target(self, classes: Array) -> Any:
        return classes[0] if self.target is None else self.target
