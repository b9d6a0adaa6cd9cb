"""People at a client are told, by a command and by a webhook, and what fails delays no work."""

from __future__ import annotations

import json
import logging
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import solera as so

for library in ("httpx", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from liar import Liar  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from solera.cli.app import app  # noqa: E402
from solera.core.errors import UsageError  # noqa: E402
from solera.serve.agent import home  # noqa: E402
from solera.serve.agent.agent import Agent  # noqa: E402
from solera.serve.agent.approvals import Approver  # noqa: E402
from solera.serve.agent.notify import notify  # noqa: E402
from solera.serve.agent.policy import NotifyRules, OwnerPolicy  # noqa: E402
from solera.serve.agent.worker import Worker  # noqa: E402
from solera.serve.identity import Identity  # noqa: E402

ROWS = so.data.FederatedData(np.zeros((30, 2)), np.arange(30) % 2, np.array([0, 30]))


class Inbox(ThreadingHTTPServer):
    """A web address of the owner's that keeps what is posted to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Posted)
        self.messages: list[tuple[str, dict]] = []
        self.status, self.wait = 200, threading.Event()
        self.wait.set()
        self.url = f"http://127.0.0.1:{self.server_port}/solera"


class _Posted(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.messages.append((self.headers["Content-Type"], json.loads(body)))
        self.server.wait.wait(20)
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_) -> None: ...


@pytest.fixture
def inbox():
    server = Inbox()
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield server
    server.wait.set()
    server.shutdown()
    server.server_close()


def told(inbox, count):
    end = time.monotonic() + 600
    while len(inbox.messages) < count:
        assert time.monotonic() < end, f"told of {len(inbox.messages)} events, not {count}"
        time.sleep(0.01)
    return [message for _, message in inbox.messages]


def test_a_webhook_hears_of_a_job_that_waits_and_of_what_was_decided(inbox, tmp_path):
    person = Approver.create(tmp_path / "ana.key", "ana")
    policy = tmp_path / "policy.toml"
    policy.write_text(f"""
        policy = "trusted"
        [approval]
        mode = "ask"
        approvers = {{ ana = "{person.public}" }}
        [notify]
        webhook = "{inbox.url}"
    """)
    folder = tmp_path / "client"
    Identity.create(folder)
    inbox.wait.clear()  # it does not answer yet: the agent goes on all the same
    with Liar() as liar, Worker(ROWS) as worker:
        home.write_place(folder, home.Place(liar.url, None, 3, "north", "cardio"))
        agent = Agent(folder, worker, OwnerPolicy.read(policy), patience=1)
        spec = liar.describe(owner="dr. vega")
        liar.ask(spec=spec, owner="dr. vega")
        assert agent.step() == agent.step() == 0
        (held,) = agent.held.read()
        (message,) = told(inbox, 1)
        assert inbox.messages[0][0] == "application/json"
        assert (message["event"], message["hash"]) == ("held", held.hash)
        assert (message["job"], message["owner"]) == ("job", "dr. vega")
        assert (message["federation"], message["client"]) == ("cardio", "north")
        assert message["description"] == held.description
        inbox.wait.set()
        agent.close()
    told_at = ("--folder", str(folder), "--policy", str(policy), "--key", str(tmp_path / "ana.key"))
    for command in ("approve", "withdraw"):
        result = CliRunner().invoke(app, [command, held.hash, *told_at], prog_name="solera")
        assert result.exit_code == 0, result.output
    decided = told(inbox, 3)[1:]
    assert [message["event"] for message in decided] == ["approved", "withdrawn"]
    for message in decided:
        assert (message["hash"], message["person"]) == (held.hash, "ana")
        assert (message["federation"], message["client"]) == ("cardio", "north")
        assert datetime.fromisoformat(message["at"]) <= datetime.now(UTC)


@pytest.mark.parametrize("way", ["refused", "failing", "command"])
def test_whoever_cannot_be_told_is_in_the_log(inbox, caplog, way):
    rules = {
        "refused": NotifyRules(webhook="http://127.0.0.1:1/"),
        "failing": NotifyRules(webhook=inbox.url),
        "command": NotifyRules(command=("false",)),
    }[way]
    inbox.status = 500
    with caplog.at_level(logging.WARNING, "solera.agent"):
        notify(rules, "held", job="j").join(600)
    which = "command" if way == "command" else "webhook"
    assert f"the {which} of [notify] failed" in caplog.text


def test_nobody_to_tell():
    assert notify(NotifyRules(), "held") is None
    with pytest.raises(UsageError, match="webhook"):
        OwnerPolicy.parse('policy = "sums"\n[notify]\nwebhook = "ftp://example.org"\n')
