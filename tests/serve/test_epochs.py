"""Owners sign an epoch through a coordinator that is trusted with nothing, over TLS."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from base64 import b64decode
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "cryptography", "pandas"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from starlette.testclient import TestClient  # noqa: E402
from tests.simulate.test_epochs import NAMES, dictionary, table  # noqa: E402

import solera as so  # noqa: E402
import solera.cli  # noqa: E402
from solera.cli.app import app  # noqa: E402
from solera.core.errors import SoleraError  # noqa: E402
from solera.serve.agent import home  # noqa: E402
from solera.serve.agent.agent import Agent  # noqa: E402
from solera.serve.agent.epoch_boards import CoordinatorBoard  # noqa: E402
from solera.serve.agent.epoch_files import (  # noqa: E402
    EpochFiles,
    current_epoch,
    fetch_agreed,
    fetch_epoch,
)
from solera.serve.agent.epoch_signing import settle_epoch  # noqa: E402
from solera.serve.agent.withdrawn import withdraw  # noqa: E402
from solera.serve.connection import Connection, CoordinatorError, trusting  # noqa: E402
from solera.serve.epochs import (  # noqa: E402
    DraftState,
    NewPart,
    NewSignature,
    atoms_bytes,
    framed,
)
from solera.serve.identity import Identity  # noqa: E402
from solera.serve.owner.site import OwnerSite  # noqa: E402
from solera.trust.epoch import Draft, EpochError, SignedEpoch  # noqa: E402

SOURCE = str(Path(solera.cli.__file__).parents[2])
HEART = "/v1/federations/heart"
PASSWORD = "a long password of vera"


def run(*arguments, code=0):
    result = CliRunner().invoke(app, list(arguments), prog_name="solera")
    assert result.exit_code == code, (result.output, result.stderr)
    return result


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """A coordinator, four owners who have joined, and their rows."""
    folder = tmp_path_factory.mktemp("heart")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield from _federation(patch)


def _federation(patch):
    run("tls", "init", "--host", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pair = ("--certificate", "tls/coordinator.pem", "--key", "tls/coordinator.key")
    with Path("serve.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "solera.cli.app", "serve", "--port", str(port), *pair],
            env={**os.environ, "PYTHONPATH": SOURCE},
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, Path("serve.log").read_text()
            time.sleep(0.05)
        url = f"https://127.0.0.1:{port}"
        patch.setenv("SOLERA_URL", url)
        patch.setenv("SOLERA_CA", "tls/ca.pem")
        patch.setenv("SOLERA_TOKEN", Path("coordinator/driver.token").read_text())
        patch.setenv("SOLERA_PASSWORD", PASSWORD)
        run("account", "add", "vera", "--role", "viewer")
        frame = table()
        for name in NAMES:
            token = run("invite", name, "--federation", "heart").stdout.strip()
            Agent.join(name, url, token, ca=str(Path("tls/ca.pem").resolve()))
            mine = frame[frame["hospital"] == name].drop(columns="hospital")
            mine.to_csv(f"{name}.csv", index=False)
        yield Path.cwd()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def draft(**changes):
    return Draft(dictionary(table()), NAMES, "heart", **changes)


def sign(name, *options, code=0):
    rows = ("--data", f"{name}.csv", "--folder", name)
    return run("dictionary", "sign", *options, *rows, code=code)


def connection(name):
    place = home.read_place(Path(name))
    return closing(home.connect_to(place, Identity.load(name), 10.0))


def state(name="north"):
    with connection(name) as to:
        return to.call("GET", f"{HEART}/dictionary", DraftState)


def words():
    return state().agreement().signed().epoch.words()


def atoms_found():
    """What the owners' agents find in the newest epoch."""
    secrets = {name: home.read_secret(Path(name)) for name in NAMES}
    epoch = state().agreement().signed().epoch.agreed
    fed = so.simulate(
        table(), dictionary=epoch, group="hospital", secrets=secrets, policy="sums", seed=0
    )
    return fed.atoms


def settle(names=NAMES, atoms=None):
    """The agents of these owners sign the atoms of the newest epoch, which all have signed."""
    atoms = atoms or atoms_found()
    newest = state().agreement().draft
    for name in names:
        with connection(name) as to:
            fetch_agreed(Path(name), to, "heart")
            board = CoordinatorBoard(to, "heart", newest)
            settle_epoch(Path(name), Identity.load(name), board, atoms)


