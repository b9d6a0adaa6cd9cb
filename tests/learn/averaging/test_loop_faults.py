"""What a loop may do wrong is said: which client, which round, and the way out."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import solera as so
from solera.core.errors import DataError, Refusal, SoleraError, TaskError, UsageError
from solera.learn.averaging.loops.functions import find_function, register_function, stable_name
from solera.learn.averaging.loops.networks import build_network

X = np.random.default_rng(0).normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(int)


def federation(clients=3, **options):
    return so.simulate(X, Y, clients=clients, seed=0, **options)


def network():
    return nn.Linear(4, 2)


def step(model, loader, optimiser):
    for rows, classes in loader:
        optimiser.zero_grad()
        F.cross_entropy(model(rows), classes).backward()
        optimiser.step()


def train(model, loader, context):
    step(model, loader, torch.optim.SGD(model.parameters(), lr=0.1))


def fit(loop, model=network, fed=None, **options):
    options = {"rounds": 2, **options}
    return so.FedTorch(model, train=loop, **options).fit(fed or federation())


def test_a_loop_that_trains_nothing_is_said():
    def trains_a_copy(model, loader, context):
        train(network(), loader, context)

    with pytest.raises(DataError, match=r"client 0, round 0: train moved no parameter.*step"):
        fit(trains_a_copy)


def fails_at_one(model, loader, context):
    train(model, loader, context)
    if context.client == 1 and context.round == 1:
        raise KeyError("this_column")


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_bug_at_one_client_is_said_with_its_lines(engine):
    with federation(engine=engine) as fed:
        with pytest.raises(TaskError, match="client 1, round 1: train failed") as failed:
            fit(fails_at_one, fed=fed)
        text = str(failed.value)
        assert 'raise KeyError("this_column")' in text
        assert "in fails_at_one" in text
        assert "site-packages" not in text
        model = fit(fails_at_one, fed=fed, errors="skip")
    assert [entry["failures"] for entry in model.history_] == [0, 1]


def test_a_bug_in_the_model_or_in_data_is_said():
    def model():
        return nn.Linear(4, missing)  # noqa: F821

    with pytest.raises(TaskError, match=r"(?s)client 0: model failed.*NameError"):
        fit(train, model)
    with pytest.raises(TaskError, match=r"(?s)round 0: data failed.*ZeroDivisionError"):
        fit(train, data=lambda client, part: 1 / 0)
    with pytest.raises(UsageError, match=r"data\(\) returned int"):
        fit(train, data=lambda client, part: 3)
    with pytest.raises(UsageError, match=r"an nn\.Module is needed"):
        fit(train, model=lambda: 3)


def test_a_last_batch_of_one_row_before_batch_normalisation_is_said():
    def model():
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))

    with pytest.raises(TaskError, match=r"(?s)one row.*drop_last=True"):
        fit(train, model, batch_size=19)  # of 20 rows


def test_no_rows_to_evaluate_on_is_said(caplog):
    model = fit(train, evaluate=lambda model, loader, context: {"rows": len(loader)})
    assert "no client keeps rows aside" in caplog.text
    with pytest.raises(DataError, match=r"no client keeps test rows aside.*test=0\.2"):
        model.evaluate(federation())
    with pytest.raises(UsageError, match="given no evaluate="):
        fit(train).evaluate(federation(test=0.2))


@pytest.mark.parametrize("metrics", [3, {"loss": "small"}, {"loss": torch.ones(2)}, [1.0]])
def test_metrics_that_are_no_numbers_are_said(metrics):
    def loop(model, loader, context):
        train(model, loader, context)
        return metrics

    with pytest.raises(UsageError, match=r"client 0, round 0: train returned"):
        fit(loop)


def test_metrics_that_were_not_declared_are_said():
    def loop(model, loader, context):
        train(model, loader, context)
        return {"loss": 1.0}

    with pytest.raises(UsageError, match=r"\['loss'\].*metrics=\['accuracy', 'loss'\]"):
        fit(loop, metrics=["accuracy"])


def half_frozen():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].weight.requires_grad = False
    return model


def test_parameters_that_a_loop_unfreezes_are_named():
    def thaws(model, loader, context):
        model.requires_grad_(True)
        train(model, loader, context)

    with pytest.raises(DataError, match=r"changed parameters that were frozen: 0\.weight.*model\("):
        fit(thaws, half_frozen)

    def looks(model, loader, context):
        model.requires_grad_(True)
        model[0].weight.requires_grad_(False)
        train(model, loader, context)

    fit(looks, half_frozen)


def test_frozen_parts_that_differ_are_refused():
    name = register_function(half_frozen)
    assert build_network(name, 1).frozen == build_network(name, 1).frozen != ""
    with pytest.raises(Refusal, match="frozen parameters"):
        build_network(name, 2, build_network(name, 1).frozen)


def test_layers_that_a_loop_replaces_are_said():
    def replaces(model, loader, context):
        train(model, loader, context)
        model[1] = nn.Linear(3, 5)

    with pytest.raises(DataError, match=r"'1.weight' is of shape \(5, 3\).*was of shape \(2, 3\)"):
        fit(replaces, half_frozen)


def test_training_that_diverges_is_said():
    def diverges(model, loader, context):
        with torch.no_grad():
            model.weight.fill_(float("nan"))

    with pytest.raises(
        DataError, match="client 0, round 0: train ended in parameters that are not"
    ):
        fit(diverges)


def with_workers(model, loader, context):
    train(model, DataLoader(loader.dataset, batch_size=8, num_workers=1), context)


def data_with_workers(client, part):
    rows = client.data.part(part)
    pairs = list(zip(torch.tensor(rows.X).float(), torch.tensor(rows.y), strict=True))
    return DataLoader(pairs, batch_size=8, num_workers=1) if pairs else None


def test_workers_of_loaders_are_refused_where_no_process_may_be_started():
    with federation(engine="processes") as fed:
        for options in ({"loop": with_workers}, {"loop": train, "data": data_with_workers}):
            with pytest.raises(SoleraError, match=r"(?s)num_workers=\d.*engine='local'"):
                fit(fed=fed, **options)
    fit(train, data=data_with_workers, rounds=1)


def test_steps_that_cannot_be_corrected_are_errors():
    def by_hand(model, loader, context):
        for rows, classes in loader:
            loss = F.cross_entropy(model(rows), classes)
            for p, g in zip(
                model.parameters(),
                torch.autograd.grad(loss, [*model.parameters()]),
                strict=True,
            ):
                p.data -= 0.1 * g

    def fused(model, loader, context):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("cpu")
        for rows, classes in loader:
            optimiser.zero_grad()
            scaler.scale(F.cross_entropy(model(rows), classes)).backward()
            scaler.step(optimiser)
            scaler.update()

    fit(by_hand)
    fit(fused)
    for options in ({"mu": 0.1}, {"scaffold": True}):
        with pytest.raises(UsageError, match="took no step of an optimiser"):
            fit(by_hand, **options)
        with pytest.raises(UsageError, match=r"fused=True.*fused=False"):
            fit(fused, **options)


def test_a_scaler_that_is_not_fused_is_corrected():
    def scaled(model, loader, context):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        for rows, classes in loader:
            optimiser.zero_grad()
            scaler.scale(F.cross_entropy(model(rows), classes)).backward()
            scaler.step(optimiser)
            scaler.update()

    for options in ({"mu": 0.5}, {"scaffold": True}):
        np.testing.assert_allclose(
            fit(scaled, **options).weights_, fit(train, **options).weights_, atol=1e-6
        )


def test_state_is_checked_when_it_is_written_and_belongs_to_one_fit():
    seen = []

    def keeps(model, loader, context):
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        seen.append(sorted(context.state))
        if "optimiser" in context.state:
            optimiser.load_state_dict(context.state["optimiser"])
        step(model, loader, optimiser)
        context.state["optimiser"] = optimiser.state_dict()
        context.state["half"] = torch.ones(2, dtype=torch.bfloat16)
        assert context.state["half"].dtype == torch.bfloat16
        context.state["mixed"] = {1: (None, "a", [True]), "b": np.arange(3)}
        assert context.state["mixed"][1] == (None, "a", [True])

    fed = federation(clients=1)
    fit(keeps, fed=fed)
    fit(keeps, fed=fed)
    assert seen == [[], ["half", "mixed", "optimiser"]] * 2

    def keeps_a_module(model, loader, context):
        context.state["teacher"] = model

    with pytest.raises(UsageError, match=r"context\.state\['teacher'\].*Linear.*state_dict\(\)"):
        fit(keeps_a_module)


def test_the_folder_of_a_call_is_its_own_and_goes():
    folders = []

    def writes(model, loader, context):
        (context.folder / "log").write_text("x")
        folders.append(context.folder)
        train(model, loader, context)

    fit(writes)
    assert len(set(folders)) == 6
    assert not any(folder.exists() for folder in folders)


def test_rows_of_unlike_shapes_name_collate():
    def data(client, part):
        return [torch.ones(1 + i % 3) for i in range(5)] if part == "train" else None

    def loop(model, loader, context):
        list(loader)

    with pytest.raises(DataError, match=r"do not stack.*collate="):
        fit(loop, data=data)


NAMES = """
import torch
from solera.learn.averaging.loops.functions import stable_name

