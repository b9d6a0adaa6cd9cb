"""What federating gains a learner against itself, trained alone or with all rows in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from solera.core.statistics import ROUNDING
from solera.evaluation.metrics import metric_label, sign
from solera.study.formatting import number
from solera.study.report.blocks import Blocks, Paragraph, Table
from solera.study.report.clients import client_means
from solera.study.report.groups import Group, StudyResults


class Gains(NamedTuple):
    """What federating gains a learner, in a metric's own direction.

    ``over`` each other scheme it is on the test rows that no client has; ``at_clients`` are the
    gains of each by the score of its own test rows.
    """

    over: Mapping[str, float]
    at_clients: Sequence[float]

    def words(self, ways: Mapping[str, Group]) -> str:
        """As sentences about the learner in these schemes."""
        alone = ways.get("alone")
        notes = {"alone": _ALONE if alone is not None and alone.results[0].metrics else ""}
        gaps = [f"{_gap(gap)} {way}{notes.get(way, '')}" for way, gap in self.over.items()]
        name = ways["federated"].method
        text = f"Federated, {name} is {' and '.join(gaps)}." if gaps else ""
        if alone is None:
            return text
        if not self.at_clients:
            return f"{text} What clients gain on their own rows is not known (client_test)."
        better, worse = self.won
        return (
            f"{text} By {metric_label(alone.results[0].score or '')} on its own test rows the "
            f"federated model is better than the one trained alone at {better} of "
            f"{len(self.at_clients)} clients and worse at {worse}."
        )

    @property
    def won(self) -> tuple[int, int]:
        """At how many clients it is better, and worse; what rounding leaves is neither."""
        signs = [math.copysign(abs(gain) > ROUNDING, gain) for gain in self.at_clients]
        return signs.count(1), signs.count(-1)


_ALONE = " (the mean of the clients' own models, on the same rows, which are not theirs)"


def _gap(gap: float) -> str:
    if abs(gap) < ROUNDING:
        return "as good as"
    return f"{number(abs(gap))} {'better' if gap > 0 else 'worse'} than"


def ways_of(group: Group, groups: Sequence[Group]) -> dict[str, Group]:
    """The learner of a group in every scheme in which it was trained."""
    return {other.scheme: other for other in groups if other.method == group.method}


def gains_of(ways: Mapping[str, Group], metric: str) -> Gains:
    """Of a learner that was trained federated, and otherwise."""
    means = {way: sign(metric) * group.mean(metric) for way, group in ways.items()}
    over = {way: means["federated"] - mean for way, mean in means.items() if way != "federated"}
    over = {way: gap for way, gap in over.items() if not math.isnan(gap)}
    if "alone" not in ways:
        return Gains(over, [])
    upwards = sign(ways["alone"].results[0].score or "accuracy")
    own, together = (client_means(ways[way].results) for way in ("alone", "federated"))
    shared = [client for client in own if client in together]
    return Gains(over, [upwards * (together[client] - own[client]) for client in shared])


def gains(study: StudyResults) -> Blocks:
    """What federating gains every learner against itself."""
    rows = []
    for division, groups in study.divisions.items():
        for group in groups:
            ways = ways_of(group, groups)
            if group.scheme != "federated" or len(ways) < 2:
                continue
            found = gains_of(ways, study.metric)
            where = f" on {', '.join(division)}" if len(study.divisions) > 1 else ""
            each = found.at_clients
            rows.append(
                [
                    f"{group.method}{where}",
                    _signed(found.over.get("alone")),
                    _signed(fmean(each) if each else None),
                    " / ".join(map(str, found.won)) if each else "–",
                    _signed(found.over.get("centralised")),
                ]
            )
    if not rows:
        return []
    label = metric_label(study.metric)
    header = ["", f"{label} over alone", "over alone, own rows", "clients better / worse",
              f"{label} over centralised"]  # fmt: skip
    note = (
        "A learner against itself, larger is better. Over alone is on rows that are not the "
        "client's own, own rows are those that each client keeps to test on."
    )
    return [Table(rows, header), Paragraph(note)]


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.3f}"
