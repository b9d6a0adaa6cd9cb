"""Which cells are looked at: pairs of learner, target, rows and surface, or the whole product."""

from __future__ import annotations

from collections.abc import Iterator

from surface.dealt import KINDS, TARGETS
from surface.surfaces import SURFACES

HEAVY = (
    "evaluate", "clone", "processes", "export", "pipeline", "cross_validation", "describe",
    "personal", "scores",
)  # fmt: skip
"""Surfaces that fit again or ask much: each of them on some fits of a learner only."""


def pairs(learner: int) -> Iterator[tuple[str, str, list[str]]]:
    """(target, kind of rows, surfaces) for the learner of that number.

    Each kind of rows once, the targets in turn, light surfaces always and heavy ones in turn.
    """
    for k, kind in enumerate(KINDS):
        place = learner + k + k // len(TARGETS)
        turn = learner + k + learner // 7
        heavy = [name for h, name in enumerate(HEAVY) if (h + turn) % 4 == 0]
        light = [name for name in SURFACES if name not in HEAVY]
        yield TARGETS[place % len(TARGETS)], kind, light + heavy


def in_turn_from(target: str) -> list[str]:
    """All targets, this one first."""
    first = TARGETS.index(target)
    return [*TARGETS[first:], *TARGETS[:first]]
