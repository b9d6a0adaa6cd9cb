"""A simulation in an epoch has the rows, folds and order that the agents of its owners have."""

import hashlib
from dataclasses import replace

import numpy as np
import pandas
import pytest
from tests.trust.epoch.hospitals import Key

import solera as so
from solera.core.errors import DataError, UsageError
from solera.trust.epoch import Draft, Epoch, EpochError, Owner, SignedEpoch

NAMES = ("north", "south", "east", "west")
SECRETS = {name: hashlib.sha256(name.encode()).digest() for name in NAMES}


def table(rows=240):
    draw = np.random.default_rng(3)
    age = draw.integers(40, 90, rows)
    return pandas.DataFrame(
        {
            "patient": [f"p{i}" for i in range(rows)],
            "hospital": [NAMES[i % 4] for i in range(rows)],
            "age": age,
            "sex": draw.choice(["female", "male"], rows),
            "died": np.where(age + draw.normal(0, 15, rows) > 65, "yes", "no"),
        }
    )


def dictionary(frame):
    drafted = so.epochs.draft(frame.drop(columns="hospital"), target="died", identifier="patient")
    text = drafted.toml() + "[populations.elderly]\nage = { min = 65 }\n"
    return so.epochs.Dictionary.parse(text)


def agreed_on(frame, order=NAMES):
    """The epoch that four hospitals have signed, each having seen its own rows only."""
    wanted = dictionary(frame)
    parts = []
    for i, name in enumerate(order):
        mine = so.epochs.read_table(wanted, frame[frame["hospital"] == name])
        taken = so.epochs.Snapshot.of(SECRETS[name], wanted, mine.values, mine.persons)
        parts.append(Owner(name, Key(i + 1).sign_key, taken.commitment, taken.person_count))
    epoch = Epoch(Draft(wanted, tuple(order)), tuple(parts))
    return SignedEpoch(epoch, tuple(epoch.sign(Key(i + 1)) for i in range(4)))


def test_an_epoch_decides_order_folds_and_rows():
    frame = table()
    signed = agreed_on(frame, order=NAMES[::-1])
    fed = so.simulate(frame, dictionary=signed, group="hospital", secrets=SECRETS, test=0.2)
    assert fed.names == NAMES[::-1]
    assert fed.configuration.epoch == signed.epoch
    assert [f.name for f in fed.schema.features] == ["age", "sex"]
    assert fed.schema.classes.tolist() == ["no", "yes"]
    mixed = frame.sample(frac=1.0, random_state=0)
    again = so.simulate(mixed, dictionary=signed, group="hospital", secrets=SECRETS, test=0.2)
    np.testing.assert_array_equal(fed.data.X, again.data.X)
    np.testing.assert_array_equal(fed.data.y, again.data.y)
    assert (fed.data.sizes("train") + fed.data.sizes("test") == 60).all()


def test_other_rows_or_secrets_than_signed_are_refused():
    frame = table()
    signed = agreed_on(frame)
    changed = frame.assign(age=frame["age"].where(frame.index != 7, 41))
    for rows, secrets in ((changed, SECRETS), (frame, {**SECRETS, "east": bytes(32)})):
        with pytest.raises(EpochError, match="are not those that it has signed"):
            so.simulate(rows, dictionary=signed, group="hospital", secrets=secrets)


def test_a_job_takes_some_columns_another_target_and_a_population():
    frame = table()
    fed = so.simulate(
        frame,
        dictionary=dictionary(frame),
        group="hospital",
        columns=["sex"],
        target="age",
        population="elderly",
        validation=0.1,
        test=0.2,
    )
    assert [f.name for f in fed.schema.features] == ["sex"]
    assert fed.data.y.min() >= 65
    assert len(fed.data.y) == (frame["age"] >= 65).sum()
    assert fed.configuration.selection.validation == (7,)
    assert fed.configuration.selection.test == (8, 9)


