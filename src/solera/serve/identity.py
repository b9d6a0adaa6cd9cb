"""Who is speaking: a client's keys, signed requests and replies, one-time tokens.

An :class:`Identity` is an Ed25519 key to sign with and an X25519 key to receive with. Both are made
at the client and stay there; the coordinator enrols only the public halves. Everything signed is
one payload frame that begins with its purpose, so that no two messages share their bytes and a
signature made for one purpose is worth nothing for another.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from solera.core.errors import MissingExtra, PayloadError, SoleraError, UsageError
from solera.core.payload import decode, encode
from solera.core.private_files import read_private, refuse_open, write_file
from solera.serve.wire import NO_START
from solera.trust.sealed import SealError, open_sealed, seal
from solera.trust.signatures import signed_message as signed_message
from solera.trust.signatures import verify as verify

try:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
except ImportError:
    raise MissingExtra.of("a client's identity", "serve") from None

FILE: Final = "identity.key"
UNKNOWN_KEY: Final = "unknown key"
"""What a coordinator says to a client that it does not know, or knows no more."""


class Unauthorised(SoleraError):
    """A request that does not prove who sent it.

    ``reason`` is one word for logs and counters: ``header``, ``time``, ``start``, ``replay``,
    ``body``, ``signature`` or ``busy``.
    """

    def __init__(self, reason: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class WrongSender(SealError):
    """A sealed message that somebody else made than it should come from."""


class Identity:
    """A client's two key pairs. The private halves can be used through it, not taken out."""

    def __init__(self, sign: Ed25519PrivateKey, seal: X25519PrivateKey) -> None:
        self._sign = sign
        self._seal = seal
        self.sign_key: Final = sign.public_key().public_bytes_raw()
        self.seal_key: Final = seal.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"Identity({self.sign_key.hex()[:16]}…)"

    @classmethod
    def create(cls, folder: str | Path) -> Identity:
        """New keys in ``folder`` (0700), in one file (0600), so that no crash leaves half a pair.

        Keys that exist are never replaced: they are what the coordinator has enrolled.
        """
        path = Path(folder) / FILE
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_open(path.parent, path.parent.stat(), "700")
        identity = cls(Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
        fields = {
            "kind": "solera identity 1",
            "sign": identity._sign.private_bytes_raw(),
            "seal": identity._seal.private_bytes_raw(),
            "public": identity.sign_key + identity.seal_key,
        }
        write_file(path, encode(fields), 0o600, overwrite=False)
        return identity

    @classmethod
    def load(cls, folder: str | Path) -> Identity:
        """The keys in ``folder``; refused when others can read them or a byte has changed."""
        path = Path(folder) / FILE
        if path.parent.is_dir():
            refuse_open(path.parent, path.parent.stat(), "700")
        data = read_private(path)
        try:
            fields = decode(data)
            sign = Ed25519PrivateKey.from_private_bytes(fields["sign"])
            identity = cls(sign, X25519PrivateKey.from_private_bytes(fields["seal"]))
            expected = ("solera identity 1", identity.sign_key + identity.seal_key)
            intact = (fields["kind"], fields["public"]) == expected
        except (LookupError, TypeError, ValueError):
            intact = False
        if not intact:
            raise UsageError(
                f"{path} is damaged", hint="restore it from a copy, or join again with a new token"
            )
        return identity

    def sign(self, message: bytes) -> bytes:
        """64 bytes that only this client can make for this message."""
        return self._sign.sign(message)

    def seal(self, seal_key: bytes, data: bytes, *, context: bytes) -> bytes:
        """``data`` for the owner of ``seal_key`` alone, signed inside: it says who made it."""
        signature = self.sign(_sealed_message(seal_key, context, data))
        return seal(seal_key, self.sign_key + signature + data, context=context)

    def open(self, data: bytes, *, context: bytes, sender: bytes) -> bytes:
        """What the owner of the key ``sender`` sealed to :attr:`seal_key`.

        The signature is for this recipient and context: who receives a message cannot seal it to
        somebody else as if it came from its maker. See :mod:`solera.trust.sealed`.
        """
        content = open_sealed(self._seal, data, context=context)
        made_by, signature, inside = content[:32], content[32:96], content[96:]
        if made_by != sender:
            raise WrongSender(f"the message says that key {made_by.hex()[:16]}… made it")
        if not verify(sender, _sealed_message(self.seal_key, context, inside), signature):
            raise WrongSender(f"key {sender.hex()[:16]}… did not make this message")
        return inside


def ask_digest(
    task: str, version: int, payload: str, prepare: str | None, round: int, seed: int
) -> str:
    """SHA-256 of what a client is asked, by which its reply names it."""
    parts = (task, version, payload, prepare or "", round, seed)
    return hashlib.sha256(signed_message("ask", *parts)).hexdigest()


def reply_message(
    federation: str, job: str, seq: int, client: str, ask: str, status: str, digest: str, size: int
) -> bytes:
    """What a client signs with a reply.

    It names the ask (and by ``ask``, its digest, what was asked) and the client beside the content,
    so that a reply cannot be moved to another job, ask or client, given to another question, turned
    from a refusal into an answer, or given other bytes.
    """
    return signed_message("reply", federation, job, seq, client, ask, status, digest, size)


def seal_key_message(federation: str, seal_key: bytes) -> bytes:
    """What a client signs when it joins: messages for it in this federation go to this key."""
    return signed_message("seal key", federation, seal_key)


def _sealed_message(seal_key: bytes, context: bytes, data: bytes) -> bytes:
    return signed_message("sealed", seal_key, context, hashlib.sha256(data).digest())


# --- requests ------------------------------------------------------------------------------------

REQUEST_SECONDS: Final = 120.0
"""How far the clocks of client and coordinator may be apart."""
_HEADERS: Final = {
    "Solera-Key": re.compile(r"[0-9a-f]{64}"),
    "Solera-Time": re.compile(r"[0-9]{1,12}\.[0-9]{3}"),
    "Solera-Nonce": re.compile(r"[0-9a-f]{32}"),
    "Solera-Start": re.compile(r"[0-9a-f]{32}"),
    "Solera-Digest": re.compile(r"[0-9a-f]{64}"),
    "Solera-Signature": re.compile(r"[0-9a-f]{128}"),
}
"""Each value has one spelling, so a signed request cannot be sent again in another."""


def new_start() -> str:
    """A number that a coordinator draws when it starts; see :func:`check_request`."""
    return secrets.token_hex(16)


def sign_request(
    identity: Identity,
    audience: str,
    method: str,
    path: str,
    body_digest: str,
    now: float,
    start: str = NO_START,
) -> dict[str, str]:
    """Headers that prove who sends this request, for about two minutes and for one use.

    ``path`` includes the query. ``audience`` names the federation: without it, a coordinator could
    pass the request on to another one that has enrolled the same key. ``start`` is the number that
    the coordinator drew when it started.
    """
    time, nonce = f"{now:.3f}", secrets.token_hex(16)
    message = signed_message("request", audience, method, path, body_digest, time, nonce, start)
    signature = identity.sign(message).hex()
    values = identity.sign_key.hex(), time, nonce, start, body_digest, signature
    return dict(zip(_HEADERS, values, strict=True))


class Claim(NamedTuple):
    """What the headers of a request say of who signed it; :func:`check_request` tells if it is so.

    Who does not know the key need not check further, so that strangers cost no memory.
    """

    key: str
    time: str
    nonce: str
    start: str
    digest: str
    signature: str


def check_request(
    claim: Claim,
    audience: str,
    method: str,
    path: str,
    body_digest: str | None,
    now: float,
    seen: NonceCache | None,
    window: float = REQUEST_SECONDS,
    start: str = NO_START,
    verified: bool = False,
) -> bytes:
    """The public key that signed this request, or :class:`Unauthorised`.

    ``body_digest`` is of the body that arrived, None before it has: who sends may be checked first.
    A nonce counts as used only after the signature holds, so nobody can use up another's. ``seen``
    is None where a repeated request does no harm. What was sent to an earlier start of the
    coordinator is void: it may have been taken, and that is no longer remembered. ``verified`` says
    that the signature of this very request was found good before its body came.
    """
    key_hex, time, nonce, for_start, digest, signature = claim
    key, sent = bytes.fromhex(key_hex), float(time)
    if for_start != start:
        raise Unauthorised("start", "the request is for an earlier start of this coordinator")
    if body_digest is not None and digest != body_digest:
        raise Unauthorised("body", "the body is not the one that was signed")
    if not abs(now - sent) <= window:
        raise Unauthorised(
            "time",
            f"the request was signed {abs(now - sent):.0f} s {'ago' if sent < now else 'ahead'}, "
            f"at most {window:g} s are allowed",
            hint="set the clocks of client and coordinator by NTP",
        )
    try:
        message = signed_message("request", audience, method, path, digest, time, nonce, start)
    except PayloadError:
        raise Unauthorised("header", "the request's path is not text") from None
    if not verified and not verify(key, message, bytes.fromhex(signature)):
        raise Unauthorised("signature", f"the signature is not of key {key_hex[:16]}…")
    if seen is not None:
        seen.use(key, nonce, sent, now - window)
    return key


def read_claim(headers: Mapping[str, str]) -> Claim:
    """What the headers say; each exactly once and in its one spelling."""
    all_sent: dict[str, list[str]] = {}
    for given, value in headers.items():
        all_sent.setdefault(given.lower(), []).append(value)
    values = []
    for name, pattern in _HEADERS.items():
        sent = all_sent.get(name.lower(), [])
        if len(sent) != 1:
            raise Unauthorised("header", f"{name} is {'repeated' if sent else 'missing'}")
        if not pattern.fullmatch(sent[0]):
            raise Unauthorised("header", f"{name} is malformed")
        values.append(sent[0])
    return Claim(*values)


@dataclass(slots=True)
class _Used:
    """One client's nonces; what is older than ``floor`` is refused without being remembered."""

    floor: float = -math.inf
    latest: float = -math.inf
    nonces: set[str] = field(default_factory=set)
    by_time: list[tuple[float, str]] = field(default_factory=list)

    def forget_oldest(self) -> None:
        self.floor, nonce = heapq.heappop(self.by_time)
        self.nonces.remove(nonce)


class NonceCache:
    """Requests already seen, so that none is taken twice; bounded and safe between threads.

    A client with more than ``per_client`` requests in the window gets a shorter window: the oldest
    is forgotten and everything as old is refused. It can so hurt no one but itself, and a full
    cache never lets a replay through. It lives in memory: what was signed for an earlier start of
    the coordinator is refused for that.
    """

    def __init__(self, clients: int = 10_000, per_client: int = 1024) -> None:
        if clients < 1 or per_client < 1:
            raise UsageError("NonceCache: clients and per_client must be at least 1")
        self.clients = clients
        self.per_client = per_client
        self._used: dict[bytes, _Used] = {}
        self._sweep_at = -math.inf
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return sum(len(used.nonces) for used in self._used.values())

    def use(self, key: bytes, nonce: str, sent: float, oldest: float) -> None:
        """Mark a nonce as used; requests sent before ``oldest`` need no memory any more."""
        with self._lock:
            used = self._of(key, oldest)
            if nonce in used.nonces or sent <= used.floor:
                raise Unauthorised("replay", f"request {nonce} was seen before, or came too late")
            while used.by_time and used.by_time[0][0] < oldest:
                used.forget_oldest()
            heapq.heappush(used.by_time, (sent, nonce))
            used.nonces.add(nonce)
            used.latest = max(used.latest, sent)
            if len(used.nonces) > self.per_client:
                used.forget_oldest()

    def _of(self, key: bytes, oldest: float) -> _Used:
        if oldest >= self._sweep_at or (key not in self._used and len(self._used) >= self.clients):
            self._used = {k: used for k, used in self._used.items() if used.latest >= oldest}
            self._sweep_at = oldest + 60
        if key not in self._used:
            if len(self._used) >= self.clients:
                raise Unauthorised("busy", f"more than {self.clients:,} clients at once")
            self._used[key] = _Used()
        return self._used[key]


# --- tokens --------------------------------------------------------------------------------------


def new_token() -> str:
    """A one-time invitation: 256 random bits, safe in a URL."""
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> bytes:
    """What the coordinator stores: a copy of its database invites nobody."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
