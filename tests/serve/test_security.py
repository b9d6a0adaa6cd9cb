"""What a hospital's reviewer tests, one promise after the other, against processes that run.

The privacy ledger is killed in ``agent/test_ledger.py``. Leaving is in
``agent/test_leaving.py``, memory in ``coordinator/test_memory.py``. Resuming is short here:
``test_chaos.py`` kills all sides at every step.
"""

from __future__ import annotations

import ast
import base64
import copy
import hashlib
import json
import os
import pickle
import shutil
import socket
import ssl
import struct
import threading
import time
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

import solera as so
from solera.core.aggregation import Mean
from solera.core.component import describe_fitted
from solera.core.errors import NotEnoughReplies, UsageError
from solera.core.payload import decode, encode
from solera.serve.connection import Connection, CoordinatorError

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

import httpx  # noqa: E402
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: E402
from network import Network, kill  # noqa: E402

from solera.serve import audit  # noqa: E402
from solera.serve.agent.agent import Agent  # noqa: E402
from solera.serve.agent.approvals import Approvals, Approver  # noqa: E402
from solera.serve.agent.policy import OwnerPolicy  # noqa: E402
from solera.serve.agent.worker import Worker  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.identity import Identity, ask_digest, reply_message, sign_request  # noqa: E402
from solera.serve.wire import INLINE  # noqa: E402

try:
    import tenseal
except ImportError:
    tenseal = None
needs_he = pytest.mark.skipif(tenseal is None, reason="the extra 'he' is not installed")
needs_proc = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="there is no /proc")

