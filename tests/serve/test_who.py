"""Who is who: federations of one coordinator, and coordinators that lie to drivers and clients."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import solera as so
from solera.cli.app import app
from solera.core.errors import UsageError
from solera.core.payload import encode

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network, kill  # noqa: E402
from test_security import Hand, federation, http, staff  # noqa: E402

from solera.serve import wire  # noqa: E402
from solera.serve.connection import Connection, CoordinatorError  # noqa: E402
from solera.serve.driver.driven import connect  # noqa: E402
from solera.serve.driver.signatures import ForgedReply  # noqa: E402
from solera.serve.identity import Identity, seal_key_message  # noqa: E402
from solera.serve.peers import KnownKeys, WrongKey, find_peers  # noqa: E402


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    here = Network(tmp_path_factory.mktemp("who"))
    try:
        here.start()
        yield here
    finally:
        here.close()


# --- federations that share a coordinator --------------------------------------------------------


class Elsewhere(Network):
    """A federation of the same coordinator, whose clients live in a folder of their own."""

    def __init__(self, network, name):
        self.__dict__ |= network.__dict__
        self.federation, self.agents = name, {}
        self.home = network.folder / name
        self.home.mkdir()

    def enrol(self, name):
        made = super().enrol(name)
        shutil.move(made, self.home / name)
        return self.home / name


class Member(Hand):
    """A client with what its federation has: a job, an ask, a blob, a contribution."""

    def __init__(self, network, name):
        self.network, self.folder, self.digests = network, network.home / name, {}
        self.identity = Identity.load(self.folder)
        self.number = int(json.loads((self.folder / "place.json").read_text())["client"])
        self.connection = Connection(network.url, self.headers, ca=network.ca, patience=60)


def equal_federations(network, *names):
    """Federations with clients of the same numbers and names, and an open ask in each."""
    found = []
    for name in names:
        here = Elsewhere(network, name)
        for client in ("north", "south"):
            here.enrol(client)
        driver = here.driver()
        secret = driver.upload(encode({"secret of": name}))
        new = wire.NewJob(f"{name}-job", "driven", driver.upload(encode(name)), 0, "ana")
        driver.request("POST", f"/v1/federations/{name}/jobs", json=new)
        ask = wire.NewAsk(task="t", version=1, payload=secret, round=0, clients=[0, 1])
        driver.request("PUT", f"/v1/jobs/{name}-job/asks/0", json=ask)
        model = wire.NewModel(driver.upload(encode({"model of": name})))
        driver.request("PUT", f"/v1/jobs/{name}-job/model", json=model)
        found.append((here, secret, model.digest))
        driver.close()
    return found


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_crossed_requests_are_all_refused(network, count):
    """Clients of one federation ask for, and answer for, what belongs to the other."""
    names = f"red-{count}", f"blue-{count}"
    (red, _, _), (blue, secret, model) = equal_federations(network, *names)
    members = [Member(red, name) for name in ("north", "south")]
    mine, job = (f"{name}-job" for name in names)
    theirs = Member(blue, "north").asked(job, 0)
    forged = encode({"answer": "of the other federation"})
    chance = random.Random(3)

    def reply(member):
        member.digests[job, 0] = chance.choice([theirs, "ab" * 32])
        member.reply(job, 0, forged)

    def as_theirs(member):
        member.digests[job, 0] = theirs
        member.network = blue  # signed for the other federation
        try:
            member.reply(job, 0, forged)
        finally:
            member.network = red

    def get(path):
        return lambda member: member.connection.request("GET", path)

    def post(path):
        return lambda member: member.connection.request("POST", path)

    crossed = [
        reply,
        as_theirs,
        get(f"/v1/blobs/{secret}"),
        get(f"/v1/blobs/{model}"),
        get(f"/v1/jobs/{job}/model"),
        get(f"/v1/jobs/{job}/contributions/0"),
        post(f"/v1/jobs/{job}/contributions"),
        get(f"/v1/jobs/{job}"),
        get(f"/v1/federations/{names[1]}"),
        post(f"/v1/uploads/{secret}"),
    ]
    refused = 0
    for member, request in itertools.islice(
        itertools.cycle(itertools.product(members, crossed)), count
    ):
        member.connection._headers = member.headers
        with pytest.raises(CoordinatorError, match=r"status 4\d\d"):
            request(member)
        refused += 1
    assert refused == count
    answered = blue.driver().call("GET", f"/v1/jobs/{job}/asks/0/replies", wire.Replies)
    assert (answered.complete, answered.replies) == (False, []), "none of it counted"
    for member in members:
        assert [order["job"] for order in member.orders(wait=0)] == [mine]
        assert {peer.name for peer in peers_of(member).values()} == {"north", "south"}
        assert member.reply(mine, 0, forged) == {"stored": True}, "its own it may"
    print(f"{refused} crossed requests refused")


def peers_of(member, known=None):
    return find_peers(member.connection, member.network.federation, known or KnownKeys())


def test_whether_a_blob_exists_is_told_to_those_who_may_read_it(network):
    lab = federation(network, "lab")
    lab.enrol("curious")
    hand = Hand(lab, "curious")
    driver = lab.driver()
    fed = lab.connect("for-curious")
    fed.engine.open_job()._post(_ask(fed))
    known = driver.upload(encode("what nobody should know of"))
    absent = "ab" * 32
    said = []
    for digest in (known, absent):
        answers = [
            hand.connection.request("GET", f"/v1/uploads/{digest}").json(),
            hand.connection.request("PUT", f"/v1/uploads/{digest}?offset=0", body=b"?").json(),
        ]
        for method, path in (
            ("POST", f"/v1/uploads/{digest}"),
            ("GET", f"/v1/blobs/{digest}"),
            ("POST", f"/v1/uploads/{digest}"),
        ):
            with pytest.raises(CoordinatorError) as caught:
                hand.connection.request(method, path)
            answers.append(str(caught.value).replace(digest, "…"))
        with pytest.raises(CoordinatorError) as caught:
            reply_naming(hand, "for-curious", 0, digest, 30)
        answers.append(str(caught.value))
        said.append(answers)
    assert said[0] == said[1]


def _ask(fed):
    from solera.core.engine import Ask

    return Ask("data.describe", 1, None, np.array([0]), fed.seed)


def reply_naming(hand, job, sequence, digest, size):
    """A reply with a blob that was not sent."""
    from solera.serve.identity import reply_message

    asked = hand.asked(job, sequence)
    what = (job, sequence, str(hand.number), asked, "ok", digest, size)
    signature = hand.identity.sign(reply_message(hand.network.federation, *what)).hex()
    said = {"status": "ok", "digest": digest, "size": size, "signature": signature}
    return hand.connection.request("POST", f"/v1/jobs/{job}/asks/{sequence}/reply", json=said)


# --- a coordinator that starts again -------------------------------------------------------------


def test_a_request_to_an_earlier_start_is_void_and_honest_clients_go_on(tmp_path):
    """A captured request, sent again to the next start of the coordinator."""
    here = Network(tmp_path)
    try:
        here.start()
        here.enrol("north")
        hand = Hand(here, "north")
        captured = hand.headers("GET", "/v1/work?wait=0", b"")
        kill(here.coordinator)
        here.start()
        with http(here) as thief:
            answer = thief.get("/v1/work?wait=0", headers=captured)
            assert answer.status_code == 401
            assert "earlier start" in answer.json()["detail"]
        assert hand.orders(wait=0) == [], "the client learns of the new start by itself"
    finally:
        here.close()


# --- coordinators that lie -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def staffed(network):
    here = federation(network, "staffed")
    staff(here, {"one": None, "two": None})
    return here


class Tampered(Connection):
    """A driver's connection to a coordinator that changes what clients said."""

    change = staticmethod(lambda path, told: told)

    def call(self, method, path, answer, json=None):
        return self.change(path, super().call(method, path, answer, json))


