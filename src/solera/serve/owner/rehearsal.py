"""What the replies of a job look like: the learner is tried on made-up rows of the same columns.

It runs in a process of its own with little time and memory, and stops as soon as every task has
been seen once. Nothing of the owner's rows but their schema goes into it.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.config import component
from solera.core.engine import Ask, Block, Engine
from solera.core.errors import PayloadError, SoleraError
from solera.core.payload import decode, encode, encoded_size
from solera.core.schema import Schema, numbered
from solera.learn.base import Learner, Predictor
from solera.learn.scores import count_scores
from solera.serve.description import Description
from solera.serve.job_spec import parse_job
from solera.simulate.simulation import simulate

SECONDS = 60.0
_CPU_SECONDS = 45
_MEMORY = 3 << 30
_ROWS = 300
_MOST_ENTRIES = 12


class Example(msgspec.Struct, frozen=True):
    """A reply: its bytes when it travels, and what its entries are."""

    bytes: int
    entries: list[str]


def rehearse(job: Description, schema: Schema | None) -> dict[str, Example]:
    """An example of the reply to each task that could be tried, in a process of its own."""
    told = {"job": job.to_bytes(), "schema": None if schema is None else schema.to_payload()}
    command = [sys.executable, "-m", "solera.serve.owner.rehearsal"]
    try:
        done = subprocess.run(
            command, input=encode(told), capture_output=True, timeout=SECONDS, check=True
        )
        return msgspec.json.decode(done.stdout, type=dict[str, Example])
    except (subprocess.SubprocessError, msgspec.MsgspecError):
        return {}


class _Recorder:
    """An engine that notes the first reply to each task, and stops when it has seen all.

    It knows no schema: at agents, clients are asked for it.
    """

    schema = None

    def __init__(self, engine: Engine, wanted: set[str]) -> None:
        self._engine, self.wanted = engine, wanted
        self.seen: dict[str, Example] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        yield from self._engine.run(ask, aggregation)
        if ask.task not in self.seen:
            self._note(ask)
        if self.wanted <= self.seen.keys():
            raise _AllSeen

    def _note(self, ask: Ask) -> None:
        for block in self._engine.run(ask, None):
            for reply in block.batch or ():
                payload = reply.payload
                entries = list(_entries(payload, ""))
                more = len(entries) - _MOST_ENTRIES
                shown = entries[:_MOST_ENTRIES] + ([f"and {more} more"] if more > 0 else [])
                self.seen[ask.task] = Example(encoded_size(payload), shown)
                return


class _AllSeen(Exception):
    """Nothing more is to be found out."""


def _entries(value: Any, name: str) -> Iterator[str]:
    """``weights: 4 × 2 numbers``, for every entry of a reply."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _entries(inner, f"{name}.{key}" if name else str(key))
        return
    shape = np.shape(value) if isinstance(value, np.ndarray | np.generic) else None
    if shape:
        kind = "texts" if np.asarray(value).dtype.kind in "US" else "numbers"
        said = f"{' × '.join(map(str, shape))} {kind}"
    elif isinstance(value, bytes):
        said = f"{len(value):,} bytes"
    elif isinstance(value, list | tuple):
        said = f"a list of {len(value)}"
    elif isinstance(value, str):
        said = "text"
    else:
        said = "nothing" if value is None else "a number"
    yield f"{name or 'the reply'}: {said}"


def made_up(schema: Schema, rows: int = _ROWS) -> tuple[Any, Any]:
    """Rows of a schema that are nobody's."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, schema.width))
    for j, feature in enumerate(schema.features):
        if feature.categories:
            X[:, j] = rng.integers(len(feature.categories), size=rows)
    if schema.target == "classes" and len(schema.classes):
        return X, np.asarray(schema.classes)[np.arange(rows) % len(schema.classes)]
    if schema.target == "labels":
        return X, rng.integers(2, size=(rows, len(schema.classes)))
    if schema.target == "numbers":
        return X, rng.normal(size=(rows, schema.outputs) if schema.outputs > 1 else rows)
    return X, None


def _try(job: Description, schema: Schema | None) -> dict[str, Example]:
    if schema is None:
        schema = Schema(numbered(5), "classes", np.array([0, 1]), 2)
    learner = _learner(job)
    federation = simulate(*made_up(schema), clients=3, seed=0, schema=schema)
    recorder = _Recorder(federation.engine, {entry.task for entry in job.plan})
    tried = federation.over(recorder)
    try:
        learner.fit(tried)
        if isinstance(learner, Predictor):
            scores = count_scores.name in recorder.wanted
            learner.evaluate(tried, "train", per_client=False, scores=scores)
    except (_AllSeen, SoleraError, ArithmeticError, LookupError, TypeError, ValueError):
        pass  # what was seen until then is shown
    return recorder.seen


def _learner(job: Description) -> Learner:
    if job.toml:
        return parse_job(job.toml).learner
    given = {name: value for name, value in job.learner.items() if value is not None}
    made: Learner = component(Learner, given, ("learner",))
    return made


def main() -> None:
    """Reads a job and a schema, writes examples."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    told = decode(sys.stdin.buffer.read())
    schema = None if told["schema"] is None else Schema.from_payload(told["schema"])
    try:
        seen = _try(Description.from_bytes(told["job"]), schema)
    except (SoleraError, PayloadError):
        seen = {}
    sys.stdout.buffer.write(msgspec.json.encode(seen))


if __name__ == "__main__":
    main()
