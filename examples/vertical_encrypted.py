"""A bank and a merchant learn from encrypted numbers: a regression, and trees.

German credit, divided: the bank knows the loan and who defaulted, the merchant the person and the
account. Gradients travel encrypted; each party sees its own coefficients and conditions, and of
the other's only that they are there.

    python examples/vertical_encrypted.py
"""

from __future__ import annotations

import solera as so

COLUMNS = {
    "bank": ["duration", "amount", "installment_rate", "existing_credits"],
    "merchant": ["status", "savings", "employment", "property", "age"],
}


def main() -> None:
    fed = vertical()
    regression = so.VerticalLogisticRegression(epochs=4, batch_size=256, test=0.25).fit(fed)
    trees = so.SecureBoost(rounds=3, lr=0.3, max_depth=2, bins=16, test=0.25).fit(fed)
    for model in (regression, trees):
        found = model.evaluate(fed, scores=True)
        print(f"{type(model).__name__:<28} AUC {found['auroc']:.3f}")

    for party in COLUMNS:
        own = regression.coefficients(fed, party)
        largest = sorted(own, key=lambda name: -abs(own[name]))[:3]
        said = ", ".join(f"{name} {own[name]:+.2f}" for name in largest)
        print(f"\nwhat the {party} sees: {len(own)} coefficients, {said}")
        print("\n".join(trees.show(fed, party).splitlines()[:8]))


def vertical() -> so.Federation:
    data = so.datasets.german_credit()
    return so.simulate_vertical(data, columns=COLUMNS, id="customer", labels="bank", seed=0)


if __name__ == "__main__":
    main()
