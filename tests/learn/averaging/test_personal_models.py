"""Every client's own model is the model: what is read of a personal learner is of these."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from sklearn.metrics import accuracy_score
from sklearn.model_selection import cross_val_score

import solera as so
from solera.core.errors import UsageError

draw = np.random.default_rng(3)
X = draw.normal(size=(240, 6))
Y = (X @ draw.normal(size=(6, 3))).argmax(axis=1)
OWN = np.concatenate([(Y[k * 60 : (k + 1) * 60] + k) % 3 for k in range(4)])
"""Every client calls the classes by other names, so that heads differ."""
LABELS = (X @ draw.normal(size=(6, 3)) > 0).astype(np.int64) ^ (np.arange(240) // 60 % 2)[:, None]
NAMES = ["Lugo", "Vigo", "Noia", "Muros"]
NET = so.nn.mlp(6, 8, 3)
LEARNERS = {
    "FedPer": lambda **more: so.FedPer(NET, **{"rounds": 25, "lr": 0.3, **more}),
    "FedRep": lambda **more: so.FedRep(NET, **{"rounds": 25, "lr": 0.3, **more}),
    "Ditto": lambda **more: so.Ditto(NET, **{"rounds": 25, "lr": 0.3, **more}),
    "MLFedAvg": lambda **more: so.MLFedAvg(
        so.nn.mlp(6, 8), **{"rounds": 25, "lr": 0.03, "stop": None, **more}
    ),
}


def target(name):
    return LABELS if name == "MLFedAvg" else OWN


def federation(name="FedPer", engine="local", **options):
    parts = [np.arange(60 * k, 60 * (k + 1)) for k in range(4)]
    options = {"test": 0.25, "validation": 0.1, "seed": 0, "clients": NAMES, **options}
    partition = so.partitions.Explicit(parts)
    return so.simulate(X, target(name), engine=engine, partition=partition, **options)


def rows_of(fed, client, part="test"):
    return fed.data.segments(np.array([client]), part).joined()


def by_hand(model, fed, client, rows):
    """The outputs of a client's network, written down from what it keeps."""
    state = model.at_clients(fed).states()[client]
    weights = model.weights_.copy()
    if "own_model" in state:
        weights = state["own_model"]
    else:
        weights[-len(state["private_part"]) :] = state["private_part"]
    sizes, first = [6, 8, 3], 0
    for inputs, outputs in pairwise(sizes):
        W = weights[first : first + inputs * outputs].reshape(outputs, inputs)
        first += inputs * outputs
        rows = rows @ W.T + weights[first : first + outputs]
        first += outputs
        if outputs != sizes[-1]:
            rows = np.maximum(rows, 0)
    return rows


def answers(name, z):
    return (z > 0).astype(int) if name == "MLFedAvg" else z.argmax(axis=1)


@pytest.fixture(scope="module")
def fitted():
    """Every learner and its federation, fitted once."""
    pairs = {}
    for name, make in LEARNERS.items():
        fed = federation(name)
        pairs[name] = make().fit(fed), fed
    return pairs


@pytest.mark.parametrize("name", LEARNERS)
def test_evaluate_judges_every_client_by_its_own_model(name, fitted):
    model, fed = fitted[name]
    found = model.evaluate(fed)
    metric = "subset_accuracy" if name == "MLFedAvg" else "accuracy"
    truth, predicted = [], []
    for client in range(4):
        rows = rows_of(fed, client)
        predicted.append(answers(name, by_hand(model, fed, client, rows.X)))
        truth.append(rows.y)
        assert found.clients[client][metric] == accuracy_score(truth[-1], predicted[-1])
    wanted = accuracy_score(np.concatenate(truth), np.concatenate(predicted))
    assert found[metric] == pytest.approx(wanted)
    assert found[metric] > 0.65
    assert found[metric].rows == 60
    assert found[metric].is_whole


@pytest.mark.parametrize("name", LEARNERS)
def test_the_score_of_a_federation_is_over_each_clients_own(name, fitted):
    model, fed = fitted[name]
    right = []
    for part in ("train", "validation", "test"):
        for client in range(4):
            rows = rows_of(fed, client, part)
            predicted = answers(name, by_hand(model, fed, client, rows.X))
            hits = predicted == rows.y
            right.append(hits.all(axis=1) if hits.ndim == 2 else hits)
    assert model.score(fed) == pytest.approx(np.concatenate(right).mean())


@pytest.mark.parametrize("name", LEARNERS)
def test_rows_that_name_no_client_are_refused_with_the_line_to_write(name, fitted, tmp_path):
    model, _ = fitted[name]
    asked = {
        "predict": lambda: model.predict(X),
        "predict_proba": lambda: model.predict_proba(X),
        "decision_function": lambda: model.decision_function(X),
        "score": lambda: model.score(X, target(name)),
        "evaluate": lambda: model.evaluate(X, y=target(name)),
        "export": lambda: model.export(tmp_path / "model.onnx"),
        "module": lambda: model.module(),
    }
    for call in asked.values():
        with pytest.raises(UsageError) as caught:
            call()
        assert "model.at('Lugo').predict(X)" in caught.value.hint


