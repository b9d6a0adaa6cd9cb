"""Statistics: Demšar's worked examples, scipy, and the corners scipy leaves out."""

from __future__ import annotations

import itertools
from math import factorial, inf, sqrt
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from solera.core.errors import DataError, UsageError
from solera.study import statistics as s
from solera.study.report.critical_difference import cliques, critical_difference
from solera.study.report.figures import drawn, standalone

# Demšar (2006), Table 6: AUC of C4.5, C4.5+m, C4.5+cf, C4.5+m+cf. The last two of "voting" are
# printed as 0.975 but ranked 2 and 3 there.
DEMSAR = np.array(
    [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.975, 0.9749],
        [0.957, 0.978, 0.946, 0.970],
    ]
)
tables = hnp.arrays(
    np.float64,
    st.tuples(st.integers(2, 12), st.integers(3, 6)),
    elements=st.integers(0, 5).map(float),
)


def test_demsar_friedman_and_iman_davenport():
    result = s.friedman(DEMSAR, tie_correction=False)
    assert np.round(result.ranks, 3).tolist() == [3.143, 2.0, 2.893, 1.964]
    assert round(result.statistic, 2) == 9.28
    assert round(result.f_statistic, 2) == 3.69
    assert result.f_p < 0.05  # the critical value of F(3, 39) is 2.85


def test_demsar_nemenyi():
    ranks = s.friedman(DEMSAR).ranks
    assert round(s.nemenyi(ranks, 14, 0.05), 2) == 1.25
    assert round(s.nemenyi(ranks, 14, 0.10), 2) == 1.12
    gaps = {(i, j): abs(ranks[i] - ranks[j]) for i, j in itertools.combinations(range(4), 2)}
    # at 0.10 C4.5 differs from +m and +m+cf and no other pair does (section 3.2.2)
    significant = {pair for pair, gap in gaps.items() if gap >= s.nemenyi(ranks, 14, 0.10)}
    assert significant == {(0, 1), (0, 3)}
    assert max(gaps.values()) < s.nemenyi(ranks, 14, 0.05)


@pytest.mark.parametrize(
    ("k", "q05", "q10"),
    [
        (2, 1.960, 1.645),
        (3, 2.343, 2.052),
        (4, 2.569, 2.291),
        (7, 2.949, 2.693),
        (10, 3.164, 2.920),
    ],
)
def test_demsar_table_5a(k, q05, q10):
    for alpha, wanted in ((0.05, q05), (0.10, q10)):
        q = s.nemenyi(np.arange(k), 10, alpha) / sqrt(k * (k + 1) / 60)
        assert q == pytest.approx(wanted, abs=1.1e-3)


def test_demsar_wilcoxon_and_holm():
    gap = DEMSAR[:, 0] - DEMSAR[:, 1]
    # Table 2: R+ = 93, R− = 12 of 105, for C4.5+m against C4.5
    assert s.rank_biserial(DEMSAR[:, 1], DEMSAR[:, 0]) == pytest.approx((93 - 12) / 105)
    first = s.wilcoxon_holm(DEMSAR)[0]
    assert (first.a, first.b) == (0, 1)
    assert first.p == pytest.approx(stats.wilcoxon(gap, zero_method="zsplit").pvalue)
    assert first.p < 0.05
    # section 3.2.2: p = 0.016, 0.019, 0.607; Holm rejects the first two at 0.05
    assert s.holm([0.607, 0.016, 0.019]).tolist() == pytest.approx([0.607, 0.048, 0.048])


@given(tables)
def test_friedman_is_scipy_s_with_ties(table):
    if (table == table[:, :1]).all():
        assert s.friedman(table)[:2] == (0.0, 1.0)
        return
    wanted = stats.friedmanchisquare(*table.T)
    ours = s.friedman(table)
    assert ours.statistic == pytest.approx(wanted.statistic, abs=1e-9)
    assert ours.p == pytest.approx(wanted.pvalue, rel=1e-7)
    assert ours.ranks.sum() == pytest.approx(sum(range(1, table.shape[1] + 1)))


@given(tables, st.integers(-3, 3))
def test_ranks_ignore_monotone_changes_and_follow_columns(table, shift):
    ranks = s.rank(table)
    assert np.array_equal(s.rank(np.exp(table) + shift), ranks)
    assert np.array_equal(s.rank(table[:, ::-1]), ranks[:, ::-1])


def test_two_methods_are_a_sign_test():
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.normal(size=40), rng.normal(size=40) + 0.5])
    wins = int((table[:, 0] > table[:, 1]).sum())
    z = (wins - 20) / sqrt(10)
    result = s.friedman(table)
    assert result.statistic == pytest.approx(z**2)
    assert result.p == pytest.approx(2 * stats.norm.sf(abs(z)))
    # for k = 2 Friedman and Nemenyi are one test
    gap = float(np.ptp(result.ranks))
    assert s.nemenyi(result.ranks, 40, result.p) == pytest.approx(gap)
    assert s.nemenyi([1, 2], 40) == pytest.approx(stats.norm.isf(0.025) / sqrt(40))


def test_far_tails_keep_their_digits():
    table = np.column_stack([np.ones(500), np.zeros(500)])
    result = s.friedman(table)
    assert result.statistic == 500
    assert result.p == pytest.approx(stats.chi2.sf(500, 1), rel=1e-12)
    assert 0 < result.p < 1e-100
    assert result.f_statistic == inf
    assert result.f_p == pytest.approx(2.0**-499)


