"""Encrypted regression is its plaintext version, near scikit-learn's, and tells nobody more."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

import solera as so
from solera.core.errors import DataError
from solera.privacy import additive
from solera.privacy.additive import WeakCipher

pytest.importorskip("tenseal", reason="the extra 'he' is not installed")

from .transcripts import transcript

plain = pytest.mark.filterwarnings("ignore::solera.privacy.additive.WeakCipher")
Logistic = so.VerticalLogisticRegression
Linear, Poisson = so.learn.VerticalLinearRegression, so.learn.VerticalPoissonRegression
COLUMNS = {"shop": ["a", "b"], "bank": ["c"], "tax": ["d", "e"]}


def people(family="logistic", rows=200, seed=0):
    rng = np.random.default_rng(seed)
    df = pd.DataFrame(rng.normal(size=(rows, 5)) * [1, 50, 1, 0.01, 3], columns=list("abcde"))
    score = df.a - 0.01 * df.b + 0.5 * df.c + 20 * df.d
    if family == "logistic":
        df["y"] = np.where(score + rng.normal(size=rows) > 0, "yes", "no")
    elif family == "linear":
        df["y"] = 300.0 + 40 * score + rng.normal(size=rows)
    else:
        df["y"] = rng.poisson(np.exp(1 + 0.2 * score)).astype(float)
    return df


def vertical(df, columns=COLUMNS, labels="bank", **options):
    return so.simulate_vertical(df, columns=columns, target="y", labels=labels, **options)


def taylor(df, family, *, epochs, batch_size, lr, momentum, l2):
    """The same steps in floats, on the joined columns: names and coefficients."""
    names = [name for own in COLUMNS.values() for name in own]
    X = np.clip(StandardScaler().fit_transform(df[names]), -3, 3)
    X = np.hstack([X, np.ones((len(X), 1))])
    y = df.y.to_numpy()
    a, t = {
        "logistic": lambda: (0.25, np.where(y == "yes", 0.5, -0.5)),
        "linear": lambda: (1.0, (y - y.mean()) / y.std()),
        "poisson": lambda: (1.0, y / y.mean() - 1),
    }[family]()
    coef = np.zeros(X.shape[1])
    velocity = np.zeros(X.shape[1])
    shrunk = np.append(np.ones(len(names)), 0)
    for _ in range(epochs):
        for rows in np.array_split(np.arange(len(X)), -(-len(X) // batch_size)):
            slope = X[rows].T @ (a * X[rows] @ coef - t[rows]) / len(rows)
            velocity = momentum * velocity - lr * (slope + l2 * coef * shrunk)
            coef = coef + velocity
    return dict(zip([*names, "intercept"], coef, strict=True))


def all_coefficients(model, fed):
    found = {}
    for party in model.parties_:
        found |= model.coefficients(fed, party)
    return found


@plain
@pytest.mark.parametrize("cipher", ["ckks", "plain"])
@pytest.mark.parametrize("cls", [Logistic, Linear, Poisson])
def test_coefficients_are_those_of_the_plaintext_taylor_loss(cls, cipher):
    df = people(cls.family)
    steps = {"epochs": 3, "batch_size": 70, "lr": 0.1, "momentum": 0.8, "l2": 0.01}
    fed = vertical(df)
    model = cls(**steps, cipher=cipher, align="order").fit(fed)
    found, expected = all_coefficients(model, fed), taylor(df, cls.family, **steps)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-3), name
    assert max(map(abs, expected.values())) > 0.1


def test_every_cipher_gives_the_same_bits():
    df = people(rows=60)
    steps = {"epochs": 1, "batch_size": 30, "align": "order"}
    found = {}
    for cipher in ("plain", "ckks", "paillier-2048"):
        fed = vertical(df)
        if cipher == "ckks":
            model = Logistic(**steps, cipher=cipher).fit(fed)
        else:
            with pytest.warns(WeakCipher, match="NO ENCRYPTION|112 bits"):
                model = Logistic(**steps, cipher=cipher).fit(fed)
        found[cipher] = all_coefficients(model, fed)
    assert found["ckks"] == found["plain"] == found["paillier-2048"]


def table(name):
    """Training and test rows of a data set under each other, and how many are to test."""
    data = so.datasets.load(name)
    X, y = data.all
    columns = {}
    for j, feature in enumerate(data.schema.features):
        x = X[:, j]
        if feature.kind == "categorical":
            codes = np.where(np.isfinite(x), x, -1).astype(int)
            x = pd.Categorical.from_codes(codes, feature.categories)
        columns[feature.name] = x
    return pd.DataFrame({**columns, "y": (y > 0).astype(int)}), len(data.y_test)


@plain
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("heart_cleveland", marks=pytest.mark.data("heart_cleveland")),
        pytest.param("german_credit", marks=pytest.mark.data("german_credit")),
        pytest.param("credit2", marks=[pytest.mark.slow, pytest.mark.data("credit2")]),
        pytest.param("adult", marks=[pytest.mark.slow, pytest.mark.data("adult")]),
    ],
)
def test_auc_is_near_that_of_scikit_learn_on_the_joined_columns(name):
    """Without a cipher, which changes no bit of the result, and so in no time."""
    df, tested = table(name)
    names = [c for c in df.columns if c != "y"]
    half = len(names) // 2
    fed = vertical(df, {"bank": names[:half], "shop": names[half:]})
    model = Logistic(
        epochs=30, batch_size=4096, cipher="plain", align="order", test=(tested + 0.5) / len(df)
    ).fit(fed)
    truth = df.y[-tested:]
    ours = roc_auc_score(truth, model.predict_proba(fed, "test")[1])
    X = StandardScaler().fit_transform(pd.get_dummies(df[names]).fillna(0.0).astype(float))
    joint = LogisticRegression(max_iter=1000).fit(X[:-tested], df.y[:-tested])
    assert ours > roc_auc_score(truth, joint.predict_proba(X[-tested:])[:, 1]) - 0.005


@plain
def test_least_squares_is_reached_and_counts_are_predicted():
    df = people("linear")
    fed = vertical(df)
    options = {"cipher": "plain", "align": "order", "l2": 0.0, "clip": 100.0}
    model = Linear(epochs=100, batch_size=200, **options).fit(fed)
    X = df[list("abcde")]
    expected = LinearRegression().fit(X, df.y).predict(X)
    np.testing.assert_allclose(model.predict(fed, "train"), expected, rtol=0.01)
    assert model.evaluate(fed, "train").metrics["r2"] > 0.99
    df = people("poisson", rows=600)
    fed = vertical(df)
    model = Poisson(epochs=60, batch_size=600, **options).fit(fed)
    said = model.predict(fed, "train")
    X = StandardScaler().fit_transform(df[list("abcde")])
    expected = PoissonRegressor(alpha=1e-4).fit(X, df.y).predict(X)
    assert np.corrcoef(said, expected)[0, 1] > 0.98
    assert said.mean() == pytest.approx(expected.mean(), rel=0.05)


@plain
@pytest.mark.parametrize("cipher", ["ckks", "plain"])
def test_the_hold_out_loss_is_the_taylor_loss_and_ends_training(cipher):
    df = people()
    options = {"batch_size": 60, "validation": 0.25, "align": "order", "cipher": cipher}
    fed = vertical(df)
    model = Logistic(epochs=2, **options).fit(fed)
    bank = model.part(fed, "bank")
    held = np.arange(150, 200)
    scores = 0.0
    for party, own in COLUMNS.items():
        design = model.part(fed, party)["design"]
        X = (df[own].to_numpy() - design["mean"]) / design["scale"]
        X = np.clip(X, -3, 3)
        X = np.hstack([X, np.ones((len(X), 1))]) if party == "bank" else X
        scores = scores + X[held] @ model.part(fed, party)["coef"]
    y = np.where(df.y.to_numpy()[held] == "yes", 1, -1)
    expected = (-0.5 * y * scores + scores**2 / 8).mean()
    assert model.history_[-1]["loss"] == pytest.approx(expected, abs=5e-3)
    assert "key" not in bank
    if cipher == "plain":
        far = Logistic(epochs=200, lr=0.5, patience=2, **options).fit(vertical(df))
        losses = [entry["loss"] for entry in far.history_]
        assert len(losses) < 200
        assert np.argmin(losses) == len(losses) - 3


@plain
@pytest.mark.parametrize("cipher", ["ckks", "plain"])
def test_nobody_reads_residuals_gradients_or_columns(cipher, monkeypatch):
    df = people()
    fed = vertical(df)
    first = {}
    unmask = {
        "ckks": additive.ckks.CkksKey,
        "plain": additive.plain.PlainKey,
    }[cipher].unmask

    def record(key, *arguments):
        sums = unmask(key, *arguments)
        first.setdefault(sums.shape, sums)
        return sums

    for kind in (additive.ckks.CkksKey, additive.plain.PlainKey):
        monkeypatch.setattr(kind, "unmask", record)
    with transcript(fed, monkeypatch) as seen:
        Logistic(epochs=2, batch_size=100, cipher=cipher, align="order").fit(fed)
    parties = [df[own].to_numpy() for own in COLUMNS.values()]
    t = np.where(df.y.to_numpy() == "yes", 0.5, -0.5)[:, None]
    unit = np.rint(-t * 2.0**17)
    for reader in ("driver", 0, 1, 2):
        for party, X in enumerate(parties):
            if reader != party:
                assert seen.columns(reader, X) == []
                assert seen.columns(reader, (X - X.mean(axis=0)) / X.std(axis=0)) == []
    residuals = [unit * 2.0**k for k in range(-10, 11)]
    readers = [r for r in ("driver", 0, 2) if any(seen.columns(r, u, 40) for u in residuals)]
    assert readers == ([0, 2] if cipher == "plain" else [])
    gradient = first[1, 2].astype(np.int64)
    read = seen.holds("driver", gradient.tobytes())
    assert read == (cipher == "plain")


def test_parts_are_saved_and_loaded_by_party(tmp_path):
    df = people()
    fed = vertical(df)
    model = Logistic(epochs=2, batch_size=100, test=0.25, align="order").fit(fed)
    said = model.predict_proba(fed, "test").to_numpy()
    assert set(model.coefficients(fed, "tax")) == {"d", "e"}
    assert set(model.coefficients(fed, "bank")) == {"c", "intercept"}
    later = vertical(df)
    loaded = so.load(model.save(tmp_path / "model.sol"))
    for party in COLUMNS:
        file = model.save_part(fed, party, tmp_path / party)
        loaded.load_part(later, party, file)
    np.testing.assert_array_equal(loaded.predict_proba(later, "test"), said)
    truth = df.y.to_numpy()[150:]
    right = model.schema_.classes[said.argmax(axis=1)] == truth
    assert loaded.evaluate(later, "test").metrics["accuracy"] == pytest.approx(right.mean())


@plain
def test_categories_and_gaps(tmp_path):
    df = people()
    rng = np.random.default_rng(2)
    df["e"] = pd.Categorical(rng.choice(["x", "y"], len(df)))
    df.loc[:20, "a"] = np.nan
    fed = vertical(df)
    model = Logistic(epochs=2, batch_size=100, cipher="plain", align="order").fit(fed)
    assert set(model.coefficients(fed, "tax")) == {"d", "e=x", "e=y"}
    assert np.isfinite(model.predict_proba(fed, "train").to_numpy()).all()


@plain
def test_what_does_not_fit_is_named():
    df = people()
    options = {"cipher": "plain", "align": "order"}
    numbers = vertical(people("linear"))
    with pytest.raises(DataError, match="two classes"):
        Logistic(**options).fit(numbers)
    assert {record.task for record in numbers.meter.records} == {"data.describe"}
    with pytest.raises(DataError, match="one number"):
        Linear(**options).fit(vertical(df))
    with pytest.raises(DataError, match="numbers >= 0"):
        Poisson(**options).fit(vertical(people("linear").assign(y=-1.0)))
    with pytest.raises(DataError, match="too small for 2 columns"):
        Logistic(batch_size=3, **options).fit(vertical(df))
    with pytest.raises(DataError, match="steps are too large"):
        Linear(lr=50.0, epochs=50, **options).fit(vertical(people("linear")))
    fed = vertical(df)
    model = Logistic(epochs=1, **options).fit(fed)
    other = vertical(df, {**COLUMNS, "tax": ["d"]})
    other.engine.restore({k: dict(v) for k, v in fed.engine.states().items()})
    with pytest.raises(DataError, match=r"1 columns.*2"):
        model.predict(other)


@plain
def test_c_cannot_read_the_loss_of_rows_that_it_chose():
    """C has the key, and a party's loss of one row is its score times the residual."""
    fed = vertical(people())
    model = Logistic(epochs=1, batch_size=100, validation=0.2, cipher="plain", align="order").fit(
        fed
    )
    later = Logistic(epochs=1, batch_size=100, validation=0.2, cipher="plain", align="order")
    asked = []
    exchange = Logistic._exchange

    def greedy(self, parties, step, batch):
        if batch["purpose"] == "loss":
            for part, first, rows in (
                ("validation", 3, 1),
                ("train", 0, 40),
                ("validation", 0, 39),
            ):
                form = [1, rows, *batch["form"][2:]]
                asked.append({**batch, "part": part, "first": first, "form": form})
                with pytest.raises(so.errors.NotEnoughReplies, match="all hold-out rows together"):
                    exchange(self, parties, step, asked[-1])
        return exchange(self, parties, step, batch)

    later._exchange = greedy.__get__(later)
    again = vertical(people())
    later.fit(again)
    assert len(asked) == 3
    assert later.history_[-1]["loss"] == model.history_[-1]["loss"]
    with pytest.raises(DataError, match="too few to tell their loss"):
        Logistic(validation=0.05, cipher="plain", align="order").fit(vertical(people()))


def test_the_key_follows_from_what_all_clients_gave():
    model = Logistic()
    model.model_ = "m"
    one = model._key([b"a" * 32, b"b" * 32]).to_bytes()
    assert one == model._key([b"a" * 32, b"b" * 32]).to_bytes()
    assert one != model._key([b"a" * 32, b"c" * 32]).to_bytes()
