"""Jobs that a coordinator runs by itself, standing jobs, checkpoints, and the signed log."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import solera as so
from solera.cli.app import app
from solera.core.component import describe_fitted
from solera.core.payload import encode
from solera.evaluation.figure import figures
from solera.learn.base import from_bytes

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import AGENT, Network, Program, kill  # noqa: E402

from solera.serve import wire  # noqa: E402
from solera.serve.agent.home import connect_to, read_place  # noqa: E402
from solera.serve.agent.sources import open_source  # noqa: E402
from solera.serve.audit import verify  # noqa: E402
from solera.serve.connection import CoordinatorError  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.description import Description  # noqa: E402
from solera.serve.driver import engine as http  # noqa: E402
from solera.serve.identity import Identity, ask_digest, reply_message  # noqa: E402

rng = np.random.default_rng(0)
X = rng.normal(size=(160, 4))
Y = (X @ rng.normal(size=(4, 3))).argmax(axis=1)
DATA = so.data.FederatedData(X, Y, np.array([0, 50, 90, 120, 160]))
NAMES = ("north", "south", "west", "east")

MANAGED = """
name = "{name}"
federation = "cardio"
owner = "dr. vega"
seed = 3
clients = 3
evaluate = "train"

[learner]
kind = "FedLinear"
rounds = {rounds}
"""
OWNER = """
import sys
from solera.cli.app import app
url, data, policy, folder = sys.argv[1:]
options = ["--data", data, "--target", "y", "--policy", policy, "--folder", folder, "--wait", "5"]
app(["join", url, *options])
"""
SAME_CIPHERTEXTS = """
from hashlib import blake2b
from solera.privacy.he import keys
from solera.privacy.he.ring import context, dump, seal


def encrypt_block(self, plaintext):
    here = context(self.parameters, blake2b(dump(plaintext)).digest())
    return dump(seal().Encryptor(here, self._key).encrypt_symmetric(plaintext))


keys.SecretKey.encrypt_block = encrypt_block
"""
STANDING = """
name = "{name}"
federation = "cardio"
seed = 3
clients = 2
standing = true