@pytest.fixture(scope="module")
def signed(hospitals):
    """The same owners, who have signed an epoch, whichever test comes first."""
    if current_epoch(Path("west")) is None:
        Path("dictionary.toml").write_text(draft().toml())
        sign("north", "dictionary.toml")
        for name in NAMES[1:3]:
            sign(name)
        sign("west", "--words", "no", code=1)
        for name in NAMES:
            sign(name, "--words", words())
        settle()


def test_four_owners_sign_through_the_coordinator(hospitals):
    with connection("north") as to, pytest.raises(CoordinatorError, match="no epoch is signed yet"):
        to.request("GET", f"{HEART}/epoch")
    Path("dictionary.toml").write_text(draft().toml())
    assert "still to enter: south, east, west" in sign("north", "dictionary.toml").stdout
    for name in NAMES[1:3]:
        sign(name)
    sign("west", "--words", "no", code=1)
    for name in NAMES:
        assert "signed" in sign(name, "--words", words()).stdout
    shown = run("dictionary", "show", "--folder", "north").stdout
    assert "signed by all" in shown
    assert words() in shown
    assert "their agents look for the atoms" in shown
    assert current_epoch(Path("west")) is None, "the atoms are yet to be found"
    before = words()
    settle()
    assert words() == before, "people compare what they sign"
    assert current_epoch(Path("west")).verify().owners[3].name == "west"
    assert current_epoch(Path("north")) is None, "it was the first to sign, and has not looked yet"
    shown = run("dictionary", "show", "--folder", "north").stdout
    assert re.search(r"age .*[0-9]+: 4", shown)
    assert "look for the atoms" not in shown
    with connection("north") as to:
        signed = fetch_epoch(Path("north"), to, "heart")
        fetched = SignedEpoch.decode(to.request("GET", f"{HEART}/epoch").content)
    assert signed is not None
    assert signed.epoch == fetched.verify()
    assert signed.epoch.words() == words()


def test_a_signed_epoch_stays_as_it_is(signed):
    seen = state().agreement()
    with connection("north") as to:
        board = CoordinatorBoard(to, "heart", seen.draft)
        part = seen.parts["north"]
        assert board.enter(part).parts == seen.parts, "the same again is fine"
        other = type(part)("north", part.key, bytes(32), 60, part.runtime)
        with pytest.raises(CoordinatorError, match="stays as it is"):
            board.enter(other)


def test_an_owner_enters_and_signs_for_itself_only(signed):
    seen = state().agreement()
    named = f"/v1/dictionary/{seen.draft.hash.hex()}"
    south = seen.parts["south"]
    with connection("north") as to:
        with pytest.raises(CoordinatorError, match="of the owner that enters it"):
            to.request("PUT", f"{named}/part", json=NewPart(framed(south.encode())))
        signature = next(s for s in seen.signatures if s.key == south.key)
        with pytest.raises(CoordinatorError, match="given by the owner of its key"):
            to.request("PUT", f"{named}/signature", json=NewSignature(framed(signature.encode())))
        for frame in ("", "AAAA", "no base64", framed(b"junk" * 20)):
            with pytest.raises(CoordinatorError, match="status 4"):
                to.request("PUT", f"{named}/part", json=NewPart(frame))


def test_a_draft_of_strangers_or_of_another_federation_is_refused(signed):
    with connection("north") as to:
        for wrong, told in (
            (Draft(draft().dictionary, (*NAMES[:3], "far"), "heart"), "'far', who has not joined"),
            (Draft(draft().dictionary, NAMES, "lung"), "for the federation 'lung'"),
        ):
            with pytest.raises(CoordinatorError, match=told):
                CoordinatorBoard(to, "heart", wrong).look()
        with pytest.raises(CoordinatorError, match="another federation"):
            to.request("GET", "/v1/federations/lung/dictionary")


