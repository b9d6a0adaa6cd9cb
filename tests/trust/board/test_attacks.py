"""Who alters, forges, forks, withholds or guesses; and what fails without each mechanism."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from board_memory import MemoryBoard, MemoryConnection, MemoryStore
from board_owners import EPOCH, IDENTITIES, RESEARCHER, Ended, keys, run_of, text_of

import solera as so
from solera.core.payload import decode, encode
from solera.trust.board import keys as crypto
from solera.trust.board import run as protocol
from solera.trust.board.hashing import digest, mac
from solera.trust.board.keys import common_secret, hkdf, new_private, public_of, sign
from solera.trust.board.result import NotOfThisJob, open_result
from solera.trust.board.run import OwnerRun, RunEnded
from solera.trust.board.words import words_of
from solera.trust.masks import KEY, add_masks
from solera.trust.sealed import SealError

TEXT = text_of(so.FedLinear(rounds=2))
SUMS = 3
STEPS = ["start", "keys", "have", *(f"sum{k}" for k in range(SUMS)), "end"]
PARTS = np.random.default_rng(5).normal(size=(4, SUMS, 6))


def terms(owner: int, k: int) -> Any:
    return lambda: ({"terms": {"x": PARTS[owner, k], "rows": 10 + owner}}, b"")


def follow(run: OwnerRun) -> Any:
    """All steps of a run that only adds some numbers up."""
    run.start()
    run.keys()
    totals = [run.total(b"question %d" % k, terms(run.index, k)) for k in range(SUMS)]
    return totals, run.close(encode([total["terms"]["x"] for total in totals]))


def together(board: MemoryBoard, runs: list[OwnerRun]) -> list[Ended]:
    """Several owners at once: how it ended at each."""
    from threading import Thread

    ended: dict[int, Ended] = {}

    def go(run: OwnerRun) -> None:
        try:
            ended[run.index] = Ended(follow(run)[1], "", "", run.k)
        except RunEnded as end:
            ended[run.index] = Ended(None, str(end), run.blame(), run.k)

    threads = [Thread(target=go, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert board
    return [ended[run.index] for run in runs]


class Honest:
    """What an honest run leaves: the board, and every owner's disk."""

    def __init__(self, text: bytes = TEXT) -> None:
        self.board = MemoryBoard(4, patience=10)
        self.stores = [MemoryStore() for _ in range(4)]
        runs = [run_of(i, self.board.connect(i), self.stores[i], text) for i in range(4)]
        self.ends = together(self.board, runs)
        self.runs = runs
        assert all(end.closed for end in self.ends)


@pytest.fixture(scope="module")
def honest() -> Honest:
    return Honest()


class Altered(MemoryConnection):
    """The board as a coordinator shows it to one owner."""

    shown: dict[tuple[str, int], bytes]
    posted: list[str]

    def post(self, step: str, content: bytes) -> None:
        self.posted.append(step)

    def read(self, step: str, owners: Any) -> list[bytes]:
        return [self.shown[step, owner] for owner in owners if (step, owner) in self.shown]

    def evidence(self) -> list[bytes]:
        return []


def shown_to(
    victim: int, honest: Honest, shown: dict[Any, bytes], *, stored: bool = True, **more: Any
) -> Any:
    """The run of an owner whose disk is the honest one's; where it ends, and what it posted.

    Its sums are ``stored`` or worked out again.
    """
    connection = Altered(honest.board, victim)
    connection.shown, connection.posted = shown, []
    store = deepcopy(honest.stores[victim])
    if not stored:
        store.records = {name: store.records[name] for name in ("x", "r") if name in store.records}
    run = run_of(victim, connection, store, **{"text": TEXT, **more})
    try:
        follow(run)
    except RunEnded as end:
        return run, connection.posted, str(end)
    return run, connection.posted, ""


