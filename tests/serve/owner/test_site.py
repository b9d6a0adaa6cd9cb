"""The owner's page: who may open it, what it shows, and what its buttons do."""

from __future__ import annotations

import io
import re
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

import solera as so
from solera.core.errors import UsageError

for library in ("fastapi", "uvicorn", "httpx", "cryptography", "jinja2", "fpdf"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")
pypdf = pytest.importorskip("pypdf")

import agent_tasks  # noqa: E402, F401
from liar import Liar  # noqa: E402
from starlette.testclient import TestClient  # noqa: E402

from solera.serve.agent import home  # noqa: E402
from solera.serve.agent.agent import Agent  # noqa: E402
from solera.serve.agent.approvals import Approvals, Approver  # noqa: E402
from solera.serve.agent.copies import new_key  # noqa: E402
from solera.serve.agent.policy_file import PolicyFile  # noqa: E402
from solera.serve.agent.started import Started  # noqa: E402
from solera.serve.agent.worker import Worker  # noqa: E402
from solera.serve.description import Description, job_hash  # noqa: E402
from solera.serve.identity import Identity  # noqa: E402
from solera.serve.owner.report import check_report  # noqa: E402
from solera.serve.owner.site import OwnerSite  # noqa: E402

HOST = "127.0.0.1:4711"
EVIL = "<img src=x onerror=alert(1)>"
ROWS = so.data.FederatedData(np.arange(60.0)[:, None], np.arange(60) % 2, np.array([0, 60]))


@pytest.fixture
def liar():
    with Liar() as here:
        yield here


@pytest.fixture
def folder(tmp_path, liar):
    """A client with an approver, copies and rows, whose agent is stepped by hand."""
    ana = Approver.create(tmp_path / "ana.key", "ana")
    new_key(tmp_path / "copies")
    lines = [f"{i % 50},{'yes' if i % 2 else 'no'},{i}" for i in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join([f"age,outcome,{EVIL}", *lines]))
    (tmp_path / "policy.toml").write_text(
        f'policy = "trusted"\nkeep_copies = "{tmp_path}/copies.pub"\n'
        '[data]\ncolumns = ["age"]\n[approval]\nmode = "ask"\n'
        f'[approval.approvers]\nana = "{ana.public}"\n'
    )
    Identity.create(tmp_path / "agent")
    home.write_place(tmp_path / "agent", home.Place(liar.url, None, 3, "north", "cardio"))
    files = {"policy": str(tmp_path / "policy.toml"), "data": str(tmp_path / "rows.csv")}
    Started(target="outcome", **files).remember(tmp_path / "agent")
    return tmp_path / "agent"


@pytest.fixture
def agent(folder, tmp_path):
    with Worker(ROWS) as worker:  # in memory: what reads files has threads, which a fork cuts off
        agent = Agent(folder, worker, PolicyFile(tmp_path / "policy.toml"), patience=1)
        worker.begin()
        yield agent
        agent.close()


@pytest.fixture
def site(folder, tmp_path):
    return OwnerSite(
        folder, approver=Approver.load(tmp_path / "ana.key"), copies_key=tmp_path / "copies.key"
    )


def browser(site):
    link = site.access.link(4711)
    client = TestClient(site.app(), base_url=f"http://{HOST}", follow_redirects=False)
    answer = client.get(link.partition(HOST)[2])
    assert answer.status_code == 303
    return client


@pytest.fixture
def client(site):
    with browser(site) as client:
        yield client


def csrf_of(client):
    return re.search(r'name="csrf" value="([^"]+)"', client.get("/").text)[1]


def post(client, path, /, **fields):
    return client.post(path, data={"csrf": csrf_of(client), **fields})


def until(look, seconds=300.0):
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


# --- who may open it ---

LOOKS = ["/", "/waiting", "/left", "/left/report.pdf", "/copies/x.copy", "/leave"]
ACTS = ["/policy", "/rows", f"/decide/{'ab' * 32}", "/withdraw-person", "/leave"]


def test_the_link_works_once(site):
    link = site.access.link(4711).partition(HOST)[2]
    app = site.app()
    with TestClient(app, base_url=f"http://{HOST}", follow_redirects=False) as first:
        answer = first.get(link)
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert first.get("/").status_code == 200
    with TestClient(app, base_url=f"http://{HOST}", follow_redirects=False) as second:
        assert second.get(link).status_code == 403
        assert second.get("/").status_code == 403
        assert second.get("/open?key=guess").status_code == 403
        assert second.get("/open").status_code == 403


def test_strangers_other_hosts_and_forms_of_others_get_nothing(site, client, folder):
    own = csrf_of(client)
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    rebound = {"Host": "evil.example:4711"}
    with TestClient(site.app(), base_url=f"http://{HOST}") as stranger:
        for path in LOOKS:
            assert stranger.get(path).status_code == 403, path
            assert client.get(path, headers=rebound).status_code == 403, path
        assert stranger.post("/rows", data={"csrf": own}).status_code == 403
        assert stranger.get("/assets/style.css", headers=rebound).status_code == 404
    for path in ACTS:
        assert client.post(path, data={"csrf": "guess"}).status_code == 403, path
        assert client.post(path).status_code == 403, path
        assert client.post(path, data={"csrf": own}, headers=rebound).status_code == 403
        elsewhere = {"Origin": "http://evil.example"}
        assert client.post(path, data={"csrf": own}, headers=elsewhere).status_code == 403
    assert before == sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())


