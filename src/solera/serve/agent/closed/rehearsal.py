"""What a text would tell, before anybody approves it: its job, run on rows that are made up."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.accounting import accountant_of, delta_of
from solera.core.component import build
from solera.core.errors import DataError
from solera.learn.closed import Price
from solera.serve.agent.closed.held import text_of_hash
from solera.serve.agent.closed.price import price_of_text
from solera.serve.agent.closed.rules import refusal
from solera.serve.agent.policy import OwnerPolicy
from solera.serve.agent.sending import numbers_in
from solera.serve.closed_view import MANY_SUMS
from solera.serve.job_spec import read_job
from solera.simulate.simulation import simulate
from solera.trust.board.text import JobText, canonical
from solera.trust.epoch.dictionary import Dictionary
from solera.trust.epoch.epoch import Epoch
from solera.trust.noise import worth

_MOST_ROWS = 4000
_KEY = bytes(31) + b"\1"
_ONCE = (
    "A model that is solved at once: labels of Cleveland followed from one with a parameter for "
    "every three persons, for whoever knows all columns; in a closed job it is one for six."
)


def find_text(name: str, folder: Path) -> JobText:
    """The text of a job file, or one that this client was shown, by the beginning of its hash."""
    if not Path(name).is_file():
        return text_of_hash(folder, name)
    spec = read_job(name)
    chosen = {**asdict(spec.selection), "positive": spec.positive, "researcher_key": _KEY}
    return JobText("training", spec.grid or spec.learner, **chosen)


def what_it_tells(policy: OwnerPolicy, text: JobText, epoch: Epoch) -> list[tuple[str, str]]:
    """What an owner may want to know of a text, a line for each."""
    if refused := refusal(policy, text, epoch):
        return [("refused", refused)]
    if text.kind != "training":
        return [("tells", f"sums of {text.kind}, of at least {epoch.min_count} persons each")]
    persons = sum(owner.persons for owner in epoch.owners)
    most = persons
    try:
        numbers = _numbers_told(text, epoch, min(persons, _MOST_ROWS))
        about = (
            f"about {numbers:,} numbers of {persons:,} persons, {numbers / persons:.2g} for each"
        )
        tells = ("tells", f"{about} (counted on rows that are made up)")
        most = min(numbers, persons)
    except DataError as error:  # texts are no numbers drawn evenly
        tells = ("tells", f"not counted, as it runs on no rows that are made up: {error.message}")
    price = price_of_text(canonical(text), len(epoch.owners))
    if price is None or policy.privacy is None:
        exact = any(build(learner).needs_exact_training for learner in text.learners)
        fixed = (
            f"whoever knows all columns can work out the targets of up to {most:,} of "
            f"{persons:,} persons. {MANY_SUMS if exact else _ONCE}"
        )
        return [tells, ("at worst", fixed)]
    budget, delta = policy.privacy.epsilon, policy.privacy.delta
    guess = (
        "whoever knows all columns, and all rows but one, tells whether that person is there in at "
        f"most {100 * best_guess(price):.3g} % of cases, where guessing gives 50 %"
    )
    spends = f"ε = {worth(price.events, delta):.4g} of {budget:g} at δ = {delta:g}"
    return [tells, ("noise", str(price)), ("budget", spends), ("at worst", guess)]


def best_guess(price: Price) -> float:
    """How often anybody can tell at best whether a person is there: ½ + δ(ε = 0) / 2.

    δ(0) is the distance of what is told with the person and without (Dong, Roth & Su 2022).
    """
    distance = delta_of(price.events, 0.0, accountant_of(price.events))
    by_epsilon = 1 / (1 + math.exp(-min(price.epsilon, 700.0))) + price.delta
    return min((1 + distance) / 2, by_epsilon)


def _numbers_told(text: JobText, epoch: Epoch, rows: int) -> int:
    """How many numbers the sums of a job tell, of rows drawn evenly from the dictionary."""
    import pandas as pd

    every = {"exact_training": True, "honest_peers": len(epoch.owners) - 1}
    federation = simulate(
        pd.DataFrame(_made_up(epoch.dictionary, rows)),
        clients=len(epoch.owners),
        dictionary=epoch.dictionary,
        columns=text.columns or None,
        target=text.target,
        validation=len(text.validation) / 10,
        test=len(text.test) / 10,
        policy={"policy": "sums", "privacy": {"epsilon": 1e9, "delta": 0.1}, **every},
    )
    engine: Any = federation.closed_job("rehearsal").engine
    told, total = [0], engine.exchange.total

    def counted(*asked: Any) -> Any:
        came = total(*asked)
        told[0] += numbers_in(came.partial)
        return came

    engine.exchange.total = counted
    for learner in text.learners:
        build(learner).fit(federation, progress=False)
    return told[0]


def _made_up(dictionary: Dictionary, rows: int) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    table: dict[str, Any] = {dictionary.identifier or "": np.arange(rows)}
    for column in dictionary.columns:
        low, high = column.bounds or (0.0, len(column.categories))
        grid = column.grid or 1.0
        values = low + grid * np.floor(draw.uniform(size=rows) * (high - low) / grid)
        names = np.array(column.categories, object)
        table[column.name] = names[values.astype(int)] if column.categories else values
    return table if dictionary.identifier else {n: v for n, v in table.items() if n}
