"""What the noise of a closed job is worth, from its text."""

from __future__ import annotations

from functools import lru_cache

from solera.core.component import build
from solera.core.errors import GateRefusal
from solera.learn.closed import Price, price_of
from solera.trust.board.text import parse


@lru_cache(maxsize=64)
def price_of_text(content: bytes, owners: int) -> Price | None:
    """What the noise of a text's job is worth."""
    text = parse(content)
    if text.kind != "training":
        return None
    price = price_of([build(learner) for learner in text.learners], owners)
    if price is not None and len(text.learners) > 1:
        raise GateRefusal(
            "exact losses of validation rows choose among the learners of a grid, and no ε counts "
            "them",
            hint="one learner with dp=",
        )
    return price