def test_the_content_security_policy_has_no_exceptions(client):
    for path in ("/", "/waiting", "/left"):
        policy = client.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        text = client.get(path).text
        assert not re.search(r"<script(?! src)|<style|<[^>]*\s(style|on\w+)=", text)


# --- today ---


def test_today_shows_rows_columns_and_the_policy(client):
    text = until(lambda: "being read" not in (t := client.get("/").text) and t)
    assert "60 to train" in text
    assert "1 kept: age" in text
    assert "1 dropped: &lt;img src=x onerror=alert(1)&gt;" in text
    assert EVIL not in text
    assert "does not run" in text
    assert "Only noise prevents it" in text
    assert "THE DRIVER CAN READ ROWS" in text


def test_the_editor_checks_and_saves(client, tmp_path):
    path = tmp_path / "policy.toml"
    old = path.read_text()
    before = re.search(r'name="before" value="(\w+)"', client.get("/").text)[1]
    broken = post(client, "/policy", text="polisy = 1", do="save", before=before).text
    assert "polisy" in broken
    assert "Saved" not in broken
    gone = post(client, "/policy", text='policy = "training"', do="save", before=before).text
    assert "there is no policy &#39;training&#39; any more" in gone
    checked = post(client, "/policy", text=old, do="check", before=before).text
    assert "It is not saved yet" in checked
    assert path.read_text() == old
    wider = old.replace('policy = "trusted"', 'policy = "sums"')
    checked = post(client, "/policy", text=wider, do="save", before=before).text
    assert "Saved" in checked
    assert path.read_text() == wider
    again = post(client, "/policy", text=old, do="save", before=before).text
    assert "changed meanwhile" in again
    assert path.read_text() == wider


# --- waiting ---


def held(agent, liar, **changes):
    """A job that waits; its hash."""
    spec = liar.describe(**changes)
    owner = changes.get("owner", "ana")
    liar.ask(spec=spec, owner=owner)
    assert agent.step() == 0
    return job_hash("cardio", "job", spec)