def alterations(honest: Honest, seed: int) -> Iterator[tuple[str, str, int, Any]]:
    """(what, step from which it shows, victim, what the victim is shown or given)."""
    draw = np.random.default_rng(seed)
    other = Honest(text_of(so.FedLinear(rounds=2), repeat=1))
    posts = {key: post for key, post in honest.board.posts.items() if key[0] in STEPS}
    places = sorted(posts)
    for i in itertools.count():
        victim = int(draw.integers(4))
        step, author = places[draw.integers(len(places))]
        if step == "keys" and victim == 0:
            continue  # what owner 0 says to the others it does not read
        post = posts[step, author]
        kind = ("bit", "cut", "longer", "other step", "other author", "other run", "lost", "bytes")[
            i % 8
        ]
        if kind == "bit":
            place, bit = int(draw.integers(len(post))), 1 << int(draw.integers(8))
            new = post[:place] + bytes([post[place] ^ bit]) + post[place + 1 :]
        elif kind == "cut":
            new = post[: int(draw.integers(len(post)))]
        elif kind == "longer":
            new = post + draw.bytes(int(draw.integers(1, 9)))
        elif kind == "other step":
            new = posts[places[draw.integers(len(places))]]
        elif kind == "other author":
            new = posts.get((step, int(draw.integers(4))), post)
        elif kind == "other run":
            new = other.board.posts[step, author]
        elif kind == "lost":
            new = b""
        else:
            new = draw.bytes(len(post))
        if new == post:
            continue
        yield kind, step, victim, {**posts, (step, author): new}


def check_alterations(honest: Honest, number: int, seed: int = 0) -> None:
    """Each ends the run of who is shown it, before its next post; the sum stays unreadable."""
    for kind, step, victim, shown in itertools.islice(alterations(honest, seed), number):
        run, posted, why = shown_to(victim, honest, shown)
        where = f"{kind} at {step}, shown to {victim}"
        assert why, where
        later = STEPS[STEPS.index(step) + 1 :]
        after_keys = victim != 0 and step == "keys"
        assert not set(posted) & set(later) or (after_keys and posted[-1] == "keys"), where
        sums = STEPS.index(step) - STEPS.index("sum0")
        assert run.k == max(0, min(sums, SUMS)), where


def test_altered_posts_end_the_run_before_the_next_post(honest: Honest) -> None:
    check_alterations(honest, 1_000)


@pytest.mark.slow
def test_ten_thousand_altered_posts(honest: Honest) -> None:
    check_alterations(honest, 10_000, seed=1)


