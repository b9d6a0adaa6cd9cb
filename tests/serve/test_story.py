"""One story in a real browser, by keyboard alone: from the sign-in to the model, and to leaving.

Coordinator, agents and the owner's page are the programs that people start.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography", "fpdf"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")
axe = pytest.importorskip("axe_core_python.sync_playwright")
pypdf = pytest.importorskip("pypdf")

from network import Network  # noqa: E402

from solera.serve.agent.approvals import Approver  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.coordinator.web.visitors import new_account  # noqa: E402
from solera.serve.owner.report import check_report  # noqa: E402

PASSWORD = "correct horse battery"
EVIL = "<img src=x onerror=alert(1)>"
ROUNDS = 15
MINUTES = 5 * 60_000
"""Milliseconds: nothing here is about speed, and other programs may need the machine more."""


class Person:
    """Somebody with a browser and a keyboard. Errors and hosts are noted, pages are checked."""

    def __init__(self, browser):
        context = browser.new_context(ignore_https_errors=True, accept_downloads=True)
        context.set_default_timeout(MINUTES)
        self.page = context.new_page()
        self.said, self.hosts = [], set()
        page = self.page
        page.on("console", lambda m: self.said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: self.said.append(f"dialog {dialog.message}"))
        page.on("request", lambda r: self.hosts.add(r.url.split("/")[2]) if "//" in r.url else None)

    def reach(self, what):
        """Press Tab until a link, a button or a field is reached, by its text or id."""
        seen = []
        for _ in range(400):
            self.page.keyboard.press("Tab")
            at = self.page.evaluate(
                "[document.activeElement.id, document.activeElement.innerText || '']"
            )
            seen.append(at)
            if what == at[0] or what == at[1].strip():
                return
        raise AssertionError((what, seen[:50]))

    def press(self, what):
        """Follow a link or send a form, and wait for where that leads."""
        self.reach(what)
        with self.page.expect_navigation():
            self.page.keyboard.press("Enter")

    def write(self, field, text):
        self.reach(field)
        self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text)

    def wait(self, selector):
        self.page.wait_for_selector(selector)
        return self

    def download(self, what):
        self.reach(what)
        with self.page.expect_download() as begun:
            self.page.keyboard.press("Enter")
        return begun.value

    def check(self):
        """Nothing serious for axe, no text that became markup, and it fits narrow and wide."""
        page = self.page
        assert page.locator("img").count() == 0
        narrow = {"runOnly": ["color-contrast", "scrollable-region-focusable"]}
        page.evaluate(axe.Axe().axe_script)
        for scheme, width, options in (("dark", 400, narrow), ("light", 1400, {})):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            self._wait_for_width(width)
            found = page.evaluate(
                "options => axe.run(document, options).then(found => found.violations)",
                {**options, "resultTypes": ["violations"]},
            )
            serious = [v for v in found if v["impact"] in ("serious", "critical")]
            assert [(v["id"], v["nodes"][0]["html"]) for v in serious] == [], page.url

    def _wait_for_width(self, width):
        """Charts are drawn anew when the window has another width.

        Asked from here: ``wait_for_function`` evaluates in the page what its policy forbids.
        """
        wide = "document.documentElement.scrollWidth"
        within = time.monotonic() + MINUTES / 1000
        while (is_now := self.page.evaluate(wide)) > width:
            assert time.monotonic() < within, (self.page.url, is_now, width)
            self.page.wait_for_timeout(50)


@pytest.fixture
def programs():
    """Starts commands, and ends those that still run."""
    started = []

    def start(folder, *arguments):
        command = [sys.executable, "-m", "solera.cli.app", *map(str, arguments)]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        log = open(folder / f"{arguments[0]}-{len(started)}.txt", "w+")  # noqa: SIM115
        program = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        started.append((program, log))
        return program, log.name

    yield start
    for program, log in started:
        program.kill()
        program.wait()
        log.close()


def until(look, seconds=300.0):
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def test_from_the_sign_in_to_the_model_and_to_leaving(tmp_path, browser, programs):
    network = Network(tmp_path)
    network.start()
    try:
        _story(tmp_path, network, browser, programs)
    finally:
        network.close()


def _story(folder, network, browser, programs):
    with Store(f"sqlite:///{folder}/coordinator/coordinator.sqlite") as store:
        store.add_account(new_account("ada", PASSWORD, "administrator", None), "test")
    ada = Person(browser)
    page = ada.page
    page.goto(f"{network.url}/sign-in")
    ada.check()
    page.goto(f"{network.url}/sign-in")  # the field of the name has the focus
    page.keyboard.type("ada")
    ada.write("password", PASSWORD)
    with page.expect_navigation():
        page.keyboard.press("Enter")
    ada.wait("h1:has-text('Federations')")

    # invite two clients; the first opens the federation
    tokens = {}
    ada.write("federation", "cardio")
    ada.write("client", "north")
    ada.press("Invite")
    tokens["north"] = _token(ada)
    ada.press("Back to cardio")
    ada.wait("h1:has-text('cardio')").write("client", "south")
    ada.press("Invite")
    tokens["south"] = _token(ada)

    # two agents join with tables of their own
    ana = Approver.create(folder / "ana.key", "ana")
    asks = f'[approval]\nmode = "ask"\n[approval.approvers]\nana = "{ana.public}"\n'
    policies = {
        "north": f'policy = "trusted"\n{asks}',
        "south": 'policy = "sums"\n',
    }
    agents = {}
    for i, name in enumerate(policies):
        _table(folder / f"{name}.csv", seed=i)
        (folder / f"{name}.toml").write_text(policies[name])
        agents[name], _ = programs(
            folder, "join", network.url, "--ca", network.ca, "--token", tokens[name],
            "--data", f"{name}.csv", "--policy", f"{name}.toml", "--target", "outcome",
            "--folder", name, "--wait", "5",
        )  # fmt: skip

    # the page of north's owner starts while the job is written
    joined = [folder / "north" / name for name in ("place.json", "identity.key", "started.json")]
    until(lambda: all(path.exists() for path in joined))
    _, log = programs(folder, "owner", "--folder", "north", "--key", "ana.key")

    # a job from the form
    ada.press("Back to cardio")
    ada.press("Start a job")
    ada.wait("#kind").reach("kind")
    page.keyboard.type("FedLinear")
    ada.press("Show its parameters")
    ada.wait("#name").write("name", "risk")
    ada.write("clients", "2")
    ada.write("p-rounds", str(ROUNDS))
    ada.press("Write the file")
    ada.wait("#toml").reach("toml")
    file = page.input_value("#toml").replace('"test"', '"train"').replace('"ada"', f'"{EVIL}"')
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(file)
    ada.check()
    ada.press("Start")
    ada.wait("h1:has-text('risk')")
    ada.wait("#words:has-text('waits for approval at north since')")

    # the owner of north looks and approves
    link = until(lambda: re.search(r"open (\S+)", Path(log).read_text()))[1]
    owner = Person(browser)
    owner.page.goto(link)
    owner.wait("h1:has-text('Today')")
    until(lambda: owner.page.reload() and "being read" not in owner.page.inner_text("main"))
    shown = owner.page.inner_text("main")
    assert "runs" in shown
    assert EVIL in shown
    owner.check()
    owner.press("Waiting")
    owner.wait("h2:has-text('risk')")
    assert "the driver chooses what is asked" in owner.page.inner_text("main")
    owner.check()
    owner.press("Approve risk as ana")
    owner.wait("text=No job waits for a decision")

    # curves move, and the job ends
    ada.wait(".u-legend")
    ada.wait("#words:has-text('finished')")
    ada.wait("text=Download the model")  # the page is loaded anew at the end
    assert page.inner_text("#round-count") == str(ROUNDS)
    shown = page.inner_text("main")
    assert "answer no open ask, here for 'linear.train'" in shown
    assert "accuracy" in shown
    assert "Wh at the coordinator" in shown
    assert "north" in page.inner_text("#client-curves .u-legend")
    assert f"no {EVIL}" in page.inner_text("table.confusion")
    assert page.locator(".panels polyline.all").count() == 3
    ada.check()
    ada.download("Download the model").save_as(folder / "model.sol")
    model = so.load(folder / "model.sol")
    assert EVIL in [feature.name for feature in model.schema_.features]
    ada.download("model card").save_as(folder / "card.md")
    assert "FedLinear" in (folder / "card.md").read_text()
    for path in ("/federations/cardio", "/federations/cardio/data", "/log", "/health", "/docs",
                 "/federations/cardio/compare?job.risk=on", "/accounts", "/"):  # fmt: skip
        page.goto(network.url + path)
        ada.check()
    page.goto(f"{network.url}/federations/cardio")
    assert page.locator(f"td:text-is('{so.__version__}')").count() == 2
    page.goto(f"{network.url}/federations/cardio/data")
    assert EVIL in page.inner_text("main")
    assert "120" in page.inner_text("main")

    # what left, as a signed report
    owner.press("What left")
    owner.wait("text=nothing was changed")
    owner.check()
    owner.download("Signed report (PDF)").save_as(folder / "left.pdf")
    content = (folder / "left.pdf").read_bytes()
    assert check_report(content) in owner.page.inner_text("main")
    pages = pypdf.PdfReader(io.BytesIO(content)).pages
    assert "linear.train" in "\n".join(page.extract_text() for page in pages)

    # and the owner leaves
    agents["north"].terminate()
    agents["north"].wait(300)
    owner.press("Leave")
    owner.wait("text=To confirm, write the name of the federation: cardio")
    owner.check()
    owner.write("federation", "cardio")
    with owner.page.expect_navigation():
        owner.page.keyboard.press("Enter")
    owner.wait("h1:has-text('north has left cardio')")
    assert '"signature"' in owner.page.inner_text("main")
    assert not (folder / "north" / "identity.key").exists()
    assert (folder / "north" / "audit.log").exists()
    assert ada.said == owner.said == []
    assert ada.hosts <= {network.url.split("//")[1]}
    assert owner.hosts <= {link.split("/")[2]}


def _token(person):
    person.wait("h1:has-text('is invited')")
    token = person.page.inner_text("#invitation")
    saved = person.download(f"Save it as {token.split('/')[0]}-{token.split('/')[1]}.invitation")
    assert Path(saved.path()).read_text() == token
    return token


def _table(path, seed):
    """120 rows of three columns; one has a name that would be a script if it were believed."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(120, 3))
    y = np.where(X.sum(axis=1) > 0, "yes", f"no {EVIL}")
    lines = [f"age,bmi,{EVIL},outcome"]
    lines += [f"{a:.3f},{b:.3f},{c:.3f},{k}" for (a, b, c), k in zip(X, y, strict=True)]
    path.write_text("\n".join(lines))
