"""``so.messages``: what the author of a task or a learner meets of asks and replies."""

from solera.core.engine import PerClient
from solera.core.payload import Limits
from solera.core.replies import Failure, Reply, Stacked

__all__ = ["Failure", "Limits", "PerClient", "Reply", "Stacked"]
