"""A table with missing values and categories, prepared in the same way by clients that keep it.

Patients of the diabetes study are spread over four clinics; the blood pressure of every eighth is
missing. A pipeline fills in, encodes the categories, scales the columns and learns. Each step
learns from folded sums, and clients apply the steps before it to rows that stay with them. The
whole is saved, loaded and predicts as one.

    python examples/table_pipeline.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes

import solera as so


def patients() -> Any:
    """The table as pandas reads it, with some values missing."""
    frame = load_diabetes(as_frame=True, scaled=False).frame
    frame["sex"] = frame["sex"].map({1.0: "female", 2.0: "male"})
    frame.loc[::8, "bp"] = np.nan
    return frame


def main() -> None:
    frame = patients()
    known, new = frame[:360], frame[360:]
    table = so.from_pandas(known, target="target")
    fed = so.simulate(table.X, table.y, clients=4, seed=0, schema=table.schema)
    for feature in table.schema.features[:4]:
        print(f"  {feature.name:<5} {feature.kind:<12} {', '.join(feature.categories)}")

    model = so.Pipeline(
        so.FedImputer("median"), so.FedEncoder(), so.FedScaler(), so.FedHEONN("linear", lam=0.1)
    ).fit(fed)
    later = so.from_pandas(new, target="target")
    print(f"R² on {len(new)} later patients: {model.score(later.X, later.y):.3f}")
    print(f"filled in for missing blood pressure: {model.steps_[0].fill_[3]:.1f}")

    with tempfile.TemporaryDirectory() as folder:
        again = so.load(model.save(Path(folder) / "diabetes.sol"))
    same = np.array_equal(again.predict(later.X), model.predict(later.X))
    print(f"read from its file it predicts the same: {same}")
    print(f"asks: {len(fed.meter.records)}, bytes a client sent: {fed.meter.total().up // 4:,}")


if __name__ == "__main__":
    main()
