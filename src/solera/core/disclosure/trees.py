"""Trees that clients grow, and sums of gradients along trees.

A tree follows from comparisons of all rows with each other, and a sum of gradients from scores that
the asker chooses: two histograms of one cell differ by the rows whose score has changed, be it one.
So no rule on how many rows a node or a cell holds bounds how many rows stand behind a number, or
behind the difference of two. Noise bounds what any of them tells; without noise they leave only
where the policy trusts the driver with rows. Counts of rows at nodes are another matter
(:mod:`.node_counts`).
"""

from __future__ import annotations

from typing import Any

from solera.core.release import Leaving, Release


class Trees(Release):
    """Trees, and sums, scores and hashes along trees: with noise, or under ``trusted``."""

    kind = "tree"
    says = "trees, or sums of gradients along trees"
    tells_rows = True
    instead = (
        "counts (FederatedTree(by_counts=True), FedID3), or sums with noise within a budget "
        "(FedHistGBDT(dp=so.DP(level='record', …)))"
    )

    def judge(self, leaving: Leaving) -> Any:
        if leaving.limits.trusted:
            return leaving.reply
        raise leaving.refuse(
            f"{self.says} may tell single rows; ask for {self.instead}, or under the policy "
            "'trusted'"
        )
