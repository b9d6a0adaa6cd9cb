"""What statistical tests say about methods, as blocks of a report or of a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from solera.evaluation.metrics import metric_label
from solera.study.comparison import Comparison
from solera.study.formatting import number
from solera.study.report.blocks import Blocks, Heading, Paragraph, Table
from solera.study.report.critical_difference import critical_difference
from solera.study.report.figures import drawn
from solera.study.rows import RowPair

ALPHA = 0.05


def comparison_blocks(comparison: Comparison, by: str = "method") -> Blocks:
    """Means over data sets and tests between these, and pairs of methods on their test rows."""
    n = len(comparison.rows)
    means = comparison.scores.mean(axis=0).tolist()
    ranked = sorted(zip(comparison.ranks, comparison.methods, means, strict=True))
    methods = [[method, number(mean), f"{rank:.2f}"] for rank, method, mean in ranked]
    header = [by, metric_label(comparison.metric), "mean rank"]
    rows = f"{n} data set{'s' if n > 1 else ''}"
    if comparison.left_out:
        rows += f"; {comparison.left_out} scores are left out, because a method has none there"
    blocks: Blocks = [Table(methods, header), Paragraph(rows), *over_data_sets(comparison)]
    for division, pairs in comparison.on_rows.items():
        if pairs:
            blocks += [
                Heading(f"On the same test rows: {division}"),
                *on_rows(pairs, comparison.alpha),
            ]
    if n == 1 and not any(comparison.on_rows.values()):
        blocks.append(Paragraph("one data set is too few to test, and no answers to rows are kept"))
    return blocks


def over_data_sets(comparison: Comparison) -> Blocks:
    """Friedman, Nemenyi with its diagram, and Wilcoxon with Holm; nothing of one data set."""
    distance, alpha = comparison.critical_difference, comparison.alpha
    if distance is None:
        return []
    diagram = critical_difference(comparison.methods, comparison.ranks, distance)
    caption = (
        f"Nemenyi over data sets: mean ranks that differ by {distance:.3f} differ significantly at "
        f"{alpha:g}"
    )
    pairs = [
        [
            f"{pair.a} – {pair.b}",
            p_value(pair.p),
            p_value(pair.p_holm),
            f"{pair.effect:+.2f}",
            verdict(pair.p_holm, alpha),
        ]
        for pair in comparison.pairs
    ]
    return [
        Paragraph(friedman_words(comparison)),
        drawn(diagram, caption),
        Table(pairs, ["Wilcoxon over data sets", "p", "p (Holm)", "effect", ""]),
        Paragraph(
            f"{len(comparison.rows)} data sets can give a pair no smaller p than "
            f"{p_value(comparison.smallest[1])}."
        ),
    ]


def on_rows(pairs: Sequence[RowPair], alpha: float = ALPHA) -> Blocks:
    """Pairs of methods on the same test rows."""
    table = [
        [
            f"{pair.a} – {pair.b}",
            f"{pair.gap:+.3f}",
            _range(pair.low, pair.high),
            p_value(pair.p),
            p_value(pair.p_holm),
            p_value(pair.smallest),
            verdict(pair.p_holm, alpha),
        ]
        for pair in pairs
    ]
    header = ["pair", "first is better by", "95 % over rows", "p", "p (Holm)", "smallest p", ""]
    return [Table(table, header)]


def verdict(p: float, alpha: float = ALPHA) -> str:
    """What may be said of a pair."""
    return "differs" if p < alpha else "no difference seen"


def friedman_words(comparison: Comparison) -> str:
    """Whether the methods differ over data sets; no words of one."""
    test = comparison.friedman
    if test is None:
        return ""
    says = "differ" if comparison.differ else "are not shown to differ"
    return (
        f"Friedman over {len(comparison.rows)} data sets: χ² = {test.statistic:.3f}, p = "
        f"{p_value(test.p)}, which so few could not bring below "
        f"{p_value(comparison.smallest[0])}; Iman–Davenport: F = {test.f_statistic:.3f}, "
        f"p = {p_value(test.f_p)}: the methods {says}"
    )


def p_value(value: float) -> str:
    """Four digits, and small ones as powers of ten."""
    return f"{value:.4f}" if value >= 1e-4 else f"{value:.2e}"


def _range(low: float, high: float) -> str:
    return f"{number(low)} … {number(high)}"
