"""A bank and a merchant predict bad loans together, and neither shows its columns.

German credit, divided: the bank knows the loan and who defaulted, the merchant knows the person and
the account. Beside it is what the bank could do without the merchant. Each party's part of the
model is a file of its own.

    python examples/vertical_credit.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import solera as so

COLUMNS = {
    "bank": ["duration", "amount", "installment_rate", "existing_credits", "purpose"],
    "merchant": ["status", "credit_history", "savings", "employment", "property", "age", "housing"],
}
OPTIONS: dict[str, Any] = {"epochs": 8, "lr": 0.005, "optimiser": "adam", "clip": 5.0, "test": 0.25}


def main() -> None:
    fed = vertical()
    together = so.SplitNN(8, **OPTIONS).fit(fed)
    found = {"bank and merchant": together.evaluate(fed, scores=True)}

    by_itself = vertical()
    width = together.widths_[0]  # columns of the bank, once categories are marks
    alone = so.SplitNN({"bank": so.nn.mlp(width, 16, 8)}, **OPTIONS).fit(by_itself)
    found["the bank alone"] = alone.evaluate(by_itself, scores=True)
    for name, metrics in found.items():
        print(f"{name:<20} AUC {metrics['auroc']:.3f}  log loss {metrics['log_loss']:.3f}")

    with tempfile.TemporaryDirectory() as folder:
        for name in fed.names:
            path = together.save_part(fed, name, Path(folder) / f"{name}.part")
            print(f"{path.name}: {path.stat().st_size:,} bytes")
        later = vertical()
        for name in fed.names:
            together.load_part(later, name, Path(folder) / f"{name}.part")
        same = (together.predict(later) == together.predict(fed)).all()
        print(f"loaded by each party, the predictions are the same: {same}")


def vertical() -> so.Federation:
    data = so.datasets.german_credit()
    return so.simulate_vertical(data, columns=COLUMNS, id="customer", labels="bank", seed=0)


if __name__ == "__main__":
    main()
