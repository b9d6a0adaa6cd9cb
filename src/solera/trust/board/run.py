"""One owner's run of one closed job: START, KEYS, SUM and READ, CLOSE, END.

Owners 0 … n − 1 of an epoch post on a board that a coordinator keeps; it is trusted with nothing.
What a sum leaks is the sum: masks between all pairs cancel in the total of all n (Bonawitz et al.
2017, §4, without dropouts: who is away is waited for). Every post is signed for a context that
holds everything before it, so that all owners see the same run or none goes on:

    jid  = H("job", epoch, text)
    START  owner i draws x_i; posts pub_i, Sig("start", jid, i, pub_i); head_0 = H(jid, all pub_i)
    KEYS   owner 0 draws r and seals it to each; G = HKDF(r, head_0); each posts HMAC(G, "have", i)
    SUM k  ctx  = HMAC(G, "ctx", head_k, k, q) for the question q
           w    = words of [1, terms] mod 2^64 ± PRG(HKDF(DH_ij, "mask", ctx, ids, public keys))
           body = AEAD(HKDF(G, "body", ctx, i); stop flag, w), stored, then posted, signed for ctx
    READ   n posts signed for the OWN ctx; their sum, of which word 0 is n;
           head_{k+1} = HMAC(G, "head", ctx, H(body_1), …, H(body_n))
    CLOSE  Sig("end", head, i, H(result)) of all; the result goes, sealed, to the researcher
    END    otherwise: each publishes the signatures of the last two steps; who signed two is named

Contexts are under G: in clear, signatures would confirm guesses of totals. Ids and public keys are
in the masks: without them a member that posts another's key would bare parts of the others.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from solera.core.errors import SoleraError
from solera.core.payload import decode, encode
from solera.trust.board.hashing import Part, digest, mac
from solera.trust.board.keys import (
    SIGNATURE,
    Signing,
    common_secret,
    hkdf,
    is_signed,
    new_private,
    public_of,
    seal,
    sign,
    unseal,
)
from solera.trust.board.result import Closed, pack
from solera.trust.board.sums import Own, Sums
from solera.trust.board.text import jid, parse
from solera.trust.board.words import WORD, added, count_of, numbers_of, size_of, words_of
from solera.trust.masks import KEY, add_masks

GO, STOP = b"\0", b"\1"
"""The stop flag, first byte of every content."""
FEWEST, MOST = 3, 64
"""Owners of an epoch."""


class RunEnded(BaseException):
    """The run is over for this owner; no learner may catch it. The reason is for its owner only."""


class RunStopped(RunEnded):
    """An owner raised the stop flag, which all have seen at the same sum."""


class BoardConnection(Protocol):
    """The board of one job, as one owner reaches it."""

    def post(self, step: str, content: bytes) -> None:
        """Post for a step, as this owner; the same bytes again are fine."""

    def read(self, step: str, owners: Sequence[int]) -> list[bytes]:
        """The posts of these owners for a step, waited for.

        Raises :class:`RunEnded` where somebody has ended the run or patience is over.
        """

    def evidence(self) -> list[bytes]:
        """What owners have published at the end of a failed run, after a while."""


class RunStore(Protocol):
    """The owner's disk, for one job."""

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """What is stored under a name: made and stored the first time, never made again.

        Raises :class:`RunEnded` once the job is over.
        """

    def erase(self) -> None:
        """Keys and records go; that the job is over stays."""


@dataclass
class _Heard:
    """A step as this owner saw it: its context, and who signed what for it."""

    context: bytes
    posts: list[tuple[int, bytes, bytes]]


