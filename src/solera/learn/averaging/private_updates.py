"""The client's side of ``FedAvg(dp=…)``: clip an update, and add noise to it before it leaves."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
import numpy as np

from solera.core.accounting import Event
from solera.core.clients import Array, BoolArray, Client, FloatArray
from solera.core.constraints import Count, Positive, PositiveFraction
from solera.core.errors import Refusal
from solera.trust.randomness import protecting

MOST_STEPS = 1_000_000


class Privacy(TypedDict):
    """How the update of a client is noised.

    ``noise`` is σ and ``clip`` C. For the level "client" the deviation is σC/√share, where so many
    clients add a ``share`` each; ``below``, if it is there, that of the noise on whether the update
    was shorter than C. For "record" the gradients of rows are clipped and noised, ``rate`` of the
    rows in every step; in a closed job every owner divides by ``rows``, the mean number of them.
    """

    level: Literal["client", "record"]
    noise: Positive
    clip: Positive
    share: Count
    below: Positive | None
    rate: PositiveFraction | None
    rows: NotRequired[Positive]


def protect_updates(
    values: Array, counted: BoolArray, privacy: Privacy, clients: Iterable[Client]
) -> tuple[Array, FloatArray | None]:
    """Clipped and noised updates, one line per client, and the noised marks of those below C.

    What is not ``counted``, statistics and counters that no gradient moves, is outside the norm and
    does not leave: it stays as it was sent. An update that is not finite stays so; whoever
    receives it turns it away and names the client.
    """
    clip, share = privacy["clip"], math.sqrt(privacy["share"])
    noised = np.zeros_like(values)
    below = None if privacy["below"] is None else np.zeros(len(values))
    for i, client in enumerate(clients):
        draw = protecting(client, "update")
        update = values[i, counted].astype(np.float64)
        length = float(np.linalg.norm(update))
        if clip < length < math.inf:
            update *= clip / length
        noised[i, counted] = draw.add_normal(update, privacy["noise"] * clip / share)
        if below is not None and privacy["below"] is not None:
            mark = np.array([(length <= clip) - 0.5])
            below[i] = draw.add_normal(mark, privacy["below"] / share)[0]
    return noised, below


def steps_of(training: Any, rate: float) -> int:
    """How many steps a client takes that draws this share of its rows in each."""
    steps = int(training["steps"] or math.ceil(training["epochs"] / rate))
    if not 1 <= steps <= MOST_STEPS:
        raise Refusal(f"{steps:.3g} steps, at most {MOST_STEPS:,}: the rate is too small")
    return steps


def spent_by_reply(client: Client, ask: Any) -> list[Event]:
    """What one reply tells of one row, whoever reads it alone.

    A row that is added or removed may change the update of a client altogether, from one end of the
    ball of radius C to the other; and a mark from one to the other.
    """
    try:
        privacy = msgspec.convert(ask["privacy"], Privacy)
    except msgspec.ValidationError as error:
        raise Refusal(f"its table `privacy`: {error}") from None
    if privacy["level"] == "record":
        rate = privacy["rate"] or 1.0
        noise = privacy["noise"] / math.sqrt(privacy["share"])
        return [Event(noise, steps_of(ask["training"], rate), rate=rate)]
    share = math.sqrt(privacy["share"])
    spent = [Event(privacy["noise"] / (2 * share))]
    if privacy["below"] is not None:
        spent.append(Event(privacy["below"] / share))
    return spent
