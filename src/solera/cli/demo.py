"""``solera demo``: the whole path on real data, in some seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from solera.cli.output import print_partition, print_table, stderr, stdout

if TYPE_CHECKING:
    from solera.cli.progress import Bars
    from solera.data.dataset import Dataset
    from solera.study.files.tables import Spec
    from solera.study.run.results import Result

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
    from solera.study.files import tables as spec
    from solera.study.run import single as runner

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
) -> dict[str, list[Result]]:
    """Every way of learning with every seed: same rows, same number of passes over them."""
    from solera.study.run.schemes import Training, train

    ways: dict[str, list[Result]] = {"alone": [], "federated": list(results), "centralised": []}
    for result in bars.track(results, "alone and centralised", len(results)):
        for scheme in ("alone", "centralised"):
            training = Training(plan, result.seed, scheme)
            ways[scheme].append(train(training, lambda: dataset))
    return ways


def table_rows(ways: dict[str, list[Result]]) -> list[list[str]]:
    """Mean ± standard deviation over the seeds for every way of learning."""
    from solera.study.formatting import mean_and_spread, size

    return [
        [
            way,
            mean_and_spread([r.metrics["accuracy"] for r in results]),
            mean_and_spread([r.metrics["macro_f1"] for r in results]),
            mean_and_spread([min(r.clients.values()) for r in results]),
            str(results[0].rounds),
            size(results[0].bytes_up),
            size(results[0].bytes_down),
        ]
        for way, results in ways.items()
    ]


def section(ways: dict[str, list[Result]]) -> Any:
    """The comparison as a section of the report."""
    from solera.study.report.html import Section, paragraph, table

    body = table(table_rows(ways), ["", *COLUMNS]) + paragraph(NOTE)
    return Section("Alone, federated, centralised", body)
