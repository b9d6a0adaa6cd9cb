"""What a saved learner looks like, and reading one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from solera.core.component import build_fitted, describe_fitted
from solera.core.engine import Fit
from solera.core.errors import PayloadError, UsageError
from solera.core.payload import Limits, decode, encode
from solera.evaluation.figure import restored
from solera.learn.client_models import ClientParts

_FILE_LIMITS = Limits(size=1 << 40, structure=1 << 28)
_FORMAT = 1
"""What a saved learner looks like; 1 holds parameters of networks in PyTorch's order."""


def to_bytes(learner: Any) -> bytes:
    """Parameters and everything that a learner has learned."""
    content = {"format": _FORMAT, **describe_fitted(learner), "history": learner.history_}
    if learner._trained_with is not None:
        content["training"] = learner._trained_with
    if learner.is_personal and learner._client_parts is not None:
        content["clients"] = learner._client_parts.to_payload()
    return encode(content, _FILE_LIMITS)


def load(path: str | os.PathLike[str], model: Any = None) -> Any:
    """A learner written by :meth:`Learner.save`.

    A file holds no code: ``model`` is the network of one's own that it was trained with, or the
    function that makes it, where this process has not named it yet.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="model.save(path) writes it") from None
    learner = from_bytes(content, str(path))
    if model is None:
        return learner
    if "model" not in learner.parameters():
        raise UsageError(f"{type(learner).__name__} has no network: leave model= out")
    return learner.set_params(model=model)


def from_bytes(frame: bytes, path: str = "this") -> Any:
    """A learner from what :meth:`Learner.to_bytes` gave; ``path`` is named in errors."""
    try:
        content = decode(frame, _FILE_LIMITS)
        written = content.get("format")
        if written != _FORMAT:
            raise PayloadError(f"its format is {written}, this version reads {_FORMAT}")
        learner = build_fitted(content)
        learner.history_ = [restored(entry) for entry in content["history"]]
        learner._trained_with = content.get("training")
        if "clients" in content:
            learner._client_fit = Fit()
            learner._client_parts = ClientParts.from_payload(content["clients"])
    except PayloadError as error:
        raise PayloadError(f"{path} is not a saved learner: {error.message}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise PayloadError(f"{path} is not a saved learner: {error!r}") from error
    return learner
