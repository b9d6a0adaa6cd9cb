"""A registry and an employer grow trees together on 32,561 people, from encrypted gradients.

Adult, divided: the registry knows the person and whether the income is above 50,000, the employer
knows the work. Of the other's conditions each sees only that they are there.

    python examples/vertical_adult.py
"""

from __future__ import annotations

import solera as so

COLUMNS = {
    "registry": ["age", "marital-status", "relationship", "race", "sex", "native-country"],
    "employer": [
        "workclass",
        "education-num",
        "occupation",
        "capital-gain",
        "capital-loss",
        "hours-per-week",
    ],
}


def main() -> None:
    fed = so.simulate_vertical(
        so.datasets.adult(), columns=COLUMNS, id="person", labels="registry", seed=0
    )
    trees = so.SecureBoost(rounds=3, lr=0.5, max_depth=3, bins=32, test=0.2).fit(fed)
    found = trees.evaluate(fed, scores=True)
    print(f"AUC on a fifth of the people: {found['auroc']:.3f}")
    for party in COLUMNS:
        print(f"\nthe first tree as the {party} sees it:")
        print("\n".join(trees.show(fed, party).splitlines()[:8]))


if __name__ == "__main__":
    main()
