"""Who is speaking: keys that stay, requests that count once, replies bound to their ask."""

from __future__ import annotations

import os
import pickle
import stat
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="the extra 'serve' (cryptography) is not installed")

from solera.core.errors import PayloadError, UsageError
from solera.core.payload import encode
from solera.serve import identity as ids
from solera.serve.identity import Identity, NonceCache, Unauthorised, WrongSender
from solera.trust.sealed import OtherContext, open_sealed, seal

posix = pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
NOW = 1_800_000_000.0
REQUEST = ("POST", "/v1/replies?job=7", "ab" * 32)
GOOD = {
    "Solera-Key": "ab" * 32,
    "Solera-Time": "1800000000.000",
    "Solera-Nonce": "ab" * 16,
    "Solera-Start": "00" * 16,
    "Solera-Digest": "ab" * 32,
    "Solera-Signature": "ab" * 64,
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: Any) -> Identity:
    return Identity.create(tmp_path_factory.mktemp("client") / "keys")


def check_request(headers: Any, *request: Any, **options: Any) -> bytes:
    """Check a request with these headers."""
    return ids.check_request(ids.read_claim(headers), *request, **options)


def refused(
    headers: Any, *request: Any, seen: NonceCache | None = None, audience: str = "cardio"
) -> str:
    """The reason for which a request is refused."""
    method, path, digest, now = request if request else (*REQUEST, NOW)
    with pytest.raises(Unauthorised) as caught:
        check_request(headers, audience, method, path, digest, now, seen or NonceCache())
    return caught.value.reason


# --- keys ----------------------------------------------------------------------------------------


@posix
def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    made = Identity.create(tmp_path / "keys")
    file = tmp_path / "keys" / "identity.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.parent.iterdir()] == ["identity.key"]
    loaded = Identity.load(tmp_path / "keys")
    assert (loaded.sign_key, loaded.seal_key) == (made.sign_key, made.seal_key)
    assert len(made.sign_key) == len(made.seal_key) == 32

    file.chmod(0o640)
    with pytest.raises(UsageError, match=r"open to other users \(mode 640\)"):
        Identity.load(tmp_path / "keys")
    file.chmod(0o600)
    file.parent.chmod(0o755)
    with pytest.raises(UsageError, match="mode 755"):
        Identity.load(tmp_path / "keys")
    with pytest.raises(UsageError, match="mode 755"):
        Identity.create(tmp_path / "keys")


def test_keys_are_never_replaced(tmp_path: Path) -> None:
    made = Identity.create(tmp_path / "keys")
    with pytest.raises(UsageError, match="exists"):
        Identity.create(tmp_path / "keys")
    assert Identity.load(tmp_path / "keys").sign_key == made.sign_key
    with pytest.raises(UsageError, match="No such file"):
        Identity.load(tmp_path / "nowhere")


@posix
def test_a_link_in_place_of_the_key_is_refused(tmp_path: Path) -> None:
    Identity.create(tmp_path / "keys")
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "other" / "identity.key").symlink_to(tmp_path / "keys" / "identity.key")
    with pytest.raises(UsageError):
        Identity.load(tmp_path / "other")


def test_a_damaged_key_file_is_named(tmp_path: Path) -> None:
    Identity.create(tmp_path / "keys")
    file = tmp_path / "keys" / "identity.key"
    whole = file.read_bytes()
    damaged = [whole[:i] + bytes([whole[i] ^ 0x10]) + whole[i + 1 :] for i in range(len(whole))]
    for data in [*damaged, b"", whole[:-1], encode([1]), encode({}), encode("x"), encode(None)]:
        file.write_bytes(data)
        with pytest.raises(UsageError, match="is damaged"):
            Identity.load(tmp_path / "keys")


def test_private_keys_do_not_travel(client: Identity) -> None:
    with pytest.raises(PayloadError):
        encode({"key": client})
    with pytest.raises(TypeError):
        pickle.dumps(client)
    assert client.sign_key.hex()[:16] in repr(client)


def test_signatures(client: Identity, tmp_path: Path) -> None:
    signature = client.sign(b"message")
    assert ids.verify(client.sign_key, b"message", signature)
    assert not ids.verify(client.sign_key, b"massage", signature)
    assert not ids.verify(Identity.create(tmp_path / "k").sign_key, b"message", signature)
    for i in range(64):
        changed = signature[:i] + bytes([signature[i] ^ 1]) + signature[i + 1 :]
        assert not ids.verify(client.sign_key, b"message", changed)