@pytest.mark.parametrize("name", LEARNERS)
def test_the_model_of_a_client_predicts_saves_and_exports(name, fitted, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, fed = fitted[name]
    for client, called in enumerate(NAMES):
        own = model.at(called)
        z = by_hand(model, fed, client, X)
        np.testing.assert_allclose(own.decision_function(X), z, atol=1e-5)
        predicted = own.predict(X)
        np.testing.assert_array_equal(predicted, answers(name, z))
        np.testing.assert_array_equal(model.at(client).predict(X), predicted)
        truth = target(name)
        assert own.score(X, truth) == accuracy_score(truth, predicted)
        back = so.load(own.save(tmp_path / f"{called}.sol"))
        np.testing.assert_array_equal(back.predict(X), predicted)
        assert f"of client: {called}" in back.card()
        session = onnxruntime.InferenceSession(own.export(tmp_path / f"{called}.onnx"))
        said = session.run(["prediction"], {"X": X})[0]
        np.testing.assert_array_equal(said, predicted)
        assert own.module()(__import__("torch").tensor(X).float()).shape == (240, 3)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_saved_learner_holds_the_models_of_simulated_clients(name, fitted, tmp_path):
    model, fed = fitted[name]
    back = so.load(model.save(tmp_path / "model.sol"))
    for called in NAMES:
        np.testing.assert_array_equal(back.at(called).predict(X), model.at(called).predict(X))
    with pytest.raises(UsageError, match="name no client"):
        back.predict(X)
    assert back.evaluate(federation(name)).clients == model.evaluate(fed).clients
    other = so.simulate(X, target(name), clients=4, test=0.2)
    with pytest.raises(UsageError, match="keep nothing of this"):
        back.evaluate(other)


def test_there_is_no_model_of_a_client_that_is_not_there():
    fed = federation()
    model = LEARNERS["FedPer"](rounds=1).fit(fed.without("Noia"))
    with pytest.raises(UsageError, match="no model of 'Noia', who took no part"):
        model.at("Noia")
    with pytest.raises(UsageError, match="there is no model of 'Ourense'"):
        model.at("Ourense")
    found = model.evaluate(fed)
    assert sorted(found.clients) == [0, 1, 3]
    assert found["accuracy"].absent == 1
    with pytest.raises(UsageError, match="FedAvg has one model for all clients"):
        so.FedAvg(NET, rounds=1).fit(fed).at("Lugo")
    with pytest.raises(so.errors.NotFitted):
        LEARNERS["FedPer"]().at("Lugo")


@pytest.mark.parametrize("name", LEARNERS)
def test_through_a_pipeline(name, tmp_path):
    fed = federation(name)
    pipe = so.Pipeline(so.FedScaler(), LEARNERS[name]()).fit(fed)
    scaler, inner = pipe.steps_
    found = pipe.evaluate(fed)
    metric = "subset_accuracy" if name == "MLFedAvg" else "accuracy"
    for client, called in enumerate(NAMES):
        rows = rows_of(fed, client)
        z = by_hand(inner, fed.prepared(scaler), client, scaler.transform(rows.X))
        own = pipe.at(called)
        np.testing.assert_array_equal(own.predict(rows.X), answers(name, z))
        assert found.clients[client][metric] == accuracy_score(rows.y, answers(name, z))
        assert so.load(own.save(tmp_path / "own.sol")).score(rows.X, rows.y) == own.score(
            rows.X, rows.y
        )
    back = so.load(pipe.save(tmp_path / "pipe.sol"))
    np.testing.assert_array_equal(back.at("Vigo").predict(X), pipe.at("Vigo").predict(X))
    with pytest.raises(UsageError, match="name no client"):
        pipe.predict(X)
    with pytest.raises(UsageError, match="name no client"):
        pipe.export(tmp_path / "pipe.onnx")


@pytest.mark.parametrize("exchange", ["cyclic", "parallel"])
def test_between_peers(exchange, tmp_path):
    fed = federation(topology=so.simulation.Peers(exchange))
    model = so.PeerToPeer(LEARNERS["FedPer"]()).fit(fed)
    found = model.evaluate(fed)
    for client, called in enumerate(NAMES):
        rows = rows_of(fed, client)
        predicted = answers("", by_hand(model.learner_, fed, client, rows.X))
        np.testing.assert_array_equal(model.at(called).predict(rows.X), predicted)
        assert found.clients[client]["accuracy"] == accuracy_score(rows.y, predicted)
    assert found["accuracy"] > 0.6
    back = so.load(model.save(tmp_path / "model.sol"))
    np.testing.assert_array_equal(back.at("Vigo").predict(X), model.at("Vigo").predict(X))
    with pytest.raises(UsageError, match="name no client"):
        model.predict(X)


@pytest.mark.parametrize(
    "option",
    [{"stop": "patience", "patience": 2}, {"stop": "thesis"}, {"thresholds": True, "fine_tune": 2}],
)
def test_peers_stop_and_finish_as_with_a_server(option):
    options = {"rounds": 12, "lr": 0.3, **option}
    star, peers = federation("MLFedAvg"), so.simulation.Peers("parallel")
    ring = federation("MLFedAvg", topology=peers)
    model = LEARNERS["MLFedAvg"](**options).fit(star)
    between = so.PeerToPeer(LEARNERS["MLFedAvg"](**options)).fit(ring)
    assert len(between.history_) == len(model.history_)
    assert between.learner_.rounds_ == model.rounds_
    for called in NAMES:
        own, other = model.at(called), between.at(called)
        np.testing.assert_allclose(other.predict_proba(X), own.predict_proba(X), atol=1e-5)
        np.testing.assert_array_equal(other.predict(X), own.predict(X))
    with pytest.raises(UsageError, match="sends nothing from peer to peer"):
        so.PeerToPeer(LEARNERS["MLFedAvg"](share=False)).fit(ring)


@pytest.mark.parametrize("name", [*LEARNERS, "Pipeline"])
def test_clients_go_on_from_a_saved_model_with_what_was_saved(name, tmp_path):
    steps = (so.FedScaler(),) if name == "Pipeline" else ()
    name = "FedPer" if steps else name

    def made(**options):
        learner = LEARNERS[name](**options)
        return so.Pipeline(*steps, learner) if steps else learner

    model = made().fit(federation(name))
    back = so.load(model.save(tmp_path / "model.sol"))
    still = made(rounds=1, lr=1e-12).fit(federation(name), start=back)
    for called in NAMES:
        wanted = model.at(called).predict_proba(X)
        np.testing.assert_allclose(still.at(called).predict_proba(X), wanted, atol=1e-4)


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_rounds_are_judged_by_own_models_and_the_best_ones_are_put_back(engine):
    workers = {} if engine == "local" else {"workers": 1}
    with federation(engine=engine, **workers) as fed:
        watch = [so.callbacks.Evaluate(), so.callbacks.EarlyStopping("accuracy", patience=50)]
        model = LEARNERS["FedPer"](lr=2.0, rounds=12).fit(fed, callbacks=watch)
        rounds = [entry["accuracy"] for entry in model.history_]
        best = int(np.argmax(rounds))
        assert best < 11, "the best round is the last one"
        assert model.evaluate(fed, "validation")["accuracy"] == rounds[best]
        alone = LEARNERS["FedPer"](lr=2.0, rounds=best + 1).fit(fed)
        for called in NAMES:
            z = model.at(called).decision_function(X)
            np.testing.assert_allclose(z, alone.at(called).decision_function(X), atol=1e-5)


def test_scores_and_metrics_of_ones_own_are_of_own_models(fitted):
    model, fed = fitted["FedPer"]
    found = model.evaluate(fed, scores=True)
    loss = []
    for client, called in enumerate(NAMES):
        rows = rows_of(fed, client)
        p = model.at(called).predict_proba(rows.X)
        loss.append(-np.log(p[np.arange(len(rows)), rows.y]))
    assert found["log_loss"] == pytest.approx(np.concatenate(loss).mean(), rel=1e-5)


def test_folds_are_scored_by_own_models():
    fed = federation(test=0.0, validation=0.0)
    folds = [(np.flatnonzero(np.arange(240) % 3 != k), np.arange(k, 240, 3)) for k in range(3)]
    found = cross_val_score(LEARNERS["FedPer"](), fed, cv=folds, error_score="raise")
    for (train, held), score in zip(folds, found, strict=True):
        model = LEARNERS["FedPer"]().fit(fed[train])
        owners = fed.row_owners[held]
        rows = fed.data.segments(fed.clients, "train").joined()
        pairs = zip(held, owners, strict=True)
        right = [model.at(c).predict(rows.X[[r]]) == rows.y[r] for r, c in pairs]
        assert score == pytest.approx(np.mean(right))


def test_selectors_ask_for_losses_of_own_models(fitted):
    model, fed = fitted["FedPer"]
    roster = so.core.selection.Roster(4, 4, None, None, 0, model.at_clients(fed), model)
    from solera.select.reports import ask_values

    clients, values = ask_values(roster, np.arange(4), 0, 1.0)
    assert clients.tolist() == [0, 1, 2, 3]
    for client, value in enumerate(values):
        rows = rows_of(fed, client, "train")
        assert value == pytest.approx(model.at(client).losses(rows.X, rows.y).mean(), rel=1e-5)


def test_the_common_model_is_there_where_it_was_trained(fitted):
    ditto, _ = fitted["Ditto"]
    same = so.FedAvg(NET, rounds=1).fit(federation("Ditto"))
    same.weights_ = ditto.weights_
    np.testing.assert_array_equal(ditto.common().predict(X), same.predict(X))
    with pytest.raises(UsageError, match="FedPer trains no common head"):
        fitted["FedPer"][0].common()


def test_the_earlier_name_says_what_to_write(fitted):
    model, fed = fitted["FedPer"]
    with pytest.warns(DeprecationWarning, match=r"evaluate\(federation\)"):
        assert model.evaluate_personal(fed).clients == model.evaluate(fed).clients
