"""Whatever is altered of an epoch that all have signed, nobody takes it for theirs."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from tests.trust.epoch.hospitals import DICTIONARY, Key, epoch_of, four, hospital, signed_by

from solera.core.errors import SoleraError, UsageError
from solera.core.payload import encode
from solera.trust.epoch import (
    Atoms,
    Dictionary,
    Draft,
    Epoch,
    EpochError,
    Owner,
    Signature,
    SignedEpoch,
)
from solera.trust.epoch.epoch import consent_to_lone_change


def test_an_epoch_that_all_have_signed_is_read_again():
    hospitals = four()
    epoch = epoch_of(hospitals)
    signed = SignedEpoch.decode(signed_by(hospitals, epoch).encode())
    assert signed.verify() == epoch
    assert signed.missing == ()
    assert [epoch.number(h.name) for h in hospitals] == [0, 1, 2, 3]
    assert signed.epoch.dictionary == DICTIONARY


def test_every_owner_must_sign():
    hospitals = four()
    epoch = epoch_of(hospitals)
    three = SignedEpoch(epoch, signed_by(hospitals, epoch).signatures[:3])
    assert three.missing == ("west",)
    with pytest.raises(EpochError, match="not signed yet by west"):
        three.verify()


def test_a_draft_is_one_text_and_names_what_is_wrong():
    draft = epoch_of(four()).draft
    assert Draft.parse(draft.toml()) == draft
    for wrong, right, said in (
        ('"north", ', "", None),
        ('"north", "south", ', "", "3 to 64 owners, not 2"),
        ('"south"', '"north"', "named twice"),
        ("min_count = 5", "min_count = 1", "min_count must be at least 2"),
        ("min_count = 5", "most = 5", "takes no most"),
    ):
        if said is None:
            assert len(Draft.parse(draft.toml().replace(wrong, right)).owners) == 3
            continue
        with pytest.raises(UsageError, match=r"dictionary.toml:\d+: .*" + said):
            Draft.parse(draft.toml().replace(wrong, right))


def test_owners_with_another_runtime_cannot_be_in_one_epoch():
    hospitals = four()
    parts = [h.part() for h in hospitals]
    parts[2] = replace(parts[2], runtime={"n": "2"})
    with pytest.raises(EpochError, match="east does not compute with what north does: n: 2"):
        Epoch(epoch_of(hospitals).draft, tuple(parts))


def test_a_coordinator_that_enrols_itself_changes_the_words():
    hospitals = four()
    epoch = epoch_of(hospitals)
    stranger = replace(hospital(1), key=Key(99))
    swapped = epoch_of([hospitals[0], stranger, *hospitals[2:]])
    fifth = epoch_of([*hospitals, hospital(4)])
    words = {e.words() for e in (epoch, swapped, fifth)}
    assert len(words) == 3
    for other in (swapped, fifth):
        with pytest.raises(EpochError):
            SignedEpoch(other, signed_by(hospitals, epoch).signatures).verify()


def test_hundreds_of_altered_files_are_no_signed_epoch():
    hospitals = four()
    data = signed_by(hospitals, epoch_of(hospitals)).encode()
    draw = np.random.default_rng(0)
    kept = []
    for _ in range(600):
        altered = bytearray(data)
        for place in draw.integers(0, len(data), draw.integers(1, 4)):
            altered[place] ^= int(draw.integers(1, 256))
        try:
            SignedEpoch.decode(bytes(altered)).verify()
            kept.append(bytes(altered))
        except SoleraError:
            continue
    assert not kept


def test_hundreds_of_altered_epochs_do_not_verify():
    hospitals = four()
    epoch = epoch_of(hospitals)
    signatures = signed_by(hospitals, epoch).signatures
    draw = np.random.default_rng(1)
    for _ in range(400):
        i = int(draw.integers(4))
        owner = epoch.owners[i]
        change = draw.integers(6)
        if change == 0:
            owner = replace(owner, key=draw.bytes(32))
        elif change == 1:
            owner = replace(owner, commitment=draw.bytes(32))
        elif change == 2:
            owner = replace(owner, persons=owner.persons + 1 + int(draw.integers(50)))
        owners = (*epoch.owners[:i], owner, *epoch.owners[i + 1 :])
        draft, changed = epoch.draft, signatures
        if change == 3:
            draft = replace(draft, min_count=6 + int(draw.integers(50)))
        elif change == 4:
            age = replace(DICTIONARY.columns[0], bounds=(0.0, 121.0 + float(draw.integers(99))))
            draft = replace(
                draft, dictionary=replace(DICTIONARY, columns=(age, *DICTIONARY.columns[1:]))
            )
        elif change == 5:
            consent = f"nothing {draw.integers(9)}"
            mine = Signature(signatures[i].key, signatures[i].value, consent)
            changed = (*signatures[:i], mine, *signatures[i + 1 :])
        with pytest.raises(EpochError, match=r"not of this epoch|not signed"):
            Epoch(draft, owners).verify(changed)


def test_copied_keys_are_refused():
    hospitals = four()
    parts = [h.part() for h in hospitals]
    parts[3] = replace(parts[3], key=parts[0].key)
    with pytest.raises(EpochError, match="same key"):
        Epoch(epoch_of(hospitals).draft, tuple(parts))


def test_bytes_of_anything_are_refused_by_name():
    """Whatever somebody puts in a file or on a board is an error of ours, never a crash."""
    draw = np.random.default_rng(2)
    pieces = [None, 5, -1, "x", b"y", bytes(32), [], ["a"], {}, {"n": 3}, 2.5, "[epoch]"]

    def anything(depth):
        if depth and draw.random() < 0.5:
            return [anything(depth - 1) for _ in range(draw.integers(7))]
        return pieces[draw.integers(len(pieces))]

    kinds = {
        "solera epoch 1": Epoch,
        "solera epoch 2": Epoch,
        "solera epoch part 1": Owner,
        "solera epoch signature 1": Signature,
        "solera signed epoch 1": SignedEpoch,
    }
    for kind, cls in kinds.items():
        for _ in range(300):
            with pytest.raises(SoleraError):
                cls.decode(encode([kind, anything(3)]))
        part = four()[0].part().to_payload()
        for i in range(5):
            changed = [*part[:i], anything(0), *part[i + 1 :]]
            with suppress(SoleraError):
                Owner.decode(encode(["solera epoch part 1", changed]))


def test_owners_in_another_order_are_another_epoch():
    hospitals = four()
    epoch = epoch_of(hospitals)
    other = epoch_of(hospitals[::-1])
    assert other.hash != epoch.hash
    with pytest.raises(EpochError, match="in its order"):
        Epoch(epoch.draft, other.owners)


def test_a_part_that_is_no_part_is_refused():
    for fields in (
        ["north", b"short", bytes(32), 3, {}],
        ["north", bytes(32), bytes(31), 3, {}],
        [3, bytes(32), bytes(32), 3, {}],
    ):
        with pytest.raises(ValueError, match="damaged"):
            Owner.from_payload(fields)


@pytest.mark.parametrize("comes", [True, False])
def test_an_owner_that_comes_or_leaves_alone_must_consent(comes):
    hospitals = [*four(), hospital(4)]
    before, after = epoch_of(hospitals[:4]), epoch_of(hospitals)
    if not comes:
        before, after = after, before
    lone = hospitals[4]
    owners = [h for h in hospitals if h.key.sign_key in {o.key for o in after.owners}]
    signed = signed_by(owners, after)
    signed.verify()
    with pytest.raises(EpochError, match=r"owner-4 alone came or left .*has the totals of owner-4"):
        signed.verify([before])
    consent = consent_to_lone_change(lone.part())
    by_another = after.sign(hospitals[0].key, consent=consent)
    with pytest.raises(EpochError, match="does not consent"):
        replace(signed, signatures=(*signed.signatures, by_another)).verify([before])
    others = tuple(s for s in signed.signatures if s.key != lone.key.sign_key)
    by_itself = after.sign(lone.key, consent=consent)
    replace(signed, signatures=(*others, by_itself)).verify([before])


def test_two_that_come_at_once_hide_each_other():
    hospitals = [*four(), hospital(4), hospital(5)]
    signed_by(hospitals, epoch_of(hospitals)).verify([epoch_of(hospitals[:4])])


def test_words_are_said_and_are_those_of_the_hash():
    words = epoch_of(four()).words()
    assert [len(word) for word in words.split()] == [5] * 5
    assert words == Epoch.decode(epoch_of(four()).encode()).words()


def test_a_dictionary_without_owners_is_no_draft():
    with pytest.raises(UsageError, match="nothing says who is to sign"):
        Draft.parse(DICTIONARY.toml())
    assert Dictionary.parse(epoch_of(four()).draft.toml()) == DICTIONARY


def test_atoms_that_not_all_agents_have_signed_are_in_no_epoch():
    """What people have signed says nothing of atoms."""
    hospitals = four()
    epoch = epoch_of(hospitals)
    by_people = signed_by(hospitals, epoch).signatures
    rest = {"sex": (0, 1), "died": (0, 1)}
    found = replace(epoch, atoms=Atoms({"age": (60.0,)}, rest))
    other = replace(epoch, atoms=Atoms({"age": (70.0,)}, rest))
    by_agents = tuple(found.sign(h.key) for h in hospitals)
    SignedEpoch(found, by_people + by_agents).verify()
    assert found.words() == epoch.words()
    assert Epoch.decode(found.encode()) == found
    for shown, signatures in (
        (found, by_people),
        (other, by_people),
        (found, by_people + by_agents[:3]),
    ):
        with pytest.raises(EpochError, match="not signed yet by"):
            SignedEpoch(shown, signatures).verify()
        assert SignedEpoch(shown, signatures).unsettled
    with pytest.raises(EpochError, match="is not of this epoch"):
        SignedEpoch(other, by_agents).verify()