class Liar:
    """A coordinator in the middle that changes what an owner reads."""

    def __init__(self, to: Connection, change) -> None:
        self.to, self.change = to, change

    def request(self, method, path, **options):
        return self.to.request(method, path, **options)

    def call(self, method, path, answer, json=None):
        return self.change(self.to.call(method, path, answer, json))


@pytest.fixture
def fresh(signed):
    """A draft that nobody has signed yet, in which all have entered their parts."""
    number = int(time.time_ns() % 10**9)
    new = draft(previous=f"{number:064x}")
    for name in NAMES:
        with connection(name) as to:
            CoordinatorBoard(to, "heart", new).look()
    Path("fresh.toml").write_text(new.toml())
    for name in NAMES[:3]:
        sign(name, "fresh.toml")
    sign("west", "fresh.toml", "--words", "no", code=1)
    return new


def altered(data: bytes, draw: np.random.Generator) -> str:
    changed = bytearray(data)
    changed[int(draw.integers(len(changed)))] ^= int(draw.integers(1, 256))
    return framed(bytes(changed))


def test_two_hundred_lies_of_a_coordinator_change_the_words_or_are_errors(signed, fresh):
    """Over TLS: whatever the coordinator alters, no owner reads the epoch's own words from it."""
    draw = np.random.default_rng(0)
    with connection("north") as to:
        honest = CoordinatorBoard(to, "heart", fresh).look().signed().epoch
        wrong = 0
        for _ in range(200):

            def lie(seen: DraftState) -> DraftState:
                i = int(draw.integers(len(seen.parts) + 1))
                if i < len(seen.parts):
                    seen.parts[i] = altered(b64decode(seen.parts[i]), draw)
                else:
                    text = seen.text.encode()
                    place = int(draw.integers(len(text)))
                    seen.text = (text[:place] + b"7" + text[place + 1 :]).decode()
                return seen

            try:
                signed = CoordinatorBoard(Liar(to, lie), "heart", fresh).look().signed()
            except SoleraError:
                wrong += 1
                continue
            wrong += signed is None or signed.epoch.hash != honest.hash
        assert wrong >= 198  # a 7 in the place of a 7 is no lie


def test_a_coordinator_that_swaps_a_key_is_found_by_the_words(signed, fresh):
    seen = state().agreement()
    true = words()
    Identity.create("stranger")
    stranger = Identity.load("stranger").sign_key

    def swap(seen: DraftState) -> DraftState:
        parts = seen.agreement().parts
        part = parts["south"]
        mine = type(part)("south", stranger, part.commitment, part.persons, part.runtime)
        seen.parts = [framed((mine if n == "south" else p).encode()) for n, p in parts.items()]
        return seen

    with connection("north") as to:
        swapped = CoordinatorBoard(Liar(to, swap), "heart", seen.draft).look().signed()
    assert swapped.epoch.words() != true
    assert (
        "another epoch"
        in sign("north", "fresh.toml", "--words", swapped.epoch.words(), code=1).stderr
    )


def test_signatures_of_another_epoch_settle_nothing(signed, fresh):
    before = current_epoch(Path("west"))
    seen = state().agreement()
    forged = SignedEpoch(seen.signed().epoch, before.signatures)
    with pytest.raises(EpochError):
        forged.verify()
    assert not EpochFiles(Path("west")).complete(forged)
    assert current_epoch(Path("west")).epoch.hash == before.epoch.hash
    with connection("west") as to:
        said = NewSignature(framed(before.epoch.sign(Identity.load("west")).encode()))
        with pytest.raises(CoordinatorError, match="of another epoch"):
            to.request("PUT", f"/v1/dictionary/{fresh.hash.hex()}/signature", json=said)


def test_an_epoch_that_was_not_signed_here_is_not_current(signed):
    other = Path("elsewhere")
    Identity.create(other)
    with connection("north") as to:
        assert fetch_epoch(other, to, "heart") is None


def owner_page(name, path="/epoch"):
    site = OwnerSite(Path(name))
    here = "http://127.0.0.1:4711"
    client = TestClient(site.app(), base_url=here, follow_redirects=True)
    client.get(site.access.link(4711).removeprefix(here))
    return client.get(path)


def coordinator_page(path):
    url, ca = os.environ["SOLERA_URL"], trusting(os.environ["SOLERA_CA"])
    with httpx.Client(base_url=url, verify=ca, follow_redirects=True) as client:
        client.post("/sign-in", data={"name": "vera", "password": PASSWORD})
        return client.get(path)


