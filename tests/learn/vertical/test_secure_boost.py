"""SecureBoost builds the trees of the joined columns, and nobody reads what is not theirs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import solera as so
from solera.core.errors import DataError, PayloadError, UsageError
from solera.core.payload import decode, encode
from solera.core.schema import Feature
from solera.learn.trees.boosting import hist_gbdt
from solera.learn.vertical.boosting import label_owner
from solera.learn.vertical.boosting.growing import units_of
from solera.learn.vertical.boosting.split_trees import Conditions, SplitTree
from solera.privacy.additive import WeakCipher

pytest.importorskip("tenseal", reason="the extra 'he' is not installed")

from .transcripts import transcript

plain = pytest.mark.filterwarnings("ignore::solera.privacy.additive.WeakCipher")
SMALL = {"rounds": 3, "max_depth": 3, "bins": 8, "min_rows": 4, "align": "order"}


def people(rows=240, seed=0):
    """Numbers with gaps, categories, a column that is the mirror of another, and duplicates."""
    rng = np.random.default_rng(seed)
    df = pd.DataFrame(rng.normal(size=(rows, 4)), columns=["a", "b", "c", "d"])
    df["d2"] = df.d
    df["minus_a"] = -df.a
    df["job"] = pd.Categorical(rng.choice(["x", "y", "z"], rows))
    df.loc[rng.random(rows) < 0.15, "c"] = np.nan
    df.loc[rng.random(rows) < 0.1, "b"] = np.nan
    gaps = np.where(df.c.isna(), 0.8, df.c)
    df["y"] = (df.a + gaps - 0.5 * df.d + 0.7 * (df.job == "y") + rng.normal(size=rows) > 0) * 1
    return df


COLUMNS = {"shop": ["b", "minus_a"], "bank": ["a", "job"], "tax": ["c", "d", "d2"]}


def vertical(df, columns=COLUMNS, labels="bank", **options):
    return so.simulate_vertical(df, columns=columns, target="y", labels=labels, **options)


def joined(df, columns=COLUMNS):
    """All columns at one client, party after party."""
    order = [name for own in columns.values() for name in own]
    return so.simulate(so.from_pandas(df[[*order, "y"]], target="y"), clients=1)


def whole_trees(fed, model, columns=COLUMNS):
    """The trees with everybody's conditions, as only a test can see them."""
    parts = {k: model.part(fed, k) for k in range(len(columns))}
    conditions = {k: Conditions.from_payload(part["conditions"]) for k, part in parts.items()}
    first = np.cumsum([0, *(len(own) for own in columns.values())])
    trees = []
    for t, payload in enumerate(parts[model.owners_[0]]["trees"]):
        tree = SplitTree.from_payload(payload)
        found = []
        for node, owner in enumerate(tree.owner.tolist()):
            if owner < 0:
                found.append((-1, 0.0, False))
                continue
            own = conditions[owner]
            (i,) = np.flatnonzero((own.tree == t) & (own.node == node))
            missing_left = bool(own.missing_left[i])
            found.append((int(first[owner] + own.column[i]), float(own.threshold[i]), missing_left))
        trees.append((found, tree))
    return trees


def assert_same_trees(fed, model, joint, columns=COLUMNS):
    ours = whole_trees(fed, model, columns)
    theirs = [tree for trees in joint.trees_ for tree in trees]
    assert len(ours) == len(theirs)
    for (conditions, tree), other in zip(ours, theirs, strict=True):
        expected = list(
            zip(
                other.feature.tolist(),
                other.threshold.tolist(),
                other.missing_left.tolist(),
                strict=True,
            )
        )
        inner = [line for line in conditions if line[0] >= 0]
        assert inner == [line for line in expected if line[0] >= 0]
        np.testing.assert_array_equal(tree.value, other.value[:, 0])
        np.testing.assert_array_equal(tree.support, other.support)


@pytest.fixture
def same_units(monkeypatch):
    """The booster of the joined columns counts in the units of the encrypted one."""

    class Same:
        of = staticmethod(units_of)

    monkeypatch.setattr(hist_gbdt, "Units", Same)


