"""Who must obey the laws, and an example of each.

Everything registered in ``solera`` is enrolled by itself: components by their class, tasks by their
name. A component whose constructor needs arguments gets its example here; without one the suite
fails and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis.extra import numpy as hnp

import solera as so
from solera.core.component import Component
from solera.core.schema import Feature, Schema, infer_target
from solera.data.agreement import SchemaAgreement
from solera.engines.local import LocalEngine
from solera.engines.processes import ProcessEngine
from solera.learn.averaging.loops.metrics import LoopMean, MetricTotals
from solera.learn.averaging.update_mean import UpdateMean
from solera.learn.evaluation import CountTotals
from solera.learn.heonn.algebra import Grams, SumOf
from solera.learn.row_metrics import MeanTotals
from solera.learn.scores import ScoreTotals
from solera.learn.totals import Gather
from solera.learn.trees.boosting.base import Exponents
from solera.learn.trees.boosting.histograms import HistBins
from solera.learn.trees.client_trees import CollectTrees
from solera.learn.trees.fusion.rule_merging import RuleFold
from solera.learn.trees.id3 import grow_id3
from solera.privacy.he.sums import EncryptedSum
from solera.privacy.secure_sum.protocol import MaskedWords, SecureSum
from solera.robust.collect import CollectUpdates, Robust


def registered(kind: type) -> list[type]:
    """The concrete classes of a kind that Solera itself defines."""
    found = [c for c in Component.registry.values() if issubclass(c, kind)]
    return sorted(
        (c for c in found if c.__module__.startswith("solera.")), key=lambda c: c.__name__
    )


def example(cls: type, examples: dict[type, Callable[[], Any]]) -> Any:
    """The example of a class, or the class with its defaults."""
    try:
        return examples[cls]() if cls in examples else cls()
    except TypeError as error:
        raise AssertionError(
            f"{cls.__name__} needs an example in tests/laws/cases.py: {error}"
        ) from error


# --- aggregations: an instance and replies whose additions are exact in floating point ---

whole = st.integers(-(2**20), 2**20)
vectors = hnp.arrays(np.float64, 3, elements=st.integers(-1000, 1000).map(float))
weights = st.integers(0, 8).map(float)
bin_rows = st.integers(0, 50)
bins = hnp.arrays(np.int64, 4, elements=bin_rows)
AGGREGATIONS: dict[type, Callable[[], Any]] = {
    SecureSum: lambda: SecureSum(so.aggregations.Mean(weight="rows")),
    so.aggregations.ByFold: lambda: so.aggregations.ByFold(so.aggregations.Sum(), 2),
    so.aggregations.Mean: lambda: so.aggregations.Mean(weight="rows"),
    UpdateMean: lambda: UpdateMean(3),
    LoopMean: lambda: LoopMean(3, entries=["rows"], beside={"buffers": 3}),
    CollectUpdates: lambda: CollectUpdates(UpdateMean(3)),
    Robust: lambda: Robust(UpdateMean(3), so.robust.Median()),
    so.aggregations.Fields: lambda: so.aggregations.Fields(
        {"sums": so.aggregations.Sum(), "rows": so.aggregations.Collect()}
    ),
    RuleFold: lambda: RuleFold(2, 2),
    SumOf: lambda: SumOf([3]),
    CollectTrees: lambda: CollectTrees(2, 2),
}


def _tree(seed: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    X, y = draw.integers(0, 3, (12, 2)), draw.integers(0, 2, 12)
    return grow_id3(X, y, np.array([3, 3]), 2, 2).to_payload()


_trees = st.integers(0, 2**32 - 1).map(_tree)
_sums = st.fixed_dictionaries({"sums": vectors, "rows": whole})
_updates = st.fixed_dictionaries(
    {"update": st.fixed_dictionaries({"values": vectors}), "rows": weights, "loss": whole}
)
_pairs = hnp.arrays(np.float64, 2, elements=st.integers(0, 1000).map(float))
_metrics = st.fixed_dictionaries({"metrics": st.fixed_dictionaries({"loss": _pairs})})
REPLIES: dict[type, st.SearchStrategy[Any]] = {
    LoopMean: st.builds(
        lambda update, buffers, metrics, rows: {
            "update": {"values": update},
            "buffers": buffers,
            **metrics,
            "rows": rows,
        },
        vectors,
        vectors,
        _metrics,
        weights,
    ),
    MetricTotals: st.builds(lambda metrics, rows: {**metrics, "rows": rows}, _metrics, weights),
    so.aggregations.Sum: _sums,
    so.aggregations.Mean: st.fixed_dictionaries({"sums": vectors, "rows": weights}),
    so.aggregations.Collect: st.one_of(_sums, whole, st.text(max_size=3)),
    so.aggregations.Extremes: _sums,
    Exponents: st.integers(-1074, 1024),
    so.aggregations.Union: st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4),
    so.aggregations.Fields: _sums,
    so.aggregations.ByFold: _sums,
    RuleFold: st.fixed_dictionaries({"tree": _trees}),
    CollectTrees: st.fixed_dictionaries({"tree": _trees, "rows": whole})
    | st.fixed_dictionaries({"trees": st.lists(_trees, min_size=1, max_size=2)}),
    Gather: _sums,
    SecureSum: st.fixed_dictionaries({"sums": vectors, "rows": weights}),
    MaskedWords: st.builds(
        lambda words, wide: {
            "words": words.astype("<u8" if wide else "<u4").tobytes(),
            "form": {"$leaf": ["float64", [3]]},
            "bits": 64 if wide else 32,
            "to": np.arange(2),
            "asked": bytes(32),
        },
        hnp.arrays(np.uint64, 3),
        st.booleans(),
    ),
    MeanTotals: st.fixed_dictionaries({"total": whole.map(float), "rows": st.integers(0, 100)}),
    ScoreTotals: st.fixed_dictionaries(
        {
            "bins": st.fixed_dictionaries({"0": st.fixed_dictionaries({"no": bins, "yes": bins})}),
            "sides": st.fixed_dictionaries({"0": hnp.arrays(np.int64, 2, elements=bin_rows)}),
            "loss": whole.map(float),
            "brier": whole.map(float),
            "rows": st.integers(0, 100),
        }
    ),
    CountTotals: st.fixed_dictionaries(
        {
            **{name: whole.map(lambda n: np.array([float(n)])) for name in ("y", "error")},
            **{name: whole.map(lambda n: np.array([float(n)])) for name in ("y2", "error2")},
            "rows": st.integers(0, 100),
        }
    ),
    SumOf: vectors,
    UpdateMean: _updates,
    CollectUpdates: _updates,
    Robust: _updates,
    Grams: st.fixed_dictionaries(
        {"grams": hnp.arrays(np.float64, (1, 1, 6), elements=st.integers(0, 50).map(float))}
    )
    | st.fixed_dictionaries(
        {"factors": hnp.arrays(np.float64, (1, 1, 2, 3), elements=st.integers(-9, 9).map(float))}
    ),
    SchemaAgreement: st.builds(
        lambda width, classes, gap, empty: {
            "features": [[f"x{i}", "numeric", []] for i in range(width)]
            + [["colour", "categorical", ["red", "blue"][: 1 + gap]]],
            "target": "classes",
            "classes": np.array(sorted(classes)),
            "outputs": len(classes),
            "gaps": [0] if gap else [],
            "empty": empty,
        },
        st.integers(1, 3),
        st.sets(st.integers(0, 4), min_size=1),
        st.integers(0, 1),
        st.booleans(),
    ),
}

# Ciphertexts need keys and a library; tests/privacy and tests/learn/heonn hold their laws.
TESTED_ELSEWHERE = {EncryptedSum}

# --- partitions ---

ROWS, CLIENTS = 240, 6
LABELS = np.random.default_rng(0).integers(0, 4, ROWS)
PARTITIONS: dict[type, Callable[[], Any]] = {
    so.partitions.ClientWeights: lambda: so.partitions.ClientWeights(
        [0.1, 0.2, 0.05, 0.3, 0.1, 0.2]
    ),
    so.partitions.LabelWeights: lambda: so.partitions.LabelWeights(np.full((CLIENTS, 4), 0.15)),
    so.partitions.LabelsPerClient: lambda: so.partitions.LabelsPerClient(2),
    so.Dirichlet: lambda: so.Dirichlet(0.5),
    so.partitions.ByGroup: lambda: so.partitions.ByGroup(np.arange(ROWS) % CLIENTS),
    so.partitions.ByCluster: lambda: so.partitions.ByCluster(3),
    so.partitions.Explicit: lambda: so.partitions.Explicit(
        np.array_split(np.arange(ROWS - 3), CLIENTS)
    ),
    so.partitions.Unlabelled: lambda: so.partitions.Unlabelled(so.partitions.IID(), clients=[1]),
    so.partitions.Overlap: lambda: so.partitions.Overlap(so.partitions.IID(), fraction=0.2),
}
DUPLICATES = {so.partitions.Overlap}
IGNORES_SEED = {so.partitions.Explicit, so.partitions.ByGroup}

# --- data for learners ---


def rows(target: str, clients: int = 5, seed: int = 3) -> so.data.FederatedData:
    """Five unequal clients with numeric columns and truth values, already split."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(160, 5))
    X[:, 4] = draw.integers(0, 2, 160)
    w = draw.normal(size=(5, 3))
    y: Any = (X @ w).argmax(axis=1)
    if target == "numbers":
        y = X @ w[:, 0] + 0.1 * draw.normal(size=160)
    elif target == "labels":
        y = (X @ w > 0).astype(np.uint8)
    elif target == "tokens":
        X[:, :4], target = np.floor(np.abs(X[:, :4]) * 6), "classes"
    elif target == "survival":
        y = np.column_stack([draw.exponential(np.exp(X @ w[:, 0] / 4)), draw.integers(0, 2, 160)])
        target = "numbers"
    features = (
        *(Feature(f"x{i}") for i in range(4)),
        Feature("c", "categorical", ("False", "True")),
    )
    _, classes, outputs = infer_target(y)
    schema = Schema(features, target, classes, outputs)  # type: ignore[arg-type]
    sizes = np.array([60, 40, 30, 20, 10])[:clients]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return so.data.FederatedData(X, y, offsets, schema=schema).split(test=0.2, seed=1)