def test_both_pages_show_the_same_epoch_and_words(signed, fresh):
    theirs, mine = coordinator_page("/federations/heart/epoch"), owner_page("north")
    for answer in (theirs, mine):
        assert answer.status_code == 200
        assert words() in answer.text
        assert "waits for the signature of north, south, east, west" in answer.text
        assert "65" in answer.text
        assert "elderly" in answer.text
    assert "What signing tells" in mine.text
    for name in NAMES:
        sign(name, "--words", words(), "--consent")
    assert "signed by all" in coordinator_page("/federations/heart/epoch").text
    assert "You have signed." in owner_page("north").text


def in_force(name):
    with connection(name) as to:
        return fetch_epoch(Path(name), to, "heart").epoch.hash


def test_other_atoms_than_those_of_the_own_run_are_in_no_epoch(signed, fresh):
    """One owner signs others; then the coordinator shows others to all."""
    for name in NAMES:
        sign(name, "--words", words(), "--consent")
    before = {name: in_force(name) for name in NAMES}
    atoms = atoms_found()
    other = replace(atoms, intervals={**atoms.intervals, "age": atoms.intervals["age"][1:]})
    settle(NAMES[:3], atoms)
    with pytest.raises(CoordinatorError, match="another owner has signed other atoms"):
        settle(["west"], other)
    shown = run("dictionary", "show", "--folder", "north").stdout
    assert "the agents of west have yet to sign the atoms" in shown
    draw = np.random.default_rng(1)

    def lie(seen: DraftState) -> DraftState:
        seen.atoms = (
            framed(atoms_bytes(other))
            if draw.random() < 0.5
            else altered(b64decode(seen.atoms), draw)
        )
        return seen

    files = EpochFiles(Path("west"))
    with connection("west") as to:
        board = CoordinatorBoard(Liar(to, lie), "heart", fresh)
        for _ in range(60):
            with suppress(SoleraError):
                seen = board.look().signed()
                assert seen.unsettled == NAMES
                assert not files.complete(seen)
    for name in NAMES:
        assert in_force(name) == before[name]
    settle(["west", "north"], atoms)
    assert current_epoch(Path("north")).epoch.atoms == atoms


def test_whoever_withdraws_meanwhile_ends_what_waits_for_atoms(signed, fresh):
    for name in NAMES:
        sign(name, "--words", words(), "--consent")
    with connection("east") as to:
        assert fetch_agreed(Path("east"), to, "heart") is not None
    copy = Path("copy of east")
    shutil.copytree("east", copy)
    person = Path("east.csv").read_text().splitlines()[1].split(",")[0]
    withdraw(copy, person)
    assert EpochFiles(copy).agreed() is None
    assert current_epoch(copy) is None


def test_doctor_says_who_computes_with_something_else(signed, fresh):
    said = run("doctor", "--folder", "north").stdout
    assert "the pinned path gives" in said
    assert "computes with something else" not in said
    with connection("south") as to:
        board = CoordinatorBoard(to, "heart", fresh)
        part = board.look().parts["south"]
        older = {**part.runtime, "numpy": "1.26.4 0000"}
        board.enter(type(part)("south", part.key, part.commitment, part.persons, older))
    said = run("doctor", "--folder", "north", code=1).stdout
    assert "south computes with something else: numpy" in said
    refused = sign("east", "--words", "x", code=1).stderr
    assert "south does not compute with what north does: numpy" in refused


def test_who_leaves_takes_what_is_not_signed_yet(signed, fresh):
    assert "west" in state().agreement().parts
    held = run("leave", "--folder", "west").stdout
    assert "epoch_parts" in held
    assert "epochs/" in held
    with connection("north") as to:
        settled = fetch_epoch(Path("north"), to, "heart").epoch
    run("leave", "--folder", "west", "--delete")
    assert "west" not in state().agreement().parts
    assert not Path("west/epochs").exists()
    with connection("north") as to:
        signed = fetch_epoch(Path("north"), to, "heart")
    assert signed.epoch.hash == settled.hash, "what all have signed stays as proof"
