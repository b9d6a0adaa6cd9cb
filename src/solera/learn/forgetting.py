"""Learners that can forget a client: what was kept is folded once more without it."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, Self

from solera.core.component import Component
from solera.core.engine import OUTSIDE, Fit
from solera.core.errors import CannotForget
from solera.core.federation import Federation
from solera.core.state import Stateful
from solera.engines.kept import KeepingEngine, Kept, KeptReplies
from solera.learn.client_models import ClientParts
from solera.learn.unlearning import Signer, check_can_keep, read_kept, receipt


class Forgetful(Stateful, Component, abstract=True):
    """The part of a learner that forgets a client; see :mod:`solera.learn.unlearning`."""

    _kept: Kept | None = None
    _receipt: dict[str, Any] | None = None
    _client_fit: Fit = OUTSIDE
    """For which clients keep what is their own of this model."""
    _client_parts: ClientParts | None = None
    """What they keep, where they are simulated."""

    @abstractmethod
    def fit(self, *rows: Any, **options: Any) -> Self:
        """Learn from the clients of a federation."""

    @abstractmethod
    def check_fitted(self) -> None:
        """Raise an error before ``fit``."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Parameters and everything learned."""

    def forget(
        self,
        client: int | str,
        federation: Federation | None = None,
        *,
        kept: str | os.PathLike[str] | None = None,
        key: Signer | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Become the model of a federation that never had this client.

        What ``fit(keep=True)`` kept, or the file ``kept`` that it wrote, is folded once more
        without the client's replies; the result is that of a fit without it, to the bit.
        What then is asked with other numbers (by pipelines, trees, learners of many rounds) is
        asked the others again, for which ``federation`` is needed; with nothing kept, all of it.
        With a ``key``, :attr:`receipt` is a signed statement about it.
        """
        self.check_fitted()
        before = self.to_bytes()
        stored = self._kept if kept is None else read_kept(kept)
        if stored is None and federation is None:
            raise CannotForget(
                "nothing was kept of this model's training",
                hint="fit(federation, keep=True), or fit again: forget(client, federation)",
            )
        if stored is not None and stored["started"]:
            raise CannotForget(
                "the model began with another one, which knows the client as well",
                hint="forget the client in that one and fit(start=…) again",
            )
        known = dict(vars(self))
        try:
            exact = self._forget(client, stored, federation, progress)
        except BaseException:
            vars(self).clear()
            vars(self).update(known)  # what could not be forgotten is as it was
            raise
        self._receipt = None
        if key is not None:
            facts: dict[str, Any] = {"before": before, "after": self.to_bytes(), "exact": exact}
            self._receipt = receipt(key, client=str(client), **facts)
        return self

    @property
    def receipt(self) -> dict[str, Any] | None:
        """What was signed when a client was forgotten; see :func:`~.unlearning.check_receipt`."""
        return self._receipt

    def _forget(
        self, client: int | str, kept: Any, federation: Federation | None, progress: bool | None
    ) -> bool:
        """Fit without the client; whether the result is that of a federation without it."""
        if kept is None:
            assert federation is not None
            check_can_keep(federation)
            self.fit(federation.without(client), progress=progress)
            return True
        rest = self._rest(client, kept, federation)
        rest = rest.over(KeptReplies(kept, None if federation is None else federation.engine))
        rest = rest.fitting(self._client_fit)  # where clients still have what they kept
        self.fit(rest, progress=progress, keep=True)
        self._forgotten(rest)
        return True

    def _rest(self, client: int | str, kept: Any, federation: Federation | None) -> Federation:
        """The clients that are left of those that took part."""
        if federation is None:
            names = tuple(kept["names"])
            federation = Federation(KeptReplies(kept), seed=kept["seed"], names=names)
        elif federation.engine.clients != kept["clients"] or federation.seed != kept["seed"]:
            raise CannotForget("the federation is not the one that the model was fitted to")
        gone = [federation.find_client(c) for c in kept.get("forgotten", [])]
        return federation.without(*gone, client)

    def _forgotten(self, rest: Federation) -> None:
        """Remember who has been forgotten, for the next one."""
        if self._kept is not None:
            everyone = range(rest.engine.clients)
            self._kept["forgotten"] = sorted(set(everyone) - set(rest.clients.tolist()))

    def _keeping(self, federation: Federation) -> KeepingEngine:
        """The engine that keeps what forgetting needs."""
        check_can_keep(federation)
        return KeepingEngine(federation)