ONE = ("classes",)
EVERY = (*ONE, "labels", "numbers")
SMALL = {"rounds": 2, "per_round": 3, "batch_size": 8, "lr": 0.05, "dtype": "float64"}


def averaging(cls: type, **options: Any) -> Callable[[], Any]:
    """An averaging learner of five columns and three outputs, small and in double precision."""
    outputs = options.pop("outputs", 3)
    net = so.nn.mlp(5, 36, outputs, dropout=0.1)
    return lambda: cls(net, **{**SMALL, **options})


def averaging_module() -> Any:
    """A network that is no model of ours."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    return so.FedAvg(net, **SMALL)


def loop_network() -> Any:
    """A network in double precision, with statistics that one row can have, too."""
    import torch

    class Centred(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(7))
            self.register_buffer("batches", torch.tensor(0))

        def forward(self, x: Any) -> Any:
            if self.training:
                self.mean.mul_(0.9).add_(x.detach().mean(dim=0), alpha=0.1)
                self.batches.add_(1)
            return x - self.mean

    hidden = [torch.nn.Linear(5, 7), Centred(), torch.nn.Tanh()]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(7, 3)).double()


def quiet_network() -> Any:
    """A network without statistics of rows."""
    import torch

    return torch.nn.Linear(5, 3).double()


def train_loop(model: Any, loader: Any, context: Any) -> dict[str, Any]:
    """A training loop as a tutorial has it."""
    import torch

    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for X, y in loader:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(X), y)
        loss.backward()
        optimiser.step()
    context.state["rounds"] = context.state.get("rounds", 0) + 1
    return {"loss": loss}


def judge_loop(model: Any, loader: Any, context: Any) -> dict[str, Any]:
    """Accuracy and its weight."""
    outputs = len(context.classes)
    right = [(model(X)[:, :outputs].argmax(dim=1) == y).double() for X, y in loader]
    return {"accuracy": sum(r.sum() for r in right) / sum(map(len, right))}


def name_loop(model: Any, batch: Any, context: Any) -> Any:
    """The class of the largest output."""
    return context.classes[model(batch[0])[:, : len(context.classes)].argmax(dim=1).numpy()]


def looping(network: Any = loop_network, **options: Any) -> Callable[[], Any]:
    """A training loop of five columns and three outputs."""
    small = {"rounds": 2, "per_round": 3, "batch_size": 6, "metrics": ["loss", "accuracy"]}
    loops = {"train": train_loop, "evaluate": judge_loop, "predict": name_loop}
    given = {**loops, **small, **options}
    return lambda: so.FedTorch(network, **given)


@cache
def small_transformer() -> Any:
    """A base model of tokens below 40, the same in every process."""
    import torch
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BertModel(
            BertConfig(vocab_size=40, num_hidden_layers=1, attn_implementation="eager", **sizes)
        )


def adapting() -> Any:
    """Adapters of a small transformer."""
    return so.FedLoRA(small_transformer(), rank=2, local_steps=2, **SMALL)


RECORDS = so.DP(noise_multiplier=2.0, delta=1e-3, clip=1.0, level="record")
LEARNERS: dict[type, list[tuple[str, Callable[[], Any], tuple[str, ...]]]] = {
    so.FedLinear: [
        ("", lambda: so.FedLinear(rounds=3, per_round=3, epochs=2, batch_size=8), EVERY),
        (
            "robin",
            lambda: so.FedLinear(rounds=3, per_round=2, select=so.selectors.RoundRobin()),
            ONE,
        ),
        ("active", lambda: so.FedLinear(rounds=3, per_round=2, select=so.ActiveSampling()), EVERY),
        (
            "power",
            lambda: so.FedLinear(rounds=3, per_round=2, select=so.selectors.PowerOfChoice()),
            ONE,
        ),
        (
            "greedy",
            lambda: so.FedLinear(
                rounds=4, per_round=2, select=so.selectors.GreedyShapley(part="train")
            ),
            ONE,
        ),
    ],
    so.FedAvg: [
        ("", averaging(so.FedAvg, epochs=2), ("classes", "labels")),
        ("one", averaging(so.FedAvg, outputs=1), ("numbers",)),
        ("linear", lambda: so.FedAvg(so.nn.linear(5, 3), **SMALL), ("classes",)),
        ("adam", averaging(so.FedAvg, optimiser="adam", local_steps=3), ("classes",)),
        ("momentum", averaging(so.FedAvg, momentum=0.9, l2=0.01, send="weights"), ("labels",)),
        (
            "onion",
            averaging(
                so.FedAvg,
                update_steps=[so.updates.Clip(1.0), so.updates.Noise(0.01), so.updates.TopK(0.2)],
            ),
            ("classes",),
        ),
        ("quantised", averaging(so.FedAvg, update_steps=[so.updates.Quantise(4)]), ("classes",)),
        ("masked", averaging(so.FedAvg, update_steps=[so.updates.RandomMask(0.3)]), ("classes",)),
        (
            "unbiased",
            averaging(
                so.FedAvg,
                update_steps=[
                    so.updates.Clip(1.0),
                    so.updates.RandomMask(0.5, unbiased=True),
                    so.updates.Quantise(8),
                ],
            ),
            ("classes",),
        ),
        ("robust", averaging(so.FedAvg, aggregate=so.robust.Median()), ("classes",)),
        (
            "private",
            averaging(
                so.FedAvg,
                weight=None,
                dp=so.DP(noise_multiplier=2.0, delta=1e-3, clip=1.0, adaptive=0.5),
            ),
            ("classes",),
        ),
        (
            "private rows",
            averaging(
                so.FedAvg,
                weight=None,
                dp=so.DP(noise_multiplier=2.0, delta=1e-3, clip=1.0, level="record", rate=0.5),
            ),
            ("classes",),
        ),
        (
            "buckets",
            averaging(so.FedAvg, aggregate=so.robust.Buckets(so.robust.Median(), buckets=2)),
            ("classes",),
        ),
        ("module", averaging_module, ("classes",)),
        ("uniform", averaging(so.FedAvg, weight=None, schedule=so.nn.StepDecay(0.5)), ("labels",)),
    ],
    **{
        cls: [("", averaging(cls), ("classes",))]
        for cls in (
            so.FedProx,
            so.FedAvgM,
            so.FedAdam,
            so.FedYogi,
            so.FedAdagrad,
            so.Scaffold,
            so.FedNova,
            so.Ditto,
            so.FedPer,
            so.FedRep,
        )
    },
    so.FedTorch: [
        ("", looping(), ("classes",)),
        ("prox", looping(quiet_network, mu=0.1, server="momentum", weight=None), ("classes",)),
        ("scaffold", looping(scaffold=True, update_steps=[so.updates.Clip(1.0)]), ("classes",)),
        ("own", looping(private=["3", "1"]), ("classes",)),
        ("robust", looping(aggregate=so.robust.Median()), ("classes",)),
        (
            "private",
            looping(
                quiet_network,
                weight=None,
                dp=so.DP(noise_multiplier=2.0, delta=1e-3, clip=1.0, adaptive=0.5),
            ),
            ("classes",),
        ),
    ],
    so.MLFedAvg: [
        (
            "",
            lambda: so.MLFedAvg(so.nn.mlp(5, 9, 6), stop=None, fine_tune=1, **SMALL),
            ("labels",),
        ),
    ],
    so.FedLoRA: [("", adapting, ("tokens",))],
    so.FedBuff: [("", averaging(so.FedBuff, buffer=2, concurrency=3, rounds=3), ("classes",))],
    so.FedSGD: [("", averaging(so.FedSGD, batch_size=None), ("classes",))],
    so.FedBN: [("", averaging(so.FedBN, private=["0"]), ("classes",))],
    so.FedHEONN: [
        ("", lambda: so.FedHEONN(), ("classes", "labels")),
        ("private", lambda: so.FedHEONN(dp=RECORDS), ("classes",)),
        ("linear", lambda: so.FedHEONN("linear", lam=[1e-3, 1.0]), EVERY),
        ("softplus", lambda: so.FedHEONN("softplus"), ("classes", "labels")),
        ("thesis", lambda: so.FedHEONN(derivative="thesis", vote="mean"), ("classes",)),
        ("svd", lambda: so.FedHEONN("linear", representation="svd"), EVERY),
        ("hidden", lambda: so.FedHEONN("linear", features="fourier", hidden=20), EVERY),
        ("ensemble", lambda: so.FedHEONN("linear", ensemble=so.RandomPatches(4, rows=0.8)), EVERY),
    ],
    so.FedCox: [("", lambda: so.FedCox(rounds=12), ("survival",))],
    so.FedGLM: [
        ("", lambda: so.FedGLM(rounds=4), ("numbers",)),
        ("private", lambda: so.FedGLM(rounds=2, dp=RECORDS, clip_residuals=2.0), ("numbers",)),
    ],
    so.FedKMeans: [
        ("private", lambda: so.FedKMeans(2, rounds=2, init=np.eye(2, 5), dp=RECORDS), ("classes",)),
        ("", lambda: so.FedKMeans(3, rounds=4), ("classes", "numbers")),
        (
            "batches",
            lambda: so.FedKMeans(
                2, rounds=3, per_round=3, epochs=2, batch_size=7, client_rate=0.7, server_rate=0.9
            ),
            ("labels",),
        ),
        ("local", lambda: so.FedKMeans(2, rounds=2, per_round=0.6, init="k-means++"), ("classes",)),
        ("random", lambda: so.FedKMeans(2, rounds=2, init="random"), ("classes",)),
        ("atoms", lambda: so.FedKMeans(2, init="atoms"), ("classes",)),
        ("given", lambda: so.FedKMeans(2, rounds=2, init=np.eye(2, 5)), ("classes",)),
    ],
    so.FederatedTree: [
        ("", lambda: so.FederatedTree(max_depth=3), ("classes",)),
        ("c45", lambda: so.FederatedTree("c45", max_depth=3), ("classes",)),
        ("relax", lambda: so.FederatedTree(max_rules=5, on_overlap="relax"), ("classes",)),
        (
            "id3",
            lambda: so.Pipeline(so.FedBins(3), so.FederatedTree("id3", filter=50.0)),
            ("classes",),
        ),
        (
            "counts",
            lambda: so.Pipeline(so.FedBins(3), so.FederatedTree(max_depth=2, by_counts=True)),
            ("classes",),
        ),
    ],
    so.FedID3: [
        ("", lambda: so.Pipeline(so.FedBins(3), so.FedID3()), ("classes",)),
        ("noise", lambda: so.Pipeline(so.FedBins(3), so.FedID3(epsilon=5.0)), ("classes",)),
    ],
    so.FedForest: [
        ("", lambda: so.FedForest(trees=3, per_client=2), ("classes", "numbers")),
        ("mean", lambda: so.FedForest(trees=2, vote="mean", max_depth=3), ("classes",)),
    ],
    so.learn.FedBagging: [
        ("", lambda: so.learn.FedBagging(trees=2), ("classes", "numbers")),
        ("lightgbm", lambda: so.learn.FedBagging("lightgbm", trees=2), ("classes",)),
    ],
    so.SimFL: [("", lambda: so.SimFL(rounds=3, max_depth=2), ("classes", "numbers"))],
    so.FedHistGBDT: [
        ("", lambda: so.FedHistGBDT(rounds=3, max_depth=2, min_rows=3), ("classes", "numbers")),
        (
            "private",
            lambda: so.FedHistGBDT(rounds=2, max_depth=2, bins=8, dp=RECORDS),
            ("classes", "numbers"),
        ),
    ],
    so.FedBins: [
        ("", lambda: so.FedBins(), ("classes",)),
        ("private", lambda: so.FedBins(4, dp=RECORDS), ("classes",)),
    ],
    HistBins: [("", lambda: HistBins(16), ("classes",))],
    so.learn.FedSelect: [("", lambda: so.learn.FedSelect([3, 1]), ("classes",))],
    so.FedColumns: [
        (
            "",
            lambda: so.FedColumns(("scaled", so.FedScaler(), [0, 2]), (so.FedBins(3), [1])),
            ("classes",),
        )
    ],
    so.Pipeline: [
        (
            "",
            lambda: so.Pipeline(
                so.FedEncoder(), so.FedScaler(), so.FedLinear(rounds=3, per_round=3)
            ),
            ("classes",),
        ),
    ],
    so.PeerToPeer: [("", lambda: so.PeerToPeer(so.FedLinear(rounds=2)), ("classes",))],
}
VERTICAL: dict[type, Callable[[], Any]] = {
    so.SecureBoost: lambda: so.SecureBoost(rounds=2, max_depth=2, bins=4, min_rows=5, test=0.2),
    so.VerticalLogisticRegression: lambda: so.VerticalLogisticRegression(
        epochs=2, batch_size=30, validation=0.35, test=0.1
    ),
    so.learn.VerticalLinearRegression: lambda: so.learn.VerticalLinearRegression(
        epochs=2, batch_size=60
    ),
    so.learn.VerticalPoissonRegression: lambda: so.learn.VerticalPoissonRegression(
        epochs=2, batch_size=60
    ),
    so.SplitNN: lambda: so.SplitNN(3, epochs=2, batch_size=20, validation=0.1, test=0.2),
}
NOT_SUMS = (
    so.FedBuff,  # collects updates as they come
    so.learn.FedBagging,
    so.FedForest,
    so.FederatedTree,
    so.SimFL,
    so.PeerToPeer,
)
"""Learners that fold something which does not add up, whatever their parameters."""
TOPOLOGIES: dict[type, Callable[[], Any]] = {so.PeerToPeer: lambda: so.simulation.Peers("random")}


def learner_cases() -> Iterator[tuple[str, Callable[[], Any], str]]:
    """(name, factory, target) of every learner, variant and kind of target it is tested on."""
    for cls in registered(so.Learner):
        if issubclass(cls, so.learn.VerticalLearner):
            continue  # tests/laws/test_vertical_laws.py
        default = [("", lambda cls=cls: example(cls, {}), ("classes",))]
        for variant, make, targets in LEARNERS.get(cls, default):
            for target in targets:
                yield "-".join(filter(None, (cls.__name__, variant, target))), make, target


# --- engines ---


class Undeclared(LocalEngine):
    """A local engine that, like a real network, does not know what the rows look like."""

    @property
    def schema(self) -> Any:
        return None


ENGINES: dict[str, Callable[[Any], Any]] = {
    "local": LocalEngine,
    "local-small-memory": lambda source: LocalEngine(source, memory=1),
    "local-undeclared": Undeclared,
    "processes-1": lambda source: ProcessEngine(source, workers=1),
    "processes-3": lambda source: ProcessEngine(source, workers=3),
}


def federation(engine: str, source: Any, learner: Any = None) -> so.Federation:
    return federation_over(ENGINES[engine](source), learner)


def federation_over(engine: Any, learner: Any) -> so.Federation:
    topology = TOPOLOGIES[type(learner)]() if type(learner) in TOPOLOGIES else None
    return so.Federation(engine, seed=11, topology=topology)
