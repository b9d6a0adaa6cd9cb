"""``solera dictionary`` from a draft to an epoch that four owners have signed, by files alone."""

import json
import re
from pathlib import Path

import pytest
from tests.simulate.test_epochs import NAMES, table
from typer.testing import CliRunner

from solera.cli.app import app
from solera.serve.agent.epoch_files import EpochFiles, current_epoch
from solera.trust.epoch import Draft

OWNERS = [word for name in NAMES for word in ("--owner", name)]


@pytest.fixture(autouse=True)
def _four_owners(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = table()
    for name, rows in frame.groupby("hospital"):
        rows.drop(columns="hospital").to_csv(f"{name}.csv", index=False)
    frame.drop(columns="hospital").to_csv("all.csv", index=False)
    options = ("--target", "died", "--identifier", "patient", "-f", "heart", *OWNERS)
    said("draft", "all.csv", *options, "--out", "dictionary.toml")


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["dictionary", *arguments], prog_name="solera")
    assert result.exit_code == code, (result.output, result.stderr)
    return result


def said(*arguments):
    return run(*arguments).stdout


def complaint(*arguments):
    return run(*arguments, code=1).stderr


def sign(name, *options, code=0):
    rows = ("--data", f"{name}.csv", "--name", name, "--folder", name)
    return run("sign", "dictionary.toml", *rows, *options, code=code)


def words():
    return json.loads(said("show", "dictionary.toml", "--json"))["words"]


def agreed(name):
    """The epoch that all have signed, whose atoms no agent has found."""
    assert current_epoch(Path(name)) is None, "files carry no sums"
    return EpochFiles(Path(name)).agreed()


def all_sign(names=NAMES, *options):
    for name in names[:-1]:
        assert "still to enter" in sign(name).stdout
    sign(names[-1], "--words", "no such words", code=1)
    for name in names:
        sign(name, "--words", words(), *options)


def test_a_draft_is_a_dictionary_and_who_is_to_sign():
    draft = Draft.read("dictionary.toml")
    assert draft.owners == NAMES
    assert draft.dictionary.target == ("died",)
    assert "target" not in said("draft", "all.csv", "--identifier", "patient")


def test_a_draft_says_which_categories_are_rare():
    lines = Path("all.csv").read_text().splitlines()
    Path("rare.csv").write_text("\n".join([*lines, "p999,50,other,no"]))
    told = run("draft", "rare.csv", "--identifier", "patient").stderr
    assert "sex: fewer than 5 rows are other" in told


def test_check_says_what_would_mend_a_table():
    other = Path("north.csv").read_text().replace("female", "F").replace("male", "M")
    Path("other.csv").write_text(other.replace("age", "Age"))
    result = run("check", "dictionary.toml", "--data", "other.csv", code=1)
    line = 'sex = { from = "sex", categories = { F = "female", M = "male" } }'
    assert line in result.stdout
    assert 'age = { from = "Age" }' in result.stdout
    Path("policy.toml").write_text(
        f'policy = "sums"\n[columns]\n{line}\nage = {{ from = "Age" }}\n'
    )
    fits = said("check", "dictionary.toml", "--data", "other.csv", "--policy", "policy.toml")
    assert "all 3 columns fit, in 60 rows" in fits
    refused = complaint("sign", "dictionary.toml", "--data", "other.csv", "--name", "north",
                        "--folder", "north")  # fmt: skip
    assert "column 'age'" in refused


def test_four_owners_sign_an_epoch_by_files():
    all_sign()
    shown = said("show", "dictionary.toml")
    assert "signed by all; the atoms are found by agents, at a coordinator" in shown
    assert "which files do not carry" in sign("west").stdout
    assert len(shown.splitlines()) <= 24, "it fits on one screen"
    assert re.search(r"words: (\w{5} ?){5}\n", shown)
    for name in NAMES:
        sign(name)  # who signed first finds the others' signatures now
        signed = agreed(name)
        assert signed is not None
        assert signed.epoch.words() == words()
        log = (Path(name) / "audit.log").read_text()
        assert "epoch part" in log
        assert "epoch signed" in log


def test_other_words_than_those_said_by_voice_are_not_signed():
    for name in NAMES[:-1]:
        sign(name)
    assert "another epoch: do not sign" in sign("west", "--words", "a b c d e", code=1).stderr
    no = CliRunner().invoke(
        app,
        ["dictionary", "sign", "dictionary.toml", "--data", "west.csv", "--folder", "west",
         "--name", "west"],
        input="n\n",
    )  # fmt: skip
    assert no.exit_code == 1
    assert agreed("west") is None
    assert not list(Path().glob("*.signature"))


def test_a_part_that_changed_makes_another_epoch():
    all_sign()
    before = words()
    Path("west.csv").write_text(Path("west.csv").read_text().replace("female", "male", 1))
    assert "consent in writing" in sign("west", "--words", before, code=1).stderr
    assert words() != before
    assert "waits for the signature of north" in said("show", "dictionary.toml")


