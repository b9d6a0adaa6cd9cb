"""What federating gains a learner against itself, trained alone or with all rows in one place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from solera.core.statistics import ROUNDING
from solera.evaluation.metrics import metric_label, sign
from solera.study.files.tables import Scheme
from solera.study.formatting import number
from solera.study.report.blocks import Blocks, Paragraph, Table
from solera.study.report.clients import client_means
from solera.study.report.groups import Group, StudyResults


class Gains(NamedTuple):
    """What federating gains a learner against itself, in a metric's own direction."""

    method: str
    federated: Group
    alone: Group | None
    centralised: Group | None

    def over(self, other: Group | None, metric: str) -> float | None:
        """On the test rows that no client has, which are not those of a client alone."""
        if other is None:
            return None
        gap = self.federated.mean(metric) - other.mean(metric)
        return None if math.isnan(gap) else sign(metric) * gap

    @property
    def at_clients(self) -> list[float]:
        """Of each client, by the score of its own test rows."""
        if self.alone is None:
            return []
        score = sign(self.alone.results[0].score or "accuracy")
        together, own = client_means(self.federated.results), client_means(self.alone.results)
        return [score * (together[client] - own[client]) for client in own if client in together]

    def words(self, metric: str) -> str:
        """As a sentence, or several."""
        others = (self.alone, self.centralised)
        gaps = [
            f"{_gap(gap)} {other.scheme}"
            + (_ALONE if other.scheme == "alone" and other.results[0].metrics else "")
            for other in others
            if other is not None and (gap := self.over(other, metric)) is not None
        ]
        text = f"Federated, {self.method} is {' and '.join(gaps)}." if gaps else ""
        if self.alone is None:
            return text
        each = self.at_clients
        if not each:
            rest = "What clients gain on their own rows is not known: client_test sets some aside."
            return f"{text} {rest}"
        better, worse = _won(each)
        label = metric_label(self.alone.results[0].score or "")
        return (
            f"{text} By {label} on its own test rows the federated model is better than the one "
            f"trained alone at {better} of {len(each)} clients and worse at {worse}."
        )


_ALONE = " (the mean of the clients' own models, on the same rows, which are not theirs)"


def gains_of(group: Group, groups: Sequence[Group]) -> list[Gains]:
    """What federating gains the learner of a group; nothing where it was trained one way only."""
    federated, alone, centralised = (group.of_scheme(s, groups) for s in _ORDER)
    if federated is None or (alone is None and centralised is None):
        return []
    return [Gains(group.method, federated, alone, centralised)]


_ORDER: tuple[Scheme, ...] = ("federated", "alone", "centralised")


def _won(gains: Sequence[float]) -> tuple[int, int]:
    """At how many clients it is better, and worse; what rounding leaves is neither."""
    return sum(gain > ROUNDING for gain in gains), sum(gain < -ROUNDING for gain in gains)


def _gap(gap: float) -> str:
    if abs(gap) < ROUNDING:
        return "as good as"
    return f"{number(abs(gap))} {'better' if gap > 0 else 'worse'} than"


def gains(study: StudyResults) -> Blocks:
    """What federating gains every learner against itself."""
    rows = []
    for division, groups in study.divisions.items():
        for group in groups:
            if group.scheme != "federated":
                continue
            for gain in gains_of(group, groups):
                each = gain.at_clients
                where = f" on {', '.join(division)}" if len(study.divisions) > 1 else ""
                rows.append(
                    [
                        f"{gain.method}{where}",
                        _signed(gain.over(gain.alone, study.metric)),
                        _signed(fmean(each) if each else None),
                        " / ".join(map(str, _won(each))) if each else "–",
                        _signed(gain.over(gain.centralised, study.metric)),
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