def _other_bytes(connection):
    forged = encode({"gaps": [], "empty": [7]})

    def change(path, told):
        if isinstance(told, wire.Replies) and told.replies:
            digest = connection.upload(forged)
            told.replies[0].digest, told.replies[0].size = digest, len(forged)
            told.replies[0].frame = None
        return told

    return change


def _refused(connection):
    def change(path, told):
        if isinstance(told, wire.Replies) and told.replies:
            told.replies[0].status, told.replies[0].digest = "refused", None
        return told

    return change


def _swapped(connection):
    def change(path, told):
        if isinstance(told, wire.Replies) and len(told.replies) == 2:
            one, two = told.replies
            one.client, two.client = two.client, one.client
        return told

    return change


def _unsigned(connection):
    def change(path, told):
        if isinstance(told, wire.Replies) and told.replies:
            told.replies[0].signature = None
        return told

    return change


def _asked_otherwise(connection):
    """The clients are asked with another round than the driver wanted."""
    real = connection.request

    def request(method, path, *, json=None, **options):
        if isinstance(json, wire.NewAsk):
            json.round += 1
            try:
                return real(method, path, json=json, **options)
            finally:
                json.round -= 1
        return real(method, path, json=json, **options)

    connection.request = request
    return lambda path, told: told


@pytest.mark.parametrize("lie", [_other_bytes, _refused, _swapped, _unsigned, _asked_otherwise])
def test_a_driver_checks_the_clients_signatures_itself(staffed, lie, monkeypatch):
    monkeypatch.setattr("solera.serve.driver.driven.Connection", Tampered)
    fed = staffed.connect()
    assert len(fed.ask("data.flaws", deadline=600).collect()) == 2
    fed.engine.connection.change = lie(fed.engine.connection)
    with pytest.raises(ForgedReply, match="has not signed the reply to ask 1"):
        fed.ask("data.flaws", deadline=600, quorum=0).collect()