def test_all_rows_agree():
    table = np.tile(np.arange(4.0), (3, 1))
    assert s.friedman(table).f_p == pytest.approx(1 / factorial(4) ** 2)


def test_one_row_shows_nothing():
    for row in ([1.0, 1.0, 1.0], [1.0, 1.0, 2.0], [1.0, 2.0, 3.0]):
        for corrected in (True, False):
            assert s.friedman([row], corrected).f_p == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_by_its_definition(p):
    corrected = s.holm(p)
    for i, own in enumerate(p):
        before = [j for j in range(len(p)) if (p[j], j) <= (own, i)]
        steps = sorted(p[j] for j in before)
        wanted = max(min(1.0, (len(p) - rank) * value) for rank, value in enumerate(steps))
        assert corrected[i] == pytest.approx(wanted)


@pytest.mark.parametrize("n", [3, 6, 9])
@pytest.mark.parametrize("levels", [2, 4, 1000])
def test_wilcoxon_with_ties_and_zeros_is_scipy_s(n, levels):
    draw = np.random.default_rng(n * levels)
    for _ in range(3):
        table = draw.integers(0, levels, (n, 2)).astype(float)
        table[0, 0] = levels  # some gap is not zero
        wanted = stats.wilcoxon(table[:, 0], table[:, 1], zero_method="zsplit").pvalue
        (pair,) = s.wilcoxon_holm(table)
        assert pair.p == pytest.approx(wanted, rel=1e-12)


def test_wilcoxon_of_equal_methods_and_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"ours": [1.0, 2, 3], "same": [1.0, 2, 3], "worse": [0.0, 1.5, 1]})
    pairs = {(pair.a, pair.b): pair for pair in s.wilcoxon_holm(frame)}
    assert pairs["ours", "same"] == ("ours", "same", 1.0, 1.0, 0.0)
    assert pairs["ours", "worse"].effect == 1.0
    assert pairs["ours", "worse"].p == 0.25  # 2 of the 8 signs of three differences


def test_intervals():
    x = [2.0, 4.0, 4.0, 5.0, 7.0]
    got = s.t_interval(x)
    assert (got.low, got.high) == pytest.approx(
        stats.t.interval(0.95, 4, loc=np.mean(x), scale=stats.sem(x))
    )
    assert s.t_interval([3.0]) == s.Interval(3.0, -inf, inf)
    draws = np.random.default_rng(1).normal(10, 2, 300)
    boot, t = s.bootstrap_interval(draws), s.t_interval(draws)
    assert (boot.low, boot.high) == pytest.approx((t.low, t.high), abs=0.05)
    assert s.bootstrap_interval(draws) == boot
    assert s.bootstrap_interval([1.0, 1.0]) == s.Interval(1.0, 1.0, 1.0)
    assert s.bootstrap_interval([1.0, 1, 1, 1, 1, 1, 1, 9], np.median) == s.Interval(1.0, 1.0, 1.0)
    median = s.bootstrap_interval(draws, np.median)
    assert median.low < np.median(draws) == median.estimate < median.high


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: s.friedman([[1.0], [2.0]]), "shape"),
        (lambda: s.friedman([1.0, 2.0]), "shape"),
        (lambda: s.friedman([[1.0, np.nan]]), "row 0 .* method 1"),
        (lambda: s.nemenyi([1.0], 5), "two"),
        (lambda: s.nemenyi([1.0, 2.0], 0), "n must"),
        (lambda: s.nemenyi([1.0, 2.0], 5, 1.5), "alpha"),
        (lambda: s.t_interval([]), "finite"),
        (lambda: s.t_interval([1.0, 2.0], 1.0), "confidence"),
        (lambda: s.rank_biserial([1.0], [1.0, 2.0]), "pairs"),
        (lambda: critical_difference(["a"], [1.0, 2.0], 1.0), "names"),
        (lambda: critical_difference(["a", "b"], [1.0, 2.0], 0.0), "cd"),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises((DataError, UsageError), match=says):
        call()


def test_cliques_are_maximal():
    assert cliques([3.143, 2.0, 2.893, 1.964], 1.25) == [(0, 3)]
    assert cliques([3.143, 2.0, 2.893, 1.964], 1.12) == [(0, 2), (2, 3)]
    assert cliques([1.0, 3.0, 5.0], 1.0) == []


@given(st.lists(st.floats(1, 9), min_size=2, max_size=9), st.floats(0.1, 5))
def test_cliques_join_exactly_the_pairs_below_the_difference(ranks, cd):
    ordered = sorted(ranks)
    joined = {
        (i, j) for a, b in cliques(ranks, cd) for i in range(a, b) for j in range(i + 1, b + 1)
    }
    wanted = {
        (i, j)
        for i, j in itertools.combinations(range(len(ranks)), 2)
        if ordered[j] < ordered[i] + cd
    }
    assert joined == wanted


def test_the_diagram_is_svg_with_every_name():
    names = ["<C4.5>", "C4.5+m", "C4.5+cf", "C4.5+m+cf"]
    figure = critical_difference(names, s.friedman(DEMSAR).ranks, 1.12)
    svg = standalone(drawn(figure, "ranks").svg)
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"<C4.5> (3.14)", "C4.5+m (2.00)", "C4.5+m+cf (1.96)", "CD = 1.120"} <= set(texts)
    bars = [
        e
        for e in root.iter("{http://www.w3.org/2000/svg}path")
        if "stroke-width: 5" in e.get("style", "")
    ]
    assert len(bars) == 2
