"""What a reply passes through before it leaves, and folds that need it.

An ask may want its replies covered: masked, so that only their sum can be read. The task runs as
ever; the client covers its reply then (:class:`Cover`). The other half
is a protocol by which the driver folds what it cannot read (:class:`SecureFold`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from solera.core.aggregation import Aggregation
from solera.core.clients import Client
from solera.core.component import Component, build, installed_components
from solera.core.errors import Refusal, UsageError

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
    name = description.get("$component") if isinstance(description, Mapping) else None
    known = installed_components().get(name) if isinstance(name, str) else None
    if known is None or not issubclass(known, Cover):
        raise Refusal(f"{str(name)[:80]!r} is nothing that a reply can be covered by")
    cover: Cover = build(description)
    return cover


class SecureFold(Protocol):
    """Folds replies of which nobody but their client sees a single one."""

    def partial(self, replies: Replies, aggregation: Aggregation) -> Any:
        """Send the ask of these replies and fold what comes back."""


def find_secure(secure: Any) -> SecureFold | None:
    """What ``secure=`` of a federation stands for: True is a :class:`SecureSum` as it comes."""
    if secure is None or secure is False:
        return None
    fold: Any = installed_components()["SecureSum"]() if secure is True else secure
    if getattr(fold, "protocol", None) is None:
        raise UsageError(f"secure={secure!r}: True, False or a so.SecureSum(…) is meant")
    return fold  # type: ignore[no-any-return]
