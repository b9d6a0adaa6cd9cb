"""A clinic and a laboratory know different things of the same patients: one network of both.

The steps are those of every epoch of vertical learning with neural networks (Wei et al. 2024):
intersection of identifiers, forward through the bottom networks, transmission, the top network
forward and back, transmission, back through the bottom networks. For each is printed what whoever
receives something can read of it.

    python examples/vertical_steps.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

import solera as so

COLUMNS = {
    "clinic": ["age", "sex", "cp", "trestbps", "fbs", "exang"],
    "laboratory": ["chol", "restecg", "thalach", "oldpeak", "slope", "ca", "thal"],
}
STEPS = {
    "psi.begin": "1. intersection: points of identifiers, multiplied by a secret number",
    "psi.multiply": "1. intersection: the other party's points, multiplied once more",
    "psi.reveal": "1. intersection: which points are common; shares of a random order",
    "psi.order": "1. intersection: the order, and a digest to compare it by",
    "vertical.agree": "1. intersection: all have the same people in the same order",
    "split.start": "   first weights, and how columns are standardised",
    "split.bottom": "2.+3. bottom networks forward, outputs sent; 7. and back",
    "split.top": "4.+5. top network forward and back; 6. gradients sent",
    "split.epoch": "   the mean loss of the epoch",
}


def main() -> None:
    data = so.datasets.heart_cleveland()
    X, y = data.all
    table = pd.DataFrame(X, columns=[feature.name for feature in data.schema.features])
    table["sick"] = (y > 0).astype(int)
    table["patient"] = [f"Patient {i:03d}" for i in range(len(table))]
    fed = so.simulate_vertical(
        table, columns=COLUMNS, target="sick", id="patient", policy="trusted", seed=1
    )
    print("each party holds the patients in an order of its own:")
    for name, party in zip(fed.names, fed.data.parties, strict=True):
        labels = "and the diagnosis" if party.y is not None else ""
        print(f"  {name:<11} {party.schema.width} columns, {party.X.shape[0]} rows {labels}")
    print(f"patients in common, and nothing else: {so.learn.common_rows(fed)}\n")

    watch(fed)
    model = so.SplitNN(8, epochs=20, lr=0.01, optimiser="adam", test=0.25).fit(fed)

    last = model.history_[-1]
    print(f"\nafter {len(model.history_)} epochs the loss is {last['loss']:.3f}")
    for name in fed.names:
        print(
            f"  what the {name} sends is correlated with its columns by {last['dcor_' + name]:.2f}"
        )
    print(f"\n{model.evaluate(fed)}")


def watch(fed: so.Federation) -> None:
    """Print, for the first ask of every step, what the coordinator relays of it."""
    run, seen = fed.engine.run, set()

    def printed(ask: Any, aggregation: Any) -> Iterator[Any]:
        new = ask.task in STEPS and ask.task not in seen
        seen.add(ask.task)
        if new:
            print(STEPS[ask.task])
        for block in run(ask, aggregation):
            if new and block.batch is not None:
                for reply in block.batch:
                    print(f"     {fed.names[reply.client]:<11} → {shown(reply.payload)}")
            yield block

    fed.engine.run = printed  # type: ignore[method-assign]


def shown(payload: Any) -> str:
    """What the coordinator can read of a reply."""
    if isinstance(payload, dict):
        parts = [f"{key}: {shown(value)}" for key, value in payload.items() if key != "sealed"]
        parts += [
            f"{len(m['sealed']):,} sealed bytes for party {m['to']}"
            for m in payload.get("sealed", ())
        ]
        return "; ".join(parts) or "nothing"
    if isinstance(payload, bytes):
        return f"{len(payload):,} bytes {payload[:6].hex()}…"
    return f"{payload:.3f}" if isinstance(payload, float) else str(np.asarray(payload).tolist())


if __name__ == "__main__":
    main()
