"""What test rows say: intervals that hold, pairs that differ only where rows say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import f1_score, r2_score

import solera as so
from solera.core.schema import Schema
from solera.study.rows import DRAWS, Answers, compare_rows, distinct, interval, pairs_of

TWO = Schema((), "classes", np.array(["no", "yes"]))
THREE = Schema((), "classes", np.arange(3))
NUMBER = Schema((), "numbers", outputs=1)
LABELS = Schema((), "labels", outputs=3)


def answers(right: Any, truth: Any = None) -> Answers:
    """Of two classes, right on some rows."""
    right = np.atleast_2d(right)
    truth = np.zeros(right.shape[1], int) if truth is None else truth
    return Answers(TWO, truth, np.where(right, truth, 1 - truth))


def test_ten_identical_seeds_are_one(tmp_path: Any) -> None:
    draw = np.random.default_rng(0)
    one, other = draw.random(100) < 0.9, draw.random(100) < 0.8
    seeds = {"a": [answers(one)] * 10, "b": [answers(other)] * 10}
    assert len(distinct(seeds["a"])) == 1
    wilson = binomtest(int(one.sum()), 100).proportion_ci(method="wilson")
    assert interval(seeds["a"], "accuracy") == pytest.approx((wilson.low, wilson.high))
    (pair,) = pairs_of(seeds, "accuracy")
    wins, losses = int((one & ~other).sum()), int((other & ~one).sum())
    assert pair.p == pytest.approx(binomtest(wins, wins + losses).pvalue)
    assert pair.smallest == 2.0 ** (1 - wins - losses)
    (once,) = pairs_of({name: each[:1] for name, each in seeds.items()}, "accuracy")
    assert once == pair, "nine more seeds that say the same say nothing"


def test_intervals_hold_for_seeds_that_agree_or_not() -> None:
    """5 models of 100 rows, each row as hard as it is: the mean of all is in 92 to 98 %."""
    draw = np.random.default_rng(1)
    for a, b in ((0.8, 0.15), (3, 1), (1, 1)):
        held = []
        for _ in range(600):
            chances = draw.beta(a, b, 100)
            seeds = [answers(draw.random(100) < chances) for _ in range(5)]
            found = interval(seeds, "accuracy")
            assert found is not None
            held.append(found[0] <= a / (a + b) <= found[1])
        assert 0.92 <= np.mean(held) <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner", [so.FedHEONN(), so.FedForest(trees=10), so.FedLinear(rounds=5)], ids=repr
)
def test_intervals_hold_on_three_hundred_fresh_tables(learner: Any) -> None:
    held = []
    for table in range(300):
        draw = np.random.default_rng(table)
        X = draw.normal(size=(10_300, 5))
        y = (X[:, 0] + 0.7 * X[:, 1] * X[:, 2] + 0.8 * draw.normal(size=len(X)) > 0).astype(int)
        seeds, true = [], []
        for seed in range(5):
            fed = so.simulate(X[:200], y[:200], clients=4, seed=seed)
            model = learner.clone().fit(fed)
            seeds.append(Answers.of(model.schema_, y[200:300], [model.predict(X[200:300])]))
            true.append((model.predict(X[300:]) == y[300:]).mean())
        found = interval(seeds, "accuracy")
        assert found is not None
        held.append(found[0] <= np.mean(true) <= found[1])
    assert 0.92 <= np.mean(held) <= 0.98


def test_models_that_never_agree_are_worth_no_more_than_their_answers() -> None:
    truth = np.arange(30) % 3
    said = Answers(THREE, truth, np.array([np.full(30, k) for k in range(3)]))
    wilson = binomtest(30, 90).proportion_ci(method="wilson")
    found = interval([said], "accuracy")
    assert found is not None
    assert found[1] - found[0] >= 0.99 * (wilson.high - wilson.low)


@pytest.mark.parametrize(("metric", "of"), [("sensitivity", 1), ("specificity", 0)])
def test_shares_of_one_class_are_of_its_rows(metric: str, of: int) -> None:
    draw = np.random.default_rng(2)
    truth = draw.integers(0, 2, 90)
    right = draw.random(90) < 0.7
    found = interval([answers(right, truth)], metric)
    mine = right[truth == of]
    wilson = binomtest(int(mine.sum()), len(mine)).proportion_ci(method="wilson")
    assert found == pytest.approx((wilson.low, wilson.high))
    empty = interval([answers(right, np.full(90, 1 - of))], metric)
    assert empty is None


def _bootstrap(truth: Any, guess: Any, metric: Any) -> tuple[float, float]:
    """The same by the longest way."""
    draw, values = np.random.default_rng(9), []
    for _ in range(1500):
        rows = draw.integers(len(truth), size=len(truth))
        values.append(metric(truth[rows], guess[rows]))
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def test_other_metrics_have_the_interval_of_a_bootstrap_over_rows() -> None:
    draw = np.random.default_rng(3)
    truth = draw.integers(0, 3, 150)
    guess = np.where(draw.random(150) < 0.7, truth, draw.integers(0, 3, 150))
    found = interval([Answers(THREE, truth, guess[None])], "macro_f1")
    slow = _bootstrap(truth, guess, lambda t, g: f1_score(t, g, average="macro"))
    assert found == pytest.approx(slow, abs=0.01)
    y = 20_000 + draw.normal(size=150)
    said = y + 0.5 * draw.normal(size=150)
    found = interval([Answers(NUMBER, y, said[None])], "r2")
    assert found == pytest.approx(_bootstrap(y, said, r2_score), abs=0.02)
    marks = draw.integers(0, 2, (120, 3))
    told = np.where(draw.random((120, 3)) < 0.8, marks, 1 - marks)
    labelled = [Answers(LABELS, marks, told[None])]
    exact = int((marks == told).all(axis=1).sum())
    wilson = binomtest(exact, 120).proportion_ci(method="wilson")
    assert interval(labelled, "subset_accuracy") == pytest.approx((wilson.low, wilson.high))
    f1 = _bootstrap(marks, told, lambda t, g: f1_score(t, g, average="micro"))
    assert interval(labelled, "micro_f1") == pytest.approx(f1, abs=0.015)
    assert interval(labelled, "auroc") is None, "probabilities are not kept"


def test_labels_that_are_unknown_make_no_row_wrong() -> None:
    """Of truth and of models that never saw a label; a row with nothing left is in no share."""
    draw = np.random.default_rng(8)
    truth = draw.integers(0, 2, (300, 3))
    told = np.where(draw.random(truth.shape) < 0.1, 1 - truth, truth)
    unknown = draw.random(truth.shape) < 0.3
    unknown[:, 0] = False  # something is left of every row
    blind = told.copy()
    blind[:, 2] = -1
    right = ((told == truth) | unknown).all(axis=1)
    seen = ((told == truth) | unknown)[:, :2].all(axis=1)
    marked = np.where(unknown, -1, truth)
    all_labels = [Answers(LABELS, marked, told[None])]
    two_labels = [Answers(LABELS, marked, blind[None])]
    for answers, expected in ((all_labels, right), (two_labels, seen)):
        wilson = binomtest(int(expected.sum()), 300).proportion_ci(method="wilson")
        found = interval(answers, "subset_accuracy")
        assert found == pytest.approx((wilson.low, wilson.high))
    pair = compare_rows(("two", two_labels), ("all", all_labels), "subset_accuracy")
    assert pair is not None
    assert pair.gap == pytest.approx(seen.mean() - right.mean())
    marked[:40] = -1
    low, high = interval([Answers(LABELS, marked, told[None])], "subset_accuracy") or (1.0, 0.0)
    assert low < right[40:].mean() < high


def test_equal_but_for_rounding_is_no_difference() -> None:
    draw = np.random.default_rng(4)
    y = draw.normal(size=200)
    said = y + 0.3 * draw.normal(size=200)
    near = said * (1 + 1e-13)
    one, other = Answers(NUMBER, y, said[None]), Answers(NUMBER, y, near[None])
    assert one.same_as(other)
    assert len(distinct([one, other])) == 1
    for metric in ("r2", "mse"):
        pair = compare_rows(("one", [one]), ("other", [other]), metric)
        assert pair is not None
        assert (pair.gap, pair.p) == (0.0, 1.0)
    further = Answers(NUMBER, y, (y + 2 * (said - y))[None])
    pair = compare_rows(("one", [one]), ("further", [further]), "mse")
    assert pair is not None
    assert pair.gap > 0, "a smaller error is better"
    assert pair.p == 2 / (DRAWS + 1)


def test_few_rows_cannot_say_that_methods_differ() -> None:
    """Four rows in favour of one: a bootstrap alone says p = 0.04, signs cannot go below 0.125."""
    base = np.ones((2, 40), bool)
    worse = base.copy()
    worse[:, :4] = False
    worse[1, :4] = [False, False, False, False]
    mixed = [answers(worse[0]), answers(np.roll(worse[1], 1))]
    (one,) = pairs_of({"a": [answers(base[0])], "b": [answers(worse[0])]}, "accuracy")
    assert (one.p, one.smallest) == (0.125, 0.125)
    (several,) = pairs_of({"a": [answers(base[0])], "b": mixed}, "accuracy")
    assert several.smallest == 2.0**-4, "five rows on which somebody is wrong"
    assert several.p >= several.smallest


def test_no_difference_is_seen_where_there_is_none_in_nineteen_of_twenty() -> None:
    draw = np.random.default_rng(5)
    found = []
    for _ in range(400):
        chances = draw.beta(2, 0.6, 80)
        a, b = ([answers(draw.random(80) < chances) for _ in range(3)] for _ in "ab")
        (pair,) = pairs_of({"a": a, "b": b}, "accuracy")
        found.append(pair.p < 0.05)
    assert np.mean(found) < 0.08


def test_trainings_with_rows_of_their_own_count_as_if_these_were_the_same() -> None:
    draw = np.random.default_rng(6)
    truths = [draw.integers(0, 2, 60) for _ in range(4)]
    a = [answers(draw.random(60) < 0.9, truth) for truth in truths]
    b = [answers(draw.random(60) < 0.6, truth) for truth in truths]
    every = interval(a, "accuracy")
    each = [interval([one], "accuracy") for one in a]
    assert every == pytest.approx(tuple(np.mean([e for e in each if e], axis=0)))
    pair = compare_rows(("a", a), ("b", b), "accuracy")
    assert pair is not None
    means = [np.mean((one.guesses == one.truth).mean()) for one in (*a, *b)]
    assert pair.gap == pytest.approx(np.mean(means[:4]) - np.mean(means[4:]))
    assert compare_rows(("a", a), ("b", b[:3]), "accuracy") is None


def test_what_is_kept_is_read_again() -> None:
    y = np.array(["yes", "no", "no", "yes"])
    said = Answers.of(TWO, y, [y, y[::-1]])
    again = Answers.unpacked(said.packed())
    assert again is not None
    assert again.same_as(said)
    assert again.schema.classes.tolist() == ["no", "yes"]
    assert Answers.unpacked(b"") is None
    numbers = Answers.of(NUMBER, np.arange(4.0), [np.arange(4.0) + 1])
    kept = Answers.unpacked(numbers.packed())
    assert kept is not None
    assert kept.metric("mse", np.ones((1, 4)))[0] == pytest.approx(1.0)
