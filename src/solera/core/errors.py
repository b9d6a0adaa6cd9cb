"""Every error Solera raises on purpose, in one tree.

An error names the thing, the value and the way out. ``hint`` holds the way out when it is longer
than a clause; the command line prints it on a line of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from solera.core.replies import Failure


class SoleraError(Exception):
    """Base of all errors raised by Solera."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(SoleraError, ValueError):
    """A parameter or a combination of parameters makes no sense."""

    @classmethod
    def of(
        cls, owner: object, name: str, value: Any, rule: str, *, hint: str | None = None
    ) -> UsageError:
        """``Dirichlet(alpha=0): alpha must be > 0``."""
        kind = owner if isinstance(owner, str) else type(owner).__name__
        return cls(f"{kind}({name}={value!r}): {name} {rule}", hint=hint)


class CannotForget(UsageError):
    """A client cannot be taken out of a model: what would be needed for it was not kept."""


class UnknownArgument(UsageError, TypeError):
    """A function or a component is given an argument that it does not have."""


class DataError(SoleraError, ValueError):
    """Data that a learner, a partition or a task cannot work with."""


class SchemaError(DataError):
    """Clients disagree about features, types or classes."""


class DatasetUnavailable(DataError):
    """A data set is neither bundled, nor on disk, nor downloadable."""


class MissingExtra(SoleraError, ImportError):
    """An optional part of Solera is not installed."""

    @classmethod
    def of(cls, what: str, extra: str) -> MissingExtra:
        return cls(f"{what} needs the extra '{extra}'", hint=f"pip install 'solera[{extra}]'")


class PayloadError(SoleraError, ValueError):
    """A payload that cannot be encoded, or bytes that are not a payload."""


class PayloadTooLarge(PayloadError):
    """A payload above the size or depth limit."""


class TaskError(SoleraError):
    """A task is unknown, declared twice or asked for in the wrong version."""


class UnknownTask(TaskError):
    """No task of that name is installed."""


class TaskVersionMismatch(TaskError):
    """Coordinator and client have different versions of a task."""


class Refusal(SoleraError):
    """Raised inside a task when the client declines; the coordinator sees the reason."""


class PolicyRefusal(Refusal):
    """A refusal of the owner's policy; its text is made of limits and of what was asked.

    It quotes no row and may leave an agent as it is, unlike that of any other error.
    """


def __getattr__(name: str) -> type[PolicyRefusal]:
    """:class:`PolicyRefusal` by the name that it had with the gate on answers."""
    if name != "GateRefusal":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("GateRefusal is called PolicyRefusal", DeprecationWarning, stacklevel=2)
    return PolicyRefusal


class NotEnoughReplies(SoleraError):
    """An ask got fewer replies than its quorum; ``failures`` says who failed and why."""

    def __init__(
        self, message: str, failures: Sequence[Failure] = (), *, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.failures = list(failures)


class SecureSumFailed(NotEnoughReplies):
    """Too few clients were left to find a secure sum; no single reply is known to anyone."""


class NotASum(UsageError):
    """Something that is no sum was to be folded in secret."""


class WorkerDied(SoleraError):
    """A worker process of the ``processes`` engine ended unexpectedly."""


class ForbiddenMessage(SoleraError):
    """A topology does not let one role send to another."""


class CheckpointError(SoleraError):
    """A checkpoint is damaged or belongs to another run."""


class NotFitted(SoleraError, ValueError, AttributeError):
    """A learner is used before ``fit``; it has nothing yet that ``fit`` learns."""

    @classmethod
    def of(cls, learner: object) -> NotFitted:
        """The error, which is scikit-learn's own, too."""
        from sklearn.exceptions import NotFittedError

        kind = type(cls.__name__, (cls, NotFittedError), {"__module__": cls.__module__})
        error: NotFitted = kind(
            f"this {type(learner).__name__} is not fitted yet", hint="call fit(federation) first"
        )
        return error
