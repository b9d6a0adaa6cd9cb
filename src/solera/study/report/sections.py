"""The sections of a report, in their order: a title and the function that makes its blocks.

A new section is one function of :class:`~solera.study.report.groups.StudyResults` and one line
here. A section without blocks is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from solera.study.report import clients, costs, detection, gains, outcomes, summary
from solera.study.report.blocks import Blocks
from solera.study.report.groups import StudyResults

SECTIONS: dict[str, Callable[[StudyResults], Blocks]] = {
    "Summary": summary.summary,
    "Results": outcomes.results,
    "Gains of federating": gains.gains,
    "Significance": outcomes.significance,
    "Learning curves": outcomes.learning_curves,
    "Discrimination and calibration": outcomes.curves,
    "Partitions": clients.partitions,
    "Selection": clients.selection,
    "Clients that were not believed": detection.detection,
    "Fairness": clients.fairness,
    "Clients one by one": clients.one_by_one,
    "Confusion": outcomes.confusion,
    "Learners": outcomes.learners,
    "Score by cost": costs.score_by_cost,
    "Traffic": costs.traffic,
    "Energy": costs.energy,
    "Cells that failed": costs.failures,
    "Warnings": costs.warnings,
    "Study file": costs.study_file,
    "Environment": costs.environment,
}
