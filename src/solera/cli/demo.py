"""``solera demo``: the whole path on real data, in some seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from solera.cli.output import print_partition, print_table, stderr, stdout

if TYPE_CHECKING:
    from solera.cli.progress import Bars
    from solera.data.dataset import Dataset
    from solera.study.runner import Result
    from solera.study.spec import Spec

SPEC = """\
# Handwritten digits over 20 clients who write different digits.
name = "demo"
seeds = [0, 1, 2]

[data]
name = "digits"
clients = 20
client_test = 0.2        # every client keeps a fifth of its rows to judge the model by

[partition]
kind = "Dirichlet"       # the smaller alpha, the less alike the clients
alpha = 0.3
min_rows = 20

[learner]
kind = "FedLinear"
rounds = 50
epochs = 2
lr = 0.001               # small steps, because pixels go up to 16
"""


class Outcome(NamedTuple):
    """How one way of learning did with one seed; ``worst`` is the worst client on its own rows."""

    accuracy: float
    macro_f1: float
    worst: float
    rounds: int
    up: int
    down: int


def demo(
    folder: Annotated[
        Path | None, typer.Option(help="Where results go; runs/demo by default.")
    ] = None,
    network: Annotated[
        bool,
        typer.Option(
            "--network",
            help="A coordinator and three clients as real processes with TLS instead: encrypted "
            "FedHEONN, then averaging while the coordinator is killed and started again.",
        ),
    ] = False,
) -> None:
    """Watch 20 clients learn to read digits together without sharing one.

    Shows how unlike their data is, trains, and compares learning alone, federated and centralised.
    """
    if network:
        from solera.cli.demo_network import demo_network

        demo_network(folder or Path("runs/demo-network"))
        return
    folder = folder or Path("runs/demo")
    from solera.cli.progress import Bars
    from solera.data import datasets
    from solera.study import runner, spec

    plan = spec.parse(SPEC, file="demo", name="demo")
    with stderr().status(f"reading {plan.data.name}"):
        dataset = datasets.load(plan.data.name, **plan.data.options)
    console = stdout()
    data = runner.divided(plan, dataset, plan.seeds[0])
    console.print("1. Who holds what", style="bold")
    console.print(
        f"{data.offsets[-1]:,} images of digits over {data.clients} clients, divided by "
        f"{plan.partition!r}.\nA cell is the number of images of one digit at one client.\n",
        markup=False,
    )
    print_partition(data, dataset.class_names)
    folder.mkdir(parents=True, exist_ok=True)
    data.plot(class_names=dataset.class_names).savefig(folder / "partition.png", dpi=150)

    console.print("\n2. Learning, with three seeds", style="bold")
    with Bars() as bars:
        results = runner.run(plan, folder, bars, fresh=True)
        ways = compare(plan, dataset, results, bars)
        runner.write_report(folder, plan, results, dataset, [section(ways)])

    console.print("\n3. What came out", style="bold")
    print_table(["", *(f">{name}" for name in COLUMNS)], table_rows(ways))
    console.print(
        f"\n{NOTE}\n\n"
        f"report   {folder / 'report.html'}\n"
        f"picture  {folder / 'partition.png'}\n\n"
        "What to try next\n"
        f"  change alpha or rounds in a copy of {folder / 'spec.toml'}, then\n"
        "  solera run COPY.toml\n"
        "  solera data list\n"
        "  solera data partition digits --clients 10 --kind Shards --param per_client=2",
        markup=False,
    )


COLUMNS = ("accuracy", "macro-F1", "worst client", "rounds", "bytes up", "bytes down")
NOTE = (
    "Accuracy and macro-F1 on test rows that no client has; alone is the mean over the clients. "
    "The worst client is judged on its own test rows. Centralised sends the rows themselves."
)


def compare(
    plan: Spec, dataset: Dataset, results: Sequence[Result], bars: Bars
) -> dict[str, list[Outcome]]:
    """Every way of learning with every seed: same rows, same number of passes over them."""
    ways: dict[str, list[Outcome]] = {"alone": [], "federated": [], "centralised": []}
    for result in bars.track(results, "alone and centralised", len(results)):
        ways["federated"].append(
            Outcome(
                result.metrics["accuracy"],
                result.metrics["macro_f1"],
                min(result.clients.values()),
                result.rounds,
                result.bytes_up,
                result.bytes_down,
            )
        )
        ways["alone"].append(alone(plan, dataset, result.seed))
        ways["centralised"].append(centralised(plan, dataset, result.seed))
    return ways


def alone(plan: Spec, dataset: Dataset, seed: int) -> Outcome:
    """Every client learns from its own rows only; nothing is sent."""
    import numpy as np

    from solera.study.runner import divided, held_out_metrics

    data = divided(plan, dataset, seed)
    accuracy, macro_f1, own = [], [], []
    for client in range(data.clients):
        mine = np.array([client])
        model = _fit(plan, dataset, data.segments(mine, "train").joined(), seed)
        metrics = held_out_metrics(model, dataset)
        accuracy.append(metrics["accuracy"])
        macro_f1.append(metrics["macro_f1"])
        kept = data.segments(mine, "test").joined()
        own.append(model.score(kept.X, kept.y))
    rounds = len(model.history_)
    return Outcome(float(np.mean(accuracy)), float(np.mean(macro_f1)), min(own), rounds, 0, 0)


def centralised(plan: Spec, dataset: Dataset, seed: int) -> Outcome:
    """All rows in one place, which is what federated learning avoids."""
    from solera.core.payload import encoded_size
    from solera.study.runner import held_out_metrics, simulation

    with simulation(plan, dataset, seed) as federation:
        rows = federation.data.segments(federation.clients, "train").joined()
        model = _fit(plan, dataset, rows, seed)
        each = model.evaluate(federation).clients.values()
    metrics = held_out_metrics(model, dataset)
    return Outcome(
        metrics["accuracy"],
        metrics["macro_f1"],
        min(client["accuracy"] for client in each),
        len(model.history_),
        encoded_size({"X": rows.X, "y": rows.y}),
        0,
    )


def _fit(plan: Spec, dataset: Dataset, rows: Any, seed: int) -> Any:
    """The learner of the plan, fitted to one client that holds these rows."""
    from solera.simulate.simulation import simulate

    one = simulate(rows.X, rows.y, clients=1, seed=seed, schema=dataset.schema)
    return plan.learner.clone().fit(one)


def table_rows(ways: dict[str, list[Outcome]]) -> list[list[str]]:
    """Mean ± standard deviation over the seeds for every way of learning."""
    from solera.study.wording import mean_and_spread, size

    return [
        [
            way,
            mean_and_spread([o.accuracy for o in outcomes]),
            mean_and_spread([o.macro_f1 for o in outcomes]),
            mean_and_spread([o.worst for o in outcomes]),
            str(outcomes[0].rounds),
            size(outcomes[0].up),
            size(outcomes[0].down),
        ]
        for way, outcomes in ways.items()
    ]


def section(ways: dict[str, list[Outcome]]) -> Any:
    """The comparison as a section of the report."""
    from solera.study.report import Section, paragraph, table

    body = table(table_rows(ways), ["", *COLUMNS]) + paragraph(NOTE)
    return Section("Alone, federated, centralised", body)