SOURCE = Path(so.__file__).parent
rng = np.random.default_rng(5)
X = rng.normal(size=(120, 4))
Y = (X @ rng.normal(size=(4, 3))).argmax(axis=1)
DATA = so.data.FederatedData(X, Y, np.array([0, 50, 90, 120]))
NAMES = ("north", "south", "west")
TRAIN = {
    "coef": np.zeros((4, 3)),
    "intercept": np.zeros(3),
    "loss": "softmax",
    "classes": np.arange(3),
    "lr": 0.1,
    "l2": 0.0,
    "epochs": 1,
    "batch_size": 8,
}
GARCIA = Approver("garcia", Ed25519PrivateKey.generate())
CAREFUL = {
    "closed": 'policy = "sums"\n',
    "noisy": 'policy = "noise"\n[approval]\nmode = "auto"\n',
    "wary": 'policy = "trusted"\n'
    f'[approval]\nmode = "ask"\napprovers = {{ garcia = "{GARCIA.public}" }}\n',
    "frugal": 'policy = "noise"\n[approval]\nmode = "auto"\n'
    "[privacy]\nepsilon = 1.0\ndelta = 1e-6\n",
}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Three agents, with the same encryption key where encryption is installed."""
    folder = tmp_path_factory.mktemp("security")
    here = Network(folder)
    with pytest.MonkeyPatch.context() as patch:
        try:
            here.start()
            patch.setenv("SOLERA_KEYS", str(folder / "keys"))
            if tenseal is not None:
                from solera.privacy.he import keys

                keys.create(folder / "keys", "shared", keys.CLIENT)
            staff(here, dict.fromkeys(NAMES))
            yield here
        finally:
            here.close()


@pytest.fixture(scope="module")
def careful(network):
    """A federation of agents whose policies allow little."""
    here = federation(network, "careful")
    staff(here, CAREFUL)
    return here


@pytest.fixture(scope="module")
def lab(network):
    """A federation of an honest agent (0) and a client (1) that has no agent: the tests play it."""
    here = federation(network, "lab")
    staff(here, {"honest": None})
    here.enrol("rogue")
    return here


def federation(network, name):
    """The same coordinator, another federation."""
    other = copy.copy(network)
    other.federation = name
    return other


def staff(network, policies):
    for k, (name, policy) in enumerate(policies.items()):
        network.enrol(name)
        network.give(name, DATA, k % DATA.clients, *([] if policy is None else [policy]))
        network.work(name)


class Hand:
    """A client moved by hand: it has keys and a place, and sends what it likes."""

    def __init__(self, network, name):
        self.network, self.folder, self.digests = network, network.folder / name, {}
        self.identity = Identity.load(self.folder)
        self.number = int(json.loads((self.folder / "place.json").read_text())["client"])
        self.connection = Connection(network.url, self.headers, ca=network.ca, patience=60)
        self.connection.request("GET", "/v1/peers")  # the coordinator's start is known from here

    def headers(self, method, path, body, start=None):
        digest = hashlib.sha256(body).hexdigest()
        federation = self.network.federation
        start = self.connection._start if start is None else start
        return sign_request(self.identity, federation, method, path, digest, time.time(), start)

    def orders(self, wait=5):
        return self.connection.request("GET", f"/v1/work?wait={wait}").json()["asks"]

    def reply(self, job, sequence, frame, *, signer=None, **other):
        """Say that a frame is the answer."""
        digest = hashlib.sha256(frame).hexdigest()
        asked = (job, sequence, str(self.number), self.asked(job, sequence))
        message = reply_message(self.network.federation, *asked, "ok", digest, len(frame))
        signature = (signer or self.identity).sign(message).hex()
        said = {"status": "ok", "digest": digest, "size": len(frame), "signature": signature}
        if len(frame) <= INLINE:
            said["frame"] = base64.b64encode(frame).decode()
        else:
            self.connection.upload(frame)
        path = f"/v1/jobs/{job}/asks/{sequence}/reply"
        return self.connection.request("POST", path, json=said | other).json()

    def asked(self, job, sequence):
        """The digest of what was asked, as far as it is known."""
        for order in self.orders(wait=0):
            names = ("task", "version", "payload", "prepare", "round", "seed")
            digest = ask_digest(*(order[name] for name in names))
            self.digests[order["job"], order["sequence"]] = digest
        return self.digests.get((job, sequence), "ab" * 32)

    @contextmanager
    def answering(self):
        """Answers every ask of the federation with the frame in the list that this gives."""
        frames = [b""]
        stop, trouble = threading.Event(), []

        def answer():
            try:
                while not stop.is_set():
                    for order in self.orders(wait=0.3):
                        self.reply(order["job"], order["sequence"], frames[0])
            except Exception as error:
                trouble.append(error)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield frames
        finally:
            stop.set()
            thread.join()
        assert not trouble


def files(folder):
    """Every file below a folder and its bytes."""
    found = {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    assert found
    return found


def http(network):
    context = ssl.create_default_context(cafile=network.ca)
    return httpx.Client(base_url=network.url, verify=context, timeout=600)


def alive(network):
    with http(network) as client:
        assert client.get("/readyz").json()["status"] == "ok"
    assert network.coordinator.poll() is None


def learned(model):
    return encode(describe_fitted(model))


def job_of(fed):
    return fed.engine.job


# --- connections ----------------------------------------------------------------------------------


def tree(pid):
    """A process and all that it started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def listening(pid):
    """Sockets of a process that accept connections or datagrams from elsewhere."""
    mine = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            mine.add(os.readlink(path))
        except OSError:
            continue
    found = []
    for table, states in (("tcp", {"0A"}), ("tcp6", {"0A"}), ("udp", {"07"}), ("udp6", {"07"})):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] in states and f"socket:[{fields[9]}]" in mine:
                found.append(fields[1])
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & 0x10000 and f"socket:[{fields[6]}]" in mine:
            found.append(line)
    return found


@needs_proc
def test_outbound_only(network):
    assert len(network.connect().ask("data.describe", deadline=600).collect()) == 3
    assert listening(network.coordinator.pid), "the test must be able to find a listener"
    for name in NAMES:
        processes = tree(network.agents[name].pid)
        assert len(processes) >= 2, "the agent and its worker"
        assert not [found for pid in processes for found in listening(pid)]


# --- keys -----------------------------------------------------------------------------------------


