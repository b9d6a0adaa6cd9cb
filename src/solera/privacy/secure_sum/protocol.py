"""The driver's side of a secure sum, step by step (Bonawitz et al. 2017; Bell et al. 2020).

Clients may drop out before and after every step. As long as more than the threshold's share of
those asked are left, the sum of all whose masked replies came is found; with fewer it ends with an
error, and nothing is known of any reply. See :mod:`solera.privacy.secure_sum.tasks` for what
clients do, and refuse to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
import numpy as np

from solera.core.aggregation import Aggregation, Sum
from solera.core.clients import Array, IntArray
from solera.core.component import describe
from solera.core.constraints import Positive
from solera.core.engine import PerClient
from solera.core.errors import NotASum, PayloadError, SecureSumFailed, UsageError
from solera.core.federation import Replies
from solera.core.payload import encode
from solera.core.replies import Batch, Failure, Reply
from solera.core.task import Task
from solera.privacy.secure_sum import keys, tasks
from solera.privacy.secure_sum.graph import degree, neighbours, threshold
from solera.privacy.secure_sum.keys import KEY, MAC, OVERHEAD
from solera.privacy.secure_sum.shares import combine
from solera.trust.encoding import TWO_WORDS, Encoding, size_of
from solera.trust.masks import Words, add_masks


class SecureSum(Aggregation):
    """Folds so that nobody sees a single reply: clients mask them, and masks cancel in the sum.

    In place of a sum, ``replies.fold(so.SecureSum())``, or around another aggregation whose
    partials add, ``so.SecureSum(so.aggregations.Mean("rows"))``. A federation with ``secure=True``
    (or ``secure=so.SecureSum(range=…)``) folds so whatever adds up, without its learners knowing.

    Parameters
    ----------
    aggregation: what is folded, a :class:`Sum` by default.
    range: the largest number that a client may add to any entry of the sum: to a weighted mean,
        weight times value. By default none is declared, and a number takes 16 bytes; with a
        range it takes 8.
    precision: the largest rounding error of a number that will do, where a range is declared;
        numbers then take 4 bytes if that is enough.
    threshold: the share of clients of which more must stay to the end. More than half, against a
        coordinator that tells different clients different things; with two thirds it may have
        nearly a third of the clients on its side.
    """

    def __init__(
        self,
        aggregation: Aggregation | None = None,
        *,
        range: Positive | None = None,
        precision: Positive | None = None,
        threshold: Annotated[float, msgspec.Meta(gt=0.5, lt=1)] = 2 / 3,
    ) -> None:
        self.aggregation = aggregation
        self.range = range
        self.precision = precision
        self.threshold = threshold

    def check_params(self) -> None:
        super().check_params()
        if self.precision is not None and self.range is None:
            raise UsageError.of(self, "precision", self.precision, "needs a range beside it")

    @property
    def inner(self) -> Aggregation:
        """What is folded."""
        return Sum() if self.aggregation is None else self.aggregation

    @property
    def additive(self) -> bool:
        return self.inner.additive

    @property
    def protocol(self) -> SecureSum:
        return self

    def lift(self, reply: Reply) -> Any:
        return self.inner.lift(reply)

    def combine(self, a: Any, b: Any) -> Any:
        return self.inner.combine(a, b)

    def finish(self, partial: Any) -> Any:
        return self.inner.finish(partial)

    def fold(self, batch: Batch) -> Any:
        return self.inner.fold(batch)

    def terms(self, partial: Any) -> Any:
        return self.inner.terms(partial)

    def from_terms(self, total: Any) -> Any:
        return self.inner.from_terms(total)

    def partial(self, replies: Replies, aggregation: Aggregation) -> Any:
        """The partial over all whose masked replies came; nothing else becomes known."""
        rule = aggregation.inner if isinstance(aggregation, SecureSum) else aggregation
        return _Run(self, replies, rule).total()


class MaskedWords(Aggregation):
    """Σ of masked replies of the same form, modulo the size of a word, and whose they are."""

    def lift(self, reply: Reply) -> Any:
        try:
            words, form, bits = (reply.payload[name] for name in ("words", "form", "bits"))
            size = 4 if bits == 32 else 8
            sound = bits in (32, 64, TWO_WORDS) and len(words) == size * size_of(form, bits)
            to, asked = reply.payload["to"], reply.payload["asked"]
            asked = np.frombuffer(asked, np.uint8).reshape(len(to), MAC)
        except (TypeError, ValueError, LookupError, AttributeError):
            sound = False
        if not sound:
            raise PayloadError("the reply is no masked one")
        values = np.frombuffer(words, "<u4" if bits == 32 else "<u8")
        kind = blake2b(encode([form, bits]), digest_size=16).hexdigest()
        clients = np.array([reply.client])
        part = {"words": values, "form": form, "bits": bits, "clients": clients}
        return {kind: {**part, "said": [[reply.client, to, asked]]}}

    def combine(self, a: Any, b: Any) -> Any:
        both = dict(a)
        for kind, part in b.items():
            known = both.get(kind)
            if known is None:
                both[kind] = part
                continue
            clients = np.sort(np.concatenate([known["clients"], part["clients"]]))
            words = known["words"] + part["words"]
            said = sorted([*known["said"], *part["said"]], key=lambda one: one[0])
            both[kind] = {**known, "words": words, "clients": clients, "said": said}
        return dict(sorted(both.items()))


class _Run:
    """One secure sum; clients are known by their place among those of the federation."""

    def __init__(self, options: SecureSum, replies: Replies, rule: Aggregation) -> None:
        self.options = options
        self.replies = replies
        self.ask = replies.ask
        self.clients = self.ask.clients
        self.share = float(options.threshold)
        degree(len(self.clients), self.share)  # an error where a sum is of one
        self.needed = threshold(len(self.clients), self.share)
        self.encoding = Encoding(len(self.clients), options.range, options.precision)
        self.bits = self.encoding.bits
        self.rule = rule
        self.federation = replies.federation.unprepared()
        self.numbers = self.federation.numbers
        try:
            self.described = describe(rule)
        except PayloadError as error:
            raise NotASum(f"{rule!r} cannot be computed by clients: {error}") from error

    def total(self) -> Any:
        self._exchange_keys()
        self._exchange_shares()
        sums = self._masked()
        self._confirm({client: _by_recipient(to, asked) for client, to, asked in sums["said"]})
        words = np.array(sums["words"])
        self._unmask(words)
        return self.rule.from_terms(self.encoding.numbers(words, sums["form"]))

    # --- the steps ---

    def _exchange_keys(self) -> None:
        wanted = {"mask": KEY, "seal": KEY, "signature": tasks.SIGNATURE}
        told = {
            reply.client: reply.payload
            for reply in self._asked(tasks.tell_keys, {}, self.clients)
            if self._has_bytes(reply, wanted)
        }
        members = self._enough("told their keys", told)
        numbers = self.numbers[members]
        self.members = members[np.argsort(numbers)]
        self.roster: dict[str, Any] = {
            "clients": self.numbers[self.members],
            "mask_keys": _stacked([told[c]["mask"] for c in self.members.tolist()]),
            "seal_keys": _stacked([told[c]["seal"] for c in self.members.tolist()]),
            "signatures": _stacked([told[c]["signature"] for c in self.members.tolist()]),
            "share": self.share,
        }
        self.digest = tasks.roster_digest(self.roster)
        self.client_of = {int(self.numbers[c]): c for c in self.members.tolist()}
        self.near: dict[int, IntArray] = {}

    def _exchange_shares(self) -> None:
        size = tasks.SHARE + OVERHEAD
        self.sealed = {
            reply.client: reply.payload["sealed"]
            for reply in self._asked(tasks.give_shares, self.roster, np.sort(self.members))
            if self._has_lines(reply, self._around(reply.client), "sealed", size)
        }
        self.sharing = self._enough("gave shares", self.sealed)

    def _masked(self) -> Any:
        """The sum of the masked replies; those of another form than most count as not come."""
        masking = tasks.Masking(
            self.rule,
            np.sort(self.numbers[self.sharing]),
            len(self.clients),
            self.options.range,
            self.options.precision,
        )
        ask = replace(self.ask, clients=self.sharing, cover=describe(masking))
        kinds: Any = {}
        for block in self.replies.blocks(ask, MaskedWords()):
            if block.partial is not None:
                kinds = MaskedWords().combine(kinds, block.partial)
        best = max(kinds.values(), key=lambda kind: len(kind["clients"]), default=None)
        for kind in kinds.values():
            if kind is not best:
                self._fail(kind["clients"], "its numbers are not of the form of the others'")
        alive = {} if best is None else dict.fromkeys(best["clients"].tolist())
        self.alive = self._enough("gave masked replies", alive)
        self.replies.count_only(self.alive)
        assert best is not None
        if best["bits"] != self.bits:
            raise SecureSumFailed(f"clients gave words of {best['bits']} bits, not {self.bits}")
        return best

    def _confirm(self, asked: Mapping[int, Mapping[int, Array]]) -> None:
        view = np.sort(self.numbers[self.alive])
        payloads = {}
        for client in self.alive.tolist():
            senders, lines = self._said_to(client, asked)
            payloads[client] = {"clients": view, "senders": senders, "asked": lines}
        answers = self._asked(tasks.confirm, PerClient(payloads), self.alive, counts=False)
        self.confirmations = {
            reply.client: _by_recipient(reply.payload["to"], reply.payload["confirmations"])
            for reply in answers
            if self._has_lines(reply, None, "confirmations", MAC)
        }
        self.confirmed = self._enough("confirmed who has answered", self.confirmations)

    def _unmask(self, words: Words) -> None:
        """Take away the own masks of those who answered, and what those who did not have left."""
        asked = PerClient({c: self._what_opens(c) for c in self.confirmed.tolist()})
        given: dict[int, dict[int, Array]] = {}
        for reply in self._asked(tasks.give_up_shares, asked, self.confirmed, counts=False):
            if self._has_lines(reply, None, "shares", KEY, "of"):
                holder = int(self.numbers[reply.client])
                for of, share in zip(
                    reply.payload["of"].tolist(), reply.payload["shares"], strict=True
                ):
                    given.setdefault(of, {})[holder] = share
        plus: list[bytes] = []
        minus = [
            tasks.own_mask(self._secret(client, given), self.digest)
            for client in self.alive.tolist()
        ]
        for client in np.setdiff1d(self.sharing, self.alive).tolist():
            private = self._secret(client, given)
            number = int(self.numbers[client])
            if keys.public_of(private) != self._mask_key(number):
                raise SecureSumFailed(f"the shares of the key of client {client} do not fit it")
            here = np.intersect1d(self._around(client), self.numbers[self.alive])
            loaded = keys.load(private)
            for other in here.tolist():
                pair = tasks.pair_mask(loaded, self._mask_key(other), self.digest)
                (plus if number < other else minus).append(pair)  # unlike the survivor
        add_masks(words, plus, minus)

    def _what_opens(self, client: int) -> dict[str, Any]:
        """What a client is sent of its neighbours: their word, and the shares that it holds."""
        number = int(self.numbers[client])
        confirmed, confirmations = self._said_to(client, self.confirmations)
        sealed: dict[int, Array] = {}
        for other in self._around(client).tolist():
            neighbour = self.client_of[other]
            if neighbour in self.sealed:
                place = np.searchsorted(self._around(neighbour), number)
                sealed[other] = self.sealed[neighbour][place]
        return {
            "confirmed": confirmed,
            "confirmations": confirmations,
            "senders": np.array(list(sealed), np.int64),
            "sealed": _rows(list(sealed.values()), tasks.SHARE + OVERHEAD),
        }

    def _said_to(
        self, client: int, said: Mapping[int, Mapping[int, Array]]
    ) -> tuple[IntArray, Array]:
        """The neighbours that said something to a client, and what."""
        number = int(self.numbers[client])
        lines = {
            other: words[number]
            for other in self._around(client).tolist()
            if number in (words := said.get(self.client_of[other], {}))
        }
        return np.array(list(lines), np.int64), _rows(list(lines.values()), MAC)

    def _secret(self, client: int, given: Mapping[int, Mapping[int, Array]]) -> bytes:
        """A seed or a key, of which enough holders gave their shares."""
        number = int(self.numbers[client])
        holders = np.sort(np.append(self._around(client), number))
        needed = threshold(len(holders), self.share)
        have = {
            int(np.searchsorted(holders, holder)): share
            for holder, share in given.get(number, {}).items()
            if holder in holders
        }
        if len(have) < needed:
            raise SecureSumFailed(
                f"{len(have):,} clients gave their share of client {client}'s secret, "
                f"{needed:,} are needed: nothing is revealed",
                self.replies.failures,
            )
        chosen = sorted(have)[:needed]
        return combine(chosen, np.stack([have[holder] for holder in chosen]))

    # --- who is next to whom, and who is left ---

    def _around(self, client: int) -> IntArray:
        """The numbers of a client's neighbours, in order."""
        if client not in self.near:
            ids: IntArray = self.roster["clients"]
            place = int(np.searchsorted(ids, self.numbers[client]))
            self.near[client] = ids[neighbours(place, len(ids), self.share, self.digest)]
        return self.near[client]

    def _mask_key(self, number: int) -> bytes:
        place = int(np.searchsorted(self.roster["clients"], number))
        key: bytes = self.roster["mask_keys"][place].tobytes()
        return key

    def _asked(self, task: Task, payload: Any, to: IntArray, *, counts: bool = True) -> list[Reply]:
        """The replies to a step; who fails one before its reply came does not take part."""
        ask = self.ask
        found = self.federation.ask(
            task, payload, to=to, round=ask.round, deadline=ask.deadline, quorum=0
        )
        answers = found.collect()
        if counts:
            self.replies.failures += found.failures
        return answers

    def _enough(self, did: str, who: Mapping[int, Any]) -> IntArray:
        if len(who) < self.needed:
            raise SecureSumFailed(
                f"the secure sum over {self.ask.task!r}: {len(who):,} of {len(self.clients):,} "
                f"clients {did}, {self.needed:,} are needed: nothing is revealed",
                self.replies.failures,
                hint=str(self.replies.failures[0]) if self.replies.failures else None,
            )
        return np.array(sorted(who), dtype=np.int64)

    def _fail(self, clients: IntArray, reason: str) -> None:
        self.replies.failures += [Failure(c, "invalid", reason) for c in clients.tolist()]

    def _has_bytes(self, reply: Reply, wanted: Mapping[str, int]) -> bool:
        sound = isinstance(reply.payload, Mapping) and all(
            isinstance(value := reply.payload.get(name), bytes) and len(value) == size
            for name, size in wanted.items()
        )
        if not sound:
            self._fail(np.array([reply.client]), "its answer has no keys of the right length")
        return sound

    def _has_lines(
        self, reply: Reply, of: IntArray | None, name: str, size: int, whose: str = "to"
    ) -> bool:
        """Whether a reply has a line of so many bytes for each of the clients that it names."""
        payload = reply.payload if isinstance(reply.payload, Mapping) else {}
        clients, lines = payload.get(whose), payload.get(name)
        sound = (
            isinstance(clients, np.ndarray)
            and isinstance(lines, np.ndarray)
            and clients.dtype.kind == "i"
            and lines.dtype == np.uint8
            and lines.shape == (len(clients), size)
            and (of is None or np.array_equal(clients, of))
        )
        if not sound:
            self._fail(np.array([reply.client]), f"its {name} are not as they should be")
        return sound


def _stacked(pieces: Sequence[bytes]) -> Array:
    return np.stack([np.frombuffer(piece, np.uint8) for piece in pieces])


def _by_recipient(to: IntArray, lines: Array) -> dict[int, Array]:
    return dict(zip(to.tolist(), lines, strict=True))


def _rows(lines: Sequence[Array], size: int) -> Array:
    return np.stack(lines) if len(lines) else np.empty((0, size), np.uint8)
