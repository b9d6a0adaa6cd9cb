"""SplitNN: equal to the whole network, with options, errors, and what its history tells."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import DataError, UsageError
from solera.core.rng import generator
from solera.learn.vertical.leakage import distance_correlation
from solera.learn.vertical.parties import PartyLeft

torch = pytest.importorskip("torch")


def networks():
    torch.manual_seed(3)
    a = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    b = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh())
    top = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(7, 2))
    return a.double(), b.double(), top.double()


def whole_trained(fed, model, epochs, batch, optimiser):
    """The same network in one piece, trained by PyTorch on joined rows in the same batches."""
    a, b, top = networks()
    order = [model.part(fed, k)["trained"]["order"] for k in (0, 1)]
    x = [torch.tensor(p.X[o]) for p, o in zip(fed.data.parties, order, strict=True)]
    y = torch.tensor(fed.data.parties[0].y[order[0]])
    steps = optimiser([*a.parameters(), *b.parameters(), *top.parameters()])
    for epoch in range(epochs):
        places = generator(fed.seed, "split batches", epoch).permutation(len(y))
        for first in range(0, len(y), batch):
            rows = places[first : first + batch]
            steps.zero_grad()
            said = top(torch.cat([a(x[0][rows]), b(x[1][rows])], dim=1))
            torch.nn.functional.cross_entropy(said, y[rows]).backward()
            steps.step()
    return a, b, top


def vector(module):
    return np.concatenate([p.detach().numpy().reshape(-1) for p in module.parameters()])


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_it_learns_what_the_whole_network_learns(people, columns, optimiser):
    fed = so.simulate_vertical(people, columns=columns, target="y", id="id")
    a, b, top = networks()
    model = so.SplitNN(
        {"bank": a, "shop": b},
        top,
        epochs=3,
        batch_size=16,
        lr=0.05,
        optimiser=optimiser,
        momentum=0.9 if optimiser == "sgd" else 0.0,
        standardise=False,
        dtype="float64",
    ).fit(fed)
    made = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    }[optimiser]
    whole = whole_trained(fed, model, 3, 16, made)
    parts = [model.part(fed, k)["split"] for k in (0, 1)]
    for found, net in zip(
        [parts[0]["bottom"], parts[1]["bottom"], parts[0]["top"]], whole, strict=True
    ):
        np.testing.assert_allclose(found["weights"], vector(net), rtol=1e-9, atol=1e-11)
    said = model.predict_proba(fed)
    rows = [torch.tensor(p.X) for p in fed.data.parties]
    ids = [list(p.identifiers) for p in fed.data.parties]
    same = [ids[1].index(i) for i in ids[0]]
    with torch.no_grad():
        joined = torch.cat([whole[0](rows[0]), whole[1](rows[1][same])], dim=1)
        expected = whole[2](joined).softmax(1).numpy()
    np.testing.assert_allclose(said, expected, atol=1e-10)


def test_parts_are_saved_and_loaded_by_party(people, columns, tmp_path):
    fed = so.simulate_vertical(people, columns=columns, target="y", id="id")
    model = so.SplitNN(4, epochs=2, test=0.2).fit(fed)
    said = model.predict_proba(fed)
    paths = {name: model.save_part(fed, name, tmp_path / f"{name}.part") for name in columns}
    loaded = so.load(model.save(tmp_path / "model.sol"))
    assert not any("weights" in name for name in loaded.get_state())
    again = so.simulate_vertical(people, columns=columns, target="y", id="id")
    with pytest.raises(PartyLeft, match=r"bank did not answer 'split\.say'.*holds no part"):
        loaded.predict_proba(again)
    for name, path in paths.items():
        loaded.load_part(again, name, path)
    np.testing.assert_array_equal(loaded.predict_proba(again), said)
    assert loaded.evaluate(again).metrics == model.evaluate(fed).metrics
    other = {"shop": paths["shop"].read_bytes(), "bank": paths["bank"].read_bytes()}
    weights = model.part(fed, "bank")["split"]["bottom"]["weights"].tobytes()
    assert weights in other["bank"]
    assert weights not in other["shop"]


def test_numbers_sums_and_labels_that_only_some_know(people, columns):
    numbers = people.assign(y=people.age - people.spent)
    fed = so.simulate_vertical(numbers, columns=columns, target="y", id="id")
    model = so.SplitNN(
        6, epochs=12, lr=0.05, optimiser="adam", join="sum", test=0.2, batch_size=None
    ).fit(fed)
    assert model.evaluate(fed)["r2"] > 0.7
    assert model.predict(fed).shape == (80,)


def test_several_label_owners_know_the_labels_of_different_rows(people):
    bank, shop = people[["id", "age", "y"]].copy(), people[["id", "visits", "y"]].copy()
    bank.loc[people.index < 50, "y"] = np.nan
    shop.loc[people.index >= 50, "y"] = np.nan
    fed = so.simulate_vertical({"bank": bank, "shop": shop}, target="y", id="id")
    options = {"epochs": 10, "lr": 0.05, "optimiser": "adam", "test": 0.2, "batch_size": None}
    with pytest.raises(DataError, match="all hold labels"):
        so.SplitNN(8, **options).fit(fed)
    both = so.SplitNN(8, labels=["bank", "shop"], **options).fit(fed)
    tops = [both.part(fed, k)["split"]["top"]["weights"] for k in (0, 1)]
    np.testing.assert_array_equal(tops[0], tops[1])
    found = both.evaluate(fed)
    assert found.counts["confusion"].sum() == 16
    assert found["accuracy"] > 0.8


def test_early_stopping_takes_the_best_weights_back(people, columns):
    fed = so.simulate_vertical(people, columns=columns, target="y", id="id")
    model = so.SplitNN(
        32, epochs=60, lr=0.1, optimiser="adam", validation=0.3, patience=3, batch_size=None
    ).fit(fed)
    losses = [line["validation_loss"] for line in model.history_]
    assert len(losses) < 60, losses
    assert losses.index(min(losses)) == len(losses) - 4
    part = model.part(fed, "bank")["split"]
    np.testing.assert_array_equal(part["bottom"]["weights"], part["best"]["bottom"]["weights"])
    assert model.evaluate(fed, "validation", scores=True)["log_loss"] == pytest.approx(
        min(losses), rel=1e-5
    )


def test_clipping_and_noise_lower_what_is_told(people, columns):
    told = {}
    for noise in (0.0, 2.0):
        fed = so.simulate_vertical(people, columns=columns, target="y", id="id")
        model = so.SplitNN(4, epochs=1, clip=1.0, noise=noise, gradient_noise=noise / 100).fit(fed)
        told[noise] = model.history_[-1]["dcor_shop"]
    assert told[2.0] < 0.6 * told[0.0]


def test_distance_correlation():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(400, 3)), rng.normal(size=(400, 3))
    assert distance_correlation(x, 3 * x) == pytest.approx(1)
    assert distance_correlation(x, x**2) > 0.4
    assert distance_correlation(x, z) < 0.2
    assert distance_correlation(x, np.ones((400, 1))) == 0


def test_what_does_not_fit_is_named_before_anything_is_sent(people, columns):
    fed = so.simulate_vertical(people, columns=columns, target="y", id="id")
    wrong = {
        r"the bottom network of shop does not take rows of 2": {
            "bottoms": [so.nn.mlp(2, 3), so.nn.mlp(3, 3)]
        },
        "1 bottom networks for 2 parties": {"bottoms": [so.nn.mlp(2, 3)]},
        "there is no party 'mill'": {"bottoms": {"mill": so.nn.mlp(2, 3)}},
        "the top network has 3 outputs": {"bottoms": 4, "top": so.nn.mlp(8, 3)},
        "the top network does not take rows of 8": {"bottoms": 4, "top": so.nn.mlp(7, 2)},
    }
    for text, options in wrong.items():
        fed.meter.records.clear()
        with pytest.raises((DataError, UsageError), match=text):
            so.SplitNN(**options).fit(fed)
        assert {record.task for record in fed.meter.records} <= {"data.describe"}
    with pytest.raises(UsageError, match="needs validation rows"):
        so.SplitNN(patience=3)


def test_a_party_that_leaves_is_named_and_training_goes_on_later(people, columns, tmp_path):
    class Leaves(so.simulation.Failures):
        """Nobody can reach the shop from some ask on."""

        after = None

        def faults(self, ask, clients):
            found = super().faults(ask, clients)
            if self.after is not None and ask.task == "split.bottom" and ask.round >= self.after:
                found.dropped[clients == 1] = True
            return found

    failures = Leaves()
    made = {"columns": columns, "target": "y", "id": "id"}
    calm = so.simulate_vertical(people, **made)
    whole = so.SplitNN(4, epochs=3, batch_size=40).fit(calm)
    fed = so.simulate_vertical(people, failures=failures, **made)
    failures.after = 4
    saved = tmp_path / "split.checkpoint"
    with pytest.raises(PartyLeft, match=r"shop did not answer 'split\.bottom' \(dropped\)"):
        so.SplitNN(4, epochs=3, batch_size=40).fit(fed, checkpoint=saved)
    failures.after = None
    model = so.SplitNN(4, epochs=3, batch_size=40).fit(fed, checkpoint=saved)
    for k in (0, 1):
        a, b = (m.part(f, k)["split"] for m, f in ((whole, calm), (model, fed)))
        np.testing.assert_array_equal(a["bottom"]["weights"], b["bottom"]["weights"])


def test_missing_values_and_categories(people):
    people["region"] = np.where(people.visits > 0, "north", "south")
    people.loc[3, "age"] = np.nan
    parts = {"bank": ["age", "income"], "shop": ["region", "spent"]}
    fed = so.simulate_vertical(people, columns=parts, target="y", id="id", policy="trusted")
    model = so.SplitNN(4, epochs=3, batch_size=None).fit(fed)
    assert model.widths_ == [2, 3]
    assert np.isfinite(model.predict_proba(fed).to_numpy()).all()
    with pytest.raises(DataError, match="missing values"):
        so.SplitNN(4, epochs=1, standardise=False).fit(fed)
    assert isinstance(model.part(fed, 1)["split"], dict)
    assert model.predict(fed).isin([0, 1]).all()