def test_private_keys_stay_and_revoking_works_at_once(network, monkeypatch):
    sent = []
    stream = httpx.Client.stream

    def captured(self, method, url, **options):
        sent.append(repr((method, url, options.get("headers"))).encode())
        sent.append(options.get("content") or b"")
        return stream(self, method, url, **options)

    monkeypatch.setattr(httpx.Client, "stream", captured)
    here = federation(network, "leaving")
    home = here.enrol("east")
    one = so.data.FederatedData(X, Y, np.array([0, len(X)]))
    agent = Agent(home, Worker(one), OwnerPolicy.parse('policy = "trusted"\n'), patience=5)
    replies = here.connect().ask("data.describe", deadline=600)
    reader = threading.Thread(target=replies.collect)
    worker = threading.Thread(target=agent.step, args=(10,))
    try:
        for thread in (worker, reader):
            thread.start()
        for thread in (worker, reader):
            thread.join(300)
        assert not replies.failures
        fields = decode((home / "identity.key").read_bytes())
        wire = b"\n".join(sent)
        assert fields["public"][:32].hex().encode() in wire, "the public half does travel"
        private = [fields["sign"], fields["seal"]]
        everything = [*files(network.folder / "coordinator").values(), wire]
        for secret in private:
            for form in (secret, secret.hex().encode(), base64.b64encode(secret)[:-4]):
                assert not any(form in data for data in everything)

        hand = Hand(here, "east")
        polled = []
        poll = threading.Thread(target=lambda: polled.extend(hand.orders(wait=2)))
        poll.start()
        time.sleep(0.3)
        path = f"/v1/federations/leaving/clients/{hand.number}/revoke"
        here.driver().request("POST", path, json={"reason": "left the study"})
        with pytest.raises(CoordinatorError, match=r"left the study.*401"):
            agent.step()
        with pytest.raises(CoordinatorError, match="401"):
            Hand(here, "east").connection.upload(b"more")
        poll.join(600)
        assert polled == []
    finally:
        agent.close()


# --- policy ---------------------------------------------------------------------------------------


def reason_of(fed, client, task, payload=None):
    replies = fed.ask(task, payload, to=[client], quorum=0, deadline=600)
    assert list(replies) == []
    (failure,) = replies.failures
    assert failure.kind == "refused"
    return failure.reason


def approve(network, name, digest):
    approvals = Approvals(network.folder / name / "approvals.json", {"garcia": GARCIA.public})
    approvals.decide(digest, "approved", GARCIA, datetime.now())


def test_refusals_and_approval_of_one_exact_job(careful):
    fed = careful.connect()
    for task, payload in (("data.describe", None), ("linear.train", TRAIN)):
        assert f"no open ask, here for '{task}'" in reason_of(fed, 0, task, payload)
    assert "the ask states none" in reason_of(fed, 1, "linear.train", TRAIN)

    one, other = careful.driven("allowed"), careful.driven("changed")
    assert one != other
    allowed, changed = careful.drive("allowed"), careful.drive("changed")
    approve(careful, "wary", one)
    assert len(allowed.ask("data.describe", to=[2], deadline=600).collect()) == 1
    late = changed.ask("data.describe", to=[2], quorum=0, deadline=2.5)
    assert list(late) == []
    assert late.failures[0].kind == "late", "a job that nobody approved does not run"


# --- privacy budget -------------------------------------------------------------------------------


def test_the_budget_refuses_past_its_limit_after_a_restart_too(careful):
    pytest.importorskip("dp_accounting")
    pytest.importorskip("torch")
    model = so.nn.mlp(4, 3)
    learner = so.FedAvg(model, weight=None, dp=so.DP(noise_multiplier=10, delta=1e-6, clip=1))
    here = so.simulate(X, Y, clients=1)
    learner.schema_ = here.schema
    noise = learner.with_noise(here).noise
    learner.begin(here)
    ask = noise.added_to(learner.update, learner.round_ask(0))
    for attempt in range(2):
        fed = careful.connect()
        replies = fed.ask("averaging.train", ask, to=[3], quorum=0, deadline=600)
        assert len(list(replies)) == 1 - attempt, replies.failures
        kill(careful.agents["frugal"])
        careful.work("frugal")
    assert "the privacy budget is ε = 1" in replies.failures[0].reason
    for wrong in ("epsilon = 0.0", "epsilon = nan", "epsilon = inf", "delta = 1e-6"):
        with pytest.raises(UsageError):
            OwnerPolicy.parse(f'policy = "noise"\n[privacy]\n{wrong}\n')