def test_a_job_is_shown_approved_answered_and_withdrawn(agent, client, liar):
    hash = held(agent, liar, owner=EVIL)
    text = client.get("/waiting").text
    assert hash in text
    assert EVIL not in text
    assert "the driver chooses what is asked" in text
    tomorrow = (datetime.now() + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
    assert post(client, f"/decide/{hash}", verdict="approved", until=tomorrow).status_code == 303
    assert agent.approvals.approval(hash).until.astimezone().strftime("%d") == tomorrow[8:10]
    assert agent.step() == 1
    assert liar.replies[-1]["status"] == "ok"
    text = client.get("/waiting").text
    assert "No job waits" in text
    assert f"until {tomorrow}" in text
    assert post(client, f"/decide/{hash}", verdict="withdrawn").status_code == 303
    assert agent.approvals.approval(hash) is None


def test_a_rejection_needs_a_reason_which_is_told(agent, client, liar):
    hash = held(agent, liar)
    assert post(client, f"/decide/{hash}", verdict="rejected", reason=" ").status_code == 400
    assert post(client, f"/decide/{hash}", verdict="burnt").status_code == 400
    late = post(client, f"/decide/{hash}", verdict="approved", until="2020-01-01T00:00")
    assert "is over already" in late.text
    assert agent.step() == 0
    assert post(client, f"/decide/{hash}", verdict="rejected", reason=EVIL).status_code == 303
    assert agent.step() == 1
    assert liar.replies[-1]["reason"] == f"ana rejected the job: {EVIL}"
    for path in ("/waiting", "/left"):
        assert EVIL not in client.get(path).text
        assert "onerror" in client.get(path).text


def test_a_job_whose_approval_is_over_waits_again(agent, client, liar, monkeypatch):
    hash, now = held(agent, liar), datetime.now(UTC)
    monkeypatch.setattr(Approvals, "check", lambda *_, **__: None)  # as if an hour had passed
    ana = Approver.load(agent.folder.parent / "ana.key")
    agent.approvals.decide(hash, "approved", ana, now, until=now + timedelta(hours=1))
    assert "No job waits" in client.get("/waiting").text
    agent.approvals.decide(hash, "approved", ana, now, until=now - timedelta(seconds=1))
    assert f'action="/decide/{hash}"' in client.get("/waiting").text


def test_what_was_kept_of_a_job_must_be_what_its_hash_covers(agent, client, liar, folder):
    hash = held(agent, liar)
    jobs = agent.held.read()
    other = Description.from_bytes(jobs[0].frame)
    from msgspec.structs import replace

    changed = replace(other, toml="x").to_bytes()
    agent.held.write([replace(jobs[0], frame=changed)])
    text = client.get("/waiting").text
    assert "is not what its hash covers" in text
    assert f'action="/decide/{hash}"' not in text


def test_nobody_decides_without_a_key(folder, agent, liar):
    hash = held(agent, liar)
    with browser(OwnerSite(folder)) as client:
        assert "with your own key" in client.get("/waiting").text
        assert post(client, f"/decide/{hash}", verdict="approved").status_code == 400
    assert agent.approvals.approval(hash) is None


# --- what left ---


@pytest.fixture
def answered(agent, client, liar):
    """A client that has answered an ask of an approved job."""
    hash = held(agent, liar)
    post(client, f"/decide/{hash}", verdict="approved")
    assert agent.step() == 1
    return hash


def test_what_left_is_shown_with_its_content(client, answered, folder, site):
    text = client.get("/left").text
    assert "nothing was changed" in text
    assert "agent.count" in text
    link = re.search(r'href="(/copies/[^"]+)"', text)[1]
    assert "numbers" in client.get(link).text
    assert client.get("/copies/..%2Fidentity.key").status_code in (400, 404)
    site.copies_key = None
    assert client.get(link).status_code == 400
    log = folder / "audit.log"
    log.write_bytes(log.read_bytes().replace(b"agent.count", b"agent.cound"))
    assert "is not what this client wrote" in client.get("/left").text


def test_the_report_is_signed_and_readable(client, answered, site):
    answer = client.get("/left/report.pdf")
    assert answer.headers["content-type"] == "application/pdf"
    assert check_report(answer.content) == site.identity.sign_key.hex()
    text = "\n".join(p.extract_text() for p in pypdf.PdfReader(io.BytesIO(answer.content)).pages)
    for said in ("What left north", "agent.count", "nothing was changed", "approved", "ana"):
        assert said in text, said
    place = answer.content.index(b"/Title")
    for changed in (
        answer.content[:place] + b"/Totle" + answer.content[place + 6 :],
        answer.content.replace(b"%solera-report 1 ", b"%solera-report 1 00", 1),
        answer.content + b"more",
        b"",
    ):
        with pytest.raises(UsageError):
            check_report(changed)
