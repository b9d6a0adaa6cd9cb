"""How often the 95 % intervals of metrics hold: drawn again and again from known distributions.

Accuracy .6 to .98, AUROC .6 to .99 (normal, unequal and exponential scores, half and a fifth
positive), R² .2 to .95 (normal, and Student's t with 8 degrees of freedom); 20, 50, 100 and 500
rows. The log-rank test: in how many draws of two equal groups p < .05.

    python benchmarks/coverage.py [--tiny]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np
from scipy.stats import norm

from solera.evaluation.intervals import Interval, area_variance, intervals_of, of_area, of_share
from solera.learn.statistics.survival import Curve, SurvivalCurves

ROWS = (20, 50, 100, 500)
ACCURACIES = (0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
AREAS = (0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
SHARES = (0.2, 0.5, 0.8, 0.95)
DRAWS = 2000
Draw = Callable[[np.random.Generator], Interval | None]


def coverage(draw: Draw, true: float, draws: int, seed: int) -> float:
    """The share of the intervals that hold the true value; NaN where none is given."""
    rng = np.random.default_rng(seed)
    given = [interval for _ in range(draws) if (interval := draw(rng)) is not None]
    return float(np.mean([low <= true <= high for low, high in given])) if given else np.nan


def accuracy(true: float, rows: int) -> Draw:
    return lambda rng: of_share(int(rng.binomial(rows, true)), rows)


def area(true: float, rows: int, kind: str, share: float) -> Draw:
    """Of scores whose distributions give this area; rows by score are counted as clients do."""
    positives = round(rows * share)

    def draw(rng: np.random.Generator) -> Interval | None:
        if kind == "exponential":
            high = true / (1 - true) * rng.exponential(size=positives)
            low = rng.exponential(size=rows - positives)
        else:
            spread = 2.0 if kind == "unequal" else 1.0
            shift = np.sqrt(1 + spread**2) * norm.ppf(true)
            high = spread * rng.normal(size=positives) + shift
            low = rng.normal(size=rows - positives)
        bins = np.unique(np.concatenate([low, high]), return_inverse=True)[1]
        negative = np.bincount(bins[: len(low)], minlength=rows)
        positive = np.bincount(bins[len(low) :], minlength=rows)
        estimate = float((positive * (np.cumsum(negative) - negative / 2)).sum())
        estimate /= len(low) * len(high)
        variance = area_variance(negative, positive)
        return of_area((estimate, estimate), variance, len(high), len(low))

    return draw


def r2(true: float, rows: int, freedom: float) -> Draw:
    """Of a model that predicts the mean of y given its columns."""

    def noise(rng: np.random.Generator, variance: float) -> np.ndarray:
        if np.isinf(freedom):
            return np.sqrt(variance) * rng.normal(size=rows)
        return np.sqrt(variance * (freedom - 2) / freedom) * rng.standard_t(freedom, rows)

    def draw(rng: np.random.Generator) -> Interval | None:
        error = noise(rng, 1 - true)
        y = noise(rng, true) + error
        powers = (error**4, error**2 * y, error**2 * y**2, y**3, y**4)
        sums = {"rows": rows, "y": y.sum(), "y2": (y**2).sum(), "error2": (error**2).sum()}
        return intervals_of({**sums, "moments": np.sum(powers, axis=1)}).get("r2")

    return draw


def points() -> Iterator[tuple[str, float, int, Draw]]:
    """What is simulated: a name, the true value, rows, and how an interval is drawn."""
    for rows in ROWS:
        for true in ACCURACIES:
            yield "accuracy", true, rows, accuracy(true, rows)
        for true in AREAS:
            for kind in ("normal", "unequal", "exponential"):
                for share in (0.5, 0.2):
                    name = f"AUROC, {kind}, {share:.0%} positive"
                    yield name, true, rows, area(true, rows, kind, share)
        for true in SHARES:
            yield "R², normal", true, rows, r2(true, rows, np.inf)
            yield "R², t(8)", true, rows, r2(true, rows, 8)


def survival(rng: np.random.Generator, rows: int, times: np.ndarray) -> Curve:
    """A group in which a third leaves before the event, counted at the times of a grid."""
    died, left = rng.exponential(size=rows), 2 * rng.exponential(size=rows)
    place = np.searchsorted(times, np.minimum(died, left))
    events = np.bincount(place[died <= left], minlength=len(times) + 1)[:-1]
    ended = np.bincount(place, minlength=len(times) + 1)[:-1]
    at_risk = rows - np.cumsum(ended) + ended
    return Curve("", times, events.astype(float), at_risk.astype(float))


def false_alarms(groups: tuple[int, ...], draws: int, seed: int = 0) -> float:
    """The share of draws of equal groups in which the log-rank test says p < .05."""
    rng = np.random.default_rng(seed)
    times = np.linspace(0.1, 4, 40)
    tests = (
        SurvivalCurves([survival(rng, rows, times) for rows in groups]).log_rank()
        for _ in range(draws)
    )
    return float(np.mean([p < 0.05 for *_, p in tests]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true")
    draws = 20 if parser.parse_args().tiny else DRAWS
    by_name: dict[str, list[tuple[float, float, int]]] = {}
    for seed, (name, true, rows, draw) in enumerate(points()):
        by_name.setdefault(name, []).append((coverage(draw, true, draws, seed), true, rows))
    print(f"{'95 % interval of':36} {'mean':>6} {'least':>6}  at")
    for name, found in by_name.items():
        given = [point for point in found if not np.isnan(point[0])]
        least = min(given)
        mean = np.mean([point[0] for point in given])
        where = f"{least[1]:g}, {least[2]} rows; {len(found) - len(given)} points without"
        print(f"{name:36} {mean:6.3f} {least[0]:6.3f}  {where}")
    for groups in ((50, 50), (20, 80), (30, 30, 30)):
        print(f"log-rank, groups of {groups}: p < .05 in {false_alarms(groups, draws):.1%}")


if __name__ == "__main__":
    main()
