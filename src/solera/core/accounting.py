"""What noise is worth: ε and δ of the noise that was added, by Google's dp-accounting.

Everything that spends of a privacy budget is an :class:`Event`: which noise, how much of it against
what one row (or one client) can change, how often, and on which share of the rows. Events are plain
data. They are stored as they are and composed by an accountant, Rényi differential privacy (Mironov
2017), privacy loss distributions (Koskela et al. 2020) or, for Gaussian noise alone, the exact ε of
Balle & Wang (2018); ε is never added up.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from solera.core.errors import MissingExtra, UsageError

Accountant = Literal["rdp", "pld", "analytic"]
WHOLE_ORDERS = (*range(2, 64), 128, 256)
"""Orders for events of samples, of which fractional ones take a hundred times longer.

They would tell a smaller ε where it is above ten or so; without them none is too small.
"""
_FEW_ORDERS = (*range(2, 25), 28, 32, 40, 48, 64, 128)
"""To look for a noise multiplier, which takes many tries."""
_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e6


@dataclass(frozen=True, slots=True)
class Event:
    """Noise that was added ``times`` times.

    Parameters
    ----------
    noise: its deviation (of Laplace noise, its scale) over the most that one row or client changes.
    rate: the share that was drawn each time, by chance for each alone ("poisson") or a fixed number
        ("fixed") of ``among``; 1: all.
    """

    noise: float
    times: int = 1
    mechanism: Literal["gaussian", "laplace"] = "gaussian"
    rate: float = 1.0
    sampling: Literal["poisson", "fixed"] = "poisson"
    among: int = 0

    def to_payload(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_payload(cls, payload: dict[str, Any]) -> Event:
        return cls(**payload)


def accountant_of(events: Iterable[Event]) -> Accountant:
    """The one accountant of closed jobs and of owners' ledgers, for these events.

    "analytic", which is exact, for Gaussian noise on all rows; "rdp" where anything else is there.
    """
    exact = all(event.mechanism == "gaussian" and event.rate == 1 for event in events)
    return "analytic" if exact else "rdp"


def epsilon_of(events: Iterable[Event], delta: float, accountant: Accountant = "rdp") -> float:
    """The ε at which all these events together are (ε, δ)-differentially private."""
    events = grouped(events)
    if not events:
        return 0.0
    if _too_little(events):
        return math.inf
    if delta == 0:
        return _pure(events)
    if accountant == "analytic":
        return float(_theory().get_epsilon_gaussian(_one_gaussian(events), delta))
    with _quiet():
        if accountant == "rdp":
            orders, rdp = _composed_rdp(events)
            from dp_accounting.rdp import compute_epsilon

            epsilon = float(compute_epsilon(orders, rdp, delta)[0])
            return epsilon if epsilon >= 0 else math.inf
        return float(_accountant(events, accountant).get_epsilon(delta))


def delta_of(events: Iterable[Event], epsilon: float, accountant: Accountant = "rdp") -> float:
    """The δ at which all these events together are (ε, δ)-differentially private."""
    events = grouped(events)
    if not events:
        return 0.0
    if _too_little(events):
        return 1.0
    if accountant == "analytic":
        return _gaussian_delta(_one_gaussian(events), epsilon)
    with _quiet():
        return float(_accountant(events, accountant).get_delta(epsilon))


def noise_for(
    events: Callable[[float], Sequence[Event]],
    epsilon: float,
    delta: float,
    accountant: Accountant = "rdp",
) -> float:
    """The least noise multiplier whose events are (ε, δ)-differentially private.

    Found by halving an interval; for privacy loss distributions, which take seconds, below what is
    enough by the other accountant, and not as finely.
    """
    check_installed()

    def enough(noise: float) -> bool:
        composed = grouped(events(noise))
        if delta == 0 or accountant != "rdp" or not _samples(composed):
            return epsilon_of(composed, delta, accountant) <= epsilon
        with _quiet():
            found = _accountant(composed, "rdp", orders=_FEW_ORDERS).get_epsilon(delta)
        return bool(found <= epsilon)

    low, high, precision = 0.0, 1.0, 1e-4
    if accountant == "pld":
        high, precision = noise_for(events, epsilon, delta), 1e-2
        low = high / 2
    while not enough(high):
        low, high = high, 2 * high
        if high > _MOST_NOISE:
            raise UsageError(
                f"no noise gives epsilon={epsilon:g} at delta={delta:g}",
                hint="a larger epsilon or delta, fewer rounds",
            )
    while high - low > precision * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _too_little(events: Iterable[Event]) -> bool:
    """Whether some noise is so small that it is none: the accountants' numbers overflow there."""
    return any(not event.noise >= _LEAST_NOISE for event in events)


