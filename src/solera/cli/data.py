"""``solera data``: look at data sets and at what partitions make of them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from solera.cli.output import first_line, print_json, print_partition, print_table, stderr

if TYPE_CHECKING:
    from solera.data.dataset import Dataset

app = typer.Typer(no_args_is_help=True, help="Look at data sets and partitions.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]


def complete_data_set(incomplete: str) -> list[tuple[str, str]]:
    """Names of data sets for the shell."""
    from solera.data import datasets

    return [(i.name, i.title) for i in datasets.available() if i.name.startswith(incomplete)]


def complete_partition(incomplete: str) -> list[tuple[str, str]]:
    """Names of partitions for the shell."""
    from solera.core.config import family
    from solera.data.partition import Partition

    kinds = family(Partition).items()
    return [(name, first_line(cls)) for name, cls in kinds if name.startswith(incomplete)]


def complete_parameter(ctx: typer.Context, incomplete: str) -> list[str]:
    """``NAME=`` for every parameter of the partition chosen so far."""
    from solera.core.config import family
    from solera.data.partition import Partition

    cls = family(Partition).get(ctx.params.get("kind") or "")
    names = () if cls is None else cls.parameters()
    return [f"{name}=" for name in names if name.startswith(incomplete)]


Name = Annotated[
    str,
    typer.Argument(
        help="A data set of [bold]solera data list[/bold].", autocompletion=complete_data_set
    ),
]


Target = Annotated[
    list[str] | None,
    typer.Option(help="The column to predict of one's own table; may be repeated."),
]
Table = Annotated[
    str,
    typer.Argument(
        help="A data set of [bold]solera data list[/bold], or a table of one's own: a CSV or "
        "Parquet file, a folder of them, or sql:URL#SELECT ….",
        autocompletion=complete_data_set,
    ),
]
_SHOWN = 8


@app.command("list", epilog="Example: solera data list --json")
def list_(as_json: AsJson = False) -> None:
    """All data sets: size, target, licence, and whether they need a download."""
    from solera.data import datasets

    infos = datasets.available()
    if as_json:
        fields = ("name", "title", "rows", "features", "target", "outputs", "licence", "at_hand")
        print_json([{name: getattr(info, name) for name in fields} for info in infos])
        return
    rows = [
        (
            info.name,
            f"{info.rows:,}",
            f"{info.features:,}",
            f"{info.outputs:,} {info.target}",
            "yes" if info.at_hand else ("download" if info.openml else "no"),
            info.title,
        )
        for info in infos
    ]
    print_table(["name", ">rows", ">features", ">target", "at hand", "title"], rows)


@app.command(epilog="Example: solera data show patients.csv --target outcome --group hospital")
def show(
    name: Table,
    target: Target = None,
    group: Annotated[
        str | None, typer.Option(help="The column of one's own table that says whose row it is.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="A column to learn from, of all; may be repeated.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=KIND",
            help="numeric, categorical or date, for a column that is not what it seems.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """One data set, or a table of one's own: rows, columns and classes as they are understood."""
    from solera.data.own_tables import is_own

    dataset = table_of(name, target, group, column, kind)
    schema = dataset.schema
    if not as_json:
        typer.echo(dataset.summary())
        if is_own(name):
            print_table(["column", "kind", ">missing", "values"], _columns(dataset))
        return
    print_json(
        {
            "name": dataset.name,
            "title": dataset.title,
            "source": dataset.source,
            "rows": int(dataset.X.shape[0]),
            "test_rows": int(dataset.X_test.shape[0]),
            "target": schema.target,
            "target_names": list(dataset.target_names),
            "outputs": schema.outputs,
            "classes": list(dataset.class_names),
            "groups": {name: _rows_of(values) for name, values in dataset.groups.items()},
            "features": [
                {"name": f.name, "kind": f.kind, "categories": list(f.categories)}
                for f in schema.features
            ],
        }
    )