def test_an_epoch_that_lacks_one_person_needs_written_consent():
    all_sign()
    first = words()
    lines = Path("north.csv").read_text().splitlines()
    Path("north.csv").write_text("\n".join([lines[0], *lines[2:]]))
    for path in [*Path().glob("*.part"), *Path().glob("*.signature")]:
        path.unlink()
    for name in NAMES[:-1]:
        sign(name)
    sign("west", "--words", "wrong", code=1)
    assert words() != first
    north = ("--data", "north.csv", "--name", "north", "--folder", "north")
    told = said("change", "dictionary.toml", *north)
    assert "needs consent" in told
    assert "1 persons came, left or have other values" in told
    assert "consent in writing" in sign("north", "--words", words(), code=1).stderr
    sign("north", "--words", words(), "--consent")
    for name in NAMES[1:]:
        assert "tells nothing" in said("change", "dictionary.toml", "--data", f"{name}.csv",
                                       "--name", name, "--folder", name)  # fmt: skip
        sign(name, "--words", words())
    sign("north")
    assert len(EpochFiles(Path("north")).all()) == 2
    assert agreed("north").epoch.words() == words()
    assert "north consents: since epoch" in said("show", "dictionary.toml")


def test_a_person_who_withdraws_ends_the_epoch_at_once_and_the_next_needs_consent():
    all_sign()
    sign("north")
    person = Path("north.csv").read_text().splitlines()[1].split(",")[0]

    def withdraws(name):
        asked = ["withdraw", "--unit", name, "--folder", "north"]
        assert CliRunner().invoke(app, asked, prog_name="solera").exit_code == 0

    withdraws("nobody")
    assert agreed("north") is not None
    withdraws(person)
    assert agreed("north") is None
    for path in [*Path().glob("*.part"), *Path().glob("*.signature")]:
        path.unlink()
    for name in NAMES[1:]:
        sign(name)
    assert "1 persons came, left" in sign("north", "--words", words(), code=1).stderr
    sign("north", "--words", words(), "--consent")
    for name in NAMES[1:]:
        sign(name, "--words", words())
    sign("north")
    assert agreed("north").epoch.owners[0].persons == 59


def test_what_no_owner_can_sign_is_refused_before_anything_leaves():
    text = Path("dictionary.toml").read_text()
    Path("dictionary.toml").write_text(
        text.replace("[epoch]", "[populations.few]\nage = { max = 41 }\n\n[epoch]")
    )
    values = Path("north.csv").read_text().splitlines()
    rows = [",".join([r.split(",")[0], "45", *r.split(",")[2:]]) for r in values[1:]]
    rows[0] = rows[0].replace(",45,", ",41,")
    Path("north.csv").write_text("\n".join([values[0], *rows]))
    assert "few holds 1 person" in sign("north", code=1).stderr
    assert not Path("north.part").exists()


def test_an_owner_that_leaves_alone_consents_or_nothing_runs():
    all_sign()
    sign("east")  # it sees that west has signed after it
    three = Path("dictionary.toml").read_text().replace(', "west"', "")
    Path("dictionary.toml").write_text(three)
    for path in [*Path().glob("*.part"), *Path().glob("*.signature")]:
        path.unlink()
    for name in NAMES[:2]:
        sign(name)
    sign("east", "--words", "no", code=1)
    for name in NAMES[:2]:
        sign(name, "--words", words())
    assert "west alone came or left" in sign("east", "--words", words(), code=1).stderr
    assert agreed("east").epoch.draft.owners == NAMES
    told = said("change", "dictionary.toml", "--leave", "--folder", "west", "--name", "west")
    assert "consented: west alone comes or leaves" in told
    for name in NAMES[:3]:
        sign(name)
        assert agreed(name).epoch.draft.owners == NAMES[:3]


def test_the_next_epoch_names_the_one_before():
    all_sign()
    said("draft", "--next", "--folder", "west", "--out", "next.toml")
    after = Draft.read("next.toml")
    before = EpochFiles(Path("west")).all()[0].epoch
    assert after.previous == before.hash.hex()
    assert after.dictionary == before.dictionary
    assert after.hash != before.draft.hash


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["draft"], "of which table?"),
        (["draft", "--next"], "no epoch was signed in agent"),
        (["show"], "which dictionary?"),
        (["show", "nothing.toml"], "there is no file nothing.toml"),
        (["check", "dictionary.toml"], "whose rows?"),
        (["sign", "dictionary.toml", "--data", "north.csv", "--folder", "n"], "who is this owner?"),
        (["sign", "dictionary.toml", "--data", "north.csv", "--folder", "n", "--name", "far"],
         "the draft does not name 'far'"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(arguments, told):
    assert told in complaint(*arguments)


def test_a_base_model_is_listed_and_another_one_is_not_signed():
    transformers = pytest.importorskip("transformers")
    config = {"vocab_size": 9, "hidden_size": 4, "num_attention_heads": 1, "num_hidden_layers": 1}
    made = transformers.BertModel(transformers.BertConfig(intermediate_size=4, **config))
    made.save_pretrained("tiny")
    options = ("--target", "died", "--identifier", "patient", "--base", "tiny", *OWNERS)
    said("draft", "all.csv", *options, "--out", "dictionary.toml")
    text = Path("dictionary.toml").read_text()
    assert "[bases.tiny.layers]" in text
    assert "columns fit" in said("check", "dictionary.toml", "--data", "north.csv")
    assert "still to enter" in sign("north").stdout
    assert "base model tiny: 2 layers may be adapted, digest" in said("show", "dictionary.toml")
    Path("dictionary.toml").write_text(text.replace("hidden = 4", "hidden = 5"))
    misfit = run("check", "dictionary.toml", "--data", "north.csv", code=1).stdout
    assert "lists hidden = 5, here it is 4" in misfit
    assert "lists hidden = 5, here it is 4" in sign("south", code=1).stderr
