"""Experiments on client selection (001): the programs' clock, the order of rows, their number."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sizes import sized
from solera.core.selection import Uniform
from solera.select.resources import DynHybridFL, HybridFL
from solera.simulate.simulation import simulate
from solera_studies import selection_performance as performance
from solera_studies import selection_resources as resources
from solera_studies.rows import AS_PUBLISHED, quiet
from solera_studies.selection_protocol import MLP, Order, as_published, dealt

SEEDS = sized(3, tiny=1)


def stored(program: Path, name: str) -> str:
    """A file of the authors' repository."""
    command = ["git", f"--git-dir={program}", "show", f"HEAD:{name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def told(values: Any, form: str = ".2f") -> str:
    """Mean and deviation."""
    return f"{np.mean(values):{form}} ± {np.std(values):{form}}"


# --- own-clock: Table 6.2's rounds on the clock of the programs ---

FIGURES = {
    "schedule": r"scheduled final time is ([\d.]+)",
    "deadline": r"Current T round: ([\d.]+)",
    "distribution": r"/(\d+\.\d{5,}) \[",
    "training and upload": r"update and upload time: ([\d.]+) sec",
    "round": r"round.time: ([\d.]+)",
    "clients": r"Selected clients for this round: (\d+)",
}


def printed(program: Path, method: str, data: str) -> dict[str, Any]:
    """What a program printed in every round: seconds by the schedule and by its clock."""
    text = stored(program, f"results/{method}/{data}_out.txt")
    found = {name: re.findall(pattern, text) for name, pattern in FIGURES.items()}
    rounds = len(found["round"])
    return {
        name: np.array(values, dtype=float)
        for name, values in found.items()
        if len(values) == rounds
    }


def rehearsed(setting: Any, selector: Any) -> dict[str, Any]:
    """Seconds that follow from the clients' resources, and clients, of every round of all seeds."""
    with quiet():
        histories = [resources.rehearse(setting, selector, seed) for seed in range(SEEDS)]
    return {
        name: np.array([entry.get(name, np.nan) for history in histories for entry in history])
        for name in ("seconds", "estimate", "clients")
    }


def clock(program: Path | None) -> None:
    """What the programs' own computing adds to their rounds, and what ours have with it."""
    if program is None:
        print("  not at hand: what the programs printed (--program)")
        return
    for setting, data in zip(resources.SETTINGS, ("mnist", "cifar"), strict=True):
        hybrid = printed(program, "hybrid", data)
        ours = rehearsed(setting, HybridFL(deadline=resources.DEADLINE, upload=False))
        print(f"{data}, HybridFL, seconds of a round by the schedule: program "
              f"{told(hybrid['schedule'])}, ours {told(ours['estimate'])}; "
              f"by the clock {told(hybrid['round'])}")  # fmt: skip
        added = hybrid["training and upload"] + hybrid["distribution"] - hybrid["schedule"]
        each = added / hybrid["clients"]
        print(f"  training and upload are {told(added)} longer, {told(each, '.3f')} a client")
        runs = {
            "sched_random": ("uniform", Uniform()),
            "hybrid": ("HybridFL", HybridFL(deadline=resources.DEADLINE, upload=False)),
            "dynhybrid": ("Dyn-HybridFL", None),
        }
        for method, (name, selector) in runs.items():
            theirs = printed(program, method, data)
            if selector is None:  # the level that the first round of the program's run set
                level = float(theirs["deadline"].mean())
                selector = HybridFL(deadline=level, upload=False)
                free = rehearsed(setting, DynHybridFL(deadline=resources.DEADLINE, upload=False))
                print(f"  {name}: deadlines {told(theirs['deadline'])}; "
                      f"clients with ours {told(free['clients'])}")  # fmt: skip
            rest = theirs["round"] - theirs["training and upload"] - theirs["distribution"]
            ours = rehearsed(setting, selector)
            seconds = ours["seconds"].mean() + each.mean() * ours["clients"].mean() + rest.mean()
            spread = np.sqrt(ours["seconds"].var() + added.var() + rest.var())
            rounds = 60 * resources.MINUTES / seconds
            count = len(theirs["round"])
            print(f"  {name}: round {told(theirs['round'])}, mean ± "
                  f"{theirs['round'].std() / count**0.5:.2f}, ours {told(ours['seconds'])}, with "
                  f"the program's own {seconds:.2f} ± {spread:.2f}; rounds {count} and "
                  f"{rounds:.1f}, selections {theirs['clients'].sum():.0f} and "
                  f"{rounds * ours['clients'].mean():.0f}")  # fmt: skip


# --- one-run and Table 6.2: in which order a client's rows lie ---

SETTINGS = sized(
    {"Table 6.1": (300, 3, 30), "Table 6.2": (1000, 100, 5)}, tiny={"Table 6.1": (300, 2, 1)}
)
PROGRAMS = {"Table 6.1": "results/random/rand_mnist_150.csv",
            "Table 6.2": "results/sched_random/sched_rand_400_mnist.csv"}  # fmt: skip


Curve = list[tuple[float, float]]
"""Test loss and accuracy of every round."""


def order(program: Path | None) -> None:
    """MNIST by uniform choice in plain PyTorch, with rows in three orders."""
    for table, (clients, per_round, rounds) in SETTINGS.items():
        if program is not None:
            lines = stored(program, PROGRAMS[table]).splitlines()[1 : rounds + 1]
            found = [line.split(",") for line in lines]
            curve = [(float(loss), float(accuracy)) for loss, accuracy, _ in found]
            print(f"  {table}, program: {shown(curve)}")
        images = as_published("mnist", MLP, validation=0.1 if table == "Table 6.1" else 0.0)
        runs = dict.fromkeys(("file", "shuffled", "class after class"), 1)
        if table == "Table 6.1":
            runs["class after class"] = SEEDS
        for kind, seeds in runs.items():
            for seed in range(seeds):
                lie: Order = "file" if kind == "file" else "class after class"
                given = dealt(images, "nearly IID", AS_PUBLISHED, clients, seed, lie)
                curve = plain(given, images, per_round, rounds, kind == "shuffled", seed)
                print(f"  {table}, {kind}, seed {seed}: {shown(curve)}", flush=True)


def shown(curve: Curve) -> str:
    """Loss and accuracy of the first rounds, and when .9 is reached, counted from 0."""
    losses = " ".join(f"{loss:.2f}" for loss, _ in curve[:6])
    hits = " ".join(f"{accuracy:.3f}" for _, accuracy in curve[:6])
    arrival = next((r for r, (_, accuracy) in enumerate(curve) if accuracy >= 0.9), None)
    return f"losses {losses}, accuracies {hits}, .9 in round {arrival}"


def plain(data: Any, images: Any, per_round: int, rounds: int, shuffle: bool, seed: int) -> Curve:
    """Adam made anew, five epochs of batches of 20, equal weights; test loss and accuracy."""
    import torch
    from torch.nn.functional import cross_entropy

    def network() -> Any:
        return torch.nn.Sequential(
            torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        )

    torch.manual_seed(seed)
    draw = np.random.default_rng(seed)
    X, X_test = (
        torch.from_numpy(np.asarray(part).reshape(len(part), -1))
        for part in (data.X, images.X_test)
    )
    y, y_test = (torch.from_numpy(np.asarray(part)).long() for part in (data.y, images.y_test))
    shared = network()
    curve = []
    for _ in range(rounds):
        means = [torch.zeros_like(p) for p in shared.parameters()]
        for client in draw.choice(data.clients, per_round, replace=False):
            net = network()
            net.load_state_dict(shared.state_dict())
            adam = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
            own = torch.arange(data.offsets[client], data.offsets[client + 1])
            for _ in range(5):
                rows = own[torch.randperm(len(own))] if shuffle else own
                for batch in rows.split(20):
                    adam.zero_grad()
                    cross_entropy(net(X[batch]), y[batch]).backward()
                    adam.step()
            for mean, parameter in zip(means, net.parameters(), strict=True):
                mean += parameter.detach() / per_round
        with torch.no_grad():
            for mean, parameter in zip(means, shared.parameters(), strict=True):
                parameter.copy_(mean)
            outputs = shared(X_test)
            hits = (outputs.argmax(1) == y_test).float().mean().item()
            curve.append((cross_entropy(outputs, y_test).item(), hits))
    return curve


# --- rows-per-client: AFL on CIFAR-10 with fewer and fewer rows ---

SHARES = sized((2_250, 4_500, 9_000), tiny=(300,))


def rows(program: Path | None) -> None:
    """Accuracy of AFL on CIFAR-10 as published, by the rows of all clients together."""
    setting = performance.SETTINGS[1]
    images = as_published("cifar10", setting.model, train_as_mnist=True)
    for count in SHARES:
        few = replace(images, X=images.X[:count], y=images.y[:count])
        data = dealt(few, "nearly IID", AS_PUBLISHED, setting.clients if count > 999 else 10, 0,
                     "class after class")  # fmt: skip
        selector = performance._selector(setting, "AFL", AS_PUBLISHED, few)
        model = performance.learner(
            setting.model, protocol=AS_PUBLISHED, rounds=sized(setting.rounds, tiny=2),
            per_round=setting.per_round, select=selector,
        )  # fmt: skip
        with quiet():
            model.fit(simulate(data, seed=0))
        print(f"  {count:,} rows: {model.score(images.X_test, images.y_test):.3f}", flush=True)