def table_of(
    name: str,
    target: list[str] | None = None,
    group: str | None = None,
    column: list[str] | None = None,
    kind: list[str] | None = None,
) -> Dataset:
    """A data set by its name, or a table of one's own read as the options say."""
    from solera.core.errors import UsageError
    from solera.data.own_tables import is_own, own

    if is_own(name):
        answers: Any = target[0] if target and len(target) == 1 else target
        with stderr().status(f"reading {name}"):
            dataset = own(
                name,
                target=answers,
                group=group,
                columns=column,
                kinds=parameters(kind or []),
                test=0.0,
            )
    elif target or group or column or kind:
        raise UsageError(
            f"{name} is a data set that knows its own columns",
            hint="--target, --group, --column and --kind are for a file, a folder or sql:…",
        )
    else:
        dataset = _load(name)
    return dataset


def _columns(dataset: Dataset) -> list[list[str]]:
    """A line for every column of a table of one's own."""
    import numpy as np

    lines = []
    X = dataset.X.toarray() if hasattr(dataset.X, "toarray") else dataset.X
    for column, feature in zip(X.T, dataset.schema.features, strict=True):
        known = column[np.isfinite(column)]
        if feature.kind == "categorical":
            values = _shortened(feature.categories)
        elif not len(known):
            values = "none"
        elif feature.kind == "date":
            ends = np.floor([known.min(), known.max()]).astype("datetime64[D]")
            values = f"{ends[0]} to {ends[1]}"
        else:
            values = f"{known.min():g} to {known.max():g}"
        lines.append([feature.name, feature.kind, f"{len(column) - len(known):,}", values])
    for place, name in enumerate(dataset.target_names):
        labels = dataset.y[:, place] if dataset.schema.target == "labels" else np.zeros(0)
        lines.append([name, "target", f"{(labels < 0).sum():,}", ""])
    for name, groups in dataset.groups.items():
        rows = [f"{client}: {count:,}" for client, count in _rows_of(groups).items()]
        lines.append([name, "group", "0", _shortened(rows)])
    return lines


def _rows_of(groups: Any) -> dict[str, int]:
    import numpy as np

    names, counts = np.unique(groups, return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True)}


def _shortened(words: Sequence[str]) -> str:
    return ", ".join(words[:_SHOWN]) + (
        f" and {len(words) - _SHOWN} more" if words[_SHOWN:] else ""
    )


@app.command(
    epilog="Example: solera data partition digits --clients 20 --kind Dirichlet --param alpha=0.3"
)
def partition(
    name: Name,
    clients: Annotated[
        int | None, typer.Option(min=1, help="How many, unless the partition itself says so.")
    ] = None,
    kind: Annotated[
        str, typer.Option(help="The partition.", autocompletion=complete_partition)
    ] = "IID",
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A parameter of the partition, with its value as in TOML; may be repeated.",
            autocompletion=complete_parameter,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another partition.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Save the picture, for example as out.png or out.svg.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Divide a data set among clients and look at the outcome."""
    from solera.core.config import component
    from solera.data.partition import Partition
    from solera.simulate.simulation import simulate

    rule = component(Partition, {"kind": kind, **parameters(param or [])})
    dataset = _load(name)
    data = simulate(
        dataset.X, dataset.y, clients=clients, partition=rule, seed=seed, schema=dataset.schema
    ).data
    if plot is not None:
        save_picture(data.plot(class_names=dataset.class_names or None), plot)
    if as_json:
        counts = data.class_counts()
        print_json(
            {
                "data": name,
                "partition": repr(rule),
                "seed": seed,
                **data.summary().to_dict(),
                "sizes": data.sizes().tolist(),
                "class_counts": None if counts is None else counts.tolist(),
            }
        )
        return
    typer.secho(f"{name} divided by {rule!r}, seed {seed}", bold=True)
    typer.echo(f"{data.summary()}\n")
    print_partition(data, dataset.class_names)
    if plot is not None:
        typer.echo(f"\npicture: {plot}")


def _load(name: str) -> Dataset:
    from solera.data import datasets

    with stderr().status(f"reading {name}"):
        return datasets.load(name)


def parameters(pairs: list[str]) -> dict[str, Any]:
    """``alpha=0.3`` as a name and a TOML value; what is no TOML value is text."""
    given: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{pair!r} is not of the form NAME=VALUE")
        try:
            given[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            given[name] = value
    return given


def save_picture(figure: Any, path: Path) -> None:
    """Write a figure in the format that the name of the file asks for."""
    from solera.core.errors import UsageError

    formats = figure.canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in formats:
        raise UsageError(f"cannot save a picture as {path}", hint=f"one of {', '.join(formats)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