@given(st.binary(max_size=70), st.binary(max_size=10), st.binary(max_size=70))
def test_any_bytes_verify_to_false(key: bytes, message: bytes, signature: bytes) -> None:
    assert not ids.verify(key, message, signature)


def test_sealed_messages_open_with_the_identity(client: Identity) -> None:
    box = client.seal(client.seal_key, b"for you", context=b"ask 3")
    assert client.open(box, context=b"ask 3", sender=client.sign_key) == b"for you"
    with pytest.raises(OtherContext):
        client.open(box, context=b"ask 4", sender=client.sign_key)


def test_a_sealed_message_says_who_made_it(client: Identity, tmp_path: Path) -> None:
    north, south = (Identity.create(tmp_path / name) for name in ("north", "south"))
    box = north.seal(client.seal_key, b"mine", context=b"ask 3")
    assert client.open(box, context=b"ask 3", sender=north.sign_key) == b"mine"
    with pytest.raises(WrongSender):
        client.open(box, context=b"ask 3", sender=south.sign_key)
    inside = open_sealed(client._seal, box, context=b"ask 3")
    passed_on = seal(south.seal_key, inside, context=b"ask 3")
    with pytest.raises(WrongSender):
        south.open(passed_on, context=b"ask 3", sender=north.sign_key)
    moved = seal(client.seal_key, inside, context=b"ask 4")
    with pytest.raises(WrongSender):
        client.open(moved, context=b"ask 4", sender=north.sign_key)
    for forged in (b"", b"x" * 95, south.sign_key + inside[32:], inside[:-1] + b"!"):
        with pytest.raises(WrongSender):
            client.open(
                seal(client.seal_key, forged, context=b""), context=b"", sender=north.sign_key
            )


# --- requests ------------------------------------------------------------------------------------


def test_a_signed_request_names_its_sender(client: Identity) -> None:
    headers = ids.sign_request(client, "cardio", *REQUEST, NOW)
    assert check_request(headers, "cardio", *REQUEST, NOW + 60, NonceCache()) == client.sign_key
    lower = {name.lower(): value for name, value in headers.items()}
    assert check_request(lower, "cardio", *REQUEST, NOW, NonceCache()) == client.sign_key


def test_every_part_of_a_request_is_signed(client: Identity) -> None:
    headers = ids.sign_request(client, "cardio", *REQUEST, NOW)
    method, path, digest = REQUEST
    for other in [("PUT", path, digest), (method, path + "1", digest)]:
        assert refused(headers, *other, NOW) == "signature"
    assert refused(headers, method, path, "cd" * 32, NOW) == "body"
    changed = headers | {"Solera-Digest": "cd" * 32}
    assert refused(changed, method, path, "cd" * 32, NOW) == "signature"
    assert refused(changed, method, path, None, NOW) == "signature"
    for audience in ("", "oncology", "cardio "):
        assert refused(headers, audience=audience) == "signature"
    shifted = ids.sign_request(client, "cardio", "POST/", "v1", "ab" * 32, NOW)
    assert refused(shifted, "POST", "/v1", "ab" * 32, NOW) == "signature"


def test_a_request_to_an_earlier_start_is_void(client: Identity) -> None:
    first, second = ids.new_start(), ids.new_start()
    headers = ids.sign_request(client, "cardio", *REQUEST, NOW, first)
    check = partial(check_request, audience="cardio", now=NOW, seen=None)
    method, path, digest = REQUEST
    request = {"method": method, "path": path, "body_digest": digest}
    assert check(headers, **request, start=first) == client.sign_key
    for wrong in (headers, headers | {"Solera-Start": second}):
        with pytest.raises(Unauthorised) as caught:
            check(wrong, **request, start=second)
        assert caught.value.reason == ("start" if wrong is headers else "signature")


