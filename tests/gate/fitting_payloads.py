"""Entries of payloads that must fit each other or the rows, which no declared type says.

Drawn each by itself they hardly ever do, and the task refuses before the gate has anything to
judge. What is drawn here fits; all other entries stay as the driver likes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import solera as so
from solera.core.component import describe
from solera.core.schema import Schema
from solera.learn.heonn.activations import layout_of

KEY = "hostile"
"""A key pair that the client holds."""
Fit = Callable[[dict[str, Any], Schema, np.random.Generator], dict[str, Any]]


def glm(ask: dict[str, Any], schema: Schema, rng: np.random.Generator) -> dict[str, Any]:
    """A family of such a target; offset and weights, if any, are columns and have no term."""
    names = [feature.name for feature in schema.features]
    named = {
        entry: str(rng.choice(names)) if rng.random() < 0.2 else None
        for entry in ("offset", "weights")
    }
    terms = 1 + sum(name not in named.values() for name in names)
    families = {"classes": ["binomial", "poisson"], "numbers": ["gaussian"]}
    family = str(rng.choice(families.get(schema.target, ["gaussian"])))
    return {**ask, **named, "family": family, "coef": coefficients(terms, rng)}


def cox(ask: dict[str, Any], schema: Schema, rng: np.random.Generator) -> dict[str, Any]:
    return {**ask, "coef": coefficients(schema.width, rng)}


def coefficients(terms: int, rng: np.random.Generator) -> Any:
    """From those of an honest start to those that weigh a row more than all others."""
    return rng.normal(size=terms) * rng.choice([0, 0.01, 0.1, 0.5, 2, 30])


def heonn(ask: dict[str, Any], schema: Schema, rng: np.random.Generator) -> dict[str, Any]:
    """A plan for the columns, or for some hidden features, of all or of some rows."""
    hidden = ask["hidden"] if rng.random() < 0.3 else None
    if hidden is not None:
        hidden = {**hidden, "width": int(rng.integers(1, 6))}
    features = schema.width if hidden is None else hidden["width"]
    members: dict[str, Any] = {"patches": None, "row_share": None, "row_replacement": None}
    if features > 1 and rng.random() < 0.3:
        members = {
            "patches": rng.integers(features, size=(int(rng.integers(1, 3)), 1)),
            "row_share": float(rng.choice([1.0, 0.8, 0.5, 1e-9])),
            "row_replacement": bool(rng.integers(2)),
        }
    activation = ask["activation"] if schema.target != "numbers" else "linear"
    return {
        **ask,
        **members,
        "width": schema.width,
        "columns": 1 + features,
        "outputs": schema.outputs,
        "target": schema.target,
        "activation": activation,
        "layout": layout_of(schema.target, activation, ask["derivative"]),
        "representation": str(rng.choice(["gram", "gram", "auto", "svd"])),
        "hidden": hidden,
        "encrypt": None,
        "min_rows": 1,
    }


def agree_key(ask: dict[str, Any], schema: Schema, rng: np.random.Generator) -> dict[str, Any]:
    """With hidden features, whose bounds need no policy."""
    width = int(rng.integers(1, 6))
    hidden = {"kind": "fourier", "width": width, "scale": 1.0, "seed": int(rng.integers(9))}
    return {**heonn(ask, schema, rng), "hidden": hidden, "columns": 1 + width, "key": KEY}


def keyed(ask: dict[str, Any], schema: Schema, rng: np.random.Generator) -> dict[str, Any]:
    return {**ask, "key": KEY, "shape": [int(n) for n in rng.integers(1, 4, size=2)]}


def network(ask: dict[str, Any], schema: Schema, rng: np.random.Generator) -> dict[str, Any]:
    """A network of one layer for the rows, whose weights cut where the driver likes."""
    width, outputs = schema.width, schema.outputs
    training = {"loss": "labels/cross_entropy", "lr": 0.1, "optimiser": "sgd", "momentum": 0.0}
    return {
        "model": describe(so.nn.linear(width, outputs)),
        "weights": rng.normal(size=(width + 1) * outputs) * 10.0 ** rng.integers(-2, 8),
        "classes": schema.classes,
        "training": {**training, "l2": 0.0, "epochs": 1, "steps": None, "batch_size": 8},
        "private": [],
        "send": "difference",
        "steps": [],
        "device": None,
        "weight": "uniform",
        "remember": False,
        **({"restore": False, "fine_tune": 0, "thresholds": True} if "restore" in ask else {}),
        **({"part": ask["part"]} if "part" in ask else {}),
    }


FITTING: dict[str, Fit] = {
    "glm.step": glm,
    "glm.likelihood": glm,
    "cox.step": cox,
    "heonn.statistics": heonn,
    "heonn.agree_key": agree_key,
    "heonn.rotation_keys": keyed,
    "multilabel.judge": network,
    "multilabel.finish": network,
}
