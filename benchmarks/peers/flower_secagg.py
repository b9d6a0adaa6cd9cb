"""Flower's SecAgg+: what one client spends on its steps, by Flower's own functions.

Started by ../secure_sum.py in Flower's environment; prints seconds of keys and shares, and of
masks.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat

mod = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
neighbours, parameters, modulus_bits = map(int, sys.argv[1:4])
values = np.random.default_rng(0).normal(size=parameters).astype(np.float32)
others = {i: [mod.generate_key_pairs() for _ in "12"] for i in range(1, neighbours + 1)}
known = {
    i: tuple(mod.public_key_to_bytes(public) for _, public in pairs) for i, pairs in others.items()
}

state = mod.SecAggPlusState()
state.nid = 0
state.sample_num = state.share_num = neighbours + 1
state.threshold = 2 * (neighbours + 1) // 3 + 1
state.clipping_range, state.target_range = 8.0, 1 << 22
state.mod_range, state.max_weight = 1 << modulus_bits, 1000.0
setup = {
    mod.Key.SAMPLE_NUMBER: state.sample_num,
    mod.Key.SHARE_NUMBER: state.share_num,
    mod.Key.THRESHOLD: state.threshold,
    mod.Key.CLIPPING_RANGE: state.clipping_range,
    mod.Key.TARGET_RANGE: state.target_range,
    mod.Key.MOD_RANGE: state.mod_range,
    mod.Key.MAX_WEIGHT: state.max_weight,
}
began = time.process_time()
mod._setup(state, setup)
keys = {"0": (state.pk1, state.pk2), **{str(i): pair for i, pair in known.items()}}
mod._share_keys(state, keys)
shared = time.process_time() - began

own = mod.bytes_to_public_key(state.pk2)
sealed = [
    encrypt(
        generate_shared_key(others[i][1][0], own),
        share_keys_plaintext_concat(i, 0, bytes(80), bytes(400)),
    )
    for i in others
]
given = {mod.Key.CIPHERTEXT_LIST: sealed, mod.Key.SOURCE_LIST: list(others)}
update = ndarrays_to_parameters([values])
began = time.process_time()
mod._collect_masked_vectors(state, given, 500, update)
print(shared, time.process_time() - began)
