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
jax.config.update(
    "jax_default_matmul_precision", "highest" if work.precision == "float32" else "tensorfloat32"
)


def uniform(inputs, *shape):
    return jnp.asarray(draw.uniform(-1, 1, shape) / np.sqrt(inputs), jnp.float32)


def dense(*sizes):
    return [(uniform(a, a, b), uniform(a, b)) for a, b in itertools.pairwise(sizes)]


def mlp(params, x):
    for i, (w, b) in enumerate(params):
        x = x @ w + b
        if i < len(params) - 1:
            x = jax.nn.relu(x)
    return x


def convolutional(params, x):
    """``so.nn.complex_cnn()``; the running statistics of batch normalisation are left out."""
    x = x.reshape(-1, 32, 32, 3)
    for i, (w, b, scale, shift) in enumerate(params[0]):
        x = jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + b)
        mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
        x = (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift
        if i % 2:
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return mlp(params[1], x.reshape(len(x), -1))


if work.network == "complex_cnn":
    outputs = convolutional
    widths = [3, *(wide for wide in workload.WIDTHS for _ in range(2))]
    kernels = [
        (uniform(9 * a, 3, 3, a, b), uniform(9 * a, b), jnp.ones(b), jnp.zeros(b))
        for a, b in itertools.pairwise(widths)
    ]
    params = [kernels, dense(16 * widths[-1], 512, 10)]
else:
    outputs = mlp
    params = dense(work.X.shape[1], *([work.hidden] if work.hidden else []), 10)


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