[learner]
kind = "FedHEONN"
lam = 0.1
"""


@pytest.fixture
def network(tmp_path):
    here = Network(tmp_path)
    here.start()
    yield here
    here.close()


def join(network, *names):
    for name in names:
        network.enrol(name)
        network.give(name, DATA, NAMES.index(name))
        network.work(name)


def start(network, text, name, kind="managed"):
    driver = network.driver()
    who = {"seed": 3, "owner": "dr. vega", "kind": kind}
    described = Description(job=name, federation="cardio", toml=text, **who)
    new = {"id": name, "spec": driver.upload(described.to_bytes()), **who}
    told = driver.request("POST", "/v1/federations/cardio/jobs", json=new).json()
    driver.close()
    return told


def command(network, *arguments):
    """What ``solera job …`` prints."""
    where = {"SOLERA_URL": network.url, "SOLERA_TOKEN": network.token, "SOLERA_CA": str(network.ca)}
    result = CliRunner().invoke(app, ["job", *arguments], env=where)
    assert result.exit_code == 0, result.output
    return result.stdout


def get(network, path):
    driver = network.driver()
    try:
        return driver.request("GET", path).json()
    finally:
        driver.close()


def until(network, job, ready, seconds=300):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        told = get(network, f"/v1/jobs/{job}")
        if ready(told):
            return told
        assert told["state"] not in ("failed", "expired"), told["reason"]
        time.sleep(0.1)
    raise TimeoutError(told)


def model_of(network, job):
    driver = network.driver()
    told = driver.request("GET", f"/v1/jobs/{job}/model").json()
    frame = driver.download(told["digest"])
    driver.close()
    return from_bytes(frame), frame


def finished(told):
    return told["state"] == "finished"


JOIN = """
import sys
from solera.cli.app import main
main()
"""


def test_a_job_is_judged_on_the_rows_that_owners_keep_apart(network, tmp_path):
    """Two owners join by command with --test 0.2; the model never sees a fifth of their rows."""
    policy = tmp_path / "policy.toml"
    policy.write_text('policy = "trusted"\n')
    judged = []
    driver = network.driver()
    for k, name in enumerate(("north", "south")):
        rows = np.random.default_rng(k).normal(size=(1000, 2))
        ill = rows[:, 0] + np.random.default_rng(k + 10).normal(size=1000) > 0
        lines = [f"{a!r},{b!r},{int(c)}" for (a, b), c in zip(rows.tolist(), ill, strict=True)]
        file = tmp_path / f"{name}.csv"
        file.write_text("\n".join(["a,b,ill", *lines]))
        path = "/v1/federations/cardio/invites"
        token = driver.request("POST", path, json={"name": name}).json()["token"]
        about = ["--data", str(file), "--target", "ill", "--test", "0.2", "--policy", str(policy)]
        about += ["--token", token, "--ca", network.ca, "--folder", str(tmp_path / name)]
        network.agents[name] = Program(JOIN, "join", network.url, *about)
        judged.append(open_source(str(file), target="ill", test=0.2).segments([0], "test")[0])
    driver.close()
    text = MANAGED.replace('"train"', '"test"').replace("clients = 3", "clients = 2")
    start(network, text.format(name="apart", rounds=3), "apart")
    until(network, "apart", finished)
    model, _ = model_of(network, "apart")
    events = get(network, "/v1/jobs/apart/events")
    (metrics,) = [e["facts"] for e in events if e["event"] == "evaluated"]
    assert [len(rows) for rows in judged] == [200, 200]
    hits = sum((model.predict(rows.X) == rows.y).sum() for rows in judged)
    assert metrics["accuracy"]["value"] == pytest.approx(hits / 400), metrics
    assert (metrics["accuracy"]["part"], metrics["accuracy"]["rows"]) == ("test", 400)


def some_clients(*indices):
    offsets = np.array([0, 50, 90, 120, 160])
    rows = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in indices])
    sizes = [offsets[i + 1] - offsets[i] for i in indices]
    return so.data.FederatedData(X[rows], Y[rows], np.concatenate([[0], np.cumsum(sizes)]))


def test_a_managed_job_waits_for_its_clients_and_gives_what_a_driver_would_get(network):
    join(network, "north", "south")
    start(network, MANAGED.format(name="m", rounds=4), "m")
    until(network, "m", lambda told: told["state"] == "waiting")
    join(network, "west")
    told = until(network, "m", finished)
    assert told["clients"] == [0, 1, 2]
    model, _ = model_of(network, "m")
    expected = so.FedLinear(rounds=4).fit(network.connect("d", seed=3))
    assert encode(describe_fitted(model)) == encode(describe_fitted(expected))
    events = get(network, "/v1/jobs/m/events")
    rounds = [e["facts"]["round"] for e in events if e["event"] == "round"]
    assert rounds == [0, 1, 2, 3]
    (judged,) = [e["facts"] for e in events if e["event"] == "evaluated"]
    here = expected.evaluate(so.simulate(some_clients(0, 1, 2)), "train")["accuracy"]
    assert judged["accuracy"]["value"] == pytest.approx(float(here))
    assert figures(judged)["accuracy"].whose == here.whose == "120 train rows of 3 clients"
    assert f"accuracy {here.number} of {here.whose}" in " ".join(
        command(network, "show", "m").split()
    )
    shown = json.loads(command(network, "show", "m", "--json"))
    assert shown["judged"]["accuracy"] == judged["accuracy"]
    last = command(network, "logs", "m").splitlines()
    whose = "of an unknown number of train rows of 3 clients"
    assert sum(" loss=" in line and whose in line for line in last) == 4


def test_a_managed_job_survives_its_coordinator(network):
    join(network, "north", "south", "west")
    start(network, MANAGED.format(name="calm", rounds=25), "calm")
    until(network, "calm", finished)
    start(network, MANAGED.format(name="rough", rounds=25), "rough")
    for asks in (4, 12):
        until(network, "rough", lambda told, n=asks: told["progress"]["asks"] >= n)
        kill(network.coordinator)
        network.start()
    until(network, "rough", finished)
    calm, rough = (model_of(network, job)[0] for job in ("calm", "rough"))
    assert encode(describe_fitted(rough)) == encode(describe_fitted(calm))
    rounds = [e["facts"]["round"] for e in get(network, "/v1/jobs/rough/events?event=round")]
    assert rounds == list(range(25))


def test_a_job_that_cannot_be_done_fails_with_its_reason(network):
    join(network, "north", "south", "west")
    text = MANAGED.format(name="bad", rounds=2).replace("FedLinear", "FedHEONN")
    start(network, text.replace("rounds = 2", "lam = -1.0"), "bad")
    end = time.monotonic() + 300
    while (told := get(network, "/v1/jobs/bad"))["state"] != "failed":
        assert time.monotonic() < end, told
        time.sleep(0.1)
    assert "lam" in told["reason"]


def test_a_managed_job_can_be_cancelled(network):
    join(network, "north")
    start(network, MANAGED.format(name="m", rounds=4), "m")
    until(network, "m", lambda told: told["state"] == "waiting")
    driver = network.driver()
    driver.request("POST", "/v1/jobs/m/state", json={"state": "cancelled", "reason": "wrong"})
    driver.close()
    join(network, "south", "west")
    time.sleep(1.5)
    told = get(network, "/v1/jobs/m")
    assert (told["state"], told["reason"], told["progress"]) == ("cancelled", "wrong", {"asks": 0})


def contributions(number):
    return lambda told: told["model"] and len(told["model"]["contributions"]) == number


def test_clients_contribute_to_a_standing_job_when_they_come(network):
    join(network, "north", "south")
    start(network, STANDING.format(name="s"), "s", "standing")
    until(network, "s", contributions(2))
    first = so.FedHEONN(lam=0.1).fit(so.simulate(some_clients(0, 1)))
    np.testing.assert_allclose(model_of(network, "s")[0].weights_, first.weights_, rtol=1e-9)

    kill(network.coordinator)
    network.start()
    join(network, "west", "east")
    until(network, "s", contributions(4))
    all_rows = so.FedHEONN(lam=0.1).fit(so.simulate(DATA))
    np.testing.assert_allclose(model_of(network, "s")[0].weights_, all_rows.weights_, rtol=1e-9)

    # Everyone at once gives the same bytes as one after the other.
    start(network, STANDING.format(name="t").replace("clients = 2", "clients = 4"), "t", "standing")
    until(network, "t", contributions(4))
    assert model_of(network, "t")[1] == model_of(network, "s")[1]


def test_a_new_contribution_replaces_the_one_before(network):
    join(network, "north", "south")
    start(network, STANDING.format(name="s"), "s", "standing")
    version = until(network, "s", contributions(2))["model"]["version"]
    network.give("south", DATA, NAMES.index("east"))
    number = network.contribute("south", "s")
    told = until(network, "s", lambda told: told["model"]["version"] > version)
    assert told["model"]["contributions"]["1"] == number
    assert get(network, f"/v1/jobs/s/contributions/{number}")["state"] == "folded"
    expected = so.FedHEONN(lam=0.1).fit(so.simulate(some_clients(0, 3)))
    np.testing.assert_allclose(model_of(network, "s")[0].weights_, expected.weights_, rtol=1e-9)


def unsound_replies():
    """Answers to ``heonn.statistics`` that must not be folded, and what is said of each."""
    sound = so.FedHEONN(lam=0.1).fit(so.simulate(some_clients(0, 1))).statistics_
    grams = sound["shape"]["grams"]
    wide = np.concatenate([sound["moments"], sound["moments"]], axis=1)
    yield "NaN", sound | {"moments": sound["moments"] * np.nan}, "NaN"
    yield "moments", sound | {"moments": wide}, "instead of 1 × 5 × 3"
    yield "grams", sound | {"shape": {"grams": grams[..., :-1]}}, "instead of 1 × 1 × 15"
    yield "no array", sound | {"shape": {"grams": "many"}}, "instead of 1 × 1 × 15"
    yield "no table", [1, 2, 3], "no entry 'shape'"
    yield "no payload", b"noise", ""


def test_an_unsound_contribution_to_a_standing_job_is_turned_away_and_named(network):
    """The first client answers by hand: NaN, wrong shapes, noise, and at last its statistics."""
    home = network.enrol("north")
    join(network, "south", "west")
    start(network, STANDING.format(name="s").replace("clients = 2", "clients = 3"), "s", "standing")
    place, identity = read_place(home), Identity.load(home)
    connection = connect_to(place, identity, 20)
    expected = so.FedHEONN(lam=0.1).fit(so.simulate(some_clients(1, 2)))

    def next_ask(task):
        end = time.monotonic() + 300
        while time.monotonic() < end:
            asks = connection.call("GET", "/v1/work?wait=1", wire.Work).asks
            if asks and asks[0].task == task:
                return asks[0]
        raise TimeoutError(task)

    def answer(ask, frame):
        digest = connection.upload(frame)
        asked = ask_digest(ask.task, ask.version, ask.payload, ask.prepare, ask.round, ask.seed)
        signed = reply_message("cardio", "s", ask.sequence, "0", asked, "ok", digest, len(frame))
        signature = identity.sign(signed).hex()
        new = wire.NewReply(status="ok", digest=digest, size=len(frame), signature=signature)
        connection.request("POST", f"/v1/jobs/s/asks/{ask.sequence}/reply", json=new)

    described = next_ask("data.describe")
    network.give("north", DATA, 0)
    network.work("north")
    until(network, "s", contributions(3))
    kill(network.agents["north"])
    for name, reply, reason in unsound_replies():
        number = network.contribute("north", "s")
        ask = next_ask("heonn.statistics")
        assert ask.sequence == number > described.sequence
        answer(ask, reply if isinstance(reply, bytes) else encode(reply))
        path = f"/v1/jobs/s/contributions/{number}"
        until(network, "s", lambda _, path=path: get(network, path)["state"] != "queued")
        told = until(network, "s", lambda told: set(told["model"]["contributions"]) == {"1", "2"})
        contribution = get(network, path)
        assert contribution["state"] == "invalid", name
        assert contribution["reason"].startswith(f"ask {number}: "), name
        assert reason in contribution["reason"], name
        events = get(network, "/v1/jobs/s/events?event=invalid")
        assert (events[-1]["client"], events[-1]["reason"]) == (0, contribution["reason"])
        assert told["state"] == "running"
        learned = model_of(network, "s")[0].weights_
        np.testing.assert_allclose(learned, expected.weights_, rtol=1e-9)

    network.contribute("north", "s")
    network.work("north")
    until(network, "s", contributions(3))
    everyone = so.FedHEONN(lam=0.1).fit(so.simulate(some_clients(0, 1, 2)))
    learned = model_of(network, "s")[0].weights_
    np.testing.assert_allclose(learned, everyone.weights_, rtol=1e-9)
    connection.close()


def test_checkpoints_let_go_of_replies_and_a_driver_goes_on_from_them(network, monkeypatch):
    monkeypatch.setattr(http, "SAVE_SECONDS", 0.0)
    join(network, "north", "south", "west")
    calm = so.FedLinear(rounds=8).fit(network.connect("calm", seed=1))

    class Dies(so.callbacks.Callback):
        def on_round(self, learner, round):
            if round.index == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        so.FedLinear(rounds=8).fit(network.connect("rough", seed=1), callbacks=[Dies()])
    home = network.folder / "coordinator"
    with Store(f"sqlite:///{home / 'coordinator.sqlite'}") as store:
        asks = [store.ask("rough", k) for k in range(6)]
        first = next(k for k, ask in enumerate(asks) if ask.task == "linear.train")
        pruned = [ask.pruned for ask in asks[first:]]
        assert pruned[:4] == [True] * 4
        assert not any(ask.pruned for ask in asks[:first])
    rough = so.FedLinear(rounds=8).fit(network.connect("rough", seed=1))
    assert encode(describe_fitted(rough)) == encode(describe_fitted(calm))
    assert len(rough.history_) == 8


def test_the_coordinator_signs_what_was_asked_and_what_came_back(network):
    join(network, "north", "south", "west")
    so.FedLinear(rounds=2).fit(network.connect("j", seed=1))
    kill(network.coordinator)
    network.start()
    so.FedLinear(rounds=3).fit(network.connect("k", seed=1))
    home = network.folder / "coordinator"
    log, key = home / "audit.log", Identity.load(home / "identity").sign_key
    asked = get(network, "/v1/jobs/k")["progress"]["asks"]
    end = time.monotonic() + 600
    while True:
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        replied = [x["facts"] for x in lines if x["event"] == "replied"]
        if len([f for f in replied if f["job"] == "k"]) >= 3 * asked or time.monotonic() > end:
            break
        time.sleep(0.1)
    report = verify(log, key)
    assert report.ok, report.problems
    numbers = [x["facts"]["event"] for x in lines]
    assert numbers == sorted(set(numbers))
    with Store(f"sqlite:///{home / 'coordinator.sqlite'}") as store:
        for job in ("j", "k"):
            told = {(f["seq"], f["client"]): f["digest"] for f in replied if f["job"] == job}
            asks = [x["facts"] for x in lines if x["event"] == "asked" and x["facts"]["job"] == job]
            assert len(asks) == store.progress(job).asks
            for ask in asks:
                for row in store.replies(job, ask["seq"]):
                    assert told.pop((ask["seq"], row.client)) == row.digest
            assert not told


def test_nobody_asks_in_a_job_that_the_coordinator_runs(network):
    """``PUT /asks/100000`` into an approved managed job ran."""
    join(network, *NAMES[:3])
    start(network, MANAGED.format(name="m", rounds=2), "m")
    for path in ("asks/100000", "question", "checkpoint", "model", "notes"):
        method = "POST" if path == "notes" else "PUT"
        bodies = {
            "notes": wire.NewNote("round", {"loss": 0.0}),
            "model": wire.NewModel("ab" * 32),
            "checkpoint": wire.NewCheckpoint(0, 1, "ab" * 32),
            "question": wire.Call(task="data.describe", version=1, payload="ab" * 32),
        }
        ask = wire.NewAsk(task="data.describe", version=1, payload="ab" * 32, round=0, clients=[0])
        driver = network.driver()
        with pytest.raises(CoordinatorError, match="run by the coordinator, which alone asks"):
            driver.request(method, f"/v1/jobs/m/{path}", json=bodies.get(path, ask))
        driver.close()
    until(network, "m", lambda job: job["state"] == "finished")


@pytest.mark.parametrize("encrypt", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_who_leaves_a_standing_job_was_never_in_its_model(network, tmp_path, encrypt, monkeypatch):
    """The same bytes as in a federation without the client, and a receipt.

    Encrypted: where equal numbers have equal ciphertexts, so that those of two federations can be
    compared.
    """
    from typer.testing import CliRunner

    from solera.cli.app import app
    from solera.serve.statements import is_genuine

    described = STANDING.format(name="s")
    if encrypt:
        pytest.importorskip("tenseal")
        monkeypatch.setenv("SOLERA_KEYS", str(tmp_path / "keys"))
        so.keys.create(tmp_path / "keys", "ward", so.keys.SMALL_CLIENT)
        monkeypatch.setattr("network.AGENT", SAME_CIPHERTEXTS + AGENT)
        described += "[learner.encrypt]\nkind = 'Encryption'\nkey = 'ward'\n"
    join(network, "north", "west", "south")  # the numbers of west do not set the scale
    start(network, described.replace("clients = 2", "clients = 3"), "s", "standing")
    version = until(network, "s", contributions(3))["model"]["version"]
    home = network.folder / "west"
    kill(network.agents["west"])
    result = CliRunner().invoke(app, ["leave", "--folder", str(home), "--delete"])
    assert result.exit_code == 0, result.output
    assert "folded again without it: s" in result.output
    told = until(network, "s", lambda told: told["model"]["version"] > version)
    assert set(told["model"]["contributions"]) == {"0", "2"}

    receipt = wire.msgspec.json.decode((home / "receipt.json").read_bytes(), type=wire.Receipt)
    assert is_genuine(receipt)
    assert receipt.refolded == ["s"]
    assert not is_genuine(wire.msgspec.structs.replace(receipt, refolded=[]))

    never = Network(tmp_path / "never")
    try:
        never.start()
        join(never, "north", "south")
        start(never, described, "s", "standing")
        until(never, "s", contributions(2))
        assert model_of(network, "s")[1] == model_of(never, "s")[1]
    finally:
        never.close()


def test_a_person_who_withdraws_is_out_of_a_standing_model_with_the_next_contribution(network):
    """Real agents on files; the model is that of rows that never were the person's."""
    from typer.testing import CliRunner

    from solera.cli.app import app

    policy = network.folder / "policy.toml"
    policy.write_text('policy = "trusted"\n[data]\nunit = "patient"\ncolumns = ["a", "b"]\n')
    persons = {"north": np.arange(40) // 2, "south": np.arange(30) // 3}
    for i, (name, ids) in enumerate(persons.items()):
        rows = zip(ids, X[40 * i :].tolist(), Y[40 * i :].tolist(), strict=False)
        lines = [f"P{person},{a},{b},{y}" for person, (a, b, *_), y in rows]
        (network.folder / f"{name}.csv").write_text("\n".join(["patient,a,b,y", *lines]))
        home = network.enrol(name)
        files = [str(path) for path in (network.folder / f"{name}.csv", policy, home)]
        network.agents[name] = Program(OWNER, network.url, *files)
    start(network, STANDING.format(name="s"), "s", "standing")
    version = until(network, "s", contributions(2))["model"]["version"]

    def expected(gone):
        parts = [X[:40, :2], X[40:70, :2][persons["south"] != gone]]
        targets = [Y[:40], Y[40:70][persons["south"] != gone]]
        return so.FedHEONN(lam=0.1).fit(so.simulate(list(zip(parts, targets, strict=True))))

    everyone, without = expected(None).weights_, expected(4).weights_
    np.testing.assert_allclose(model_of(network, "s")[0].weights_, everyone, rtol=1e-9)
    folder = ("--folder", str(network.folder / "south"))
    for command in (["withdraw", "--unit", "P4"], ["contribute", "s"]):
        result = CliRunner().invoke(app, [*command, *folder])
        assert result.exit_code == 0, result.output
    until(network, "s", lambda told: told["model"]["version"] > version)
    found = model_of(network, "s")[0].weights_
    np.testing.assert_allclose(found, without, rtol=1e-9)
    assert not np.allclose(found, everyone, rtol=1e-4)
