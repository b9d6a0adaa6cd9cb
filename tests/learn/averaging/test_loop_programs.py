"""Programs as people write them train, go on after a stop, and give the same bits everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.learn.averaging import loop_programs as programs
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset

import solera as so

PROGRAMS = {
    "cnn": (programs.images, {"model": programs.Net, "train": programs.train_cnn}),
    "gan": (programs.points, {"model": programs.gan, "train": programs.train_gan}),
    "u-net": (programs.Pictures, {"model": programs.UNet, "train": programs.train_unet}),
    "detection": (
        programs.Boxes,
        {
            "model": programs.Detector,
            "train": programs.train_detector,
            "collate": programs.as_lists,
            "predict": programs.name_boxes,
        },
    ),
    "ragged": (
        programs.Ragged,
        {
            "model": programs.Reader,
            "train": programs.train_reader,
            "collate": programs.padded,
            "predict": programs.read,
        },
    ),
    "contrastive": (
        programs.points,
        {"model": lambda: nn.Linear(2, 4), "train": programs.train_contrastive},
    ),
    "two tasks": (
        programs.two_targets,
        {
            "model": programs.TwoHeads,
            "train": programs.train_two,
            "predict": lambda model, batch, context: model(batch[0])[1],
        },
    ),
}


class Stop(so.callbacks.Callback):
    def on_round(self, learner, round):
        if round.index == 0:
            raise KeyboardInterrupt


@pytest.fixture(params=PROGRAMS)
def program(request):
    make, options = PROGRAMS[request.param]
    return make(), {"rounds": 2, "batch_size": 4, **options}


RAY = pytest.param("ray", marks=pytest.mark.slow)


@pytest.mark.parametrize("engine", ["local", "processes", RAY])
def test_it_trains_and_goes_on_after_a_stop(program, engine, tmp_path):
    dataset, options = program
    whole = so.FedTorch(**options).fit(so.simulate(dataset, clients=3, seed=1))
    file = tmp_path / "fit.checkpoint"
    with so.simulate(dataset, clients=3, seed=1, engine=engine) as fed:
        with pytest.raises(KeyboardInterrupt):
            so.FedTorch(**options).fit(fed, checkpoint=file, callbacks=[Stop()])
        resumed = so.FedTorch(**options).fit(fed, checkpoint=file)
    assert np.array_equal(resumed.weights_, whole.weights_)
    assert np.array_equal(resumed.buffers_, whole.buffers_)
    if isinstance(whole.module(), dict):
        with pytest.raises(so.errors.UsageError, match="predict="):
            whole.predict(dataset)
    else:
        assert len(whole.predict(dataset)) == len(dataset)


def test_data_sets_are_dealt_by_labels_and_keep_their_shape():
    fed = so.simulate(
        programs.images(), clients=3, partition=so.partitions.Shards(2), test=0.2, seed=0
    )
    assert fed.data.schema.classes.tolist() == [0, 1, 2]
    counts = fed.data.class_counts()
    assert (counts == 0).any()
    named = so.simulate({"north": programs.images(30), "south": programs.images(60)})
    assert named.names == ("north", "south")
    assert named.data.sizes().tolist() == [30, 60]
    listed = so.simulate([Subset(programs.Pictures(), range(5)), programs.Pictures(7)])
    assert listed.data.sizes().tolist() == [5, 7]
    dealt = so.simulate(
        programs.Pictures(),
        clients=2,
        labels=lambda sample: int(sample[1].sum() > 32),
        partition=so.partitions.Shards(1),
    )
    assert (dealt.data.class_counts() == 0).any()
    with pytest.raises(so.errors.DataError, match="24 samples"):
        so.simulate(programs.Pictures(), labels=[1, 2])
    with pytest.raises(so.errors.UsageError, match="labels"):
        so.simulate(np.ones((4, 2)), labels=[0, 1, 0, 1])


def test_samples_are_arrays_for_who_trains_on_arrays():
    fed = so.simulate(programs.images(), clients=3, seed=0, test=0.2)
    tree = so.FedLinear(rounds=2).fit(fed)
    assert tree.schema_.width == 3 * 8 * 8
    assert tree.evaluate(fed)["accuracy"] > 0.3
    ragged = so.simulate(programs.Ragged(), clients=3, labels=lambda sample: int(sample[1]))
    with pytest.raises(so.errors.SoleraError, match=r"reads columns.*so\.FedTorch"):
        so.FedLinear(rounds=1).fit(ragged)


def test_arrays_and_masks_reach_the_loop_in_their_own_shape():
    draw = np.random.default_rng(0)
    X, masks = draw.normal(size=(20, 1, 8, 8)), draw.integers(0, 2, (20, 8, 8))
    shapes = []

    def train(model, loader, context):
        for rows, target in loader:
            shapes.append((tuple(rows.shape[1:]), tuple(target.shape[1:]), target.dtype))
        return programs.train_unet(model, loader, context)

    so.FedTorch(programs.UNet, train=train, rounds=1).fit(so.simulate(X, masks, clients=2))
    assert set(shapes) == {((1, 8, 8), (8, 8), torch.int64)}


def test_named_classes_are_indices_and_named_in_the_context():
    X = np.random.default_rng(0).normal(size=(30, 2))
    y = np.where(X[:, 0] > 0, "yes", "no")
    seen = []

    def train(model, loader, context):
        seen.extend(context.classes.tolist())
        return programs.steps(
            model, loader, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1])
        )

    model = so.FedTorch(nn.Linear(2, 2), train=train).fit(so.simulate(X, y, clients=2))
    assert seen[:2] == ["no", "yes"]
    assert model.predict(X).shape == (30, 2)


class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(torch.tensor(self.rows, dtype=torch.float32))


@pytest.mark.parametrize(
    "made",
    [
        lambda rows: Stream(rows),
        lambda rows: torch.tensor(rows, dtype=torch.float32),
        lambda rows: DataLoader(torch.tensor(rows, dtype=torch.float32), batch_size=7),
    ],
)
def test_data_converts_what_a_client_holds(made):
    X = np.random.default_rng(0).normal(size=(40, 2))
    parts = []

    def data(client, part):
        parts.append(part)
        rows = client.data.part(part).X
        return made(rows) if len(rows) else None

    def train(model, loader, context):
        return programs.steps(model, loader, lambda m, batch: m(batch).square().mean())

    def evaluate(model, loader, context):
        return {"size": sum(len(batch) for batch in loader)}

    options = {"data": data, "evaluate": evaluate, "rounds": 2}
    model = so.FedTorch(nn.Linear(2, 1), train=train, **options)
    model.fit(so.simulate(X, clients=2, test=0.25, seed=0))
    assert set(parts) == {"train", "test"}
    assert model.history_[-1]["test_size"] == 5


@pytest.mark.parametrize("frozen", ["part", "all"])
def test_what_is_frozen_stays_and_does_not_travel(frozen):
    def make():
        model = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 3))
        for parameter in model[0].parameters() if frozen == "part" else model.parameters():
            parameter.requires_grad = False
        return model

    def train(model, loader, context):
        trained = [p for p in model.parameters() if p.requires_grad]
        optimiser = torch.optim.SGD(trained, lr=0.1)
        for X, kind, _ in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(X), kind).backward()
            optimiser.step()

    fed = so.simulate(programs.two_targets(), clients=2, seed=0)
    learner = so.FedTorch(make, train=train, rounds=2)
    if frozen == "all":
        with pytest.raises(so.errors.UsageError, match="no parameters to train"):
            learner.fit(fed)
        return
    model = learner.fit(fed)
    assert model.weights_.shape == (153,)
    assert model.state_dict()["0.weight"].shape == (50, 2)


def test_loops_get_rows_as_a_pipeline_prepares_them():
    means = []

    def train(model, loader, context):
        means.append(torch.cat([batch[0] for batch in loader]).mean(0))
        return programs.train_contrastive(model, loader, context)

    fed = so.simulate(programs.points(), labels=np.arange(60) % 2, clients=1, seed=0)
    so.Pipeline(so.FedScaler(), so.FedTorch(nn.Linear(2, 4), train=train, rounds=1)).fit(fed)
    assert means[0].abs().max() < 1e-5  # and not 3, as they lie in the data set
