"""Survival in closed jobs: equal to lifelines on pooled rows, and what the policy costs.

Four owners, six columns. Cox's model by owner and of all rows on the epoch's times is compared with
lifelines' ``CoxPHFitter`` (Efron), curves with its ``KaplanMeierFitter``. lifelines
needs an older pandas than ours: ``--lifelines`` names the Python of an environment that has it.

    python benchmarks/survival.py [--lifelines PYTHON] [--tiny]
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

import solera as so
from sizes import sized

ROWS = sized((1_000, 3_000, 10_000), tiny=(400,))
DRAWS = sized(10, tiny=2)
REPEATS = sized(5, tiny=1)
SITES = 4
LIFELINES = """
import io, json, sys
import pandas as pd
from lifelines import CoxPHFitter, KaplanMeierFitter
asked = json.load(sys.stdin)
frame = pd.read_csv(io.StringIO(asked["rows"]))
if asked["times"] is not None:
    curve = KaplanMeierFitter().fit(frame["days"], frame["event"])
    print(json.dumps(curve.survival_function_at_times(asked["times"]).tolist()))
else:
    strata = ["site"] if asked["strata"] else None
    frame = frame if strata else frame.drop(columns="site")
    fitter = CoxPHFitter()
    options = {"precision": 1e-14, "r_precision": 1e-14, "step_size": 1.0}
    fitter.fit(frame, "days", "event", strata=strata, fit_options=options)
    print(json.dumps([fitter.params_.tolist(), fitter.standard_errors_.tolist()]))
"""


def trial(rows: int, seed: int = 0) -> pd.DataFrame:
    """Patients of four sites, times in days."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, 6))
    hazard = X @ np.array([0.5, -0.3, 0.2, 0.0, 0.1, -0.1])
    event, end = draw.exponential(300 * np.exp(-hazard)), draw.exponential(400, rows)
    frame = pd.DataFrame(X.round(3), columns=[f"x{j}" for j in range(X.shape[1])])
    return frame.assign(
        days=np.ceil(np.minimum(event, end)),
        event=(event <= end).astype(float),
        site=[f"s{k}" for k in np.sort(np.arange(rows) % SITES)],
    )


def federations(frame: pd.DataFrame, seed: int = 0) -> tuple[Any, Any]:
    """The same owners without a policy and with closed jobs."""
    inner = frame.drop(columns="site")
    dictionary = so.epochs.draft(inner, target=["days", "event"], time="days")
    options = {"group": "site", "dictionary": dictionary, "seed": seed}
    return so.simulate(frame, **options), so.simulate(frame, policy="sums", **options)


def asked(
    python: str, frame: pd.DataFrame, *, strata: bool = False, times: Any = None
) -> np.ndarray:
    """What lifelines says of rows."""
    text = io.StringIO()
    frame.to_csv(text, index=False)
    order = {"rows": text.getvalue(), "strata": strata, "times": times}
    done = subprocess.run(
        [python, "-W", "ignore", "-c", LIFELINES],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        check=True,
    )
    return np.array(json.loads(done.stdout))


def compare(python: str) -> None:
    """The largest differences from lifelines, over some draws of 75 rows a site."""
    far: dict[str, list[float]] = {"by owner": [], "all rows": [], "curve": []}
    for seed in range(DRAWS):
        frame = trial(75 * SITES, seed)
        _, closed = federations(frame, seed)
        model = so.FedCox().fit(closed, progress=False)
        far["by owner"].append(difference(model, asked(python, frame, strata=True)))
        model = so.FedCox(strata=None).fit(closed, progress=False)
        far["all rows"].append(difference(model, asked(python, at_grid(frame, model))))
        curve = so.learn.kaplan_meier(closed).curves[0]
        before = np.nextafter(curve.times, 0).tolist()
        S = asked(python, frame, times=before)
        far["curve"].append(float(np.abs(curve.survival - S).max()))
    for what, differences in far.items():
        middle, most = np.median(differences), max(differences)
        print(f"lifelines, {what}, {DRAWS} draws: median {middle:.2g}, most {most:.2g}", flush=True)


def difference(model: so.FedCox, lifelines: np.ndarray) -> float:
    """The largest of estimates and standard errors."""
    return float(np.abs(np.array([model.params_, model.standard_errors]) - lifelines).max())


def at_grid(frame: pd.DataFrame, model: so.FedCox) -> pd.DataFrame:
    """Rows with the times at which the model says that it counts them."""
    days, event = frame["days"].to_numpy(), frame["event"].to_numpy()
    until, counted = model.censored_times_.T
    events = np.append(model.times_, np.inf)[np.searchsorted(model.times_, days, side="right")]
    time = np.where(event == 1, events, counted[np.searchsorted(until, days, side="right")])
    event = np.where(np.isin(time, model.times_), event, 0.0)
    return frame.assign(days=np.where(np.isinf(time), 1e6, time), event=event)


def seconds(fit: Callable[[], Any]) -> float:
    """The median over repeats."""
    times = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        fit()
        times.append(time.perf_counter() - began)
    return float(np.median(times[1:]))


def cost() -> None:
    """Seconds of a fit with and without a policy."""
    for rows in ROWS:
        plain, closed = federations(trial(rows))
        assert closed.atoms is not None  # found before the clock runs
        fits = {
            "FedCox, plain": lambda fed=plain: so.FedCox().fit(fed, progress=False),
            "FedCox, closed": lambda fed=closed: so.FedCox().fit(fed, progress=False),
            "FedCox of all rows, closed": lambda fed=closed: so.FedCox(strata=None).fit(
                fed, progress=False
            ),
            "curve, plain": lambda fed=plain: so.learn.kaplan_meier(fed, np.arange(20, 2000, 20)),
            "curve, closed": lambda fed=closed: so.learn.kaplan_meier(fed),
        }
        for what, fit in fits.items():
            print(f"{rows:,} rows, {what}: {seconds(fit) * 1e3:.1f} ms", flush=True)


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lifelines", help="a Python that has lifelines")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.lifelines:
        compare(options.lifelines)
    cost()


if __name__ == "__main__":
    main()
