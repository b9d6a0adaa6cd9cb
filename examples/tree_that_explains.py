"""One decision tree out of the trees of several hospitals, and why it decides as it does.

Each hospital grows a tree on its own rows; the trees are judged, and the rules of the good ones
merged into one tree. It is a table of rules that a doctor can read, and it explains a single
prediction: by the merged tree, and by the tree of the hospital where the patient is.

    python examples/tree_that_explains.py
"""

from __future__ import annotations

import solera as so


def main() -> None:
    data = so.datasets.load("breast_cancer")
    X, y, X_test, y_test = data
    fed = so.simulate(X, y, clients=5, test=0.2, seed=0, schema=data.schema)
    model = so.FederatedTree(kind="cart", max_depth=4).fit(fed)

    print(f"accuracy on {len(y_test)} other patients: {model.score(X_test, y_test):.3f}")
    print(f"{len(model.kept_)} of {len(fed)} trees were kept, {len(model.rules_)} rules\n")
    print("at the hospitals      own tree   merged tree")
    for judged in model.client_metrics_:
        own, merged = judged["local_accuracy"], judged["global_accuracy"]
        print(f"  hospital {judged['client']}          {own:.3f}         {merged:.3f}")
    print("\nwhy the first patient is classified so:")
    print(model.explain(X_test[0], client=2))


if __name__ == "__main__":
    main()
