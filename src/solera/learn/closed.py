"""What a closed job can carry, said before anything starts, and what it ends with.

In a closed job every owner runs the learner itself and only sums over all owners are shared
(:mod:`solera.trust.board`). What is no sum, or waits for the next version, is named here with what
to use instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from solera.core.accounting import Event
from solera.core.aggregation import Sum
from solera.core.clients import Part
from solera.core.component import Component, describe_fitted
from solera.core.errors import PolicyRefusal, SoleraError
from solera.core.federation import Federation
from solera.core.payload import encode
from solera.core.schema import Schema
from solera.evaluation.evaluation import Evaluation
from solera.evaluation.stopping import EarlyStopping, StopAt
from solera.learn.closed_losses import ValidationLoss, mean_loss
from solera.learn.progress import RoundBar
from solera.privacy.dp.sums import at_the_sum
from solera.trust.board.engine import NotClosed
from solera.trust.board.judge import Persons, check_sixth
from solera.trust.board.persons import count_persons
from solera.trust.epoch.bases import Base
from solera.trust.noise import check_budget, worth
from solera.trust.policy import Policy

_PARAMETERS = {
    "per_round": "all owners take part in every sum; leave per_round= out",
    "select": "all owners take part in every sum; leave select= out",
    "aggregate": "a rule in place of the mean looks at single replies; leave aggregate= out",
    "encrypt": "ciphertexts of single owners are no sum; leave encrypt= out",
}
"""Parameters of learners that no closed job has, and why."""


def is_closed(federation: Federation) -> bool:
    """Whether only sums over all owners come back."""
    return bool(getattr(federation.engine, "closed", False))


def as_job(learner: Any, federation: Federation) -> Federation:
    """The federation as the fit of a learner meets it."""
    return federation.closed_job(type(learner).__name__)


class Owners(Protocol):
    """Owners elsewhere, who run closed jobs themselves; a driver has the results alone."""

    def fit(self, learner: Any, callbacks: Sequence[Any], start: Any) -> None:
        """Let the owners fit a learner, which then has learned what theirs did."""

    def evaluate(self, model: Any, part: Part, scores: Any, metrics: Sequence[str]) -> Evaluation:
        """Let the owners score a model."""

    def describe(self) -> Any:
        """Let the owners describe their rows."""

    def statistics(self, job: Any) -> Any:
        """What the owners' ``job.look(federation)`` comes to, as plain data."""


def elsewhere(federation: Federation) -> Owners | None:
    """The owners of a federation over a network; None where their sums come to this process."""
    owners: Owners | None = getattr(federation.engine, "owners", None)
    return owners


def check_closed_fit(
    learner: Any, federation: Federation, callbacks: Sequence[Any], **options: Any
) -> None:
    """Refuse a fit that no closed job can carry, or that the policy will refuse."""
    check_can_close(learner)
    for callback in callbacks:
        _check_callback(callback)
        if is_noised(learner) and getattr(callback, "metric", None) is not None:
            raise NotClosed(
                f"{type(learner).__name__}(dp=…) with {type(callback).__name__}: no ε counts the "
                "losses by which rounds would end",
                hint="the rounds= wanted",
            )
    for name, value in options.items():
        if value:
            raise NotClosed(
                f"fit({name}=…) is no part of a closed job: owners keep every sum themselves",
                hint=f"leave {name}= out, or the policy 'trusted'",
            )
    policy = federation.configuration.policy
    if policy is not None:
        check_policy(learner, policy)
        check_price(price_of(learner, len(federation)), policy, len(federation))


def check_learners(learners: Sequence[Any]) -> None:
    """Refuse the learner of a text, or the points of its grid."""
    for learner in learners:
        check_can_close(learner)
    if len(learners) > 1 and any(map(is_noised, learners)):
        raise NotClosed(
            "a grid with dp=: no ε counts the losses by which its points are compared",
            hint="a job for each learner",
        )


def check_bases(learner: Any, bases: Sequence[Base]) -> None:
    """Refuse a learner, or one of several, whose base model the dictionary does not list."""
    for part in _parts(learner):
        part.base_among(bases)