@plain
@pytest.mark.parametrize("cipher", ["ckks", "plain"])
@pytest.mark.parametrize("labels", ["bank", "shop"])
def test_trees_are_those_of_the_joined_columns(cipher, labels, same_units):
    df = people()
    fed = vertical(df, labels=labels)
    model = so.SecureBoost(**SMALL, cipher=cipher).fit(fed)
    joint = so.FedHistGBDT(rounds=3, max_depth=3, l2=1.0, min_rows=4, bins=8).fit(joined(df))
    assert_same_trees(fed, model, joint)
    said = model.predict_proba(fed, "train")
    X = so.from_pandas(df[[n for own in COLUMNS.values() for n in own]]).X
    np.testing.assert_array_equal(said, joint.predict_proba(X))


@plain
def test_the_law_notices_a_sum_that_is_not_exact(same_units, monkeypatch):
    df = people()
    true = label_owner._all_sums

    def wrong(*arguments):
        sums = true(*arguments)
        sums[:, :-1, 0] = sums[:, :-1, 0] >> 20 << 20
        return sums

    monkeypatch.setattr(label_owner, "_all_sums", wrong)
    fed = vertical(df)
    model = so.SecureBoost(**SMALL, cipher="plain").fit(fed)
    joint = so.FedHistGBDT(rounds=3, max_depth=3, l2=1.0, min_rows=4, bins=8).fit(joined(df))
    with pytest.raises(AssertionError):
        assert_same_trees(fed, model, joint)


def test_paillier_grows_the_same_trees(same_units):
    df = people(60)
    columns = {"bank": ["a"], "tax": ["c", "d"]}
    options = {"rounds": 1, "max_depth": 2, "bins": 4, "min_rows": 4, "align": "order"}
    fed = vertical(df, columns)
    with pytest.warns(WeakCipher, match="112 bits"):
        model = so.SecureBoost(**options, cipher="paillier-2048").fit(fed)
    joint = so.FedHistGBDT(rounds=1, max_depth=2, l2=1.0, min_rows=4, bins=4)
    assert_same_trees(fed, model, joint.fit(joined(df, columns)), columns)


@plain
@pytest.mark.parametrize("kind", ["several", "number"])
def test_several_classes_and_numbers(kind):
    df = people()
    rng = np.random.default_rng(1)
    if kind == "several":
        df["y"] = np.where(df.a > 0.7, "high", np.where(df.d > 0, "mid", "low"))
    else:
        df["y"] = 3.0 * df.a - df.d + 0.1 * rng.normal(size=len(df))
    fed = vertical(df)
    model = so.SecureBoost(**SMALL, cipher="plain").fit(fed)
    joint = so.FedHistGBDT(rounds=3, max_depth=3, l2=1.0, min_rows=4, bins=8).fit(joined(df))
    X = so.from_pandas(df[[n for own in COLUMNS.values() for n in own]]).X
    assert model.predict(fed, "train").shape == (240,)
    if kind == "several":
        np.testing.assert_allclose(
            model.predict_proba(fed, "train"), joint.predict_proba(X), atol=1e-6
        )
    else:
        np.testing.assert_allclose(model.predict(fed, "train"), joint.predict(X), atol=1e-6)
        with pytest.raises(UsageError, match="numbers"):
            model.predict_proba(fed, "train")


def test_units_leave_room_for_the_sums():
    for rows in (10, 1000, 32_561, 200_000, 5_000_000):
        units = units_of(rows, 1.0, counted=False)
        assert rows * 2.0**units.gradient < 2**44
        if units.packed:
            assert rows * (0.25 * 2.0**units.hessian * 2.0**units.rows + 1) < 2**44
            assert units.hessian >= 12
        else:
            assert rows * 0.25 * 2.0**units.hessian < 2**44


