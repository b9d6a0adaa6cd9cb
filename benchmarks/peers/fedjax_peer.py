"""FedJAX: its federated averaging with compiled client steps."""

from __future__ import annotations

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import workload

if not hasattr(jax, "tree_map"):  # FedJAX 0.0.17 expects the older name
    jax.tree_map = jax.tree_util.tree_map

import fedjax

work = workload.read()
draw = np.random.default_rng(0)
sizes = [work.X.shape[1], *([work.hidden] if work.hidden else []), 10]
params = [
    (
        jnp.asarray(draw.uniform(-1, 1, (a, b)) / np.sqrt(a), jnp.float32),
        jnp.asarray(draw.uniform(-1, 1, b) / np.sqrt(a), jnp.float32),
    )
    for a, b in itertools.pairwise(sizes)
]


def outputs(params, x):
    for i, (w, b) in enumerate(params):
        x = x @ w + b
        if i < len(params) - 1:
            x = jax.nn.relu(x)
    return x


def loss(params, batch, rng):
    log_p = jax.nn.log_softmax(outputs(params, batch["x"]))
    return -jnp.take_along_axis(log_p, batch["y"][:, None], axis=1).mean()


algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    jax.grad(loss),
    fedjax.optimizers.sgd(work.lr),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=1),
)
data = [
    fedjax.ClientDataset(dict(zip("xy", work.client(k), strict=True))) for k in range(work.clients)
]
state = algorithm.init(params)


def round_(state, number):
    keys = jax.random.split(jax.random.PRNGKey(number), work.per_round)
    chosen = work.chosen(number)
    clients = [(k, data[k], key) for k, key in zip(chosen, keys, strict=True)]
    return algorithm.apply(state, clients)[0]


jax.block_until_ready(round_(state, 0).params)
began = workload.ready()
for number in range(work.rounds):
    state = round_(state, number)
jax.block_until_ready(state.params)
seconds = time.perf_counter() - began
guessed = np.asarray(outputs(state.params, work.X_test)).argmax(axis=1)
workload.answer(seconds, float((guessed == work.y_test).mean()))
