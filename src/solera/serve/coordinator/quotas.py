"""How much anyone may ask of a coordinator, so that nobody stops the others.

Everything here is counted in memory, in bounded room, and is forgotten when the coordinator ends.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

from solera.core.errors import SoleraError

_HOUR = 3600.0


class TooMany(SoleraError):
    """Somebody asks for more than their share; it may be tried again later."""


class TooMuch(SoleraError):
    """Somebody stores more than their share."""


class DiskFull(SoleraError):
    """There is no room for anything."""


class Rates:
    """Token buckets: whoever asks has ``burst`` tokens at first and gets ``rate`` per second.

    Of the askers that are known, those that have not asked for longest are forgotten first: after
    ``burst / rate`` seconds of silence nothing is lost by that.
    """

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        most: int = 20_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rate, self.burst, self.most = rate, burst, most
        self._clock = clock
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def spend(self, who: Hashable, tokens: float = 1.0) -> None:
        """Take some tokens; :class:`TooMany` if there are not enough."""
        now = self._clock()
        left, at = self._left.pop(who, (self.burst, now))
        left = min(self.burst, left + (now - at) * self.rate)
        enough = left >= tokens
        self._left[who] = (left - tokens if enough else left, now)
        if len(self._left) > self.most:
            self._left.popitem(last=False)
        if not enough:
            raise TooMany(f"more than {self.rate / tokens:g} requests of this kind per second")


class Uploads:
    """Who has uploaded which blobs that nothing names yet: at most so many, and so many bytes.

    A client may reply only with what it uploaded itself: asking the coordinator to take what is
    already there would tell that it is there.
    """

    def __init__(self, bytes: int, *, blobs: int = 1000) -> None:
        self.bytes, self.blobs = bytes, blobs
        self._lock = Lock()
        self._held: dict[str, OrderedDict[str, tuple[int, float]]] = {}
        self._whole: set[tuple[str, str]] = set()

    def add(self, owner: str, digest: str, size: int) -> None:
        """The owner has now sent so many bytes of a blob, or will; an error if that is too much."""
        now = time.monotonic()
        with self._lock:
            held = self._held.setdefault(owner, OrderedDict())
            while held and now - next(iter(held.values()))[1] > _HOUR:
                self._whole.discard((owner, held.popitem(last=False)[0]))
            others = sum(bytes for name, (bytes, _) in held.items() if name != digest)
            if others + size > self.bytes or (digest not in held and len(held) >= self.blobs):
                raise TooMuch(
                    f"{len(held)} blobs of {others:,} bytes were uploaded and are not used",
                    hint="use them, or wait until they are forgotten, after an hour",
                )
            held[digest] = (size, now)
            held.move_to_end(digest)

    def finish(self, owner: str, digest: str) -> None:
        """All of a blob is here."""
        with self._lock:
            if digest in self._held.get(owner, ()):
                self._whole.add((owner, digest))

    def __contains__(self, what: tuple[str, str | None]) -> bool:
        """Whether this owner has uploaded all of this blob."""
        return what in self._whole

    def settle_all(self, *digests: str | None) -> None:
        """These are named by something now, whoever uploaded them."""
        for owner in list(self._held):
            self.settle(owner, *digests)

    def settle(self, owner: str, *digests: str | None) -> None:
        """These are named by something now, and no longer count."""
        with self._lock:
            held = self._held.get(owner, OrderedDict())
            for digest in digests:
                held.pop(digest or "", None)
                self._whole.discard((owner, digest or ""))
            if not held:
                self._held.pop(owner, None)