def test_every_header_is_signed(client: Identity, tmp_path: Path) -> None:
    headers = ids.sign_request(client, "cardio", *REQUEST, NOW)
    other = ids.sign_request(
        Identity.create(tmp_path / "k"), "cardio", *REQUEST[:2], "cd" * 32, NOW + 1, "ab" * 16
    )
    wrong = {"Solera-Start": "start", "Solera-Digest": "body"}
    for name in headers:
        assert refused(headers | {name: other[name]}) == wrong.get(name, "signature")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Solera-Key", ""),
        ("Solera-Key", "AB" * 32),
        ("Solera-Key", "ab" * 33),
        ("Solera-Key", "０" * 64),
        ("Solera-Time", "1800000000"),
        ("Solera-Time", "1800000000.000\n"),
        ("Solera-Time", "+1800000000.000"),
        ("Solera-Time", "nan"),
        ("Solera-Time", "inf"),
        ("Solera-Time", "1e9"),
        ("Solera-Time", "9" * 400 + ".000"),
        ("Solera-Time", "١٨٠٠٠٠٠٠٠٠.000"),
        ("Solera-Nonce", "00"),
        ("Solera-Nonce", "ab" * 100_000),
        ("Solera-Start", "ab"),
        ("Solera-Digest", "AB" * 32),
        ("Solera-Signature", "zz" * 64),
        ("Solera-Signature", " " + "ab" * 64),
    ],
)
def test_odd_headers_are_refused(client: Identity, name: str, value: str) -> None:
    headers = ids.sign_request(client, "cardio", *REQUEST, NOW)
    assert refused(headers | {name: value}) == "header"
    del headers[name]
    assert refused(headers) == "header"


def test_repeated_headers_and_paths_that_are_not_text_are_refused(client: Identity) -> None:
    headers = ids.sign_request(client, "cardio", *REQUEST, NOW)
    assert refused(headers | {"solera-nonce": "ab" * 16}) == "header"
    assert refused(headers, "GET", "/\udcff", None, NOW) == "header"


@settings(max_examples=200)
@given(
    st.dictionaries(st.sampled_from([*GOOD, "Host"]), st.sampled_from([*GOOD.values()]) | st.text())
)
def test_hostile_headers_never_crash(headers: dict[str, str]) -> None:
    assert refused(headers) in {"header", "time", "signature"}


@pytest.mark.parametrize("sign", [1, -1])
def test_clock_skew(client: Identity, sign: int) -> None:
    headers = ids.sign_request(client, "cardio", *REQUEST, NOW)
    for skew in (0, 1, 119, 120):
        assert check_request(headers, "cardio", *REQUEST, NOW + sign * skew, NonceCache())
    for skew in (121, 1e6, 1e300, float("inf"), float("nan")):
        assert refused(headers, *REQUEST, NOW + sign * skew) == "time"


def test_a_replayed_request_is_refused(client: Identity) -> None:
    seen = NonceCache()
    headers = ids.sign_request(client, "cardio", *REQUEST, NOW)
    check_request(headers, "cardio", *REQUEST, NOW, seen)
    for later in (0, 1, 60, 120):
        assert refused(headers, *REQUEST, NOW + later, seen=seen) == "replay"
    assert refused(headers, *REQUEST, NOW + 121, seen=seen) == "time"
    check_request(ids.sign_request(client, "cardio", *REQUEST, NOW), "cardio", *REQUEST, NOW, seen)


def test_a_forged_request_uses_up_no_nonce(client: Identity) -> None:
    seen = NonceCache()
    headers = ids.sign_request(client, "cardio", *REQUEST, NOW)
    forged = headers | {"Solera-Signature": "00" * 64}
    assert refused(forged, seen=seen) == "signature"
    assert len(seen) == 0
    assert check_request(headers, "cardio", *REQUEST, NOW, seen) == client.sign_key


def test_whose_key_a_request_claims_is_known_before_it_is_checked(client: Identity) -> None:
    headers = ids.sign_request(client, "cardio", *REQUEST, NOW)
    assert ids.read_claim(headers).key == client.sign_key.hex()
    for odd in (headers | {"Solera-Key": "ab"}, headers | {"Solera-Nonce": ""}, {}):
        with pytest.raises(Unauthorised):
            ids.read_claim(odd)


def test_a_request_that_does_no_harm_when_repeated_needs_no_memory(client: Identity) -> None:
    headers = ids.sign_request(client, "cardio", *REQUEST, NOW)
    for _ in range(2):
        assert check_request(headers, "cardio", *REQUEST, NOW, None) == client.sign_key
    forged = headers | {"Solera-Signature": "00" * 64}
    with pytest.raises(Unauthorised):
        check_request(forged, "cardio", *REQUEST, NOW, None)


