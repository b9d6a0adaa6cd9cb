"""Run files: what they build, and what they say when something is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import solera as so
from solera.core.config import line_of
from solera.core.errors import UsageError
from solera.core.selection import Uniform
from solera.data.partition import IID, Overlap
from solera.data.partition_labels import Dirichlet
from solera.learn.linear import FedLinear
from solera.study.files.reader import Study, parse, read
from solera.study.files.tables import DataSpec, EngineSpec, Variant

WHOLE = """\
# a comment
name = "digits-dirichlet"
seeds = [0, 1, 2]

[data]
name = "digits"
test = 0.25
clients = 20
client_test = 0.2

[partition]
kind = "Dirichlet"
alpha = 0.3

[learner]
kind = "FedLinear"
rounds = 30
lr = 1

[engine]
kind = "processes"
workers = 2
"""


def study_of(text: str) -> Study:
    return parse(text, file="run.toml", name="run")


def variant_of(text: str) -> Variant:
    (variant,) = study_of(text).variants()
    return variant


def test_a_whole_file() -> None:
    study = study_of(WHOLE)
    assert (study.name, study.seeds, study.text) == ("digits-dirichlet", (0, 1, 2), WHOLE)
    assert study.is_run
    assert variant_of(WHOLE) == Variant(
        data=DataSpec("digits", 20, 0.2, {"test": 0.25}),
        partition=Dirichlet(0.3),
        learner=FedLinear(rounds=30, lr=1),
        engine=EngineSpec("processes", {"workers": 2}),
    )


def test_what_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "short.toml"
    path.write_text('[data]\nname = "wine"\n[learner]\nkind = "FedLinear"\n')
    study = read(path)
    assert (study.name, study.seeds, study.schemes) == ("short", (0,), ("federated",))
    assert study.variants() == [Variant(DataSpec("wine"), FedLinear(), IID(), EngineSpec())]


def test_components_inside_components() -> None:
    spec = variant_of(
        '[data]\nname = "wine"\nclients = 3\n'
        '[partition]\nkind = "Overlap"\nfraction = 0.2\n'
        'partition = { kind = "Dirichlet", alpha = 1.0 }\n'
        '[learner]\nkind = "FedLinear"\n[learner.select]\nkind = "Uniform"\n'
    )
    assert spec.partition == Overlap(Dirichlet(1.0), fraction=0.2)
    assert spec.learner == FedLinear(select=Uniform())


def test_attacks_and_secure_sums() -> None:
    attack = '[attack]\nkind = ["SignFlip", "LabelFlip"]\nshare = [0.0, 0.2]\n'
    variants = study_of(WHOLE + attack).variants()
    assert [v.attack for v in variants] == [
        kind(share) for kind in (so.robust.SignFlip, so.robust.LabelFlip) for share in (0.0, 0.2)
    ]
    assert [v.params["attack.share"] for v in variants] == [0.0, 0.2, 0.0, 0.2]
    plain, secure = variant_of(WHOLE), variant_of("secure = true\n" + WHOLE)
    assert (plain.attack, plain.secure, secure.secure) == (None, False, True)
    keys = {plain.key, secure.key, *(v.key for v in variants)}
    assert len(keys) == 6, "cells of other settings are other cells"
    assert plain.key == "15a83adfcd8b", "and those of old files are found again"


ATTACKED = WHOLE + '[attack]\nkind = "SignFlip"\nshare = 0.2\n'
WRONG_ATTACKS = [
    ('"SignFlip"', '"SignFlop"', 24, "no attack 'SignFlop'", "'SignFlip'"),
    ("share = 0.2", "share = 1.2", 25, "share = 1.2", ""),
    ("share = 0.2", "factr = 5", 25, "SignFlip has no 'factr'", "'factor'"),
    ('kind = "SignFlip"', "", 23, "the attack has no kind", "SignFlip"),
    ("seeds =", "secure = 1\nseeds =", 3, "secure = 1 is not true or false", ""),
    ("seeds =", "secure = true\nseeds =", 24, "masks before anybody sees", "LabelFlip"),
]


@pytest.mark.parametrize(("old", "new", "line", "message", "hint"), WRONG_ATTACKS)
def test_errors_of_attacks_name_line_key_and_the_way_out(
    old: str, new: str, line: int, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as failed:
        study_of(ATTACKED.replace(old, new, 1)).variants()
    assert str(failed.value).startswith(f"run.toml:{line}: "), str(failed.value)
    assert message in failed.value.message
    assert hint in (failed.value.hint or "")


def test_lists_of_components_and_a_parameter_called_kind() -> None:
    from solera.learn.preprocess.columns import FedEncoder
    from solera.learn.preprocess.pipeline import Pipeline

    spec = variant_of(
        '[data]\nname = "car"\n[learner]\nkind = "Pipeline"\n'
        '[[learner.steps]]\nkind = "FedEncoder"\nkind_ = "ordinal"\n'
        '[[learner.steps]]\nkind = "FedLinear"\nrounds = 2\n'
    )
    assert spec.learner == Pipeline(FedEncoder("ordinal"), FedLinear(rounds=2))


WRONG = [
    # what to replace, by what, the line, a part of the message, a part of the hint
    ("seeds =", "sedes =", 3, "'sedes'", "'seeds'"),
    ("[learner]", "[lerner]", 15, "'lerner'", "'learner'"),
    ('"digits"', '"digit"', 6, "no data set 'digit'", "'digits'"),
    ("test = 0.25", "tset = 0.25", 7, "digits has no 'tset'", "'test'"),
    ("client_test", "client_tests", 9, "'client_tests'", "'client_test'"),
    ("test = 0.25", "test = true", 7, "test = True is not a number", ""),
    ("clients = 20", 'clients = "20"', 8, "clients = '20' is not a whole number", ""),
    ("clients = 20", "clients = 0", 8, "clients = 0", ""),
    ("client_test = 0.2", "client_test = 1.5", 9, "client_test = 1.5", ""),
    ('"Dirichlet"', '"dirichlet"', 12, "no partition 'dirichlet'", "'Dirichlet'"),
    ("alpha = 0.3", "alhpa = 0.3", 13, "Dirichlet has no 'alhpa'", "'alpha'"),
    ("alpha = 0.3", "", 11, "Dirichlet needs alpha", "alpha ="),
    ('"FedLinear"', '"IID"', 16, "no learner 'IID'", "FedLinear"),
    ("rounds = 30", "rounds = 3.5", 17, "rounds = 3.5 is not a whole number", ""),
    ("rounds = 30", "select = 3", 17, "select = 3 is not a table", ""),
    ("rounds = 30", 'select = { kind = "Unifrom" }', 17, "no selector 'Unifrom'", "'Uniform'"),
    ("rounds = 30", 'select = { kind = "IID" }', 17, "no selector 'IID'", "Uniform"),
    ('kind = "FedLinear"', "", 15, "the learner has no kind", "FedLinear"),
    ('kind = "processes"', 'kind = "threads"', 21, "there is no engine 'threads'", "processes"),
    ("workers = 2", "workers = 0", 22, "workers = 0 is not a whole number of at least 1", ""),
    ("seeds = [0, 1, 2]", "seeds = [0, 0]", 3, "seeds = [0, 0]", ""),
    ("seeds = [0, 1, 2]", "seeds = []", 3, "seeds = []", ""),
    ("seeds = [0, 1, 2]", "seeds = [-1]", 3, "seeds = [-1]", ""),
    ("seeds = [0, 1, 2]", 'seeds = "all"', 3, "not a list", ""),
    ('"digits-dirichlet"', '"../up"', 2, "'../up'", ""),
    ("lr = 1", "lr = ", 18, "not TOML", ""),
]


@pytest.mark.parametrize(("old", "new", "line", "message", "hint"), WRONG)
def test_errors_name_line_key_and_the_way_out(
    old: str, new: str, line: int, message: str, hint: str
) -> None:
    assert old in WHOLE
    with pytest.raises(UsageError) as caught:
        study_of(WHOLE.replace(old, new, 1))
    assert caught.value.message.startswith(f"run.toml:{line}: ")
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_false_is_none_where_a_parameter_may_be_none() -> None:
    text = """
    data = { name = "yeast", clients = 2 }
    [learner]
    kind = "MLFedAvg"
    model = { kind = "MLP", sizes = [103, 8] }
    stop = ["patience", false]
    batch_size = false
    shuffle = false
    """
    first, second = (variant.learner.get_params() for variant in study_of(text).variants())
    assert (first["stop"], second["stop"]) == ("patience", None)
    assert first["batch_size"] is None
    assert first["shuffle"] is False
    with pytest.raises(UsageError, match="rounds = False is not"):
        study_of(text.replace("batch_size", "rounds"))


def test_missing_tables() -> None:
    with pytest.raises(UsageError, match=r"needs data.*add \[data\]"):
        study_of('[learner]\nkind = "FedLinear"\n')
    with pytest.raises(UsageError, match=re.escape("[data] has no name")):
        study_of('[data]\nclients = 2\n[learner]\nkind = "FedLinear"\n')
    with pytest.raises(UsageError, match=r"run.toml:1: .*data = 3 is not a table"):
        study_of('data = 3\n[learner]\nkind = "FedLinear"\n')


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"):
        read(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not a text file"):
        read(tmp_path / "binary.toml")


def test_lines_of_entries() -> None:
    text = """\
a = 1

[t]
a = 2
"b c" = 3
d.e = 4
[[t.list]]
x = 1
[[t.list]]
x = 2
[ t.sub ]
a = 5
"""
    expected = {
        ("a",): 1,
        ("t",): 3,
        ("t", "a"): 4,
        ("t", "b c"): 5,
        ("t", "d", "e"): 6,
        ("t", "list", 0, "x"): 8,
        ("t", "list", 1): 9,
        ("t", "list", 1, "x"): 10,
        ("t", "sub", "a"): 12,
        ("t", "absent"): 3,
        ("absent",): 1,
    }
    assert {where: line_of(text, where) for where in expected} == expected