def test_without_a_dictionary_one_is_drafted_and_one_line_says_so():
    X, y, _, _ = so.datasets.digits()
    with pytest.warns(so.epochs.DraftedDictionary, match="drafted from all 1,348 rows") as said:
        fed = so.simulate(X, y, clients=4, policy="sums")
    assert len(said) == 1
    assert fed.configuration.epoch.dictionary.target == ("y",)
    order = np.lexsort(np.column_stack([fed.data.X, fed.data.y]).T)
    before = np.lexsort(np.column_stack([X, y]).T)
    np.testing.assert_array_equal(fed.data.X[order], X[before])
    np.testing.assert_array_equal(fed.data.y[order], y[before])


def test_secrets_follow_from_the_seed_where_none_are_given():
    frame = table()
    feds = [
        so.simulate(frame, dictionary=dictionary(frame), group="hospital", test=0.5, seed=seed)
        for seed in (0, 0, 1)
    ]
    folds = [fed.data.X[: fed.data.sizes("train")[0]].tolist() for fed in feds]
    assert folds[0] == folds[1] != folds[2]


def test_what_no_owner_could_sign_is_refused():
    frame = table()
    frame.loc[0, "age"] = 100
    few = dictionary(frame).toml() + "[populations.oldest]\nage = { min = 95 }\n"
    with pytest.raises(DataError, match="could sign no such epoch: oldest holds"):
        so.simulate(frame, dictionary=so.epochs.Dictionary.parse(few), group="hospital")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"test": 0.25}, "a part is whole folds"),
        ({"test": 0.6, "validation": 0.4}, "no fold to train on"),
        ({"population": "young"}, "no population 'young'"),
        ({"columns": ["weight"]}, "no column 'weight'"),
        ({"kinds": {"age": "date"}}, "says how the frame is read"),
        ({"secrets": {"north": bytes(32)}}, "has none of east, south, west"),
    ],
)
def test_what_makes_no_sense_in_an_epoch_is_refused(options, said):
    frame = table()
    with pytest.raises(UsageError, match=said):
        so.simulate(frame, dictionary=dictionary(frame), group="hospital", **options)


def test_two_owners_are_too_few_for_an_epoch():
    frame = table()
    with pytest.raises(UsageError, match="3 to 64 owners, not 2"):
        so.simulate(frame, dictionary=dictionary(frame), clients=2)


@pytest.mark.parametrize("option", [{"secrets": {}}, {"population": "all"}])
def test_options_of_an_epoch_need_one(option):
    with pytest.raises(UsageError, match="agreed on a dictionary"):
        so.simulate(np.ones((8, 2)), clients=4, **option)


def test_an_epoch_of_other_owners_is_refused():
    frame = table()
    signed = agreed_on(frame)
    other = frame.assign(hospital=frame["hospital"].replace("west", "far west"))
    with pytest.raises(UsageError, match="far west"):
        so.simulate(other, dictionary=signed, group="hospital")


def test_rows_without_the_target_are_left_out_of_jobs_that_need_it():
    frame = table()
    frame.loc[:9, "died"] = None
    wanted = dictionary(table())
    columns = tuple(
        replace(column, missing=True) if column.name == "died" else column
        for column in wanted.columns
    )
    fed = so.simulate(frame, dictionary=replace(wanted, columns=columns), group="hospital")
    assert len(fed.data.y) == 230


def test_classes_are_ordered_by_the_dictionary():
    frame = table()
    for options in ({"dictionary": dictionary(frame)}, {"policy": "sums", "target": "died"}):
        with pytest.raises(UsageError, match="orders classes"):
            so.simulate(frame, group="hospital", classes=["yes", "no"], **options)


def test_samples_of_a_data_set_have_no_columns_to_agree_on():
    torch = pytest.importorskip("torch")

    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, i):
            return torch.full((3,), float(i)), i % 2

    with pytest.raises(UsageError, match=r"samples of a data set.*from_torch"):
        so.simulate(Pairs(), clients=4, policy="sums")
