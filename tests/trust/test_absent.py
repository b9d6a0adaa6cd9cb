"""What is withheld is absent on every way to the learner: marked, counted, never zero."""

from __future__ import annotations

import numpy as np
import pytest
from tests.trust.withholding import Withholding

import solera as so
from solera.core.errors import NotEnoughReplies

RNG = np.random.default_rng(2)
X = RNG.normal(size=(120, 3))
KIND = np.repeat([0, 1, 2], [70, 45, 5])
"""Of six clients, the third kind has too few rows at each."""


@so.task("absent.kinds", many=True)
def kinds(client, ask):
    """Rows and sums of every kind."""
    kind = client.data.X[:, -1].astype(int)
    values = client.data.X[:, :-1]
    return {"rows": so.count_by(kind, 3), "inner": {"sums": so.sum_by(kind, values, 3)}}


def federation(**options):
    rows = np.column_stack([X, KIND])[RNG.permutation(len(X))]
    return so.simulate(rows, clients=6, seed=1, **options)


def expected(fed, least=5):
    """Totals of the cells with at least ``least`` rows at their client, and who lacks which."""
    rows, sums = np.zeros(3, int), np.zeros((3, 3))
    lacking = np.zeros(3, int)
    for client in range(6):
        own = fed.engine.source.segments(np.array([client]), "train")[0].X
        number = np.bincount(own[:, -1].astype(int), minlength=3)
        small = (number > 0) & (number < least)
        for kind in np.argsort(number, kind="stable"):
            if number[small].sum() >= least or not small.any():
                break
            small[kind] |= number[kind] > 0
        for kind in np.flatnonzero(~small):
            rows[kind] += number[kind]
            sums[kind] += own[own[:, -1] == kind, :-1].sum(axis=0)
        lacking += small
    return rows, sums, lacking


@pytest.mark.parametrize(
    "options", [{}, {"engine": "processes", "workers": 2}, {"secure": True}], ids=str
)
def test_a_sum_says_how_many_clients_withhold_what(options):
    fed = federation(policy=Withholding(masked="secure" in options), **options)
    replies = fed.ask(kinds)
    total = replies.fold(so.aggregations.Sum())
    rows, sums, lacking = expected(fed)
    assert lacking.any()
    np.testing.assert_array_equal(total["rows"], rows)
    np.testing.assert_allclose(total["inner"]["sums"], sums, atol=1e-4 if options else 1e-12)
    np.testing.assert_array_equal(replies.absent["rows"], lacking)
    np.testing.assert_array_equal(replies.absent["inner.sums"], np.repeat(lacking[:, None], 3, 1))
    assert fed.meter.records[-1].absent is replies.absent
    fed.close()


def test_without_a_policy_and_under_trust_nothing_is_absent():
    for options in ({}, {"policy": "trusted"}):
        fed = federation(**options)
        replies = fed.ask(kinds)
        total = replies.fold(so.aggregations.Sum())
        assert total["rows"].tolist() == [70, 45, 5]
        assert not replies.absent


def test_single_replies_carry_their_marks():
    fed = federation(policy=Withholding())
    replies = fed.ask(kinds)
    marks = [reply.absent["rows"] for reply in replies if reply.absent]
    np.testing.assert_array_equal(sum(marks), expected(fed)[2])
    np.testing.assert_array_equal(replies.absent["rows"], expected(fed)[2])


@pytest.mark.parametrize(
    "rule",
    [
        so.aggregations.Fields({"rows": so.aggregations.Sum()}),
        so.aggregations.Collect(),
        so.aggregations.ByFold(so.aggregations.Sum(), 2),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_other_rules_that_take_gaps_count_them(rule):
    fed = federation(policy=Withholding())
    replies = fed.ask(kinds)
    replies.fold(rule)
    np.testing.assert_array_equal(replies.absent["rows"], expected(fed)[2])


def test_a_rule_that_cannot_tell_parts_from_wholes_turns_the_client_away():
    fed = federation(policy=Withholding())
    replies = fed.ask(kinds)
    replies.fold(so.aggregations.Extremes())
    lacking = expected(fed)[2].max()
    assert sum("is withheld in part" in str(failure) for failure in replies.failures) >= lacking
    with pytest.raises(NotEnoughReplies):
        fed.ask(kinds, quorum=6).fold(so.aggregations.Extremes())
