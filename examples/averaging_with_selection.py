"""A neural network, averaged over clients of which only some take part in a round.

Twenty clients have few classes each. Five take part in a round: drawn at random, or by active
sampling, where those whose rows the model fits worst come more often. The selector is a parameter
of the learner; nothing else changes. What it asks of clients, a loss each, is counted too.

    python examples/averaging_with_selection.py
"""

from __future__ import annotations

from typing import Any

import solera as so

ROUNDS = 30


class Rounds(so.callbacks.Callback):
    """Remembers who took part, and the accuracy on rows that no client has."""

    def __init__(self, X_test: Any, y_test: Any) -> None:
        self.test = X_test, y_test
        self.clients: set[int] = set()
        self.accuracy: list[float] = []

    def on_round(self, learner: Any, round: Any) -> None:
        self.clients.update(round.clients.tolist())
        self.accuracy.append(learner.score(*self.test))


def main() -> None:
    X, y, X_test, y_test = so.datasets.digits()
    X, X_test = X / 16, X_test / 16
    print(f"{'':<16}{'round 10':>10}{'round 20':>10}{'round 30':>10}{'clients':>9}{'kB sent':>9}")
    for name, select in (("at random", None), ("active sampling", so.ActiveSampling())):
        fed = so.simulate(X, y, clients=20, partition=so.Dirichlet(0.3, min_rows=5), seed=7)
        rounds = Rounds(X_test, y_test)
        network = so.nn.mlp(64, 100, 10)
        learner = so.FedAvg(network, rounds=ROUNDS, per_round=5, lr=0.2, batch_size=16,
                            select=select)  # fmt: skip
        learner.fit(fed, callbacks=[rounds])
        reached = "".join(f"{rounds.accuracy[at - 1]:>10.3f}" for at in (10, 20, 30))
        sent = fed.meter.total().up / 1000
        print(f"{name:<16}{reached}{len(rounds.clients):>9}{sent:>9,.0f}")


if __name__ == "__main__":
    main()