# --- audit log ------------------------------------------------------------------------------------


def test_the_audit_log_shows_every_change(network, tmp_path):
    fed = network.connect()
    for _ in range(3):
        fed.ask("data.flaws", deadline=600).collect()
    home = network.folder / "north"
    key = Identity.load(home).sign_key
    for name in ("audit.log", "audit.log.head"):
        shutil.copy(home / name, tmp_path / name)
    log, head = tmp_path / "audit.log", tmp_path / "audit.log.head"
    whole, sealed = log.read_bytes(), head.read_bytes()
    assert audit.verify(log, key).ok
    lines = whole.splitlines(keepends=True)
    assert len(lines) >= 3
    damage = {
        "edited": whole.replace(b'"status":"ok"', b'"status":"no"', 1),
        "one bit": bytes([*whole[:50], whole[50] ^ 1, *whole[51:]]),
        "first deleted": b"".join(lines[1:]),
        "middle deleted": b"".join([*lines[:1], *lines[2:]]),
        "swapped": b"".join([lines[1], lines[0], *lines[2:]]),
        "last cut": b"".join(lines[:-1]),
        "last torn": whole[:-20],
        "empty": b"",
    }
    for name, data in damage.items():
        assert data != whole
        log.write_bytes(data)
        assert not audit.verify(log, key).ok, name
    log.write_bytes(whole)
    head.unlink()
    assert not audit.verify(log, key).ok
    head.write_bytes(sealed)
    assert audit.verify(log, key).ok
    assert not audit.verify(log, Identity.load(network.folder / "south").sign_key).ok


# --- resuming -------------------------------------------------------------------------------------


def test_a_killed_agent_resumes_to_the_same_bits(network):
    expected = learned(so.FedLinear(rounds=6).fit(network.connect(seed=3)))
    models = []
    fed = network.connect(seed=3)
    kill(network.agents["north"])
    driver = threading.Thread(target=lambda: models.append(so.FedLinear(rounds=6).fit(fed)))
    driver.start()
    time.sleep(0.3)
    assert driver.is_alive(), "the run waits for the client that was killed"
    network.work("north")
    driver.join(300)
    assert learned(models[0]) == expected


# --- unsound messages -----------------------------------------------------------------------------

UNSAFE = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_no_pickle(network, tmp_path):
    folders = ("core", "serve", "learn", "privacy")
    sources = [path for folder in folders for path in (SOURCE / folder).rglob("*.py")]
    sources += [SOURCE / "engines" / "blocks.py"]
    assert len(sources) > 30
    assert not {str(path): found for path in sources if (found := UNSAFE & {*imports(path)})}
    fed = network.connect()
    so.FedLinear(rounds=1).fit(fed).save(tmp_path / "model.sol")
    assert (tmp_path / "model.sol").read_bytes()[:3] == b"SOL"
    store = Store(f"sqlite:///{network.folder / 'coordinator' / 'coordinator.sqlite'}")
    blobs = network.folder / "coordinator" / "blobs"
    with store:
        found = [store.ask(job_of(fed), 0).payload]
        found += [reply.digest for reply in store.replies(job_of(fed), 0)]
        found += [store.job(job_of(fed)).spec]
    assert len(found) == 5
    for digest in found:
        assert (blobs / digest[:2] / digest[2:]).read_bytes()[:3] == b"SOL"