class OwnerRun:
    """Owner ``index`` in one job; ``keys`` are all owners' public keys in the epoch's order."""

    def __init__(
        self,
        *,
        index: int,
        identity: Signing,
        keys: Sequence[bytes],
        epoch: bytes,
        text: bytes,
        board: BoardConnection,
        store: RunStore,
    ) -> None:
        _require(FEWEST <= len(keys) <= MOST, f"a closed job has {FEWEST} to {MOST} owners")
        _require(len(set(keys)) == len(keys), "two owners of the epoch have the same key")
        self.index = index
        self.owners = range(len(keys))
        self.k = 0
        self.state = b""
        """The client's state as of the last sum; put it back before the next task runs."""
        self.reason = ""
        """Why this owner stopped, for itself."""
        self.job = jid(epoch, text)
        self.text = parse(text)
        self._identity = identity
        self._public_keys = list(keys)
        self._board = board
        self._store = store
        self._stop = False
        self._heard: dict[str, _Heard] = {}

    # --- the protocol, step by step ---

    def start(self) -> None:
        """START: the text that each has approved and the public key of each, in one hash."""
        self._private = self._store.once("x", new_private)
        public = public_of(self._private)
        self._say("start", self.job, public)
        self._publics = self._hear("start", self.job)
        _require(self._publics[self.index] == public, "start: my own start is missing")
        _require(len(set(self._publics)) == len(self.owners), "start: two owners have one key")
        self.head = digest("head", self.job, *self._publics)
        try:
            self._common = {
                j: common_secret(self._private, self._publics[j])
                for j in self.owners
                if j != self.index
            }
        except ValueError:
            raise RunEnded("start: a key is zero, or none that an owner makes") from None

    def keys(self) -> None:
        """KEYS: owner 0 draws r and seals it to each other; each shows that it has G."""
        if self.index == 0:
            r = self._store.once("r", lambda: os.urandom(32))
            sealed = [seal(self._key_for_r(j), r) for j in self._common]
            self._say("keys", self.head, encode(sealed))
        else:
            (sent,) = self._hear("keys", self.head, [0])
            r = self._opened_r(sent)
        self._group = hkdf(r, "G", self.head)
        self._say("have", self.head, mac(self._group, "have", self.index))
        have = [mac(self._group, "have", j) for j in self.owners]
        _require(self._hear("have", self.head) == have, "keys: not all have the same key")

    def total(self, question: bytes, own_terms: Own) -> Any:
        """SUM and READ: the sum of everybody's terms. What a single owner posts looks random.

        Body, form and the client's state are stored together before anything leaves. After a crash
        that record is posted again and ``own_terms`` does not run: one post for (jid, k), for ever.
        """
        step = f"sum{self.k}"
        context = mac(self._group, "ctx", self.head, self.k, question)
        record = decode(self._store.once(step, lambda: self._record(context, own_terms)))
        _require(record["ctx"] == context, f"{step}: what I stored answers another question")
        self.state = record["state"]
        self._say(step, context, record["body"])
        bodies = self._hear(step, context)
        contents = [unseal(self._body_key(context, j), body) for j, body in enumerate(bodies)]
        self.head = mac(self._group, "head", context, *map(digest, bodies))
        self.k += 1
        if any(content is not None and content[:1] == STOP for content in contents):
            raise RunStopped(self.reason or f"{step}: an owner asked to stop")
        size = 1 + WORD * size_of(record["form"])
        sound = [c for c in contents if c is not None and len(c) == size and c[:1] == GO]
        _require(len(sound) == len(bodies), f"{step}: a post is not as my question makes it")
        words = added([content[1:] for content in sound])
        _require(count_of(words) == len(self.owners), f"{step}: the masks do not cancel")
        return numbers_of(words, record["form"], len(self.owners))

    def drive(self, sums: Sums, restore: Callable[[bytes], None]) -> Any:
        """One ask: its sums one after the other, and what they come to; see :mod:`.sums`."""
        question, own_terms = next(sums)
        while True:
            total = self.total(question, own_terms)
            restore(self.state)
            try:
                question, own_terms = sums.send(total)
            except StopIteration as end:
                return end.value

    def stop(self, reason: str) -> None:
        """Raise the stop flag in the next post: the run ends there for all, at the same sum."""
        self._stop, self.reason = True, self.reason or reason

    def close(self, result: bytes) -> Closed:
        """CLOSE: n signatures on the digest of one result; for the researcher it is sealed.

        It holds the job, so that it is no other job's, and a salt, because later texts name it by
        its digest.
        """
        salt = hkdf(self._group, "salt", self.head)
        content = encode({"job": self.job, "salt": salt, "result": result})
        self._say("end", self.head, digest(content))
        ends = self._hear("end", self.head)
        _require(set(ends) == {digest(content)}, "end: the results differ")
        signatures = [signature for _, signature, _ in self._heard["end"].posts]
        sealed = pack(content, self.head, signatures, self.text.researcher_key)
        return Closed(content, digest(content), result, sealed)

    def end(self) -> None:
        """Erase keys and records; a jid starts once."""
        self._store.erase()

    def blame(self) -> str:
        """END: publish the signatures of the last two steps, and see who signed two for one.

        Only signatures that are valid for the own contexts count: a flipped bit names nobody.
        """
        last = list(self._heard)[-2:]
        own = [[step, *post] for step in last for post in self._heard[step].posts]
        self._board.post("evidence", encode(own))
        signed: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        for content in self._board.evidence():
            for step, j, signature, hashed in _entries(content):
                new = step in last and hashed not in signed[step, j]
                if new and self._is_signed(step, j, signature, hashed):
                    signed[step, j].append(hashed)
        named = [
            f"owner {j} signed two posts for {s}" for (s, j), d in signed.items() if len(d) > 1
        ]
        return "; ".join(named) or "cause unknown"

    # --- posts ---

    def _say(self, step: str, context: bytes, content: bytes) -> None:
        """Post something signed; seals and signatures are the same when it is said again."""
        signature = sign(self._identity, step, context, self.index, digest(content))
        self._board.post(step, signature + content)

    def _hear(self, step: str, context: bytes, owners: Sequence[int] | None = None) -> list[bytes]:
        """What these owners said, every signature checked for the OWN context."""
        authors = list(self.owners if owners is None else owners)
        posts = self._board.read(step, authors)
        _require(len(posts) == len(authors), f"{step}: a post is missing")
        marks = [
            (j, post[:SIGNATURE], digest(post[SIGNATURE:]))
            for j, post in zip(authors, posts, strict=True)
        ]
        self._heard[step] = _Heard(context, marks)
        for j, signature, hashed in marks:
            valid = self._is_signed(step, j, signature, hashed)
            _require(valid, f"{step}: the post of owner {j} is not signed for my context")
        return [post[SIGNATURE:] for post in posts]

    def _is_signed(self, step: str, j: int, signature: bytes, hashed: bytes) -> bool:
        context = self._heard[step].context
        return is_signed(self._public_keys[j], signature, step, context, j, hashed)

    # --- what is posted ---

    def _record(self, context: bytes, own_terms: Own) -> bytes:
        """What is stored before a post: its body and form, and the client's state."""
        content, form, state = STOP, None, b""
        if not self._stop:
            try:
                terms, state = own_terms()
                words, form = words_of(terms, len(self.owners))
                self._mask(words, context)
                content = GO + words.astype("<u8").tobytes()
            except Exception as error:  # the run ends for all, the reason stays here
                text = str(error) if isinstance(error, SoleraError) else repr(error)
                self.stop(f"sum{self.k}: {text}")
        body = seal(self._body_key(context, self.index), content)
        return encode({"ctx": context, "body": body, "form": form, "state": state})

    def _mask(self, words: Any, context: bytes) -> None:
        """± PRG of the key in common with every other owner: + of later ones, − of earlier ones."""
        masks = {j: self._mask_key(context, j) for j in self._common}
        later = [key for j, key in masks.items() if j > self.index]
        earlier = [key for j, key in masks.items() if j < self.index]
        add_masks(words, later, earlier)

    def _mask_key(self, context: bytes, j: int) -> bytes:
        low, high = sorted((self.index, j))
        about: list[Part] = [context, low, high, self._publics[low], self._publics[high]]
        return hkdf(self._common[j], "mask", *about)[:KEY]

    def _body_key(self, context: bytes, j: int) -> bytes:
        return hkdf(self._group, "body", context, j)

    def _key_for_r(self, j: int) -> bytes:
        other = j if self.index == 0 else 0
        return hkdf(self._common[other], "r", self.head, j)

    def _opened_r(self, sent: bytes) -> bytes:
        try:
            sealed = decode(sent)[self.index - 1]
            r = unseal(self._key_for_r(self.index), sealed)
        except (SoleraError, TypeError, LookupError):
            r = None
        if r is None:
            raise RunEnded("keys: what owner 0 sealed to me does not open")
        return r


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RunEnded(otherwise)


def _entries(evidence: bytes) -> list[tuple[str, int, bytes, bytes]]:
    """The entries of evidence; what is garbled counts for nothing."""
    try:
        entries = decode(evidence)
        return [
            (step, j, signature, hashed)
            for step, j, signature, hashed in entries
            if isinstance(step, str) and isinstance(j, int) and 0 <= j < MOST
            and isinstance(signature, bytes) and isinstance(hashed, bytes)
        ]  # fmt: skip
    except (SoleraError, TypeError, ValueError):
        return []