def test_without_signatures_alterations_go_unseen(
    honest: Honest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that knows the board's key forges the post of another, and steers the total."""
    forged = forged_post(honest, author=3, k=0)
    shown = {**honest.board.posts, ("sum0", 3): forged}
    _, posted, why = shown_to(1, honest, shown, stored=False)
    assert "the post of owner 3 is not signed" in why
    assert "sum1" not in posted
    monkeypatch.setattr(protocol, "is_signed", lambda *_: True)
    _, posted, _ = shown_to(1, honest, shown, stored=False)
    assert "sum1" in posted


def forged_post(honest: Honest, author: int, k: int) -> bytes:
    """A body with one more in its last word, sealed by who knows the group's key."""
    context = decode(honest.stores[author].records[f"sum{k}"])["ctx"]
    key = hkdf(honest.runs[0]._group, "body", context, author)
    content = crypto.unseal(key, honest.board.posts[f"sum{k}", author][64:])
    assert content is not None
    body = crypto.seal(key, content[:-8] + bytes([content[-8] ^ 1]) + content[-7:])
    liar = IDENTITIES[2]  # a member, not the author
    return sign(liar, f"sum{k}", context, author, digest(body)) + body


@pytest.mark.parametrize(
    "given",
    [
        {"epoch": b"another epoch".ljust(32)},
        {"text": text_of(so.FedLinear(rounds=3))},
        {"text": text_of(so.FedLinear(rounds=2), researcher="S")},
        {"text": text_of(so.FedLinear(rounds=2), researcher_key=public_of(new_private()))},
        {"text": text_of(so.FedLinear(rounds=2), repeat=1)},
        {"keys": [*keys()[:3], keys(5)[4]]},
        {"keys": [keys()[i] for i in (1, 0, 2, 3)]},
        {"keys": keys(5)},
        {"keys": keys(3)},
    ],
    ids=lambda given: next(iter(given)),
)
@pytest.mark.parametrize("victim", range(4))
def test_another_text_epoch_or_roster_ends_at_the_start(
    honest: Honest, given: Any, victim: int
) -> None:
    if given.get("keys") == keys(3) and victim == 3:
        return
    _, posted, why = shown_to(victim, honest, honest.board.posts, **given)
    assert why.startswith(("start:", "keys:", "have:"))
    assert posted == ["start"] or given.get("keys") == keys(3)
    assert "sum0" not in posted


def test_a_member_that_signs_two_starts_is_named_before_any_sum(honest: Honest) -> None:
    """An owner signs one start of a jid: another of the same is one of two, and no run goes on."""
    other = Honest()
    shown = {**honest.board.posts, ("start", 3): other.board.posts["start", 3]}
    run, posted, why = shown_to(1, honest, shown, stored=False)
    assert why.startswith("keys")
    assert posted == ["start"]
    honest_start = honest.board.posts["start", 3]
    seen = [["start", 3, honest_start[:64], digest(honest_start[64:])]]
    run._board.evidence = lambda: [encode(seen), encode(entries(run, "start"))]
    assert run.blame() == "owner 3 signed two posts for start"


def entries(run: OwnerRun, step: str) -> list[Any]:
    return [[step, *post] for post in run._heard[step].posts]


def test_another_question_ends_the_run(honest: Honest) -> None:
    connection = Altered(honest.board, 1)
    connection.shown, connection.posted = honest.board.posts, []
    run = run_of(1, connection, MemoryStore({"x": honest.stores[1].records["x"]}), TEXT)
    run.start()
    run.keys()
    with pytest.raises(RunEnded, match="not signed for my context"):
        run.total(b"another question", terms(1, 0))
    run = run_of(1, connection, deepcopy(honest.stores[1]), TEXT)
    run.start()
    run.keys()
    with pytest.raises(RunEnded, match="what I stored answers another question"):
        run.total(b"another question", terms(1, 0))


# --- members that lie about keys, masks or posts ---


class CopiedKey(OwnerRun):
    """Posts the public key of owner 1 as its own."""

    def _say(self, step: str, context: bytes, content: bytes) -> None:
        if step == "start":
            content = self._board.read("start", [1])[0][64:]
        super()._say(step, context, content)


class ZeroKey(OwnerRun):
    def _say(self, step: str, context: bytes, content: bytes) -> None:
        super()._say(step, context, bytes(32) if step == "start" else content)


class LowOrderKey(OwnerRun):
    def _say(self, step: str, context: bytes, content: bytes) -> None:
        super()._say(step, context, b"\1" + bytes(31) if step == "start" else content)


class WrongMask(OwnerRun):
    """Leaves the masks of its own out: the sum would be of random words."""

    def _mask(self, words: Any, context: bytes) -> None:
        if self.k != 1:
            super()._mask(words, context)


class OtherLength(OwnerRun):
    def total(self, question: bytes, own_terms: Any) -> Any:
        return super().total(question, lambda: ({"terms": {"x": np.zeros(7), "rows": 1}}, b""))


class TwoGroups(OwnerRun):
    """Owner 0 gives another key of the board to owner 2."""

    def _say(self, step: str, context: bytes, content: bytes) -> None:
        if step == "keys":
            sealed = decode(content)
            other = crypto.seal(self._key_for_r(2), b"another r".ljust(32))
            content = encode([sealed[0], other, sealed[2]])
        super()._say(step, context, content)


def test_owners_with_different_keys_of_the_board_post_no_sum() -> None:
    board = MemoryBoard(4, patience=1)
    runs = [run_of(i, board.connect(i), MemoryStore(), TEXT) for i in range(4)]
    runs[0].__class__ = TwoGroups
    ends = together(board, runs)
    assert {end.why for end in ends} == {"keys: not all have the same key"}
    assert "sum0" not in {step for step, _ in board.posts}


def test_an_owner_that_lost_its_disk_does_not_take_its_earlier_start_for_its_own(
    honest: Honest,
) -> None:
    connection = Altered(honest.board, 1)
    connection.shown, connection.posted = honest.board.posts, []
    with pytest.raises(RunEnded, match="start: my own start is missing"):
        run_of(1, connection, MemoryStore(), TEXT).start()


@pytest.mark.parametrize(
    ("roster", "why"),
    [
        (keys(2), "a closed job has 3 to 64 owners"),
        ([*keys(3), keys(3)[0]], "two owners of the epoch have the same key"),
    ],
)
def test_an_epoch_of_two_owners_or_of_equal_keys_runs_nothing(roster: Any, why: str) -> None:
    with pytest.raises(RunEnded, match=why):
        run_of(0, MemoryBoard(4).connect(0), MemoryStore(), TEXT, keys=roster)


class OtherResult(OwnerRun):
    """Ends with a result that nobody else has."""

    def close(self, result: bytes) -> Any:
        return super().close(result + b"!")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (OtherResult, "end: the results differ"),
        (CopiedKey, "start: two owners have one key"),
        (ZeroKey, "start: a key is zero, or none that an owner makes"),
        (LowOrderKey, "start: a key is zero, or none that an owner makes"),
        (WrongMask, "sum1: the masks do not cancel"),
        (OtherLength, "sum0: a post is not as my question makes it"),
    ],
)
def test_members_that_lie_about_keys_masks_or_forms_end_the_run(kind: Any, why: str) -> None:
    board = MemoryBoard(4, patience=1)
    runs = [run_of(i, board.connect(i), MemoryStore(), TEXT) for i in range(4)]
    runs[3].__class__ = kind
    ends = together(board, runs)
    assert not any(end.closed for end in ends)
    assert {end.why for end in ends[:3]} == {why}