def test_a_signature_that_was_checked_before_the_body_came_does_not_stand_for_the_body(
    client: Identity,
) -> None:
    headers = ids.sign_request(client, "cardio", *REQUEST, NOW)
    seen = NonceCache()
    verified = partial(check_request, headers, "cardio", verified=True)
    for wrong, now in (((*REQUEST[:2], "cd" * 32), NOW), (REQUEST, NOW + 121)):
        with pytest.raises(Unauthorised):
            verified(*wrong, now, seen)
    assert verified(*REQUEST, NOW, seen) == client.sign_key
    with pytest.raises(Unauthorised):
        verified(*REQUEST, NOW, seen)


def test_a_seal_key_is_vouched_for_in_one_federation(client: Identity) -> None:
    signature = client.sign(ids.seal_key_message("cardio", client.seal_key))
    message = ids.seal_key_message
    assert ids.verify(client.sign_key, message("cardio", client.seal_key), signature)
    assert not ids.verify(client.sign_key, message("oncology", client.seal_key), signature)
    assert not ids.verify(client.sign_key, message("cardio", client.sign_key), signature)


def test_a_full_cache_lets_no_replay_through(client: Identity) -> None:
    seen = NonceCache(per_client=5)
    requests = [ids.sign_request(client, "cardio", *REQUEST, NOW + i) for i in range(20)]
    for headers in requests:
        check_request(headers, "cardio", *REQUEST, NOW + 20, seen)
        assert len(seen) <= 5
    for headers in requests:
        assert refused(headers, *REQUEST, NOW + 20, seen=seen) == "replay"


def test_a_busy_client_does_not_hurt_another(client: Identity, tmp_path: Path) -> None:
    seen = NonceCache(per_client=2)
    for i in range(10):
        headers = ids.sign_request(client, "cardio", *REQUEST, NOW + 100 + i)
        check_request(headers, "cardio", *REQUEST, NOW, seen)
    other = Identity.create(tmp_path / "other")
    assert check_request(
        ids.sign_request(other, "cardio", *REQUEST, NOW), "cardio", *REQUEST, NOW, seen
    )


def test_the_cache_is_bounded_in_clients_and_forgets_them() -> None:
    seen = NonceCache(clients=3)
    for i in range(3):
        seen.use(bytes([i]), "n", sent=100 + i, oldest=0)
    with pytest.raises(Unauthorised) as caught:
        seen.use(b"more", "n", sent=103, oldest=0)
    assert caught.value.reason == "busy"
    seen.use(b"more", "n", sent=230, oldest=102)
    assert len(seen) == 2
    with pytest.raises(UsageError):
        NonceCache(clients=0)


def test_of_many_threads_one_wins() -> None:
    seen, won, start = NonceCache(), [], threading.Barrier(8)

    def use() -> None:
        start.wait()
        for i in range(200):
            try:
                seen.use(b"key", str(i), sent=float(i), oldest=-1)
                won.append(i)
            except Unauthorised:
                pass

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(200))


# --- replies and tokens --------------------------------------------------------------------------

REPLY = ("cardio", "job", 3, "north", "cd" * 32, "ok", "ab" * 32, 1000)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
numbers = st.integers(0, 2**40)
replies = st.tuples(names, names, numbers, names, names, names, names, numbers)


@given(replies, replies)
def test_two_replies_never_share_their_bytes(one: Any, other: Any) -> None:
    assert (ids.reply_message(*one) == ids.reply_message(*other)) == (one == other)


@pytest.mark.parametrize("i", range(8))
def test_a_reply_is_bound_to_job_ask_client_and_content(client: Identity, i: int) -> None:
    signature = client.sign(ids.reply_message(*REPLY))
    changed: list[Any] = list(REPLY)
    changed[i] = changed[i] + 1 if isinstance(changed[i], int) else changed[i] + "x"
    assert ids.verify(client.sign_key, ids.reply_message(*REPLY), signature)
    assert not ids.verify(client.sign_key, ids.reply_message(*changed), signature)


def test_tokens() -> None:
    token = ids.new_token()
    assert len(token) == 43
    assert token != ids.new_token()
    stored = ids.token_hash(token)
    assert len(stored) == 32
    assert ids.token_hash(token) == stored
    for wrong in ("", token[:-1], token + "x", "\udcff", "é"):
        assert ids.token_hash(wrong) != stored
