"""The coordinator's pages in a real browser, over real agents, and attempts to misuse them."""

from __future__ import annotations

import re
import time
from datetime import datetime

import numpy as np
import pytest

import solera as so
from solera.core.component import describe_fitted
from solera.core.payload import encode

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography", "argon2"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

import httpx  # noqa: E402
from network import Network  # noqa: E402
from store_rows import add_reply  # noqa: E402

from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.coordinator.store.tables import TokenRow  # noqa: E402
from solera.serve.coordinator.web.visitors import new_account  # noqa: E402
from solera.serve.description import Description  # noqa: E402
from solera.serve.identity import new_token, token_hash  # noqa: E402
from solera.serve.wire import NewAsk, NewJob, NewNote, NewReply  # noqa: E402

rng = np.random.default_rng(0)
X = rng.normal(size=(160, 4))
Y = (X @ rng.normal(size=(4, 2))).argmax(axis=1)
Y[[3, 90, 91, 92, 93, 94, 95]] = 2
DATA = so.data.FederatedData(X, Y, np.array([0, 80, 160]))
PASSWORD = "correct horse battery"
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Two federations; two agents work in the first."""
    here = Network(tmp_path_factory.mktemp("pages"))
    here.start()
    try:
        for i, name in enumerate(("north", "south")):
            here.enrol(name)
            here.give(name, DATA, i)
            here.work(name)
        driver = here.driver()
        driver.request("POST", "/v1/federations/other/invites", json={"name": "secret"})
        driver.close()
        with Store(f"sqlite:///{here.folder}/coordinator/coordinator.sqlite") as store:
            for name, role, federation in PEOPLE:
                store.add_account(new_account(name, PASSWORD, role, federation), "test")
        yield here
    finally:
        here.close()


PEOPLE = (
    ("ada", "administrator", None),
    ("rita", "researcher", "cardio"),
    ("vera", "viewer", "cardio"),
    ("olga", "researcher", "other"),
)


def connection(network):
    return httpx.Client(base_url=network.url, verify=False, follow_redirects=False, timeout=300)


def signed_in(network, name):
    client = connection(network)
    answer = client.post("/sign-in", data={"name": name, "password": PASSWORD})
    assert answer.status_code == 303, answer.text
    return client


def csrf_of(client):
    return re.search(r'name="csrf" value="([^"]+)"', client.get("/").text)[1]


def post(client, path, /, **fields):
    return client.post(path, data={"csrf": csrf_of(client), **fields})


def opened(network):
    return Store(f"sqlite:///{network.folder}/coordinator/coordinator.sqlite")


# --- who may what ---


@pytest.fixture(scope="module")
def visitors(network):
    clients = {name: signed_in(network, name) for name, _, _ in PEOPLE}
    yield clients
    for client in clients.values():
        client.close()


def test_the_cookie_is_for_the_browser_alone(network):
    with connection(network) as client:
        answer = client.post("/sign-in", data={"name": "ada", "password": PASSWORD})
    cookie = answer.headers["set-cookie"].lower()
    for part in ("httponly", "secure", "samesite=strict"):
        assert part in cookie
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


def test_wrong_passwords_wait_longer_each_time(network):
    with connection(network) as client:
        wrong = {"name": "nobody-there", "password": "x" * 12}
        assert [client.post("/sign-in", data=wrong).status_code for _ in range(5)] == [403] * 5
        # Where a try takes long, the first pauses are over before it; each is twice the last.
        assert any(client.post("/sign-in", data=wrong).status_code == 429 for _ in range(9))


def test_removing_an_account_ends_its_session(network, visitors):
    ada = visitors["ada"]
    made = post(ada, "/accounts", name="temp", role="viewer", federation="cardio")
    password = re.search(r"<pre tabindex=\"0\">([^<]+)</pre>", made.text)[1]
    with connection(network) as temp:
        temp.post("/sign-in", data={"name": "temp", "password": password})
        assert temp.get("/federations/cardio").status_code == 200
        assert post(ada, "/accounts/temp/remove").status_code == 303
        assert temp.get("/federations/cardio").headers["location"] == "/sign-in"


def test_tokens_of_programs_are_limited_to_a_role_and_a_federation(network, visitors):
    ada, tokens = visitors["ada"], {}
    for name, role, federation in (
        ("see", "viewer", "cardio"), ("do", "researcher", "other"), ("all", "administrator", "")
    ):  # fmt: skip
        made = post(ada, "/tokens", name=name, role=role, federation=federation, days="1")
        tokens[name] = re.search(r"<pre tabindex=\"0\">([^<]+)</pre>", made.text)[1]

    def ask(name, method, path, /, **body):
        headers = {"Authorization": f"Bearer {tokens[name]}"}
        with connection(network) as client:
            return client.request(method, path, headers=headers, json=body or None).status_code

    assert ask("see", "GET", "/v1/federations/cardio") == 200
    assert ask("see", "GET", "/v1/federations/other") == 401
    assert ask("see", "POST", "/v1/federations/cardio/invites", name="x") == 401
    assert ask("do", "GET", "/v1/federations/other") == 200
    assert ask("do", "GET", "/v1/federations/cardio") == 401
    assert ask("do", "POST", "/v1/federations/other/invites", name="x") == 401
    assert ask("all", "POST", "/v1/federations/cardio/invites", name="x9") == 200
    assert post(ada, "/tokens/see/revoke").status_code == 303
    assert ask("see", "GET", "/v1/federations/cardio") == 401


def test_every_act_is_in_the_log_with_who_did_it(visitors):
    ada = visitors["ada"]
    assert post(ada, "/invite", federation="cardio", client="east").status_code == 200
    shown = ada.get("/log", params={"actor": "ada", "event": "act"}).text
    assert "invited east" in shown


def test_the_whole_log_is_searched_for_an_actor(network, visitors):
    with opened(network) as store:
        for i in range(250):
            store.log("noise", 1e9 + i, facts={"actor": "nobody", "i": i})
    shown = visitors["ada"].get("/log", params={"actor": "ada", "event": "signed in"}).text
    assert "actor ada" in shown
    first = visitors["ada"].get("/log", params={"actor": "nobody"}).text
    assert "i 249" in first
    assert "i 0<" not in first
    older = re.search(r'href="(/log\?[^"]+)"', first)[1].replace("&amp;", "&")
    assert "i 0<" in visitors["ada"].get(older).text


def test_health_tells_pace_certificate_backup_and_verifies_the_log(visitors):
    ada = visitors["ada"]
    text = ada.get("/health").text
    assert "not since the start" in text
    assert re.search(r"Certificate</dt><dd>until 20\d\d-", text)
    assert re.search(r"[\d.]+ a minute since the start; 95 % within [\d.]+ s", text)
    assert "Last backup</dt><dd>never" in text
    assert "Database</dt><dd>sqlite" in text
    assert post(ada, "/health/verify").status_code == 303
    assert "lines unbroken" in ada.get("/health").text


def test_the_api_is_described_without_help_from_elsewhere(visitors):
    page = visitors["vera"].get("/docs")
    assert "/v1/federations/{federation}/jobs" in page.text
    assert "http" not in re.sub(r"https?://127[^\s\"]*", "", page.text.replace("httponly", ""))
    assert "unsafe" not in page.headers["content-security-policy"]


# --- data and comparison ---


def test_the_data_page_shows_what_clients_told_and_no_small_counts(network, visitors):
    vera = visitors["vera"]
    with network.connect("look") as federation:
        found = so.describe(federation)
    text = vera.get("/federations/cardio/data").text
    assert "As clients told job look" in text
    assert '<th scope="row">x0</th><td>numeric' in text
    cells = re.findall(r'<td class="number">([^<]+)</td>', text)
    counts = found.classes.reshape(-1).tolist()
    for count in counts:
        assert (str(count) if count >= 5 else "&lt; 5") in cells
    assert any(count < 5 for count in counts), "a class of which one client has few rows"
    assert cells.count("&lt; 5") == sum(count < 5 for count in counts)


STRANGE = [
    None, [], "x", {"features": 3}, {"features": [[["a"], "numeric", []]]},
    {"features": [["a", "numeric", []]], "target": "none", "classes": [], "outputs": 0,
     "rows": "many", "empty": False, "gaps": []},
    {"features": [["a", "categorical", [1, 2]]], "target": "classes", "classes": [[1], [2]],
     "outputs": 0, "rows": 7, "empty": False, "gaps": [["x"]]},
    {"features": [["a", "categorical", [1, 2]]], "target": "classes", "classes": [1, 2],
     "outputs": 0, "rows": 70, "empty": False, "gaps": [99]},
]  # fmt: skip


def test_whatever_clients_answer_pages_are_shown(network, visitors):
    driver = network.driver()
    with opened(network) as store:
        spec = driver.upload(Description(
            job="odd", federation="other", kind="driven", owner="", seed=0,
            learner={"kind": "X", "rounds": 10**18},
        ).to_bytes())  # fmt: skip
        store.enrol("other", "odd", bytes(32), bytes(32), {})
        client = store.clients("other")[-1].id
        store.add_job("other", NewJob("odd", "driven", spec, 0, ""), time.time())
        job = store.set_job_state("odd", "running", "", time.time())
        for i in range(2):
            store.log("round", 1e9 + i, of=job, facts={"round": i})
        for i, answer in enumerate(STRANGE):
            frame = encode(answer)
            new = NewAsk(task="data.describe", version=1, payload=spec, round=0, clients=[client])
            store.add_ask("odd", i, new, time.time())
            reply = NewReply(
                status="ok", digest=driver.upload(frame), size=len(frame), signature="00" * 64
            )
            add_reply(store, "odd", i, "other", client, reply, time.time())
            page = visitors["olga"].get("/federations/other/data")
            assert page.status_code == 200, answer
    driver.close()
    assert "70" in page.text
    for path in ("/jobs/odd", "/federations/other/compare?job.odd=on", "/log?client=²&before=²"):
        assert visitors["olga"].get(path).status_code == 200, path


def test_jobs_are_compared_side_by_side(network, visitors):
    with opened(network) as store:
        ada = network.driver()
        for seed, (lam, score) in enumerate([(0.1, 0.7), (0.1, 0.9), (0.5, 0.2)]):
            described = Description(
                job=f"c{seed}", federation="cardio", kind="managed", owner="ada", seed=seed,
                learner={"kind": "FedHEONN", "lam": lam},
            )  # fmt: skip
            new = NewJob.of(described, id=f"c{seed}", spec=ada.upload(described.to_bytes()))
            job = store.add_job("cardio", new, 1e9)
            for i in range(3):
                store.log("round", 1e9, of=job, facts={"round": i, "loss": 1.0 / (1 + i)})
            store.log("evaluated", 1e9, of=job, facts={"accuracy": score})
            store.set_job_state(job.id, "cancelled", "", 1e9 + 5)
        ada.close()
    chosen = {"job.c0": "on", "job.c1": "on", "job.c2": "on", "job.nope": "on"}
    text = visitors["vera"].get("/federations/cardio/compare", params=chosen).text
    row = re.search(r'<th scope="row">lam</th>(.*?)</tr>', text)[1]
    assert re.findall(r"<td>([^<]*)</td>", row) == ["0.1", "0.1", "0.5"]
    assert "0.8</td>" in text, "the mean of two jobs that differ in the seed alone"
    assert '"c2: loss":0.5' in text


def test_when_a_job_ends_is_estimated_by_its_pace(network, visitors):
    now = time.time()
    with opened(network) as store:
        ada = network.driver()
        described = Description(
            job="slow", federation="cardio", kind="driven", owner="ada", seed=0,
            learner={"kind": "FedLinear", "rounds": 14},
        )  # fmt: skip
        new = NewJob.of(described, id="slow", spec=ada.upload(described.to_bytes()))
        ada.close()
        store.add_job("cardio", new, now)
        job = store.set_job_state("slow", "running", "", now)
        for i in range(4):
            store.log("round", now - 3600.0 * (4 - i), of=job, facts={"round": i})
    text = visitors["vera"].get("/jobs/slow").text
    shown = re.search(r"Estimated end</dt><dd>([^<]+) UTC", text)[1]
    end = datetime.fromisoformat(f"{shown}+00:00").timestamp()
    assert abs(end - (time.time() + 10 * 3600)) < 600
    assert post(visitors["rita"], "/jobs/slow/cancel", reason="over").status_code == 303


# --- in a browser ---


@pytest.fixture
def look(browser, network):
    """Opens pages for a person, and notes what the console says and which hosts are asked."""
    said, hosts, contexts = [], set(), []

    def sign_in(name, **options):
        context = browser.new_context(ignore_https_errors=True, **options)
        context.set_default_timeout(300_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        page.on("request", lambda r: hosts.add(r.url.split("/")[2]) if "//" in r.url else None)
        page.goto(f"{network.url}/sign-in")
        page.fill("#name", name)
        page.fill("#password", PASSWORD)
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:has-text('Federations')")
        return page

    yield sign_in
    for context in contexts:
        context.close()
    assert said == []
    assert hosts <= {network.url.split("//")[1]}


def test_what_people_write_stays_text(network, look, visitors):
    toml = 'name = "evil"\nfederation = "cardio"\nclients = 9\n[learner]\nkind = "FedLinear"\n'
    toml += f"# {EVIL}</textarea><script>alert(2)</script>\n"
    toml = f'owner = "{EVIL}"\n' + toml
    assert post(visitors["rita"], "/federations/cardio/jobs", toml=toml).status_code == 303
    post(visitors["rita"], "/jobs/evil/cancel", reason=EVIL)
    page = look("ada")
    clone = "/federations/cardio/new-job?like=evil"
    for path in ("/jobs/evil", "/federations/cardio", "/log", clone):
        page.goto(network.url + path)
        assert page.locator("img").count() == 0
        assert "onerror" in page.inner_text("main") or "onerror" in page.content()


def test_categories_columns_and_classes_stay_text(network, look):
    """What clients say of their tables, on the page of the data and on that of the job."""
    driver = network.driver()
    classes = np.array([f"no {EVIL}", f"yes {EVIL}"])
    told = {
        "features": [[f"c {EVIL}", "categorical", [f"a {EVIL}", "</script><script>alert(3)"]]],
        "target": "classes", "classes": classes, "outputs": 2, "rows": 70, "empty": False,
        "gaps": [],
    }  # fmt: skip
    X = np.arange(40.0).reshape(20, 2)
    model = so.FedLinear(rounds=1).fit(so.simulate(X, classes[np.arange(20) % 2], clients=2))
    judge = {"model": describe_fitted(model.for_prediction()), "part": "train"}
    counts = {"confusion": np.array([[20, 9], [8, 30]]), "rows": 67}
    with opened(network) as store:
        store.add_federation("evil")
        store.enrol("evil", "teller", b"e" * 32, b"f" * 32, {})
        spec = driver.upload(encode({"learner": {"kind": EVIL}, "toml": EVIL}))
        store.add_job("evil", NewJob("evil-rows", "driven", spec, 0, EVIL), time.time())
        job = store.set_job_state("evil-rows", "running", "", time.time())
        store.take_note(job, NewNote("round", {"round": 0, EVIL: 0.5}, {0: 0.5}), time.time())
        for seq, (task, asked, answer) in enumerate(
            [("data.describe", None, told), ("learner.evaluate", judge, counts)]
        ):
            payload, frame = driver.upload(encode(asked)), encode(answer)
            new = NewAsk(task=task, version=1, payload=payload, round=0, clients=[0])
            store.add_ask("evil-rows", seq, new, time.time())
            reply = NewReply(
                status="ok", digest=driver.upload(frame), size=len(frame), signature="00" * 64
            )
            add_reply(store, "evil-rows", seq, "evil", 0, reply, time.time())
    driver.close()
    page = look("ada")
    page.goto(f"{network.url}/federations/evil/data")
    shown = page.inner_text("main")
    for text in (f"c {EVIL}", f"a {EVIL}", "</script><script>alert(3)", f"no {EVIL}"):
        assert text in shown
    assert page.locator("img").count() == 0
    page.goto(f"{network.url}/jobs/evil-rows")
    assert f"yes {EVIL}" in page.inner_text("table.confusion")
    page.wait_for_selector("#curves .u-legend")
    assert EVIL in page.inner_text("#curves .u-legend")
    assert page.locator("img").count() == 0


def test_expired_tokens_open_nothing(network):
    with Store(f"sqlite:///{network.folder}/coordinator/coordinator.sqlite") as store:
        secret = new_token()
        old = TokenRow(token_hash(secret), "old", "administrator", None, 0.0, 1.0)
        store.add_token(old, "test")
    with connection(network) as client:
        headers = {"Authorization": f"Bearer {secret}"}
        assert client.get("/v1/federations/cardio", headers=headers).status_code == 401
