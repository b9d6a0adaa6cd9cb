"""What statistical tests say about methods, as blocks of a report or of a terminal."""

from __future__ import annotations

from solera.evaluation.metrics import metric_label
from solera.study.comparison import Comparison
from solera.study.formatting import number
from solera.study.report.blocks import Blocks, Paragraph, Table
from solera.study.report.critical_difference import critical_difference
from solera.study.report.figures import drawn

MOST_PAIRED = 4
"""Of more methods, reports show pairs with the best only; all are tested."""


def comparison_blocks(
    comparison: Comparison, by: str = "method", *, all_pairs: bool = True
) -> Blocks:
    """Means and mean ranks, Friedman, Nemenyi with its diagram, and Wilcoxon with Holm."""
    n, alpha = len(comparison.rows), comparison.alpha
    ranked = zip(comparison.ranks, comparison.methods, comparison.intervals, strict=True)
    methods = [
        [
            method,
            number(interval.estimate),
            f"{number(interval.low)} … {number(interval.high)}" if n > 1 else "–",
            f"{rank:.2f}",
        ]
        for rank, method, interval in sorted(ranked, key=lambda row: row[:2])
    ]
    header = [by, metric_label(comparison.metric), "95 % interval", "mean rank"]
    rows = f"{n} rows"
    if comparison.left_out:
        rows += f"; {comparison.left_out} more are left out, because a method has no score there"
    blocks: Blocks = [Table(methods, header), Paragraph(rows)]
    test, distance = comparison.friedman, comparison.critical_difference
    if test is None or distance is None:
        return [*blocks, Paragraph("one row is too few to test")]
    diagram = critical_difference(comparison.methods, comparison.ranks, distance)
    caption = f"Nemenyi: mean ranks that differ by {distance:.3f} differ significantly at {alpha:g}"
    pairs = [
        [
            f"{pair.a} – {pair.b}",
            _p(pair.p),
            _p(pair.p_holm),
            f"{pair.effect:+.2f}",
            "*" if pair.p_holm < alpha else "",
        ]
        for pair in comparison.pairs
        if all_pairs
        or len(comparison.methods) <= MOST_PAIRED
        or comparison.leader in (pair.a, pair.b)
    ]
    return [
        *blocks,
        Paragraph(friedman_words(comparison)),
        drawn(diagram, caption),
        Table(pairs, ["Wilcoxon", "p", "p (Holm)", "effect", ""]),
    ]


def friedman_words(comparison: Comparison) -> str:
    """Whether the methods differ at all; no words where there are too few rows."""
    test = comparison.friedman
    if test is None:
        return ""
    verdict = "differ" if test.p < comparison.alpha else "are not shown to differ"
    return (
        f"Friedman: χ² = {test.statistic:.3f}, p = {_p(test.p)}; Iman–Davenport: "
        f"F = {test.f_statistic:.3f}, p = {_p(test.f_p)}: the methods {verdict}"
    )


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 1e-4 else f"{value:.2e}"
