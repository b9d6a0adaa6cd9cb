"""Experiments on averaged networks: local epochs (003, Table 1.3) and images (002, Table 3.1)."""

from __future__ import annotations

import csv
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import solera as so
from sizes import sized
from solera_studies import cifar

# --- local-epochs and flower-losses: Table 1.3's epochs, and what its figures are of ---

EPOCHS = sized((1, 5), tiny=(1,))
IMAGES = sized({"dense": 60_000, "CNN": 3_000}, tiny={"dense": 400, "CNN": 400})
BATCH, CLIENTS = 32, 10
SERVERS = ("Flower", "TFF")
"""Plain means, and Adam (0.01) on the mean update."""


def use_case(network: str) -> Any:
    """The networks of use case 1, as PyTorch has them (Codes 6 and 11)."""
    import torch

    if network == "dense":
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
        )
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(32 * 14 * 14, 10),
    )  # fmt: skip


def epochs(program: Path | None) -> None:
    """Ten rounds with several numbers of local epochs, in plain PyTorch."""
    import torch
    from torch.nn.functional import cross_entropy

    images = so.datasets.mnist()
    X, y, X_test, y_test = (torch.from_numpy(np.asarray(part)) for part in images)
    X, X_test = (
        part.reshape(-1, 1, 28, 28).float() / max(1.0, float(X.max())) for part in (X, X_test)
    )
    for network, rows in IMAGES.items():
        owners = torch.arange(rows).split(rows // CLIENTS)
        for server, local in product(SERVERS, EPOCHS):
            torch.manual_seed(0)
            shared = use_case(network)
            step = torch.optim.Adam(shared.parameters(), lr=0.01, eps=1e-7)
            for _ in range(10):
                seen = np.zeros((local, 3))  # batches' losses, hits and rows of the last round
                means = [torch.zeros_like(p) for p in shared.parameters()]
                for owned in owners:
                    net = use_case(network)
                    net.load_state_dict(shared.state_dict())
                    adam = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
                    for epoch in range(local):
                        for batch in owned[torch.randperm(len(owned))].split(BATCH):
                            outputs = net(X[batch])
                            loss = cross_entropy(outputs, y[batch])
                            adam.zero_grad()
                            loss.backward()
                            adam.step()
                            hits = (outputs.argmax(1) == y[batch]).sum()
                            seen[epoch] += loss.item(), hits.item(), len(batch)
                    for mean, parameter in zip(means, net.parameters(), strict=True):
                        mean += parameter.detach() / CLIENTS
                for mean, parameter in zip(means, shared.parameters(), strict=True):
                    parameter.grad = parameter.detach() - mean
                    if server == "Flower":
                        parameter.data.copy_(mean)
                if server == "TFF":
                    step.step()
            figures = []
            with torch.no_grad():
                for part, truth in ((X[:rows], y[:rows]), (X_test, y_test)):
                    outputs = torch.cat([shared(some) for some in part.split(1000)])
                    loss = cross_entropy(outputs, truth).item()
                    hits = (outputs.argmax(1) == truth).float().mean().item()
                    figures.append(f"{loss:.3f} {hits:.3f}")
            counted = seen[-1] if server == "Flower" else seen.sum(axis=0)
            batches = -(-rows // CLIENTS // BATCH) * CLIENTS * (1 if server == "Flower" else local)
            print(f"{network}, {rows:,} images, {server}, {local} epochs: train {figures[0]}, test "
                  f"{figures[1]}; clients while training {counted[0] / batches:.3f} "
                  f"{counted[1] / counted[2]:.3f}; losses by Flower's tutorial, divided by rows: "
                  f"train {counted[0] / counted[2]:.4f}, test {loss / BATCH:.4f}",
                  flush=True)  # fmt: skip


# --- cifar-images: accuracy against the number of images ---

COUNTS = sized((625, 1250), tiny=(40,))
WHOLE = 50_000
EPOCHS_IN_ALL = sized(cifar.WHOLE, tiny=4)


def images(program: Path | None) -> None:
    """Every plan with few images, and the power of their number that the errors fall with."""
    X, y, X_test, y_test = so.datasets.cifar10()
    with Path(__file__).with_name("published.csv").open(encoding="utf-8") as file:
        full = {line["row"]: float(line["measured"]) for line in csv.DictReader(file)
                if line["study"] == "cifar"}  # fmt: skip
    plans = {cifar.ONE_PLACE: cifar.Plan(1, 1, cifar.WHOLE, 1)}
    plans |= {plan.cell: plan for plan in cifar.PLANS}
    for cell, plan in plans.items():
        found = []
        for count in COUNTS:
            fed = so.simulate(X[:count], y[:count], clients=plan.clients, seed=0)
            learner = so.FedAvg(
                cifar.NET, rounds=EPOCHS_IN_ALL // plan.epochs, per_round=plan.per_round,
                epochs=plan.epochs, lr=1e-3, optimiser="adam",
            )  # fmt: skip
            found.append(learner.fit(fed).score(X_test, y_test))
        print(f"  {cell.row}: {curve([*COUNTS, len(X)], [*found, full[cell.row]])}; "
              f"thesis {cell.value:.2f}", flush=True)  # fmt: skip


def curve(counts: list[int], scores: list[float]) -> str:
    """Scores by the number of images, and the line of log error against log number at 50,000."""
    slope, level = np.polyfit(np.log(counts), np.log1p(-np.array(scores)), 1)
    whole = 1 - np.exp(level + slope * np.log(WHOLE))
    points = ", ".join(f"{c:,}: {s:.3f}" for c, s in zip(counts, scores, strict=True))
    return f"{points}; error ∝ n^{slope:.2f}, {WHOLE:,}: {whole:.2f}"
