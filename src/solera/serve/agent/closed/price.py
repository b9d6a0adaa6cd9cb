"""What the noise of a closed job is worth, from its text."""

from __future__ import annotations

from functools import lru_cache

from solera.core.component import build
from solera.learn.closed import Price, price_of
from solera.trust.board.text import parse


@lru_cache(maxsize=64)
def price_of_text(content: bytes, owners: int) -> Price | None:
    """What the noise of a text's job is worth."""
    text = parse(content)
    if text.kind != "training":
        return None
    return price_of([build(learner) for learner in text.learners], owners)
