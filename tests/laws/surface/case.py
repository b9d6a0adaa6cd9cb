"""A learner on rows of a kind with a target: fitted once, read by every surface."""

from __future__ import annotations

from typing import Any

import cases

import solera as so
from surface.dealt import Dealt

COARSE = {
    "two": "classes", "three": "classes", "unknown": "labels", "survival": "survival",
    "none": "none",
}  # fmt: skip


def _personal_peers() -> Any:
    return so.PeerToPeer(so.FedPer(so.nn.mlp(5, 8, 3), rounds=3, lr=0.3))


FITTING: dict[type, dict[str, Any]] = {
    so.FedGLM: {
        "two": lambda: so.FedGLM("binomial", rounds=20),
        "three": lambda: so.FedGLM("binomial", rounds=20),
        "numbers": lambda: so.FedGLM(),
    },
    so.FedCox: {"numbers": lambda: so.FedCox(rounds=20)},
    so.PeerToPeer: {"labels": _personal_peers, "unknown": _personal_peers},
}
"""Learners of which no example of ``cases.py`` fits a kind of target, or clients' own models."""
ESTIMATES = (so.FedGLM, so.FedCox)
"""Learners that have no estimate for a column which follows from others."""
TARGETS_OF = {so.FedCox: {"numbers": "survival"}}
"""Targets that are of a kind, but of a shape of their own."""


def example(cls: type, dealt: Dealt) -> Any:
    """An example of a learner for such rows; a network gets inputs and outputs that fit."""
    if dealt.target in FITTING.get(cls, {}):
        learner = FITTING[cls][dealt.target]()
    else:
        learner = _example_of_laws(cls, COARSE.get(dealt.target, dealt.target))
    learner = _with_network(learner, dealt)
    if dealt.kind == "prepared":
        encoder = so.FedEncoder("dummy" if cls in ESTIMATES else "onehot")
        return so.Pipeline(so.FedImputer(), encoder, so.FedScaler(), learner)
    return learner


def _example_of_laws(cls: type, target: str) -> Any:
    variants = cases.LEARNERS.get(cls)
    if variants is None:
        return cases.example(cls, {})
    plain = [make for name, make, targets in variants if not name and target in targets]
    plain += [make for name, make, targets in variants if not name]
    plain += [make for name, make, targets in variants if "private" not in name]
    return plain[0]()


def _with_network(learner: Any, dealt: Dealt) -> Any:
    """The learner with a network of as many inputs and outputs as these rows have."""
    params = learner.get_params(deep=False)
    if "learner" in params:
        return learner.set_params(learner=_with_network(params["learner"], dealt))
    model = params.get("model")
    if model is None or not type(model).__module__.startswith("solera."):
        return learner
    return learner.set_params(model=so.nn.mlp(dealt.width, 8, dealt.outputs))


class Case:
    """A fitted learner, and what it was fitted on."""

    def __init__(self, cls: type, dealt: Dealt) -> None:
        self.cls, self.dealt = cls, dealt
        topology = cases.TOPOLOGIES.get(cls)
        self.options: dict[str, Any] = {} if topology is None else {"topology": topology()}
        self.federation = dealt.federation(**self.options)
        self.model = self.fit(example(cls, dealt), self.federation)

    def fit(self, learner: Any, federation: Any, *, watch: bool = True) -> Any:
        """The learner, fitted; what it is on validation rows appears in its history."""
        judged = watch and self.dealt.target != "none" and learner.predicts
        callbacks = [so.callbacks.Evaluate()] if judged else []
        return learner.fit(federation, callbacks=callbacks, progress=False)