def check_can_close(learner: Any) -> None:
    """Refuse a learner of which anything is no sum, or waits for the next version."""
    for part in _parts(learner):
        if (why := part.why_not_closed()) is not None:
            _refuse(part, why)
        for name, why in _PARAMETERS.items():
            if getattr(part, name, None) is not None:
                _refuse(part, f"{name}={getattr(part, name)!r}: {why}")


def check_policy(learner: Any, policy: Policy, kind: str = "training") -> None:
    """Refuse what a policy will not let a learner do, as far as it follows from the learner."""
    _check_kind(policy, kind)
    for part in _parts(learner):
        if part.needs_exact_training and not policy.exact_training:
            raise PolicyRefusal(
                f"{type(part).__name__} trains in many rounds, whose exact sums together can give "
                "away a person's target: the policy does not allow it",
                hint='exact_training = true in the policy, in a simulation policy={"policy": '
                '"sums", "exact_training": True}; or noise, dp=so.DP(…)',
            )
        batch = getattr(part, "batch_size", None)
        if (
            part.sends_updates
            and part.privacy is None
            and batch is not None
            and batch < policy.min_count
        ):
            raise PolicyRefusal(
                f"{type(part).__name__}(batch_size={batch}): a batch holds at least min_count = "
                f"{policy.min_count} rows",
                hint=f"batch_size={policy.min_count}",
            )


@dataclass(frozen=True)
class Price:
    """What all noise of a closed job is worth to one person, as it is known before its first sum.

    ``epsilon`` is at ``delta``, where the shares of ``honest_peers`` other owners suffice.
    """

    events: tuple[Event, ...]
    delta: float
    honest_peers: int

    @property
    def epsilon(self) -> float:
        """ε as driver, ledger and ``solera policy check`` count it."""
        return worth(self.events, self.delta)

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.4g} at δ = {self.delta:g} {at_the_sum(self.honest_peers)}"


def price_of(learner: Any, owners: int) -> Price | None:
    """The price of a learner's closed job among so many owners; None where nothing is noised."""
    noised = [part.clone() for part in _parts(learner) if part.privacy is not None]
    noises = [part.noise_among(owners, closed=True) for part in noised]
    if not noises:
        return None
    return Price(
        tuple(noise.planned for noise in noises),
        max(part.accounts_["delta"] for part in noised),
        max(noise.peers for noise in noises),
    )


def check_price(price: Price | None, policy: Policy, owners: int) -> None:
    """Refuse a job whose noise the policy has no budget for, or counts on more honest owners."""
    if price is None:
        return
    if policy.budget is None:
        raise PolicyRefusal(
            f"the job is worth {price}, and the policy has no budget for that",
            hint="[privacy] with epsilon = 8.0 and delta = 1e-5, in a simulation policy={"
            '"policy": "sums", "privacy": {"epsilon": 8.0, "delta": 1e-5}}',
        )
    trusted = policy.peers_of_noise(owners)
    if price.honest_peers > trusted:
        raise PolicyRefusal(
            f"the job counts on the noise of {price.honest_peers} other owners, the policy on "
            f"{trusted}",
            hint=f"so.DP(…, honest_peers={trusted})",
        )
    check_budget((), price.events, *policy.budget)


def is_noised(learner: Any) -> bool:
    """Whether any of it hides rows behind noise."""
    return any(part.privacy is not None for part in _parts(learner))


def check_jobs(federation: Federation, kind: str) -> None:
    """Refuse a kind of job that the policy lets nobody run."""
    policy = federation.configuration.policy
    if policy is not None:
        _check_kind(policy, kind)


def _check_kind(policy: Policy, kind: str) -> None:
    if kind not in policy.jobs:
        raise PolicyRefusal(
            f"the policy lets no job of {kind} run", hint=f'jobs = ["{kind}", …] in the policy'
        )


