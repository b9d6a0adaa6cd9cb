"""Loops of other libraries: what they train is averaged, and their metrics are the user's."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import solera as so

os.environ.setdefault("KERAS_BACKEND", "torch")  # before anybody imports it
X, Y, X_TEST, Y_TEST = so.datasets.digits()


def federation(**options):
    return so.simulate(X, Y, clients=4, seed=0, test=0.2, **options)


# --- Hugging Face and PEFT ---


class Texts(torch.utils.data.Dataset):
    """Token numbers whose first one says the class."""

    def __init__(self, rows=48):
        draw = np.random.default_rng(0)
        self.tokens = draw.integers(2, 40, (rows, 6))
        self.labels = np.arange(rows) % 2
        self.tokens[:, 0] = self.labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return {
            "input_ids": torch.tensor(self.tokens[row]),
            "attention_mask": torch.ones(6, dtype=torch.int64),
            "labels": torch.tensor(self.labels[row]),
        }


def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=2,
    )
    return transformers.BertForSequenceClassification(config)


def adapted():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, lora_alpha=8, target_modules=["query", "value"]
    )
    return peft.get_peft_model(bert(), config)


def trainer(model, dataset, context):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(context.folder),
        num_train_epochs=3,
        learning_rate=5e-3,
        per_device_train_batch_size=4,
        use_cpu=True,
    )

    def right(answers):
        return {"accuracy": (answers.predictions.argmax(1) == answers.label_ids).mean()}

    return Trainer(model=model, args=arguments, train_dataset=dataset, compute_metrics=right)


@pytest.mark.parametrize("make", [bert, adapted])
def test_a_trainer_of_hugging_face(make):
    pytest.importorskip("accelerate")
    loops = so.learn.adapters.hugging_face(trainer)
    fed = so.simulate(Texts(), clients=3, seed=0, test=0.25)
    model = so.FedTorch(make, **loops, rounds=3).fit(fed)
    entry = model.history_[-1]
    assert entry["test_accuracy"] > 0.8
    assert 0 < entry["loss"] < 1
    assert model.predict(Texts(5)).shape == (5, 2)
    names = [name for name, _ in model.layout_["parameters"]]
    if make is adapted:
        assert all("lora" in name or "classifier" in name for name in names)
        assert model.layout_["frozen"]
        pulled, plain = (
            so.FedTorch(make, **loops, rounds=1, mu=mu).fit(fed).weights_ for mu in (50.0, 0.0)
        )
        assert np.abs(pulled - plain).max() > 1e-3
    again = so.FedTorch(make, **loops, rounds=3).fit(fed)
    assert np.array_equal(again.weights_, model.weights_)


# --- Lightning ---


def lightning_module():
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, rows):
            return self.layer(rows)

        def training_step(self, batch, index):
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Classifier()


@pytest.mark.parametrize("options", [{}, {"mu": 0.5}, {"scaffold": True}], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_a_module_of_lightning(options):
    loops = so.learn.adapters.lightning(accelerator="cpu", max_epochs=2)
    fed = federation()
    model = so.FedTorch(lightning_module, **loops, rounds=2, **options).fit(fed)
    assert model.history_[-1]["test_accuracy"] > 0.7
    assert model.history_[-1]["train_loss"] > 0
    assert model.predict(X_TEST).shape == (len(X_TEST), 10)

    def train(module, loader, context):
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            for rows, classes in loader:
                optimiser.zero_grad()
                F.cross_entropy(module(rows), classes).backward()
                optimiser.step()

    options["batch_size"] = None  # in whatever order rows come
    theirs = so.FedTorch(lightning_module, **loops, rounds=2, **options).fit(fed)
    by_hand = so.FedTorch(lightning_module, train=train, rounds=2, **options).fit(fed)
    np.testing.assert_allclose(theirs.weights_, by_hand.weights_, atol=1e-5)


# --- Keras ---


@pytest.mark.filterwarnings("ignore")
def test_a_model_of_keras():
    pytest.importorskip("keras")
    import keras

    if keras.backend.backend() != "torch":
        pytest.skip("Keras began on another backend")

    def model():
        layers = keras.layers
        net = keras.Sequential(
            [layers.Input((64,)), layers.BatchNormalization(momentum=0.5), layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
        return net

    fed = federation()
    fitted = so.FedTorch(model, **so.learn.adapters.keras(epochs=3), rounds=6).fit(fed)
    assert fitted.history_[-1]["test_accuracy"] > 0.5
    assert [name for name, _ in fitted.layout_["buffers"]] == ["0.moving_mean", "1.moving_variance"]
    assert fitted.predict(X_TEST).shape == (len(X_TEST), 10)


# --- scikit-learn ---


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["sgd", "perceptron", "mlp", "logistic"])
def test_classifiers_of_scikit_learn(name):
    from sklearn.linear_model import LogisticRegression, Perceptron, SGDClassifier
    from sklearn.neural_network import MLPClassifier

    estimator = {
        "sgd": SGDClassifier(loss="log_loss"),
        "perceptron": Perceptron(),
        "mlp": MLPClassifier((16,), random_state=0, learning_rate_init=0.01),
        "logistic": LogisticRegression(warm_start=True, max_iter=5),
    }[name]
    loops = so.learn.adapters.scikit_learn(estimator, columns=64, classes=range(10))
    model = so.FedTorch(**loops, rounds=6).fit(federation())
    assert model.score(X_TEST, Y_TEST) > 0.65
    assert model.predict(X_TEST).shape == Y_TEST.shape
    assert (model.predict(X_TEST) == Y_TEST).mean() == pytest.approx(model.score(X_TEST, Y_TEST))


def test_the_mean_of_coefficients_is_that_of_estimators_by_hand():
    from sklearn.linear_model import SGDRegressor

    y = X[:, :3].sum(axis=1)
    fed = so.simulate(X / 16, y, clients=3, seed=0)
    estimator = SGDRegressor(shuffle=False, learning_rate="constant", eta0=0.01)
    loops = so.learn.adapters.scikit_learn(estimator, columns=64)
    model = so.FedTorch(**loops, rounds=1, batch_size=None).fit(fed)
    fitted = []
    for k in range(3):
        rows = fed.data.segments(np.array([k]), "train")[0]
        fitted.append(SGDRegressor(shuffle=False, learning_rate="constant", eta0=0.01))
        fitted[-1].partial_fit(rows.X, rows.y)
    assert model.module().coef_.shape == (64,)
    mean = np.average([f.coef_ for f in fitted], axis=0, weights=fed.engine.sizes("train"))
    assert np.abs(model.module().coef_.detach().numpy() - mean).max() < 0.3  # rows are shuffled


def test_estimators_that_have_no_mean_are_errors():
    from sklearn.linear_model import LogisticRegression, SGDClassifier
    from sklearn.naive_bayes import GaussianNB

    with pytest.raises(so.errors.UsageError, match=r"so\.learn\.adapters\.scikit_learn"):
        so.FedAvg(SGDClassifier()).fit(federation())
    with pytest.raises(so.errors.UsageError, match="warm_start=True"):
        so.learn.adapters.scikit_learn(LogisticRegression(), columns=64)
    loops = so.learn.adapters.scikit_learn(GaussianNB(), columns=64, classes=range(10))
    with pytest.raises(so.errors.SoleraError, match=r"no coefficients.*FedForest"):
        so.FedTorch(**loops).fit(federation())


# --- XGBoost and LightGBM ---


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_bagging_of_boosted_trees(library, tmp_path):
    pytest.importorskip(library)
    fed = so.simulate(X, Y, clients=4, partition=so.Dirichlet(1.0), seed=0, test=0.2)
    params = {"max_depth": 3}
    model = so.learn.FedBagging(library, trees=10, params=params).fit(fed)
    assert model.score(X_TEST, Y_TEST) > 0.7
    assert model.evaluate(fed)["accuracy"] > 0.7
    np.testing.assert_allclose(model.predict_proba(X_TEST).sum(axis=1), 1, atol=1e-6)
    model.save(tmp_path / "model.sol")
    assert np.array_equal(so.load(tmp_path / "model.sol").predict(X_TEST), model.predict(X_TEST))
    numbers = so.simulate(X, X[:, :5].sum(axis=1), clients=4, seed=0)
    assert so.learn.FedBagging(library, trees=20).fit(numbers).score(X, X[:, :5].sum(axis=1)) > 0.5
    with pytest.raises(so.errors.UsageError, match="no sum"):
        so.learn.FedBagging(library).fit(so.simulate(X, Y, clients=4, secure=True))
    owners = so.simulate(X, Y, clients=4, policy="trusted")
    so.learn.FedBagging(library, trees=2).fit(owners)
