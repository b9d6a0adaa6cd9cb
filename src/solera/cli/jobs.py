"""``solera jobs`` and ``solera job …``: what a coordinator is asked to do, and what came of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from solera.cli.data import AsJson
from solera.cli.output import print_json, print_table
from solera.cli.serve import (
    HERE,
    Authority,
    FederationName,
    Token,
    Url,
    check_name,
    coordinator,
    extra,
    moment,
)
from solera.core.errors import UsageError
from solera.serve.wire import Kind, NewJob, NewState

job = typer.Typer(no_args_is_help=True, help="Start a job at a coordinator, and look after it.")

JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
_ENDED = ("finished", "failed", "cancelled", "expired")
_LOOK_SECONDS = 1.0


def jobs(
    federation: FederationName,
    url: Url = HERE,
    token: Token = None,
    ca: Authority = None,
    as_json: AsJson = False,
) -> None:
    """The jobs of a federation, oldest first."""
    check_name("--federation", federation)
    with coordinator(url, token, ca) as connection:
        found = connection.request("GET", f"/v1/federations/{federation}/jobs").json()
    if as_json:
        print_json(found)
        return
    rows = [
        [j["id"], j["kind"], j["state"], j["owner"], moment(j["created"]), j["reason"]]
        for j in found
    ]
    print_table(["job", "kind", "state", "owner", "created", "reason"], rows)


def contribute(
    name: JobName,
    folder: Annotated[Path, typer.Option(help="The client's folder.")] = Path("agent"),
) -> None:
    """Tell a standing job that this client has new rows.

    Its agent is asked again and answers for all its rows; the earlier answer no longer counts.
    """
    with extra("contributing to a job"):
        from solera.serve.agent.contributing import contribute as ask
    check_name("JOB", name)
    typer.echo(f"contribution {ask(folder, name)} to {name}")


@job.command("start", epilog="Example: solera job start readmission.toml --follow")
def start(
    file: Annotated[Path, typer.Argument(metavar="JOB.toml", help="What to run; see the docs.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Print what happens until the job ends.")
    ] = False,
    url: Url = HERE,
    token: Token = None,
    ca: Authority = None,
    as_json: AsJson = False,
) -> None:
    """Let the coordinator run a learner.

    The file names the federation, the learner and its parameters. Starting the same file again
    finds the job that was started before.
    """
    with extra("a job file"):
        from solera.serve.job_spec import read_job
    from solera.core.payload import encode

    spec = read_job(file)
    with coordinator(url, token, ca) as connection:
        kind: Kind = "standing" if spec.standing else "managed"
        description = connection.upload(encode({"toml": spec.text}))
        new = NewJob(spec.name, kind, description, spec.seed, spec.owner, spec.deadline)
        path = f"/v1/federations/{spec.federation}/jobs"
        told = connection.request("POST", path, json=new).json()
        if as_json:
            print_json(told)
        else:
            again = " (it was started before)" if told["resumed"] else ""
            typer.echo(f"job {told['id']} is {told['state']}{again}")
            typer.echo(f"hash {told['hash']}")
        if follow:
            _follow(connection, spec.name, as_json)


@job.command("show", epilog="Example: solera job show readmission")
def show(
    name: JobName,
    url: Url = HERE,
    token: Token = None,
    ca: Authority = None,
    as_json: AsJson = False,
) -> None:
    """One job: its state, how far it is, its latest model."""
    check_name("JOB", name)
    with coordinator(url, token, ca) as connection:
        found = connection.request("GET", f"/v1/jobs/{name}").json()
    if as_json:
        print_json(found)
        return
    progress, model = found.pop("progress"), found.pop("model")
    for key in ("created", "changed", "deadline"):
        found[key] = None if found[key] is None else moment(found[key])
    replies = ", ".join(f"{n} {state}" for state, n in progress.get("deliveries", {}).items())
    found["asks"] = progress["asks"]
    if "task" in progress:
        found["last ask"] = f"{progress['task']}, round {progress['round']}: {replies}"
    if model is not None:
        made = f" of {len(model['contributions'])} clients" if model["contributions"] else ""
        found["model"] = f"version {model['version']}{made}, {moment(model['time'])}"
    rows = [[key, value] for key, value in found.items() if value not in (None, "")]
    print_table(["what", "is"], rows)


@job.command("logs", epilog="Example: solera job logs readmission --follow")
def logs(
    name: JobName,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the job ends.")] = False,
    url: Url = HERE,
    token: Token = None,
    ca: Authority = None,
    as_json: AsJson = False,
) -> None:
    """What happened in a job: rounds, models, and every refusal and failure with its reason."""
    check_name("JOB", name)
    with coordinator(url, token, ca) as connection:
        if follow:
            _follow(connection, name, as_json)
        else:
            _print_new(connection, name, 0, as_json)


@job.command("cancel", epilog="Example: solera job cancel readmission --reason 'wrong λ'")
def cancel(
    name: JobName,
    reason: Annotated[str, typer.Option(help="Why; it is written down.")] = "",
    url: Url = HERE,
    token: Token = None,
    ca: Authority = None,
) -> None:
    """End a job now. Clients are asked nothing more, its last model stays."""
    check_name("JOB", name)
    with coordinator(url, token, ca) as connection:
        change = NewState("cancelled", reason)
        connection.request("POST", f"/v1/jobs/{name}/state", json=change)
    typer.echo(f"job {name} is cancelled")


@job.command("model", epilog="Example: solera job model readmission --out readmission.sol")
def model(
    name: JobName,
    out: Annotated[Path, typer.Option(help="Where the model goes; so.load reads it.")],
    url: Url = HERE,
    token: Token = None,
    ca: Authority = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the latest model of a job."""
    check_name("JOB", name)
    with coordinator(url, token, ca) as connection:
        told = connection.request("GET", f"/v1/jobs/{name}/model").json()
        out.write_bytes(connection.download(told["digest"]))
    if as_json:
        print_json({**told, "file": str(out)})
        return
    made = f", made of {len(told['contributions'])} clients" if told["contributions"] else ""
    typer.echo(f"{out}: version {told['version']} of {moment(told['time'])}{made}")


def _follow(connection: Any, name: str, as_json: bool) -> None:
    last = 0
    while True:
        state = connection.request("GET", f"/v1/jobs/{name}").json()["state"]
        last = _print_new(connection, name, last, as_json)
        if state in _ENDED:
            if state != "finished":
                raise UsageError(f"job {name} is {state}", hint="see the lines above for why")
            return
        time.sleep(_LOOK_SECONDS)


def _print_new(connection: Any, name: str, after: int, as_json: bool) -> int:
    """Print the events after number ``after``; the number of the last one."""
    while found := connection.request("GET", f"/v1/jobs/{name}/events?after={after}").json():
        for event in found:
            if as_json:
                print_json(event)
            else:
                typer.echo(_line(event))
        after = found[-1]["id"]
    return after


def _line(event: dict[str, Any]) -> str:
    who = "" if event["client"] is None else f" client {event['client']}"
    facts = event["facts"] or {}
    hidden = ("hash", "kind", "owner", "digest", "payload", "prepare", "clients")
    told = [f"{k}={_short(v)}" for k, v in facts.items() if k not in hidden and v is not None]
    return " ".join(
        part
        for part in (moment(event["time"]), event["event"] + who, event["reason"], *told)
        if part
    )


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
