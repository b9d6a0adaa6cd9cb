"""The command line: ``solera``."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from solera import __version__
from solera.cli import (
    account,
    approvals,
    audit,
    budget,
    client,
    compare,
    data,
    demo,
    describe,
    dictionary,
    flower,
    jobs,
    model,
    operate,
    owner,
    peers,
    policy,
    predict,
    run,
    runs,
    serve,
    study,
    tasks,
)
from solera.cli.output import complain, interrupted
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
            raise interrupted("interrupted") from None
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
    refused = getattr(error, "orig", None)  # what SQLAlchemy got from the database's driver
    if type(error).__module__.startswith("sqlalchemy") and refused is not None:
        reason = (str(refused).splitlines() or [type(refused).__name__])[0]
        return f"the database refuses: {reason}", "check the address, user and password in its URL"
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
GROUPS = {
    "data": data.app,
    "dictionary": dictionary.app,
    "runs": runs.app,
    "tls": serve.tls,
    "job": jobs.job,
    "audit": audit.audit,
    "approver": approvals.approver,
    "account": account.app,
    "peers": peers.app,
    "policy": policy.app,
    "model": model.app,
    "flower": flower.app,
}
COMMANDS = (
    ("run", run.run, "Example: solera run digits.toml --folder runs/digits"),
    (
        "compare",
        compare.compare,
        "Example: solera compare runs/a runs/b --by learner --metric macro_f1",
    ),
    ("predict", predict.predict, "Example: solera predict model.sol new.csv --out answers.csv"),
    ("study", study.study, "Example: solera study heonn-incremental"),
    (
        "describe",
        describe.describe,
        "Example: solera describe patients.csv --target outcome --group hospital --plot look.png",
    ),
    ("demo", demo.demo, "Example: solera demo --folder runs/demo"),
    ("serve", serve.serve, "Example: solera serve --certificate tls/coordinator.pem --key …"),
    ("backup", operate.backup, "Example: solera backup --config solera.toml --into /backups"),
    (
        "restore",
        operate.restore,
        "Example: solera restore solera-2026-11-16T020000Z-1f2e.tar --folder coordinator",
    ),
    ("upgrade", operate.upgrade, "Example: solera upgrade --check --config solera.toml"),
    ("doctor", operate.doctor, "Example: solera doctor --folder agent"),
    ("invite", serve.invite, "Example: solera invite north --federation cardio"),
    ("clients", serve.clients, "Example: solera clients --federation cardio"),
    ("revoke", serve.revoke, "Example: solera revoke 3 -f cardio --reason 'lost laptop'"),
    ("jobs", jobs.jobs, "Example: solera jobs --federation cardio"),
    ("logs", jobs.logs, "The same as solera job logs."),
    ("cancel", jobs.cancel, "The same as solera job cancel."),
    (
        "join",
        client.join,
        "Example: solera join https://fl.org:8443 --token … --data a.csv --policy policy.toml",
    ),
    ("contribute", jobs.contribute, "Example: solera contribute readmission --folder agent"),
    (
        "approve",
        approvals.approve,
        "Example: solera approve HASH --key ana.key --policy policy.toml",
    ),
    (
        "reject",
        approvals.reject,
        "Example: solera reject HASH --key ana.key --policy policy.toml --reason 'no contract'",
    ),
    (
        "withdraw",
        approvals.withdraw,
        "Example: solera withdraw HASH --key ana.key --policy policy.toml",
    ),
    ("held", approvals.held, "Example: solera held --policy policy.toml"),
    ("owner", owner.owner, "Example: solera owner --folder agent --key ana.key"),
    ("budget", budget.budget, "Example: solera budget --folder agent"),
    ("tasks", tasks.tasks, "Example: solera tasks linear.train"),
    ("leave", client.leave, "Example: solera leave --folder agent --delete"),
)
"""The name, the function and the last line of the help of each."""

for name, group in GROUPS.items():
    app.add_typer(group, name=name)
for name, function, epilog in COMMANDS:
    app.command(name, epilog=epilog)(function)


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


def main() -> None:
    """The entry point of the ``solera`` command."""
    app(prog_name="solera")


if __name__ == "__main__":
    main()
