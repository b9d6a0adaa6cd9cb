"""Numbers for Prometheus: ``/metrics``.

A request costs a few additions. What must be counted in the database or on the disk is counted when
somebody asks, and at most every few seconds. Labels come from the coordinator's own routes and
states, never from what is sent to it, so that nobody can make them many.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from solera.core.errors import MissingExtra
from solera.serve.coordinator.service import Coordinator

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
except ImportError:
    raise MissingExtra.of("metrics", "serve") from None

T = TypeVar("T")
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH"))
_SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 40.0)
_CENSUS_SECONDS = 5.0
_DISK_SECONDS = 60.0


class Metrics:
    """Counts of one running coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ("method", "route")
        self._requests = Counter(
            "solera_requests", "Requests answered.", (*labels, "status"), registry=registry
        )
        self._seconds = Histogram(
            "solera_request_seconds", "Time to answer, waiting included.", labels,
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        received, sent = "Bytes of request bodies.", "Bytes of response bodies."
        self._received = Counter("solera_received_bytes", received, registry=registry)
        self._sent = Counter("solera_sent_bytes", sent, registry=registry)
        self._start = time.monotonic()
        registry.register(_State(coordinator))
        ProcessCollector(registry=registry)

    def count(
        self, method: str, route: str, status: int, seconds: float, received: int, sent: int
    ) -> None:
        """A request was answered; ``route`` is the pattern that it matched."""
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)
        self._received.inc(received)
        self._sent.inc(sent)

    def pace(self) -> tuple[float, float]:
        """Requests a minute since the start, and the bound within which 95 % were answered."""
        within = dict.fromkeys((*_SECONDS, math.inf), 0.0)
        for family in self._seconds.collect():
            for sample in family.samples:
                if sample.name.endswith("_bucket"):
                    within[float(sample.labels["le"])] += sample.value
        answered = within[math.inf]
        minutes = max(time.monotonic() - self._start, 1.0) / 60
        slow = next(bound for bound, n in within.items() if n >= 0.95 * answered)
        return answered / minutes, slow

    def text(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self.registry)


class _State:
    """What the coordinator holds, looked up when the numbers are read."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._census = Cached(lambda: coordinator.store.census(time.time()), _CENSUS_SECONDS)
        self._disk = Cached(coordinator.blobs.disk_bytes, _DISK_SECONDS)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        census = self._census()
        yield _gauge(
            "long_polls", "Requests that wait for news.", self._coordinator.notifier.waiting
        )
        yield _gauge("clients", "Clients that have not been revoked.", census.clients)
        yield _gauge("clients_seen", "Of these, seen in the last minute.", census.seen)
        yield _gauge("asks_open", "Asks that wait for a reply.", census.asks)
        yield _gauge("blob_bytes", "Bytes of blobs on disk.", self._disk())
        yield _gauge("jobs", "Jobs by state.", census.jobs, "state")
        yield _gauge("replies", "Replies and failures stored, by status.", census.replies, "status")

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing: registering would otherwise count everything."""
        return []


def _gauge(
    name: str, meaning: str, value: float | dict[str, int], label: str = ""
) -> GaugeMetricFamily:
    if not isinstance(value, dict):
        return GaugeMetricFamily(f"solera_{name}", meaning, value=value)
    family = GaugeMetricFamily(f"solera_{name}", meaning, labels=[label])
    for key, count in sorted(value.items()):
        family.add_metric([key], count)
    return family


class Cached(Generic[T]):
    """A value that is found out again only when it is older than some seconds."""

    def __init__(self, find: Callable[[], T], seconds: float) -> None:
        self._find = find
        self._seconds = seconds
        self._lock = threading.Lock()
        self._until = float("-inf")
        self._value: T

    def __call__(self) -> T:
        with self._lock:
            if time.monotonic() >= self._until:
                self._value = self._find()
                self._until = time.monotonic() + self._seconds
            return self._value

    async def get(self) -> T:
        """The same for a coroutine: only finding out takes a thread."""
        if time.monotonic() < self._until:
            return self._value
        return await run_in_threadpool(self)
