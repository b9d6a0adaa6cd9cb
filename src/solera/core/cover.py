"""What a reply passes through after the gate and before it leaves, and folds that need it.

An ask may want its replies covered: masked, so that only their sum can be read. The task runs as
ever and the gate judges the plain reply; the client covers it then (:class:`Cover`). The other half
is a protocol by which the driver folds what it cannot read (:class:`SecureFold`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from solera.core.aggregation import Aggregation
from solera.core.clients import Client
from solera.core.component import Component, build, installed_components
from solera.core.errors import Refusal, UsageError
from solera.core.plan import Plan
from solera.core.ranges import value_at
from solera.core.task import Task

if TYPE_CHECKING:
    from solera.core.engine import Ask
    from solera.core.federation import Replies


class Cover(Component, abstract=True):
    """What becomes of a released reply at the client; made anew from its parameters there."""

    @abstractmethod
    def cover(self, client: Client, ask: Ask, reply: Any) -> Any:
        """The reply to an ask as it leaves; ``client.state`` is kept with it."""


def build_cover(description: Any) -> Cover:
    """The cover that an ask describes."""
    name = value_at(description, "$component")
    known = installed_components().get(name) if isinstance(name, str) else None
    if known is None or not issubclass(known, Cover):
        raise Refusal(f"{str(name)[:80]!r} is nothing that a reply can be covered by")
    cover: Cover = build(description)
    return cover


class SecureFold(Protocol):
    """Folds replies of which nobody but their client sees a single one."""

    def partial(self, replies: Replies, aggregation: Aggregation) -> Any:
        """Send the ask of these replies and fold what comes back."""

    def asks(self, plan: Plan) -> Plan:
        """The plan, and what is asked besides to fold it so."""


_NAMES_ONLY = {"facts", "categories", "extremes"}


def told_alone(task: Task) -> bool:
    """Whether a client may answer by itself where only sums may leave.

    So it may where nothing of its rows leaves but names, declared bounds and how many there are:
    clients must agree on columns and classes before anything can be added up.
    """
    kinds = {release.kind for release in task.release or ()} | {task.leaves} - {None}
    return bool(kinds) and kinds <= _NAMES_ONLY


def find_secure(secure: Any) -> SecureFold | None:
    """What ``secure=`` of a federation stands for: True is a :class:`SecureSum` as it comes."""
    if secure is None or secure is False:
        return None
    fold: Any = installed_components()["SecureSum"]() if secure is True else secure
    if getattr(fold, "protocol", None) is None:
        raise UsageError(f"secure={secure!r}: True, False or a so.SecureSum(…) is meant")
    return fold  # type: ignore[no-any-return]
