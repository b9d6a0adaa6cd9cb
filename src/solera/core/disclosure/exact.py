"""Numbers that leave as they are, or not at all.

A learner can go on without a cell that is withheld; a published estimate cannot: with one sum
missing it is another estimate, and nobody would see it.
"""

from __future__ import annotations

from typing import Any

from solera.core.payload import encode
from solera.core.release import Leaving, Release


class Exact(Release):
    """Another release whose reply is refused where that one would change a number of it."""

    def __init__(self, release: Release) -> None:
        super().__init__(*release.entries)
        self.release = release
        self.kind = release.kind  # type: ignore[misc]
        self.says = release.says  # type: ignore[misc]

    def judge(self, leaving: Leaving) -> Any:
        before = encode([leaving.get(entry) for entry in self.entries])
        reply = self.release.judge(leaving)
        if encode([leaving.get(entry) for entry in self.entries]) != before:
            raise leaving.refuse(
                "some of the sums rest on too few rows, or differ from earlier ones by what too "
                "few rows gave; these leave exactly or not at all"
            )
        return reply
