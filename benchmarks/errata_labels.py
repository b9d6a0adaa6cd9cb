"""Experiments on MLFedAvg (004): its program's deals, its order of labels, what it evaluates."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import f1_score

import solera as so
from errata_selection import stored
from sizes import sized
from solera.data.multilabel import deal_labels
from solera.learn.averaging.label_metrics import label_scores
from solera_studies import multilabel

# --- few-runs: the deals of MLFedAvg's program, its order of labels and what it evaluates ---

SEEDS = sized(
    {
        "YahooEducation": (1, 2, 28, 29, 30),
        "slashdot": (1, 2, 3, 20, 21),
        "reutersK500": (1, 2, 3, 4, 40),
        "20NG": (1, 2, 3, 4, 27, 28, 29, 30),
    },
    tiny={"scene": (1,)},
)
"""The author's runs of the sets of which he has few."""
TRAINED = sized({"YahooEducation": (1, 30), "slashdot": (1,)}, tiny={"scene": (1,)})
"""Which of them are trained here, each with the noise and without it."""
ROUNDS = sized(1000, tiny=12)
STORED = {"YahooEducation": "yahoo", "reutersK500": "Reuters"}
"""What the author's files of results call the sets, where that is another name."""


class Dealt(NamedTuple):
    """A client of the program: its rows by part, labels in the order in which it got them."""

    labels: list[int]
    rows: dict[str, tuple[Any, Any]]
    weight: int


def dense(X: Any) -> Any:
    return X.toarray() if hasattr(X, "toarray") else X


def program_deals(
    X: Any, y: Any, counts: tuple[int, ...], seed: int, noise: bool = True
) -> list[Dealt]:
    """Rows, labels and noise as the program deals them with this seed."""
    from sklearn.model_selection import train_test_split

    everyone, test = train_test_split(np.arange(len(y)), test_size=0.1, random_state=seed)
    everyone, test = (ids[y[ids].any(axis=1)] for ids in (everyone, test))
    legacy = np.random.RandomState
    legacy(seed).shuffle(everyone)
    order = np.arange(y.shape[1])
    legacy(seed).shuffle(order)
    size = len(everyone) // len(counts)
    parts = np.split(everyone, [size * k for k in range(1, len(counts))])
    uniform, normal = random.Random(seed), legacy(seed)
    clients = []
    for part, own in zip(parts, np.split(order, np.cumsum(counts))[:-1], strict=True):
        kept = part[y[part][:, own].any(axis=1)]
        added = np.abs(normal.normal(0, uniform.uniform(0, 0.5), (len(kept), X.shape[1])))
        noisy = (dense(X[kept]) + (added if noise else 0)).astype(np.float32)
        rows = train_test_split(noisy, y[kept][:, own], test_size=0.2, random_state=seed)
        seen = test[y[test][:, own].any(axis=1)]
        cut = int(0.9 * len(rows[0]))
        found = {
            "train": (rows[0][:cut], rows[2][:cut]),
            "validation": (rows[0][cut:], rows[2][cut:]),
            "local": (rows[1], rows[3]),
            "global": (dense(X[seen]), y[seen][:, own]),
        }
        clients.append(Dealt(own.tolist(), found, len(rows[0])))
    return clients


def most_frequent(pairs: list[tuple[Any, Any]]) -> float:
    """Argmax hits of naming always the label that comes first most often, means over clients.

    A pair is a client's labels of training rows and of those of the global test.
    """
    hits = []
    for train, test in pairs:
        often = np.bincount(train.argmax(axis=1)).argmax()
        hits.append(np.mean(test.argmax(axis=1) == often))
    return float(np.mean(hits))


def our_deal(y: Any, counts: tuple[int, ...], seed: int) -> list[tuple[Any, Any]]:
    """The labels of every client's rows and of the global test, as the study deals them."""
    nothing = np.zeros((len(y), 1), dtype=np.float32)
    dealt = deal_labels(nothing, y, counts, seed=seed, validation=0.08)
    pairs = []
    for client, own in enumerate(dealt.owned):
        start, end = dealt.clients.offsets[client : client + 2]
        test = dealt.y_test[:, own]
        pairs.append((dealt.clients.y[start:end][:, own], test[test.any(axis=1)]))
    return pairs


