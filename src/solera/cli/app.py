"""The command line: ``solera``."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from solera import __version__
from solera.cli import client, compare, data, demo, jobs, run, runs, serve, study
from solera.cli.data import AsJson
from solera.cli.output import complain, print_json, print_table
from solera.core.errors import SoleraError

EPILOG = (
    "Exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted. "
    "SOLERA_DATA names a folder of data files; SOLERA_TRACEBACK=1 shows where an error comes from."
)


class Commands(TyperGroup):
    """Every error becomes a line, a hint and an exit code, whichever command it comes from."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            complain("interrupted")
            raise typer.Exit(130) from None
        except Exception as error:
            if hasattr(error, "exit_code") or os.environ.get("SOLERA_TRACEBACK"):
                raise  # wrong usage is explained by Typer
            complain(*_explain(error))
            raise typer.Exit(1) from None


def _explain(error: Exception) -> tuple[str, str | None]:
    """An error in words, and the way out."""
    if isinstance(error, SoleraError):
        return error.message, error.hint
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}", None
    return (
        f"unexpected {type(error).__name__}: {error}",
        "this is a bug in Solera; SOLERA_TRACEBACK=1 shows where",
    )


app = typer.Typer(
    name="solera",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)
app.add_typer(data.app, name="data")
app.command("run", epilog="Example: solera run digits.toml --folder runs/digits")(run.run)
app.command(
    "compare", epilog="Example: solera compare runs/a runs/b --by learner --metric macro_f1"
)(compare.compare)
app.add_typer(runs.app, name="runs")
app.command("study", epilog="Example: solera study heonn-incremental")(study.study)
app.command("demo", epilog="Example: solera demo --folder runs/demo")(demo.demo)
app.add_typer(serve.tls, name="tls")
app.command("serve", epilog="Example: solera serve --certificate tls/coordinator.pem --key …")(
    serve.serve
)
app.command("invite", epilog="Example: solera invite north --federation cardio")(serve.invite)
app.command("clients", epilog="Example: solera clients --federation cardio")(serve.clients)
app.command("revoke", epilog="Example: solera revoke 3 -f cardio --reason 'lost laptop'")(
    serve.revoke
)
app.command("jobs", epilog="Example: solera jobs --federation cardio")(jobs.jobs)
app.add_typer(jobs.job, name="job")
app.command("logs", epilog="The same as solera job logs.")(jobs.logs)
app.command("cancel", epilog="The same as solera job cancel.")(jobs.cancel)
app.command(
    "join",
    epilog="Example: solera join https://fl.org:8443 --token … --data a.csv --policy policy.toml",
)(client.join)
app.command("contribute", epilog="Example: solera contribute readmission --folder agent")(
    jobs.contribute
)
app.command("approve", epilog="Example: solera approve HASH --person ana --policy policy.toml")(
    client.approve
)
app.command("held", epilog="Example: solera held --policy policy.toml")(client.held)
app.command("leave", epilog="Example: solera leave --folder agent --delete")(client.leave)
app.command("policy", epilog="Example: solera policy policy.toml")(client.policy)
app.add_typer(client.audit, name="audit")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"solera {__version__}")
        raise typer.Exit


@app.callback()
def solera(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Federated learning where the data stays where it is.

    Start with [bold]solera demo[/bold].
    """


@app.command(epilog="Example: solera tasks --json")
def tasks(as_json: AsJson = False) -> None:
    """The tasks installed here: all that can be asked of a client."""
    from solera.core.task import installed_tasks

    found = sorted(installed_tasks().values(), key=lambda task: task.name)
    rows = [
        {
            "name": task.name,
            "version": task.version,
            "module": task.one.__module__,
            "does": (task.one.__doc__ or "").strip().split("\n")[0],
        }
        for task in found
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(["name", ">version", "module", "does"], [list(row.values()) for row in rows])


def main() -> None:
    """The entry point of the ``solera`` command."""
    app(prog_name="solera")


if __name__ == "__main__":
    main()