def test_the_mask_of_a_pair_is_bound_to_ids_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without: a copied key makes two masks of owner 2 equal, and two members bare its part."""
    bound = parts_of_owner_2(monkeypatch, bound=True)
    loose = parts_of_owner_2(monkeypatch, bound=False)
    assert not np.array_equal(bound, words_of(terms(2, 0)()[0], 4)[0])
    assert np.array_equal(loose, words_of(terms(2, 0)()[0], 4)[0])


def parts_of_owner_2(monkeypatch: pytest.MonkeyPatch, *, bound: bool) -> Any:
    """What members 0 and 3 read of owner 2's post where nobody minds equal keys.

    Owner 3 has posted the key of owner 1: −m(1,2) + m(2,3) of owner 2 cancel if they are the same.
    """
    privates = [bytes([i + 1]) * 32 for i in range(4)]
    publics = [public_of(private) for private in privates]
    publics[3] = publics[1]
    run = run_of(2, MemoryBoard(4).connect(2), MemoryStore(), TEXT)
    run._publics = publics
    run._common = {j: common_secret(privates[2], publics[j]) for j in (0, 1, 3)}
    if not bound:
        monkeypatch.setattr(
            OwnerRun, "_mask_key", lambda self, ctx, j: hkdf(self._common[j], "mask", ctx)[:KEY]
        )
    words, _ = words_of(terms(2, 0)()[0], 4)
    run._mask(words, b"ctx")
    known = run._mask_key(b"ctx", 0)  # the pair's key, which member 0 has as well
    add_masks(words, [known], [])
    monkeypatch.undo()
    return words


class TwoPosts(OwnerRun):
    """Signs two posts for sum 1; the coordinator shows owner 2 the second."""

    def _say(self, step: str, context: bytes, content: bytes) -> None:
        super()._say(step, context, content)
        if step == "sum1":
            key = self._body_key(context, self.index)
            words = crypto.unseal(key, content)
            assert words is not None
            body = crypto.seal(key, words[:-8] + bytes([words[-8] ^ 1]) + words[-7:])
            signature = sign(self._identity, step, context, self.index, digest(body))
            self._board.board.posts["second", self.index] = signature + body  # type: ignore[attr-defined]


class Forking(MemoryConnection):
    def read(self, step: str, owners: Any) -> list[bytes]:
        posts = super().read(step, owners)
        if step == "sum1" and self.owner == 2:
            self.board.changed.acquire()
            while ("second", 3) not in self.board.posts:
                self.board.changed.wait(0.01)
            self.board.changed.release()
            posts[3] = self.board.posts["second", 3]
        return posts


def forked_run() -> list[Ended]:
    board = MemoryBoard(4, patience=2)
    runs = [run_of(i, Forking(board, i), MemoryStore(), TEXT) for i in range(4)]
    runs[3].__class__ = TwoPosts
    return together(board, runs)


def test_a_member_that_signs_two_posts_is_named_by_all() -> None:
    ends = forked_run()
    assert not any(end.closed for end in ends)
    assert {end.sums for end in ends} == {2}  # no total of sum 2 is known to anybody
    assert {end.blamed for end in ends[:3]} == {"owner 3 signed two posts for sum1"}


def test_without_heads_a_fork_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain of heads is what ends a forked run at the next sum, and not only at the end."""

    def chained(key: bytes, *parts: Any) -> bytes:
        return mac(key, *parts[:2]) if parts[0] == "head" else mac(key, *parts)

    monkeypatch.setattr(protocol, "mac", chained)
    ends = forked_run()
    assert max(end.sums for end in ends) == SUMS


