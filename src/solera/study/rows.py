"""How sure a figure is, and whether two methods differ, from what models answered on test rows.

Test rows are the sample here: others of the same kind might have been drawn. Seeds are not; models
of several seeds answer the same rows, and what is judged is the mean of their metrics. An interval
says where that mean would lie over many such rows, for these very models. Proportions have
Wilson's (1927) interval, with as many rows as the answers of all seeds together are worth;
other metrics that of a bootstrap over rows.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, Self

import numpy as np

from solera.core.clients import Array, FloatArray, Rows
from solera.core.schema import UNKNOWN, Schema, class_codes
from solera.core.statistics import ROUNDING, holm
from solera.evaluation.counts import metrics_of_many
from solera.evaluation.intervals import Interval, wilson
from solera.evaluation.metrics import METRICS, sign
from solera.learn.judging import count_rows
from solera.trust.cells import Behind

DRAWS = 2000
"""Of a bootstrap: its p is no smaller than 2 / (DRAWS + 1)."""
MOST_ANSWERS = 2_000_000
"""More answers of one training are not kept."""
_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Said:
    """The answers of a model in its place, so that it predicts rows once."""

    schema_: Schema
    answers: Any
    is_personal = False

    def check_rows(self, X: Any) -> Any:
        return X

    def predict(self, X: Any) -> Any:
        return self.answers


@dataclass(frozen=True)
class Answers:
    """What some models answered on the same rows: ``guesses`` are models × rows.

    Classes are codes of ``classes`` many, the others labels or numbers.
    """

    schema: Schema
    truth: Array
    guesses: Array

    @classmethod
    def of(cls, schema: Schema, truth: Any, guesses: Sequence[Any]) -> Self:
        """Of targets and predictions as models take and give them."""
        said = np.array(guesses)
        if schema.target == "classes":
            truth = class_codes(np.asarray(truth), schema.classes)
            codes = class_codes(said.reshape(-1), schema.classes).reshape(said.shape)
            small = np.min_scalar_type(len(schema.classes))
            truth, said = truth.astype(small), codes.astype(small)
        return cls(schema, np.asarray(truth), said)

    def packed(self) -> bytes:
        """As a file holds them; nothing of more than are kept."""
        if self.guesses.size > MOST_ANSWERS:
            return b""
        file = io.BytesIO()
        names = np.array([str(name) for name in self.schema.classes.tolist()])
        about: dict[str, Any] = {"target": np.array(self.schema.target), "classes": names}
        np.savez_compressed(file, truth=self.truth, guesses=self.guesses, **about)
        return file.getvalue()

    @classmethod
    def unpacked(cls, content: bytes) -> Self | None:
        """What :meth:`packed` gave; None of nothing."""
        if not content:
            return None
        with np.load(io.BytesIO(content)) as held:
            target: Any = str(held["target"])
            schema = Schema((), target, held["classes"])
            return cls(schema, held["truth"], held["guesses"])

    @property
    def rows(self) -> int:
        return len(self.truth)

    def same_rows(self, other: Answers) -> bool:
        return self.truth.shape == other.truth.shape and bool((self.truth == other.truth).all())

    def same_as(self, other: Answers) -> bool:
        """Whether the same was answered on the same rows, but for rounding."""
        if self.guesses.shape != other.guesses.shape or not self.same_rows(other):
            return False
        if self.schema.target != "numbers":
            return bool((self.guesses == other.guesses).all())
        return bool(np.isclose(self.guesses, other.guesses, rtol=ROUNDING, atol=0).all())

    def hits(self, metric: str) -> FloatArray | None:
        """Of each row how many of the models are right, as a share; None of other than proportions.

        Rows that the proportion is not of are left out. Labels that are unknown, in truth or to a
        model, are not compared; where nothing is left of a row, this is not said of any.
        """
        right = self.guesses == self.truth
        if metric == "subset_accuracy" and self.schema.target == "labels":
            known = (self.truth != UNKNOWN) & (self.guesses != UNKNOWN)
            if not known.any(axis=2).all():
                return None
            right = (right | ~known).all(axis=2)
        elif self.schema.target != "classes":
            return None
        elif metric != "accuracy":
            of_class = {"specificity": 0, "false_positive_rate": 0, "sensitivity": 1}.get(metric)
            if of_class is None or len(self.schema.classes) != 2:
                return None
            right = right[:, self.truth == of_class]
            right = ~right if metric == "false_positive_rate" else right
        return np.asarray(right.mean(axis=0))

    def metric(self, name: str, weights: FloatArray) -> FloatArray:
        """The mean over models of a metric, for each of several weightings of the rows."""
        each = [self._of_model(name, guess, weights) for guess in self.guesses]
        return np.asarray(np.mean(each, axis=0))

    def _of_model(self, name: str, guess: Array, weights: FloatArray) -> FloatArray:
        if self.schema.target == "classes":
            k = len(self.schema.classes)
            cells = self.truth.astype(int) * k + guess
            each = [np.bincount(cells, weight, k * k) for weight in weights]
            return metrics_of_many({"confusion": np.reshape(each, (-1, k, k))})[name]
        pivot = self.truth.mean(axis=0) if self.schema.target == "numbers" else 0.0
        given = count_rows(Said(self.schema, guess), Rows(guess, self.truth), pivot)
        rows = len(guess)
        by_row = Behind(rows, np.arange(rows), rows)  # as if every row were a client
        counts = {n: np.tensordot(weights, c.numbers(by_row), 1) for n, c in given.items()}
        return metrics_of_many(counts)[name]


def distinct(answers: Sequence[Answers]) -> list[Answers]:
    """Those that differ from all before them."""
    found: list[Answers] = []
    for one in answers:
        if not any(one.same_as(other) for other in found):
            found.append(one)
    return found


def interval(answers: Sequence[Answers], metric: str) -> Interval | None:
    """Of 95 % for the mean over trainings of a metric; None where it has none.

    Of trainings that were judged by rows of their own each has an interval, and these are averaged:
    as if their rows were the same ones, because they come from the same table.
    """
    if not answers or not _follows(answers[0], metric):
        return None
    each = [distinct(answers)] if _on_same_rows(answers) else [[one] for one in answers]
    found = [_interval(some, metric) for some in each]
    known = [bounds for bounds in found if bounds is not None]
    if not known or len(known) < len(found):
        return None
    low, high = np.mean(known, axis=0).tolist()
    return low, high


def _interval(answers: Sequence[Answers], metric: str) -> Interval | None:
    hits = _hits(answers, metric)
    if hits is None:
        return _quantiles(_drawn(answers, metric))
    rows = len(hits)
    if not rows:
        return None
    share, spread = float(hits.mean()), float(hits.var(ddof=1)) if rows > 1 else 0.0
    models = sum(len(one.guesses) for one in answers)
    worth = rows * min(models, max(1.0, share * (1 - share) / spread)) if spread else rows
    low, high = wilson(share, worth)
    return float(low), float(high)


class RowPair(NamedTuple):
    """Two methods on the same rows: by how much ``a`` is better, and how far chance goes.

    ``p`` is McNemar's (1947) exact one where each has one answer to a row and the metric is a
    proportion, and that of a paired bootstrap otherwise. ``smallest`` is the least p that the rows
    on which they differ could give, 2^(1 − n) of n such rows, were all of them in favour of one; a
    bootstrap's p is no smaller either. ``p_holm`` is corrected for all pairs that are compared.
    """

    a: str
    b: str
    gap: float
    low: float
    high: float
    p: float
    smallest: float
    p_holm: float = 1.0


Method = tuple[str, Sequence[Answers]]
"""A name, and the answers of its trainings."""


def compare_rows(a: Method, b: Method, metric: str) -> RowPair | None:
    """Whether chance in the drawing of rows explains what one method is ahead of another.

    Trainings with rows of their own are compared one by one, in their order, and count as if their
    rows were the same ones. None where the rows of the two are not the same, or the metric is not
    defined.
    """
    if not _follows(a[1][0], metric):
        return None
    if _on_same_rows([*a[1], *b[1]]):
        sides = [(distinct(a[1]), distinct(b[1]))]
    elif len(a[1]) == len(b[1]) and all(map(Answers.same_rows, a[1], b[1])):
        sides = [([one], [other]) for one, other in zip(a[1], b[1], strict=True)]
    else:
        return None
    found = [_gaps(first, second, metric) for first, second in sides]
    gap = sign(metric) * float(np.mean([mean for mean, _ in found])) + 0.0  # no −0
    gaps = sign(metric) * np.mean([np.sort(drawn) for _, drawn in found], axis=0)
    bounds = _quantiles(gaps)
    if bounds is None or not np.isfinite(gap):
        return None
    if len(sides) == 1 and (exact := _mcnemar(*sides[0], metric)) is not None:
        return RowPair(a[0], b[0], gap, *bounds, *exact)
    apart = min(_apart(first, second) for first, second in sides)
    smallest = min(1.0, max(2.0 ** (1 - apart), 2 / (len(gaps) + 1)))
    beyond = min((gaps <= 0).sum(), (gaps >= 0).sum()) + 1
    p = min(1.0, max(smallest, 2 * float(beyond) / (len(gaps) + 1)))
    return RowPair(a[0], b[0], gap, *bounds, p, smallest)


def _apart(first: Sequence[Answers], second: Sequence[Answers]) -> int:
    """On how many rows not all models answer the same."""
    said = np.concatenate([one.guesses for one in (*first, *second)])
    said = said.reshape(len(said), first[0].rows, -1)
    return int((said != said[0]).any(axis=(0, 2)).sum())


MOST_PAIRED = 4
"""Of more methods only pairs with the leader are compared."""


def pairs_of(
    methods: Mapping[str, Sequence[Answers]], metric: str, leader: str = ""
) -> list[RowPair]:
    """Methods in pairs on the rows that they share, with Holm's correction for all of these.

    Of many methods each is compared with the ``leader`` alone: by default the one with the best
    mean.
    """
    some = {name: answers for name, answers in methods.items() if answers}
    named = [((a, some[a]), (b, some[b])) for a, b in combinations(some, 2)]
    if len(some) > MOST_PAIRED:
        first = leader if leader in some else max(some, key=lambda m: _height(some[m], metric))
        named = [((first, some[first]), other) for other in some.items() if other[0] != first]
    found = [pair for a, b in named if (pair := compare_rows(a, b, metric)) is not None]
    corrected = holm([pair.p for pair in found]).tolist() if found else []
    return [pair._replace(p_holm=p) for pair, p in zip(found, corrected, strict=True)]


def _height(answers: Sequence[Answers], metric: str) -> float:
    means = [one.metric(metric, np.ones((1, one.rows))) for one in answers]
    return sign(metric) * float(np.mean(means))


def _gaps(
    first: Sequence[Answers], second: Sequence[Answers], metric: str
) -> tuple[float, FloatArray]:
    """How far the first is ahead, and in draws of rows; what rounding leaves is nothing."""
    hits = [_hits(each, metric) for each in (first, second)]
    if hits[0] is not None and hits[1] is not None:
        values, counts = np.unique(np.round(hits[0] - hits[1], 12), return_counts=True)
        rows = max(1, counts.sum())
        chances = counts / rows
        drawn = np.random.default_rng(0).multinomial(rows, chances, DRAWS) @ values / rows
        return float(chances @ values), drawn
    whole = np.ones((1, first[0].rows))
    each = [
        np.concatenate([_mean(side, metric, whole), _drawn(side, metric)])
        for side in (first, second)
    ]
    tied = np.abs(each[0] - each[1]) <= ROUNDING * np.maximum(*np.abs(each))
    gaps = np.where(tied, 0.0, each[0] - each[1])
    return float(gaps[0]), gaps[1:]


def _mcnemar(
    first: Sequence[Answers], second: Sequence[Answers], metric: str
) -> tuple[float, float] | None:
    """The p and the smallest possible one; None where answers to a row are several."""
    from scipy.stats import binomtest

    one, other = _hits(first, metric), _hits(second, metric)
    if one is None or other is None or not np.isin([one, other], [0, 1]).all():
        return None
    wins, apart = int((one > other).sum()), int((one != other).sum())
    return (float(binomtest(wins, apart).pvalue), 2.0 ** (1 - apart)) if apart else (1.0, 1.0)


def _follows(answers: Answers, metric: str) -> bool:
    """Whether a metric follows from predictions, without their probabilities."""
    about = METRICS.get(metric)
    if about is None or about.needs_scores or about.logged:
        return False
    return answers.schema.target in about.targets


def _on_same_rows(answers: Sequence[Answers]) -> bool:
    return all(answers[0].same_rows(other) for other in answers[1:])


def _hits(answers: Sequence[Answers], metric: str) -> FloatArray | None:
    """What share of all models of all trainings is right about each row."""
    each = [one.hits(metric) for one in answers]
    if any(hits is None for hits in each):
        return None
    return np.asarray(np.mean([hits for hits in each if hits is not None], axis=0))


def _mean(answers: Sequence[Answers], metric: str, weights: FloatArray) -> FloatArray:
    return np.asarray(np.mean([one.metric(metric, weights) for one in answers], axis=0))


def _drawn(answers: Sequence[Answers], metric: str) -> FloatArray:
    """The mean over trainings of a metric, in each of many draws of their rows."""
    rows, draw = answers[0].rows, np.random.default_rng(0)
    found: list[FloatArray] = []
    step = max(1, _AT_ONCE // rows)
    for start in range(0, DRAWS, step):
        draws = draw.integers(rows, size=(min(step, DRAWS - start), rows))
        weights = np.array([np.bincount(chosen, minlength=rows) for chosen in draws], dtype=float)
        found.append(_mean(answers, metric, weights))
    return np.concatenate(found)


def _quantiles(drawn: FloatArray) -> Interval | None:
    known = drawn[np.isfinite(drawn)]
    if not len(known):
        return None
    low, high = np.quantile(known, [0.025, 0.975]).tolist()
    return low, high
