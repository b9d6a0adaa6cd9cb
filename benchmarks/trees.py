"""Speed claims of trees, ours and the peers' from one run.

The fold of 50 clients' rules and the whole of ICDTA4FL on Adult; FedHistGBDT over 10 clients
against scikit-learn's HistGradientBoosting on the joined rows (and XGBoost where installed), with
the same depth, rounds, learning rate, bins and fewest rows. Processor time of one core.

    OMP_NUM_THREADS=1 SOLERA_DATA=… python benchmarks/trees.py
"""

from __future__ import annotations

import importlib.util
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

import solera as so
from sizes import sized
from solera.core.replies import Reply
from solera.learn.trees.fusion.rule_merging import RuleFold

ROUNDS, DEPTH, CLIENTS = sized((100, 5, 10), tiny=(3, 2, 3))
FOLDED, TIMES = sized((50, 5), tiny=(4, 1))
MERGED, BOOSTED = sized(("adult", ["adult", "credit2"]), tiny=("wine", ["breast_cancer"]))


def timed(*works: Callable[[], Any], times: int = TIMES) -> list[tuple[float, Any]]:
    """Least processor time of several turns, and the last result, of each; they take turns."""
    found = [(np.inf, None) for _ in works]
    for _ in range(times):
        for i, work in enumerate(works):
            start = time.process_time()
            result = work()
            found[i] = (min(found[i][0], time.process_time() - start), result)
    return found


def icdta4fl() -> None:
    data = so.datasets.load(MERGED)
    X, y = data.all
    fed = so.simulate(X, y, clients=FOLDED, test=0.1, seed=0, schema=data.schema)
    ((seconds, model),) = timed(
        lambda: so.FederatedTree("cart", max_depth=5).fit(fed), times=min(3, TIMES)
    )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"ICDTA4FL, {MERGED}, {FOLDED} clients, depth 5: {seconds:.2f} s (bar 30), "
        f"{memory:.0f} MiB (1,024)"
    )
    accuracy = model.evaluate(fed)["accuracy"]
    print(f"  accuracy {accuracy:.4f}, {len(model.kept_)} trees, {len(model.tree_)} nodes")
    fold = RuleFold(X.shape[1], len(np.unique(y)), max_rules=3000)
    replies = [
        Reply(client, {"tree": tree.to_payload()}) for client, tree in enumerate(model.local_trees_)
    ]
    ((seconds, merged),) = timed(
        lambda: fold.finish(fold.fold_one_by_one(replies)), times=min(3, TIMES)
    )
    print(f"fold of {FOLDED} clients' rules, {merged['dropped']:,} dropped: {seconds:.2f} s")


def boosting(name: str) -> None:
    data = so.datasets.load(name)
    X, y, X_test, y_test = data
    peer = HistGradientBoostingClassifier(
        max_iter=ROUNDS,
        max_depth=DEPTH,
        max_leaf_nodes=None,
        max_bins=255,
        min_samples_leaf=20,
        early_stopping=False,
    )
    fed = so.simulate(X, y, clients=CLIENTS, seed=0, schema=data.schema)
    (theirs, fitted), (ours, model) = timed(
        lambda: peer.fit(X, y), lambda: so.FedHistGBDT(rounds=ROUNDS, max_depth=DEPTH).fit(fed)
    )
    good, bad = model.score(X_test, y_test), fitted.score(X_test, y_test)
    print(
        f"FedHistGBDT, {name}, {CLIENTS} clients: ours {ours:.2f} s, scikit-learn {theirs:.2f} s, "
        f"ratio {ours / theirs:.2f} (bar 1.4); accuracy {100 * good:.2f} and {100 * bad:.2f}, "
        f"difference {100 * (good - bad):+.2f} (bar -0.30)"
    )
    if importlib.util.find_spec("xgboost"):
        import xgboost

        booster = xgboost.XGBClassifier(
            n_estimators=ROUNDS, max_depth=DEPTH, learning_rate=0.1, tree_method="hist", n_jobs=1
        )
        ((theirs, fitted),) = timed(lambda: booster.fit(X, y))
        good = fitted.score(X_test, y_test)
        print(f"  XGBoost {theirs:.2f} s, ratio {ours / theirs:.2f}, accuracy {100 * good:.2f}")
    else:
        print("  XGBoost is not installed")
    if not importlib.util.find_spec("pfl"):
        print("  pfl is not installed")


if __name__ == "__main__":
    icdta4fl()
    for name in BOOSTED:
        boosting(name)