@plain
@pytest.mark.parametrize("cipher", ["ckks", "plain"])
def test_nobody_reads_gradients_labels_or_columns(cipher, monkeypatch):
    df = people(120)
    columns = {"bank": ["a", "job"], "tax": ["c", "d", "d2"]}
    fed = vertical(df, columns)
    carried = []
    rounded = label_owner.rounded
    monkeypatch.setattr(
        label_owner, "rounded", lambda *args: carried.append(rounded(*args)) or carried[-1]
    )
    with transcript(fed, monkeypatch) as seen:
        model = so.SecureBoost(**SMALL, cipher=cipher).fit(fed)
        model.predict(fed, "train")
    bank, tax = (so.from_pandas(df[own]).X for own in columns.values())
    labels = df.y.to_numpy()[:, None]
    gradients = carried[0][:, :1]
    assert seen.columns("driver", np.hstack([labels, gradients, bank, tax])) == []
    assert seen.columns(1, np.hstack([labels, bank])) == []
    assert seen.columns(0, tax) == []
    assert (seen.columns(1, gradients) == [0]) == (cipher == "plain")
    threshold = Conditions.from_payload(model.part(fed, "tax")["conditions"]).threshold[:1]
    assert not seen.holds(0, threshold.tobytes())
    assert not seen.holds("driver", threshold.tobytes())


def test_conditions_on_categories_and_dates_are_in_words():
    features = (
        Feature("job", "categorical", ("clerk", "smith", "tailor")),
        Feature("born", "date"),
    )
    conditions = Conditions.none(features).added(0, 0, 0, 1.0, True).added(0, 1, 1, 365.0, False)
    read = Conditions.from_payload(decode(encode(conditions.to_payload())))
    assert read.at(0, 0) == "job = clerk or smith or missing"
    assert read.at(0, 1) == "born ≤ 1971-01-01"


def test_conditions_are_shown_to_their_owner_alone():
    df = people()
    columns = {"bank": ["a", "job"], "tax": ["c", "d", "d2"]}
    fed = vertical(df, columns)
    model = so.SecureBoost(**{**SMALL, "rounds": 2}).fit(fed)
    bank, tax = model.show(fed, "bank"), model.show(fed, "tax")
    assert "a ≤" in bank
    assert "condition" in bank
    assert "of tax" in bank
    assert not any(f"{name} ≤" in bank or f"{name} is" in bank for name in columns["tax"])
    assert "≤" in tax
    assert "a ≤" not in tax
    assert "rows)" not in tax
    assert {"trees", "initial"} <= set(model.part(fed, "bank"))
    assert not {"trees", "initial", "losses"} & set(model.part(fed, "tax"))
    for party in columns:
        assert not {"secret", "key", "boosting", "candidates"} & set(model.part(fed, party))


def test_parts_are_saved_and_loaded_by_party(tmp_path):
    df = people()
    columns = {"bank": ["a", "job"], "tax": ["c", "d", "d2"]}
    fed = vertical(df, columns)
    model = so.SecureBoost(**{**SMALL, "rounds": 2}, test=0.25).fit(fed)
    said = model.predict_proba(fed, "test").to_numpy()
    files = [model.save_part(fed, party, tmp_path / f"{party}.part") for party in columns]
    assert b"minus" not in files[0].read_bytes()
    assert b"d2" not in files[0].read_bytes()
    later = vertical(df, columns)
    loaded = so.load(model.save(tmp_path / "model.sol"))
    for party, file in zip(columns, files, strict=True):
        loaded.load_part(later, party, file)
    np.testing.assert_array_equal(loaded.predict_proba(later, "test"), said)
    metrics = loaded.evaluate(later, "test").metrics
    truth = df.y.to_numpy()[180:]
    assert metrics["accuracy"] == pytest.approx((said.argmax(axis=1) == truth).mean())
    with pytest.raises(PayloadError, match="no part of this model"):
        so.SecureBoost(**SMALL).fit(vertical(df, columns)).load_part(later, "tax", files[1])


def test_new_rows_with_another_number_of_columns_are_named():
    df = people()
    columns = {"bank": ["a", "job"], "tax": ["c", "d", "d2"]}
    fed = vertical(df, columns)
    model = so.SecureBoost(**{**SMALL, "rounds": 1}).fit(fed)
    other = vertical(df, {"bank": ["a", "job"], "tax": ["c", "d"]})
    other.engine.restore({k: dict(v) for k, v in fed.engine.states().items()})
    with pytest.raises(DataError, match=r"2 columns.*3"):
        model.predict(other)


def test_what_cannot_be_learned_is_named_before_anything_is_sent():
    df = people()
    df["y"] = "the same"
    fed = vertical(df)
    with pytest.raises(DataError, match="two classes"):
        so.SecureBoost(**SMALL).fit(fed)
    assert {record.task for record in fed.meter.records} == {"data.describe"}