def garbage():
    """Replies to ``linear.train`` that are not sound."""
    model = {"coef": np.ones((4, 3)), "intercept": np.ones(3), "loss": 0.1}
    good = {"change": model, "rows": 40}
    frame = encode(good)
    head = struct.Struct("<4sI")
    nested = b"\x91" * 100_000 + b"\xc0"
    noise = np.random.default_rng(1)
    yield "empty", b""
    yield "noise", noise.bytes(500)
    yield "pickle", pickle.dumps(good)
    yield "truncated", frame[: len(frame) // 2]
    yield "one byte short", frame[:-1]
    yield "trailing", frame + b"\0"
    yield "nested", head.pack(frame[:4], len(nested)) + nested
    yield "length lies", head.pack(frame[:4], 0xFFFFFFFF) + frame[8:]
    yield "another version", frame[:3] + b"\xff" + frame[4:]
    for name, value in (("nan", np.nan), ("infinite", np.inf)):
        bad = model["coef"].copy()
        bad[2, 1] = value
        yield name, encode(good | {"change": model | {"coef": bad}})
    yield "nan alone", encode(good | {"change": model | {"loss": float("nan")}})
    yield "another shape", encode(good | {"change": model | {"coef": np.ones((3, 4))}})
    yield "another type", encode(good | {"change": model | {"coef": "1"}})
    yield "a list", encode([1, 2, 3])
    yield "nothing", encode(None)
    for where in (4, 6, 8, 9, 12):
        changed = bytearray(frame)
        changed[where] ^= 0xFF
        yield f"byte {where} changed", bytes(changed)


def test_unsound_replies_never_reach_an_aggregate(lab):
    fed = lab.connect()
    expected = encode(fed.ask("linear.train", TRAIN, to=[0]).fold(Mean()))
    with Hand(lab, "rogue").answering() as frames:
        for name, frames[0] in garbage():
            replies = fed.ask("linear.train", TRAIN, deadline=600)
            assert encode(replies.fold(Mean())) == expected, name
            (failure,) = replies.failures
            assert failure.client == 1, name
            assert failure.kind in ("corrupt", "invalid"), (name, failure)
            assert failure.reason, name
    alive(lab)


REPLY = "/v1/jobs/none/asks/0/reply"
WHOLE = b'{"status": "failed", "size": 0, "signature": "%s", "reason": "%s"}'
REQUESTS = {
    "nothing": (REPLY, b""),
    "not JSON": (REPLY, b"{"),
    "not text": (REPLY, b"\xff\xfe"),
    "nested": (REPLY, b"[" * 50_000),
    "null": (REPLY, b"null"),
    "no signature": (REPLY, WHOLE % (b"0" * 128, b"")),
    "zero byte": (REPLY, WHOLE % (b"0" * 128, b"\\u0000")),
    "large number": (REPLY.replace("0", "9" * 40), WHOLE % (b"0" * 128, b"")),
    "odd name": (REPLY.replace("none", "%00%2e%2e"), WHOLE % (b"0" * 128, b"")),
    "NaN": (REPLY, b'{"status": NaN}'),
    "infinite": (REPLY, b'{"size": 1e999}'),
    "half a character": (REPLY, WHOLE % (b"0" * 128, b"\\ud800")),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_malformed_requests_are_refused(lab, name):
    path, body = REQUESTS[name]
    signed = Hand(lab, "rogue").headers("POST", path, body) | {"Content-Type": "application/json"}
    with http(lab) as client:
        answer = client.post(path, content=body, headers=signed)
    alive(lab)
    assert 400 <= answer.status_code < 500


def test_large_bodies_are_turned_away_unread(lab):
    with http(lab) as client:
        answer = client.post("/v1/blobs", content=bytes(9 << 20))
        assert answer.status_code == 413
        unknown = client.post("/v1/blobs", content=iter([b"x" * 1000] * 3))
        assert unknown.status_code == 413
        odd = client.get("/v1/blobs/" + "0" * 64, headers={"Range": f"bytes={10**30}-{10**31}"})
        assert 400 <= odd.status_code < 500
    alive(lab)


def test_a_wait_that_is_no_number_ends(lab):
    began = time.monotonic()
    with pytest.raises(CoordinatorError):
        Hand(lab, "rogue").orders(wait="x")
    for wait in ("nan", "-inf", "-1"):
        assert Hand(lab, "rogue").orders(wait) == []
    assert time.monotonic() - began < 28, "the longest wait is half a minute"
    alive(lab)


# --- replays --------------------------------------------------------------------------------------


def test_replays_duplicates_and_others_signatures(lab):
    rogue, honest = Hand(lab, "rogue"), Hand(lab, "honest")
    with http(lab) as client:
        signed = rogue.headers("GET", "/v1/work?wait=0", b"")
        assert client.get("/v1/work?wait=0", headers=signed).status_code == 200
        again = client.get("/v1/work?wait=0", headers=signed)
        assert again.status_code == 401
        assert "seen before" in again.json()["detail"]
        signed = rogue.headers("GET", "/v1/work?wait=0", b"")
        assert client.get("/v1/work?wait=1", headers=signed).status_code == 401, "another path"

    fed = lab.connect()
    job = job_of(fed)
    replies = fed.ask("data.flaws", to=[1], quorum=0, deadline=600)
    found = []
    reader = threading.Thread(target=lambda: found.extend(replies))
    reader.start()
    (order,) = [order for order in rogue.orders() if order["job"] == job]
    sequence = order["sequence"]
    frame = encode({"answer": 1})
    with pytest.raises(CoordinatorError, match=r"did not sign.*401"):
        rogue.reply(job, sequence, frame, signer=honest.identity)
    with pytest.raises(CoordinatorError, match=r"did not sign.*401"):
        rogue.reply(job, sequence, frame, size=len(frame) + 1)
    with pytest.raises(CoordinatorError, match="was not asked"):
        honest.reply(job, sequence, frame)
    with pytest.raises(CoordinatorError, match=r"status 40[34]"):
        rogue.reply(job, sequence + 1, frame)
    assert rogue.reply(job, sequence, frame) == {"stored": True}
    path = f"/v1/jobs/{job}/asks/{sequence}/replies"
    stored = lab.driver().request("GET", path).json()
    assert rogue.reply(job, sequence, frame) == {"stored": False}
    with pytest.raises(CoordinatorError, match="another reply"):
        rogue.reply(job, sequence, encode({"answer": 2}))
    assert lab.driver().request("GET", path).json() == stored
    reader.join(300)
    assert [reply.payload for reply in found] == [{"answer": 1}]


# --- encryption -----------------------------------------------------------------------------------


def test_tls_is_strong(network):
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    context = ssl.create_default_context(cafile=network.ca)
    with (
        socket.create_connection(("127.0.0.1", network.port), 5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        assert secure.version() in ("TLSv1.2", "TLSv1.3")
        assert secure.cipher()[2] >= 128
        shown = x509.load_der_x509_certificate(secure.getpeercert(binary_form=True))
    for certificate in (shown, x509.load_pem_x509_certificate(Path(network.ca).read_bytes())):
        key = certificate.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.key_size >= 256
        assert certificate.signature_hash_algorithm.digest_size >= 32
    with pytest.raises(httpx.HTTPError):
        httpx.get(network.url.replace("https", "http") + "/healthz", timeout=5)


@needs_he
def test_weak_encryption_is_refused(tmp_path):
    from solera.privacy.he import keys
    from solera.privacy.he import ring as he_ring

    for name in ("CLIENT", "COORDINATOR", "COMPAT", "SMALL", "SMALL_CLIENT"):
        assert getattr(he_ring, name).check().security() >= 128
    weak = he_ring.Parameters(4096, (60, 60), scale_bits=44)
    with pytest.raises(UsageError, match="128-bit security"):
        keys.create(tmp_path / "keys", "weak", weak)
    with pytest.warns(he_ring.WeakParameters, match="WEAK"):
        weak.check(allow_weak=True)


@needs_he
def test_what_is_encrypted_cannot_be_read_at_the_coordinator(network):
    from solera.privacy.he import keys

    sums = [so.FedHEONN().fit(so.simulate(DATA)).statistics_["moments"]]
    for k in range(3):
        rows = DATA.segments(np.array([k]))[0]
        part = so.data.FederatedData(rows.X, rows.y, np.array([0, len(rows)]), schema=DATA.schema)
        sums.append(so.FedHEONN().fit(so.simulate(part)).statistics_["moments"])
    markers = {np.float64(v).tobytes() for array in sums for v in np.ravel(array) if v % 1}
    markers |= {row.tobytes() for row in X}
    secret = keys.load(network.folder / "keys", "shared")
    pieces = {secret.to_bytes()[200 + i : 232 + i] for i in range(0, 4000, 500)}

    def leaked():
        held = files(network.folder / "coordinator").values()
        return {marker for marker in markers | pieces if any(marker in data for data in held)}

    encrypt = so.Encryption("shared", finish="client")
    model = so.FedHEONN(encrypt=encrypt).fit(network.connect(seed=11))
    assert not leaked()
    plain = so.FedHEONN().fit(network.connect(seed=11))
    np.testing.assert_allclose(model.weights_, plain.weights_, rtol=1e-5, atol=1e-8)
    assert len(leaked() - pieces) > 10, "without encryption the markers are found"


# --- deadlines, refusals and failures -------------------------------------------------------------


def test_a_dead_client_cannot_hang_an_ask(lab):
    fed = lab.connect()
    for deadline in (1.5, 20.0, 120.0):  # on a busy machine the other one is late, too
        replies = fed.ask("data.describe", quorum=0, deadline=deadline)
        if [reply.client for reply in replies] == [0]:
            break
    assert [(f.client, f.kind) for f in replies.failures] == [(1, "late")]
    with pytest.raises(NotEnoughReplies):
        fed.ask("data.describe", to=[1], deadline=0.5).collect()


def test_a_job_ends_in_a_named_state_by_its_deadline(lab):
    from solera.serve.driver.driven import connect

    driver = lab.driver()
    ask = {"task": "data.describe", "version": 1, "payload": driver.upload(encode(None))}
    for deadline in (1.0, 5.0, 60.0):  # on a busy machine it ends before anything is asked
        fed = connect(lab.url, federation="lab", token=lab.token, ca=lab.ca, deadline=deadline)
        path = f"/v1/jobs/{job_of(fed)}/asks/0"
        with suppress(CoordinatorError):
            driver.request("PUT", path, json=ask | {"round": 0, "clients": [1]})
            break
    end = time.monotonic() + 600
    while driver.request("GET", f"/v1/jobs/{job_of(fed)}").json()["state"] == "running":
        assert time.monotonic() < end
        time.sleep(0.1)


def events(network):
    with Store(f"sqlite:///{network.folder / 'coordinator' / 'coordinator.sqlite'}") as store:
        return [event for event in store.events(federation=network.federation) if event.reason]


def test_refusals_and_failures_arrive_with_their_reasons(careful, lab):
    fed = careful.connect()
    reason = reason_of(fed, 0, "data.describe")
    found = [e for e in events(careful) if e.job == job_of(fed)]
    assert [(e.client, e.event, e.reason) for e in found] == [(0, "refused", reason)]

    for wrong, kind, said in (
        ({"coef": np.zeros((9, 3))}, "failed", "data: the rows do not fit the ask"),
        ({"lr": 1e308, "epochs": 5}, "failed", "data: the rows do not fit the ask"),
    ):
        fed = lab.connect()
        replies = fed.ask("linear.train", TRAIN | wrong, to=[0], quorum=0, deadline=600)
        assert list(replies) == []
        (failure,) = replies.failures
        assert failure.kind == kind
        assert said in failure.reason
        found = [e for e in events(lab) if e.job == job_of(fed)]
        assert [(e.client, e.event, e.reason) for e in found] == [(0, kind, failure.reason)]

    with pytest.raises(CoordinatorError, match="401"):
        Connection(lab.url, lambda *_: {"Authorization": "Bearer no"}, ca=lab.ca).request(
            "GET", "/v1/federations/lab"
        )
    end = time.monotonic() + 600
    while not any("wrong token" in e.reason for e in events(federation(lab, ""))):
        assert time.monotonic() < end, "the first refusal of a kind is written soon"
        time.sleep(0.1)


def test_a_late_client_is_an_event_too(lab):
    fed = lab.connect()
    assert list(fed.ask("data.describe", to=[1], quorum=0, deadline=0.5)) == []
    assert [e.event for e in events(lab) if e.job == job_of(fed)] == ["late"]
