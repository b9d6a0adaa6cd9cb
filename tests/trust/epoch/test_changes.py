"""No epoch, no population and no series of epochs singles out a person without consent."""

from dataclasses import replace

import numpy as np
import pytest
from tests.trust.epoch.hospitals import DICTIONARY, epoch_of, four

from solera.trust.epoch import Dictionary, EpochError, PastSnapshot, Snapshot, changes, own_faults
from solera.trust.epoch.differences import RowSet, changed_persons, too_close

COLUMNS = ["age", "sex", "died"]


def signing(before, after, dictionary=DICTIONARY, **options):
    """What signing tells the first of the hospitals, which was there before."""
    epochs = [epoch_of(hospitals, dictionary) for hospitals in before]
    past = {
        epoch.hash: (epoch, PastSnapshot.decode(hospitals[0].snapshot(dictionary).encode()))
        for epoch, hospitals in zip(epochs, before, strict=True)
    }
    new = epoch_of(after, dictionary)
    return changes(new, new.owners[0], after[0].snapshot(dictionary), past, **options)


def with_rows(hospitals, rows, **changed):
    """The first hospital with some of its rows only."""
    first = hospitals[0]
    values, persons = first.values[rows].copy(), [first.persons[i] for i in rows]
    for place, value in changed.get("values", {}).items():
        values[place] = value
    return [replace(first, values=values, persons=persons), *hospitals[1:]]


def test_the_same_rows_may_be_signed_again():
    signing([four()], four()).check()


@pytest.mark.parametrize("gone", [1, 4, 19])
def test_an_epoch_that_lacks_a_few_persons_needs_consent(gone):
    told = signing([four()], with_rows(four(), range(gone, 100)))
    with pytest.raises(EpochError, match=f"{gone} persons came, left or have other values"):
        told.check()
    with pytest.raises(EpochError, match="consent in writing"):
        told.check("yes")
    told.check(told.consent)


def test_one_value_of_one_person_is_a_change():
    told = signing([four()], with_rows(four(), range(100), values={3: [41.0, 0.0, 1.0]}))
    assert "1 persons" in told.reasons[0]
    assert any("differ in 1 person" in reason for reason in told.reasons)


def test_a_refresh_of_enough_persons_needs_none():
    signing([four()], with_rows(four(), range(40, 100))).check()
    few = signing([four()], with_rows(four(), range(40, 100)), refresh=50)
    assert "fewer than 50" in few.reasons[0]


def test_two_refreshes_that_leave_one_person_between_three_epochs_need_consent():
    hospitals = four()
    without_forty = with_rows(hospitals, range(40, 100))
    but_one = with_rows(hospitals, range(1, 100))
    signing([hospitals], without_forty).check()
    signing([without_forty], but_one).check()  # beside the last epoch alone it looks fine
    with pytest.raises(EpochError, match="1 persons"):
        signing([hospitals, without_forty], but_one).check()


def population(text, dictionary=DICTIONARY):
    return Dictionary.parse(dictionary.toml() + text)


def first_with(ages, **columns):
    first = four()[0]
    values = first.values.copy()
    values[:, 0] = 50
    values[: len(ages), 0] = ages
    return Snapshot.of(first.secret, columns["dictionary"], values, first.persons)


def test_a_population_of_one_person_cannot_be_signed():
    oldest = population("[populations.oldest]\nage = { min = 91 }\n")
    taken = first_with([95.0], dictionary=oldest)
    faults = own_faults(taken, COLUMNS, 5)
    assert any("oldest holds 1 person" in fault for fault in faults)
    hospitals = four()
    epoch = epoch_of(hospitals, oldest)
    told = changes(epoch, epoch.owners[0], taken, {})
    with pytest.raises(EpochError, match="oldest holds 1 person"):
        told.check(told.consent)


def test_two_populations_that_differ_in_one_person_cannot_be_signed():
    two = population(
        "[populations.a]\nage = { min = 70 }\n[populations.b]\nage = { min = 71 }\n",
        replace(DICTIONARY, populations=()),
    )
    taken = first_with([70.0, *[80.0] * 9], dictionary=two)
    assert own_faults(taken, COLUMNS, 5) == ("a and b differ in 1 person",)
    nobody = first_with([80.0] * 10, dictionary=two)
    assert own_faults(nobody, COLUMNS, 5) == ()


def test_all_but_one_person_cannot_be_signed():
    most = population("[populations.most]\nage = { max = 90 }\n")
    taken = first_with([95.0], dictionary=most)
    assert "all and most differ in 1 person" in own_faults(taken, COLUMNS, 5)


def test_three_populations_that_combine_to_one_person_are_seen():
    """Every pair differs in ten persons or more; a + b − c is one person."""
    of_groups = {"a c": 10, "b c": 10, "a": 1, "": 10}
    rows = [group for group, count in of_groups.items() for _ in range(count)]
    names = np.array([f"{i:016d}" for i in range(len(rows))], dtype="S16")
    sets = [RowSet("all", names, names)]
    for name in "abc":
        inside = np.array([name in group for group in rows])
        sets.append(RowSet(name, names[inside], names[inside]))
    assert not any(too_close([one, other], 5) for one in sets for other in sets)
    assert too_close(sets, 5) == ["sums over all, a combine to sums over fewer than 5 persons"]
    assert too_close(sets[:3], 5) == []


def test_a_column_with_a_few_values_cannot_be_signed_and_one_with_none_can():
    first = four()[0]
    sparse = Dictionary.parse(DICTIONARY.toml().replace("120] }", "120], missing = true }", 1))
    bare = replace(sparse, populations=())
    for known, fault in ((3, True), (0, False), (5, False)):
        values = first.values.copy()
        values[known:, 0] = np.nan
        faults = own_faults(Snapshot.of(first.secret, bare, values, first.persons), COLUMNS, 5)
        assert bool(faults) == fault, faults
    assert not own_faults(first.snapshot(), COLUMNS, 5)


def test_consent_of_a_lone_joiner_is_told_what_it_tells():
    hospitals = four()
    before = epoch_of(hospitals[1:])
    after = epoch_of(hospitals)
    past = PastSnapshot.decode(hospitals[0].snapshot().encode())
    told = changes(after, after.owners[0], hospitals[0].snapshot(), {before.hash: (before, past)})
    assert told.reasons == (
        "north alone comes or leaves: whoever has the totals of one job in both epochs can "
        "subtract them, and has the totals of north alone",
    )


def test_changed_persons_are_those_who_came_left_or_have_other_rows():
    first = four()[0]
    before = first.snapshot()
    other = with_rows(four(), [*range(1, 100)], values={5: [44.0, 1.0, 1.0]})[0].snapshot()
    assert changed_persons(before, other) == 2
    assert changed_persons(before, before) == 0
