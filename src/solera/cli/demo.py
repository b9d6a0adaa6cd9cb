"""``solera demo``: the whole path on real data, in some seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from solera.cli.output import print_blocks, print_partition, stderr

SPEC = """\
# Handwritten digits over 20 clients who write different digits.
name = "demo"
seeds = [0, 1, 2]
schemes = ["alone", "federated", "centralised"]

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
            help="A coordinator and four owners as real processes with TLS instead, who sign an "
            "epoch and run two closed jobs while some of them are killed.",
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
    from solera.study.files.reader import parse
    from solera.study.report.groups import StudyResults
    from solera.study.report.outcomes import results
    from solera.study.run.cells import Cell
    from solera.study.run.runner import run_study
    from solera.study.run.schemes import divided, load

    study = parse(SPEC, file="demo", name="demo")
    (variant,) = study.variants()
    with stderr().status(f"reading {variant.data.name}"):
        dataset = load(variant.data)
    data = divided(Cell(variant, study.seeds[0]), dataset)
    typer.secho("1. Who holds what", bold=True)
    typer.echo(
        f"{data.offsets[-1]:,} images of digits over {data.clients} clients, divided by "
        f"{variant.partition!r}.\nA cell is the number of images of one digit at one client.\n"
    )
    print_partition(data, dataset.class_names)
    folder.mkdir(parents=True, exist_ok=True)
    data.plot(class_names=dataset.class_names).savefig(folder / "partition.png", dpi=150)

    typer.secho("\n2. Learning, with three seeds", bold=True)
    with Bars() as bars:
        run = run_study(study, folder, bars, fresh=True)

    typer.secho("\n3. What came out", bold=True)
    print_blocks(results(StudyResults(run)))
    typer.echo(
        f"\nreport   {folder / 'report.html'}\n"
        f"picture  {folder / 'partition.png'}\n\n"
        "What to try next\n"
        f"  change alpha or rounds in a copy of {folder / 'spec.toml'}, then\n"
        "  solera run COPY.toml\n"
        "  solera data list\n"
        "  solera data partition digits --clients 10 --kind Shards --param per_client=2"
    )