def test_evidence_that_is_garbled_names_nobody(honest: Honest) -> None:
    run, *_ = shown_to(1, honest, {**honest.board.posts, ("sum1", 3): b"x" * 90})
    signed = [[step, *post] for step, heard in run._heard.items() for post in heard.posts]
    run._board.evidence = lambda: [  # type: ignore[method-assign]
        b"",
        b"garbage",
        encode(7),
        encode([["sum1", 3, b"short", b"x"]]),
        encode([["sum1", 99, bytes(64), bytes(32)], ["sum1", -1, bytes(64), bytes(32)]]),
        encode([[step, j, signature, bytes(32)] for step, j, signature, _ in signed]),
        encode(signed),
    ]
    assert run.blame() == "cause unknown"


# --- a coordinator that guesses ---


def confirmed(honest: Honest, group: list[bytes]) -> bool:
    """Whether a signature confirms a guessed total: it knows heads, question and one candidate key.

    The context of sum 1 holds everything before it, so a right guess of total 0, and hence of what
    is asked next, would verify the signature of sum 1.
    """
    post = honest.board.posts["sum1", 0]
    guesses = [mac(key, "ctx", honest_head(honest, 1), 1, b"question 1") for key in group]
    guesses.append(digest("ctx", honest_head(honest, 1), 1, b"question 1"))
    return any(
        crypto.is_signed(keys()[0], post[:64], "sum1", context, 0, digest(post[64:]))
        for context in guesses
    )


def honest_head(honest: Honest, k: int) -> bytes:
    """The head before sum k."""
    run = honest.runs[0]
    head = digest("head", run.job, *run._publics)
    for i in range(k):
        context = decode(honest.stores[0].records[f"sum{i}"])["ctx"]
        bodies = [honest.board.posts[f"sum{i}", j][64:] for j in range(4)]
        head = mac(run._group, "head", context, *map(digest, bodies))
    return head


def test_signatures_confirm_no_guess_of_a_total(honest: Honest) -> None:
    """Contexts are under G; with G, which the coordinator has not, the guess is confirmed."""
    on_board = [post[64:] for post in honest.board.posts.values()]
    assert not confirmed(honest, on_board)
    assert confirmed(honest, [honest.runs[0]._group])


def test_digests_confirm_no_guess_of_a_result(honest: Honest) -> None:
    """The salt is under G: the coordinator guesses the result, and cannot tell that it is right."""
    closed = honest.ends[0].closed
    assert closed is not None
    told = honest.board.posts["end", 0][64:]

    def guess(salt: bytes) -> bytes:
        return digest(encode({"job": honest.runs[0].job, "salt": salt, "result": closed.result}))

    salts = [bytes(32), b"", *(post[64:96] for post in honest.board.posts.values())]
    assert told not in map(guess, salts)
    assert told == guess(decode(closed.content)["salt"])