RATE, SOME = 0.1, {"b": 1, "a": (2, frozenset("xyz"))}


def step(model, rate=RATE, *, by=("a", "b")):
    return model if rate in {1, 2, "three"} else [step(m, by=by) for m in model]


def made(lr, kept):
    class Net(torch.nn.Linear):
        pass

    def train(model, loader, context):
        return step(model), Net(1, 1), lr, RATE, kept, lambda x: (x, {"q": lr}, train)

    return train


print(stable_name(made(0.1, SOME)), stable_name(made(0.2, SOME)))
"""


def test_names_of_functions_are_the_same_in_every_process():
    """Whatever order sets have there: a run goes on in another process."""
    names = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", NAMES]
        names.add(subprocess.check_output(command, env=environment, text=True))
    assert len(names) == 1
    assert len(set(names.pop().split())) == 2


def test_functions_are_known_by_what_they_do():
    def made(lr):
        return lambda model, loader, context: lr

    assert stable_name(made(0.1)) == stable_name(made(0.1)) != stable_name(made(0.2))
    first, second = (register_function(made(torch.ones(1))) for _ in range(2))
    assert first != second
    assert stable_name(find_function(second)) == first
    with pytest.raises(UsageError, match="holds no code"):
        find_function("somewhere.train/00")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weight": "rows"}, "examples"),
        ({"private": ["nothing"]}, "names no parameter"),
        ({"private": ["weight", "bias"]}, "every parameter private"),
        ({"dp": so.DP(noise_multiplier=1.0, delta=1e-3, clip=1.0)}, "equal weights"),
        ({"evaluate": 3}, "must be a function"),
        ({"server": "sgd"}, "server"),
    ],
)
def test_parameters_that_make_no_sense_are_errors(options, words):
    with pytest.raises(UsageError, match=words):
        fit(train, **options)
