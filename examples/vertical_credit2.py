"""A bank and a card company fit a logistic regression on 22,500 customers, under encryption.

Credit2, divided into 10 and 13 columns: the bank knows the customer, how late payments were and who
defaulted; the card company knows the bills and what was paid. Residuals travel encrypted (CKKS);
each party ends with the coefficients of its own columns and no others.

    python examples/vertical_credit2.py
"""

from __future__ import annotations

import solera as so

DATA = so.datasets.credit2()
NAMES = [feature.name for feature in DATA.schema.features]
COLUMNS = {"bank": NAMES[:10], "card company": NAMES[10:]}


def main() -> None:
    fed = so.simulate_vertical(DATA, columns=COLUMNS, id="customer", labels="bank", seed=0)
    model = so.VerticalLogisticRegression(epochs=2, batch_size=2048, test=0.2).fit(fed)
    found = model.evaluate(fed, scores=True)
    print(f"AUC on {0.2 * DATA.X.shape[0]:,.0f} other customers: {found['auroc']:.3f}")
    for party in COLUMNS:
        own = model.coefficients(fed, party)
        largest = sorted(own, key=lambda name: -abs(own[name]))[:3]
        said = ", ".join(f"{name} {own[name]:+.2f}" for name in largest)
        print(f"what the {party} sees: {len(own)} coefficients, {said}")


if __name__ == "__main__":
    main()