def _one_gaussian(events: Iterable[Event]) -> float:
    """The noise multiplier of one Gaussian mechanism that is worth as much as all of these."""
    events = list(events)
    if any(event.mechanism != "gaussian" or event.rate < 1 for event in events):
        raise UsageError(
            'the accountant "analytic" is for Gaussian noise on all rows', hint='"rdp" for others'
        )
    return float(sum(event.times / event.noise**2 for event in events) ** -0.5)


def _gaussian_delta(noise: float, epsilon: float) -> float:
    """Balle & Wang (2018), Theorem 8."""
    from scipy.stats import norm

    near, far = 1 / (2 * noise) - epsilon * noise, -1 / (2 * noise) - epsilon * noise
    return float(norm.cdf(near) - math.exp(epsilon) * norm.cdf(far))


def _theory() -> Any:
    check_installed()
    from dp_accounting import gaussian_mechanism

    return gaussian_mechanism


def grouped(events: Iterable[Event]) -> list[Event]:
    """Equal events as one that happened more often."""
    times: Counter[Event] = Counter()
    for event in events:
        times[replace(event, times=1)] += event.times
    return [replace(event, times=count) for event, count in times.items()]


def _pure(events: Iterable[Event]) -> float:
    """Σ ε of Laplace noise; no other noise is private with δ = 0."""
    total = 0.0
    for event in events:
        if event.mechanism != "laplace":
            return math.inf
        total += event.times / event.noise
    return total


def _replaces(events: Iterable[Event]) -> bool:
    """Whether neighbours differ by a replacement: so it is where a fixed number is drawn."""
    return any(event.sampling == "fixed" and event.rate < 1 for event in events)


def _samples(events: Iterable[Event]) -> bool:
    return any(event.rate < 1 for event in events)


def _accountant(
    events: Sequence[Event],
    kind: Accountant,
    traits: tuple[bool, bool] | None = None,
    orders: Sequence[int] = WHOLE_ORDERS,
) -> Any:
    """The accountant of dp-accounting that has seen these events.

    ``traits``: whether any of all the events that are to be composed replaces, or samples.
    """
    dp = check_installed()
    replaces, sampled = traits or (_replaces(events), _samples(events))
    relation = dp.NeighboringRelation
    neighbours = relation.REPLACE_ONE if replaces else relation.ADD_OR_REMOVE_ONE
    if kind == "rdp":
        from dp_accounting.rdp import RdpAccountant

        accountant: Any = RdpAccountant(
            orders=orders if sampled else None, neighboring_relation=neighbours
        )
    else:
        from dp_accounting.pld import PLDAccountant

        accountant = PLDAccountant(neighboring_relation=neighbours)
    for event in events:
        told = _as_theirs(dp, event, replaces)
        if not accountant.supports(told):
            raise UsageError(
                f"the accountant {kind!r} cannot compose {event}",
                hint='accountant="rdp" knows sampling of a fixed number; mix no two samplings',
            )
        accountant.compose(told, event.times)
    return accountant


def _as_theirs(dp: Any, event: Event, replaces: bool) -> Any:
    """The event in the words of dp-accounting; a replacement changes a sum twice as much."""
    noise = event.noise / 2 if replaces else event.noise
    made = dp.LaplaceDpEvent if event.mechanism == "laplace" else dp.GaussianDpEvent
    told = made(noise)
    if event.rate >= 1:
        return told
    if event.sampling == "poisson":
        return dp.PoissonSampledDpEvent(event.rate, told)
    drawn = max(1, round(event.rate * event.among))
    return dp.SampledWithoutReplacementDpEvent(event.among, drawn, told)


def _composed_rdp(events: Sequence[Event]) -> tuple[Any, Any]:
    """Orders, and the Rényi divergences of all events, which add up."""
    kind = (_replaces(events), _samples(events))
    total: Any = 0.0
    for event in events:
        orders, rdp = _rdp(replace(event, times=1), *kind)
        total = total + event.times * rdp
    return orders, total


@lru_cache(maxsize=1024)
def _rdp(event: Event, *traits: bool) -> tuple[Any, Any]:
    """Those of one event. A sampled one takes a tenth of a second, and comes in every round."""
    accountant = _accountant([event], "rdp", (traits[0], traits[1]))
    return accountant._orders, accountant._rdp


def check_installed() -> Any:
    """The package dp-accounting, or an error that names the extra it comes with."""
    try:
        import dp_accounting
    except ImportError:
        raise MissingExtra.of("differential privacy", "dp") from None
    return dp_accounting


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of orders that are left out, which make ε no smaller."""
    check_installed()
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