def program_loop(clients: list[Dealt], weights: Any, seed: int) -> dict[str, str]:
    """MLFedAvg by the program's rule in plain PyTorch, evaluated before and after the last mean."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

    torch.manual_seed(seed)

    def layer_of(inputs: int, outputs: int) -> Any:
        layer = torch.nn.Linear(inputs, outputs)
        torch.nn.init.xavier_uniform_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        return layer

    def core() -> Any:
        width = clients[0].rows["train"][0].shape[1]
        return torch.nn.Sequential(
            layer_of(width, 100), torch.nn.ReLU(), layer_of(100, 20), torch.nn.ReLU()
        )

    data = [{part: [torch.tensor(np.ascontiguousarray(a), dtype=torch.float32) for a in pair]
             for part, pair in client.rows.items()} for client in clients]  # fmt: skip
    shared, heads = core(), [layer_of(20, len(client.labels)) for client in clients]
    losses: list[float] = []
    hits: list[float] = []
    means: list[tuple[float, float]] = []
    for round in range(ROUNDS):
        nets = [core() for _ in clients]
        for net, head, rows in zip(nets, heads, data, strict=True):
            net.load_state_dict(shared.state_dict())
            parameters = [*net.parameters(), *head.parameters()]
            adam = torch.optim.Adam(parameters, lr=8e-4, eps=1e-7, fused=True)
            X, y = rows["train"]
            for batch in torch.randperm(len(X)).split(30):
                adam.zero_grad()
                cross_entropy(head(net(X[batch])), y[batch]).backward()
                adam.step()
            with torch.no_grad():
                X, y = rows["validation"]
                outputs = head(net(X))
                losses.append(cross_entropy(outputs, y).item())
                hits.append((outputs.argmax(1) == y.argmax(1)).float().mean().item())
        with torch.no_grad():
            for together, *each in zip(shared.parameters(), *(n.parameters() for n in nets),
                                       strict=True):  # fmt: skip
                together.copy_(sum(float(w) * p for w, p in zip(weights, each, strict=True)))
        means.append((np.mean(losses), np.mean(hits)))  # over all rounds so far
        (a, b), (c, d), (e, f) = means[-3:] if round > 9 else [(0.0, 0.0)] * 3
        if a < c < e and b > d > f:
            break

    def scores(part: str, nets: list[Any], in_order: bool) -> Any:
        found = []
        for client, rows, head, net in zip(clients, data, heads, nets, strict=True):
            columns = np.arange(len(client.labels)) if in_order else np.argsort(client.labels)
            with torch.no_grad():
                outputs = head(net(rows[part][0])).numpy()[:, columns]
            truth = rows[part][1].numpy()[:, columns]
            macro_f1 = f1_score(truth > 0, outputs > 0, average="macro", zero_division=0)
            found.append((macro_f1, label_scores(outputs, truth)["argmax_accuracy"]))
        return np.mean(found, axis=0).round(3)

    after = [shared] * len(clients)
    told = {"rounds": str(round + 1)}
    for part in ("global", "local"):
        told |= {
            f"{part}, before the last mean": str(scores(part, nets, True)),
            f"{part}, after it": str(scores(part, after, True)),
            f"{part}, after it, labels sorted": str(scores(part, after, False)),
        }
    return told


def labels(program: Path | None) -> None:
    """What naming one label hits in the author's deals and in ours, and his runs on his deals."""
    for name, seeds in SEEDS.items():
        known = multilabel.SETS[name]
        X, y = so.datasets.load(known.name, test=0.0).all
        y = np.asarray(y)
        few = X[:, :1]  # of rows alone
        theirs = [program_deals(few, y, known.labels, seed) for seed in seeds]
        pairs = [[(c.rows["train"][1], c.rows["global"][1]) for c in clients] for clients in theirs]
        hits = [most_frequent(each) for each in pairs]
        ours = [most_frequent(our_deal(y, known.labels, seed)) for seed in range(sized(5, tiny=1))]
        print(f"  {name}, most frequent label: author's deals {np.round(hits, 3)}, mean "
              f"{np.mean(hits):.3f}; ours {np.round(ours, 3)}, mean {np.mean(ours):.3f}",
              flush=True)  # fmt: skip
        for seed in TRAINED.get(name, ()):
            if program is not None:
                for file in ("F1MACRO_GLOBAL", "SSACCURACY_GLOBAL", "F1MACRO_LOCAL"):
                    lines = stored(program, f"Estad\u00edsticas/{file}_AGGS.csv").splitlines()
                    wanted = f"{STORED.get(name, name)}_{seed};"
                    run = next((line for line in lines if line.startswith(wanted)), "")
                    print(f"  author, {file}: {run.strip(';')}")
            for noise in (True, False):
                clients = program_deals(X, y, known.labels, seed, noise)
                rows = np.array([client.weight * len(client.labels) for client in clients])
                weights = rows if name == "slashdot" else np.ones(len(clients))
                found = program_loop(clients, weights / weights.sum(), seed)
                kind = 2 if name == "slashdot" else 0
                print(f"  seed {seed}, {'' if noise else 'no '}noise, aggregation {kind}: {found}",
                      flush=True)  # fmt: skip


def frequent(program: Path | None) -> None:
    """Argmax hits of always naming the most frequent of a client's labels, by their order."""
    draw = np.random.default_rng(0)
    for name in sized(tuple(multilabel.SETS), tiny=("scene",)):
        known = multilabel.SETS[name]
        y = np.asarray(so.datasets.load(known.name, test=0.0).all[1])
        hits = []
        for _ in range(sized(300, tiny=3)):
            for own in np.split(draw.permutation(y.shape[1]), np.cumsum(known.labels))[:-1]:
                seen = y[:, own][y[:, own].any(axis=1)]
                if not len(seen):
                    continue
                orders = (np.arange(len(own)), np.argsort(own))
                hits.append(
                    [np.bincount(seen[:, o].argmax(axis=1)).max() / len(seen) for o in orders]
                )
        shuffled, in_order = np.mean(hits, axis=0)
        print(f"  {name}: as dealt {shuffled:.3f}, sorted {in_order:.3f}", flush=True)