def check_persons(learner: Any, schema: Schema, persons: Persons) -> None:
    """Refuse what the owners' persons are too few for, or their rows too many.

    A model that is solved exactly has at most a sixth as many parameters; every class has some; and
    noise that hides one row hides no person who has several.
    """
    noised = [part.privacy for part in _parts(learner) if part.privacy is not None]
    several = persons["rows"]["train"] > persons["train"]
    if several and any(dp.level == "record" for dp in noised):
        raise PolicyRefusal(
            f"{type(learner).__name__}(dp=…): noise hides one row, and some person has several",
            hint="one row for each person; or so.DP(level='client', …), which hides all of one",
        )
    if persons["small classes"] and learner.predicts:
        few = np.unravel_index(np.argmin(persons["classes"]), np.shape(persons["classes"]))
        names = schema.label_names if schema.target == "labels" else schema.classes
        raise PolicyRefusal(
            f"{type(learner).__name__}: too few persons of all owners are of class "
            f"{str(names[few[0]])!r}, so that sums would tell of single ones",
            hint="merge it with another class in the dictionary, or a population without it",
        )
    parameters = 0 if learner.privacy is not None else learner.parameters_of_output(schema)
    if parameters:
        check_sixth(parameters, persons["train"], type(learner).__name__)


def count_all_persons(federation: Federation, *, classes: bool = True) -> Persons:
    """The first sum of a closed job: the persons of all owners in each part, and of each class."""
    replies = federation.ask(count_persons, {"classes": classes})
    persons: Persons = replies.fold(Sum())
    small = "classes" in replies.noised or "classes" in replies.absent
    engine: Any = federation.engine
    engine.persons = {**persons, "small classes": small}
    return persons_in(federation)


def persons_in(federation: Federation) -> Persons:
    """What the first sum of this closed job has told."""
    engine: Any = federation.engine
    persons: Persons = engine.persons
    return persons


def closed_result(learner: Any, federation: Federation, **options: Any) -> bytes:
    """What a closed job of training ends with, the same bytes at every owner.

    A refusal that follows from totals is a result, too: all owners come to it.
    """
    try:
        model = learner.fit(federation, progress=False, **options)
    except SoleraError as error:
        return encode({"refused": str(error)})
    return encode({"model": describe_fitted(model), "history": model.history_})


def closed_grid(
    learners: Sequence[Any], federations: Callable[[Any], Federation], **options: Any
) -> tuple[bytes, Any]:
    """What a closed job of several learners ends with, and the best of them.

    Each is fitted to its federation; the one with the smallest mean loss over the validation folds
    is the result. Of the others it holds the loss, or why there is none.
    """
    points: list[dict[str, Any]] = []
    best: tuple[int, Any] | None = None
    for learner in learners:
        federation = federations(learner)
        try:
            model = learner.fit(federation, progress=False, **options)
            if model.is_personal:
                federation = model.at_clients(federation)
            loss = mean_loss(model, federation, "validation")
        except SoleraError as error:
            points.append({"refused": str(error)})
            continue
        if best is None or loss < points[best[0]]["loss"]:
            best = len(points), model
        points.append({"loss": loss})
    if best is None:
        return encode({"refused": f"no learner of the grid: {points[0]['refused']}"}), None
    place, model = best
    learned = {"model": describe_fitted(model), "history": model.history_}
    return encode({**learned, "best": place, "points": points}), model


def _parts(learner: Any) -> Iterator[Any]:
    """The learner and the learners in its parameters."""
    from solera.learn.learner import Learner

    if isinstance(learner, Learner):
        yield learner
    inside = learner.get_params(deep=False).values() if isinstance(learner, Component) else learner
    for value in inside:
        if isinstance(value, Component | list | tuple):
            yield from _parts(value)


def _check_callback(callback: Any) -> None:
    kind = type(callback).__name__
    if isinstance(callback, StopAt) and callback.time is not None:
        raise NotClosed(
            f"{kind}(time=…): the clocks of owners differ",
            hint=f"{kind}(metric='loss', target=…)",
        )
    if not isinstance(callback, EarlyStopping | StopAt | ValidationLoss | RoundBar):
        raise NotClosed(
            f"a closed job does not carry the callback {kind}",
            hint="EarlyStopping('loss') or StopAt(metric='loss', target=…), or policy 'trusted'",
        )


def _refuse(part: Any, why: str) -> None:
    raise NotClosed(
        f"{type(part).__name__} cannot be a closed job: {why}", hint="or the policy 'trusted'"
    )