def test_the_coordinator_cannot_add_posts_up(
    honest: Honest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks of all owners cancel: bodies that were not sealed would tell it every total."""
    words = [words_of(terms(i, 0)()[0], 4)[0] for i in range(4)]
    total = np.add.reduce(words)
    assert not np.array_equal(added_bodies(honest, len(total)), total)
    monkeypatch.setattr(protocol, "seal", lambda key, content: content + bytes(16))
    monkeypatch.setattr(protocol, "unseal", lambda key, body: body[:-16])
    assert np.array_equal(added_bodies(Honest(), len(total)), total)


def added_bodies(honest: Honest, size: int) -> Any:
    """The bodies of sum 0 as the coordinator has them, after the stop flag, as words, added."""
    bodies = [honest.board.posts["sum0", j][64:] for j in range(4)]
    return np.add.reduce([np.frombuffer(body[1 : 1 + 8 * size], "<u8") for body in bodies])


def test_bodies_without_masks_would_be_read_by_every_member(
    honest: Honest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a member unseals of another looks random; with masks taken out it is bare."""
    own = words_of(terms(2, 0)()[0], 4)[0]
    assert not np.array_equal(unsealed(honest, 2), own)
    monkeypatch.setattr(OwnerRun, "_mask", lambda *_: None)
    assert np.array_equal(unsealed(Honest(), 2), own)


def unsealed(honest: Honest, author: int) -> Any:
    context = decode(honest.stores[author].records["sum0"])["ctx"]
    key = hkdf(honest.runs[0]._group, "body", context, author)
    content = crypto.unseal(key, honest.board.posts["sum0", author][64:])
    assert content is not None
    return np.frombuffer(content[1:], "<u8")


# --- the researcher ---


def test_the_researcher_reads_the_result_of_its_job_alone(honest: Honest) -> None:
    closed = honest.ends[1].closed
    assert closed is not None
    known: dict[str, Any] = {"epoch": EPOCH, "keys": keys(), "text": TEXT}
    assert open_result(closed.sealed, RESEARCHER, **known).result == closed.result
    with pytest.raises(SealError):
        open_result(closed.sealed, new_private(), **known)
    for name, other in [
        ("text", text_of(so.FedLinear(rounds=3))),
        ("epoch", b"another".ljust(32)),
        ("keys", [*keys()[:3], keys(5)[4]]),
        ("keys", keys(5)),
    ]:
        with pytest.raises(NotOfThisJob):
            open_result(closed.sealed, RESEARCHER, **known | {name: other})


def test_a_result_that_one_owner_changes_is_refused(honest: Honest) -> None:
    """One owner seals what it likes; the others have not signed it."""
    from solera.trust.board.result import pack

    run = honest.runs[3]
    content = encode({"job": run.job, "salt": bytes(32), "result": b"a better one"})
    sealed = pack(content, run.head, [bytes(64)] * 4, public_of(RESEARCHER))
    with pytest.raises(NotOfThisJob, match="owner 0 has not signed"):
        open_result(sealed, RESEARCHER, epoch=EPOCH, keys=keys(), text=TEXT)


def test_without_the_store_a_crash_would_sign_a_second_post(honest: Honest) -> None:
    """One post for (jid, k): an owner that makes it anew, of other numbers, contradicts itself."""

    class NoStore(MemoryStore):
        def once(self, name: str, make: Any) -> bytes:
            return make() if name.startswith("sum") else super().once(name, make)

    records = {name: honest.stores[1].records[name] for name in ("x",)}
    run = run_of(1, honest.board.connect(1), NoStore(records), TEXT)
    run.start()
    run.keys()
    with pytest.raises(RunEnded, match="a second post for sum0"):
        run.total(b"question 0", lambda: ({"terms": {"x": np.zeros(6), "rows": 1}}, b""))
    stored = run_of(1, honest.board.connect(1), deepcopy(honest.stores[1]), TEXT)
    stored.start()
    stored.keys()
    total = stored.total(b"question 0", lambda: ({"terms": {"x": np.zeros(6), "rows": 1}}, b""))
    np.testing.assert_allclose(total["terms"]["x"], PARTS[:, 0].sum(axis=0), rtol=1e-12)