def test_a_driver_remembers_keys_and_refuses_others(staffed, tmp_path, monkeypatch):
    file = tmp_path / "known_keys"
    arguments = {"federation": "staffed", "token": staffed.token, "ca": staffed.ca}

    def ask():
        fed = connect(staffed.url, **arguments, known_keys=file)
        return fed.ask("data.flaws", deadline=600).collect()

    assert len(ask()) == 2
    lines = file.read_text().splitlines()
    keys = [Identity.load(staffed.folder / name).sign_key.hex() for name in ("one", "two")]
    assert lines == [f"staffed one {keys[0]}", f"staffed two {keys[1]}"]
    assert file.stat().st_mode & 0o077 == 0
    assert len(ask()) == 2, "the same keys again"
    file.write_text(f"# by telephone\nstaffed one {keys[0]}\nstaffed two {'ab' * 32}\n")
    with pytest.raises(WrongKey, match="client 'two' of 'staffed' had the key abab"):
        ask()
    file.write_text("staffed one\n")
    with pytest.raises(UsageError, match="line 1"):
        ask()


def test_a_client_checks_who_signed_the_keys_that_it_seals_to(staffed, tmp_path, monkeypatch):
    hand = Hand(staffed, "one")
    known = KnownKeys(tmp_path / "known_keys")
    peers = peers_of(hand, known)
    two = Identity.load(staffed.folder / "two")
    assert peers[1].seal_key == two.seal_key.hex()
    box = hand.identity.seal(bytes.fromhex(peers[1].seal_key), b"for two", context=b"job")
    sender = bytes.fromhex(peers[0].sign_key)
    assert two.open(box, context=b"job", sender=sender) == b"for two"

    thief = Identity.create(tmp_path / "thief")
    signed = thief.sign(seal_key_message("staffed", thief.seal_key)).hex()
    lies = [
        {"seal_key": thief.seal_key.hex()},
        {"seal_key": thief.seal_key.hex(), "seal_signature": signed},
        {"seal_signature": two.sign(seal_key_message("other", two.seal_key)).hex()},
        {"sign_key": thief.sign_key.hex(), "seal_key": thief.seal_key.hex(),
         "seal_signature": signed},
    ]  # fmt: skip
    real = Connection.call
    folder = ["--folder", str(staffed.folder / "one")]

    def listed():
        result = CliRunner().invoke(app, ["peers", "list", "--json", *folder], prog_name="solera")
        standings = {peer["name"]: peer["standing"] for peer in json.loads(result.stdout)}
        return result.exit_code, standings

    for lie in lies:

        def call(self, method, path, answer, json=None, lie=lie):
            told = real(self, method, path, answer, json)
            for name, value in lie.items():
                setattr(told.peers[1], name, value)
            return told

        with monkeypatch.context() as patch:
            patch.setattr(Connection, "call", call)
            with pytest.raises(WrongKey, match="client 'two'"):
                peers_of(hand, known)
            if "sign_key" not in lie:
                wrong = "WRONG, has not signed its key to seal to"
                assert listed() == (1, {"one": "not seen before", "two": wrong})
    assert peers_of(hand, known).keys() == {0, 1}

    def pin(name, key):
        return CliRunner().invoke(app, ["peers", "pin", name, key, *folder], prog_name="solera")

    assert listed() == (0, {"one": "not seen before", "two": "not seen before"})
    assert pin("two", two.sign_key.hex()).exit_code == 0
    assert listed() == (0, {"one": "not seen before", "two": "known"}), "looking remembers nothing"
    wrong = pin("two", thief.sign_key.hex())
    assert (wrong.exit_code, "had the key" in wrong.stderr) == (1, True)
    assert "no key" in pin("one", "abc").stderr
    assert pin("one", thief.sign_key.hex()).exit_code == 0
    assert listed()[1]["one"] == f"WRONG, known by {thief.sign_key.hex()}"
    assert listed()[0] == 1
    (staffed.folder / "one" / "known_keys").unlink()


@pytest.mark.parametrize("url", ["http://example.org", "http://10.0.0.1:8443", "ftp://x", "x"])
def test_plain_http_is_refused(url):
    with pytest.raises(UsageError, match=r"TLS|not an address"):
        so.connect(url, federation="cardio", token="t")


def test_a_packed_or_endless_answer_does_no_harm(monkeypatch):
    """5 MB of gzip are 5 GB of zeros; an answer without end fills the memory."""
    import gzip
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    packed = gzip.compress(bytes(50 << 20))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            if self.path == "/packed":
                self.send_header("Content-Encoding", "gzip")
                self.send_header("Content-Length", str(len(packed)))
                self.end_headers()
                self.wfile.write(packed)
                return
            self.end_headers()
            try:
                while True:
                    self.wfile.write(bytes(1 << 20))
            except OSError:
                pass

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    connection = Connection(f"http://127.0.0.1:{server.server_port}", lambda *_: {}, patience=0)
    try:
        began = time.monotonic()
        with pytest.raises(CoordinatorError, match="is packed"):
            connection.request("GET", "/packed")
        with pytest.raises(CoordinatorError, match="larger than"):
            connection.request("GET", "/endless")
        assert time.monotonic() - began < 250, "without the limit of bytes it takes five minutes"
    finally:
        connection.close()
        server.shutdown()
        server.server_close()
