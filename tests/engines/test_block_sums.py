"""All blocks of an ask folded in one call, and sums that ``many=`` returns: the same to the bit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import solera as so
from solera.core import rng
from solera.core.aggregation import Extremes, Fields, Sum, block_size
from solera.core.payload import encode, encoded_size
from solera.core.replies import Batch, Stacked
from solera.engines.local import LocalEngine
from solera.learn.preprocess.moments import column_moments

SHAPES = [(), (1,), (3,), (2, 5), (1, 1)]


@pytest.mark.parametrize("clients", [1, 64, 65, 640, 1000])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_of_all_blocks_are_those_of_each(clients, shape):
    draw = np.random.default_rng(clients)
    sizes = 10.0 ** draw.integers(-8, 8, (clients, *shape))
    fields = {
        "x": draw.normal(size=(clients, *shape)) * sizes,
        "n": draw.integers(0, 9, (clients, *shape)).astype(np.int8),
    }
    check_blocks(Sum(), fields, clients)


def check_blocks(aggregation, fields, clients):
    batch = Batch(np.arange(clients), Stacked(fields))
    bounds = [*range(0, clients, block_size(clients)), clients]
    at_once = aggregation.fold_blocks(batch, bounds)
    for (a, b), partial in zip(pairwise(bounds), at_once, strict=True):
        alone = aggregation.fold(batch.between(a, b))
        for key in fields:
            assert np.asarray(partial[key]).tobytes() == np.asarray(alone[key]).tobytes()
            assert np.asarray(partial[key]).dtype == np.asarray(alone[key]).dtype


def _many(group, ask):
    values = np.arange(6.0).reshape(2, 3) * (group.ids + 1)[:, None, None]
    if ask is not None:
        values[group.ids == ask["poison"]] = np.nan
    one = np.ones(len(group))
    if not group.adds("h"):
        return Stacked({"one": one, "h": values})
    return Stacked({"one": one}, sums={"h": values.sum(axis=0)})


@so.task("test.sums", many=_many)
def summed(client, ask):
    poisoned = ask is not None and ask["poison"] == client.id
    values = np.arange(6.0).reshape(2, 3) * (client.id + 1)
    return {"one": 1.0, "h": values * np.nan if poisoned else values}


@so.task("test.no-sums")
def not_summed(client, ask):
    return summed(client, ask)


def _nothing_else(group, ask):
    replies = _many(group, None)
    if not replies.sums:
        return Stacked({"h": replies.fields["h"]})
    return Stacked({}, sums=replies.sums, replies=len(group))


@so.task("test.sums-alone", many=_nothing_else)
def summed_alone(client, ask):
    return {"h": summed(client, None)["h"]}


@pytest.mark.parametrize("task", ["test.sums", "test.sums-alone"])
@pytest.mark.parametrize("memory", [1 << 20, 20_000])
def test_sums_count_once_whoever_is_served_together(task, memory):
    """With replies of their own beside them or not, in one call for all blocks or in several."""
    data = so.simulate(np.zeros((300, 2)), clients=150).data
    fed = so.Federation(LocalEngine(data, memory=memory), seed=0)
    total = fed.ask(task).fold(Sum())
    expected = fed.ask("test.no-sums").fold(Sum())
    assert encode(total["h"]) == encode(expected["h"])
    assert total.get("one", 150) == 150
    assert len(fed.meter.records[0].replied) == 150


@pytest.mark.parametrize(
    "aggregation", [Sum(), Fields({"one": Sum(), "h": Sum()}), Fields({"h": Sum()}), Extremes()]
)
def test_sums_replace_replies_where_the_aggregation_only_adds(aggregation):
    fed = so.simulate(np.zeros((300, 2)), clients=150)
    ours = fed.ask("test.sums").fold(aggregation)
    theirs = fed.ask("test.no-sums").fold(aggregation)
    assert encode(ours) == encode(theirs)
    first, second = fed.meter.records[-2:]
    assert first.up.sum() == second.up.sum() > 150 * encoded_size(np.zeros((2, 3)))


def test_a_reply_that_is_not_finite_is_found_behind_a_sum():
    fed = so.simulate(np.zeros((300, 2)), clients=150)
    replies = fed.ask("test.sums", {"poison": 70})
    expected = replies.fold(Sum())
    assert [f.client for f in replies.failures] == [70]
    assert np.isfinite(expected["h"]).all()


def test_uniforms_of_a_group_are_those_of_its_generators():
    clients, sizes = np.array([0, 3, 77, 5, 2**40]), np.array([1, 0, 10, 7, 4])
    drawn = rng.generator_uniforms(4, "test", 2, clients, sizes)
    alone = [
        rng.generator(4, "test", 2, int(c)).random(int(n))
        for c, n in zip(clients, sizes, strict=True)
    ]
    assert np.array_equal(drawn, np.concatenate(alone))


@pytest.mark.parametrize("width", [1, 2, 7])
@pytest.mark.parametrize("centred", [False, True])
def test_moments_do_not_depend_on_who_else_is_in_the_group(width, centred):
    X = np.random.default_rng(0).normal(size=(500, width)) * 1e5
    X[3, 0] = np.nan
    fed = so.simulate(X, clients=37)
    ask = {"centre": np.full(width, 3.0)} if centred else None
    replies = fed.ask(column_moments, ask).collect()
    small = LocalEngine(fed.data, memory=1)
    alone = so.Federation(small, seed=0).ask(column_moments, ask).collect()
    for ours, theirs in zip(replies, alone, strict=True):
        for name, numbers in theirs.payload.items():
            assert np.asarray(ours[name]).tobytes() == np.asarray(numbers).tobytes()
        own = fed.data.segments(np.array([ours.client]))[0].X
        np.testing.assert_allclose(
            ours["sum"], np.nansum(own - (3.0 if centred else 0.0), axis=0), atol=1e-6
        )
