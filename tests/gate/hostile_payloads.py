"""Payloads that a task declares, and some that it does not, made from the declaration alone.

Arrays are filled with what a driver would send that wants rows: zeros, ordinary numbers, weights
that saturate, numbers at the edge of what is declared, rows and cuts next to each other.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
from msgspec import Meta
from tests.gate.fitting_payloads import FITTING

from solera.core.component import describe_fitted
from solera.core.constraints import is_union
from solera.trust.declared import Classes, Fitted, Shape, lengths_of
from solera.core.schema import Schema
from solera.core.task import Task
from solera.learn.trees.tree import ClassTree, NumberTree, TreeBuilder

TREES = [ClassTree.__metadata__[0], NumberTree.__metadata__[0]]
LARGE = 1e6
MOST = 30
"""Whole numbers are kept small: a thousand epochs leak no more than thirty, and take longer."""


class Payloads:
    """Draws payloads for one table of rows; ``models`` are fitted components by class."""

    def __init__(self, X: Any, y: Any, schema: Schema, models: list[Any], seed: int) -> None:
        self.X, self.y, self.schema, self.models = X, y, schema, models
        self.rng = np.random.default_rng(seed)

    def draw(self, task: Task, schema: Schema | None = None) -> Any:
        """A payload that fits the declaration, as far as it can be told from types.

        ``schema``: of the rows as they are prepared. What must fit together mostly does.
        """
        self.schema = self.schema if schema is None else schema
        lengths: dict[str, int] = {**lengths_of(self.schema), "rows": len(self.X)}
        payload = self._value(task.ask, lengths)
        fit = FITTING.get(task.name)
        if fit is not None and self.rng.random() < 0.8:
            payload = fit(payload, self.schema, self.rng)
        return payload

    def broken(self, task: Task, schema: Schema | None = None) -> Any:
        """A payload with one thing that is not as declared."""
        payload = self.draw(task, schema)
        if not isinstance(payload, dict) or not payload:
            return {"more": np.zeros(len(self.X))}
        name = self.rng.choice(list(payload))
        rows, shape = len(self.X), getattr(payload[name], "shape", ())
        strange = [
            np.full((rows, 2), 1.0),
            np.full(shape, np.nan),
            np.full(shape, np.inf),
            np.zeros((rows, *shape)),
            None,
            {"a": 1},
            "text",
            -1,
            float("nan"),
            1 << 70,
            [[]],
        ]
        way = self.rng.integers(3)
        if way == 0:
            del payload[name]
        elif way == 1:
            payload["more"] = np.zeros((rows, 2))
        else:
            payload[name] = strange[self.rng.integers(len(strange))]
        return payload

    # --- one value ---

    def _value(self, hint: Any, lengths: dict[str, int]) -> Any:
        if hint is None or hint is type(None):
            return None
        if is_typeddict(hint):
            hints = get_type_hints(hint, include_extras=True)
            drawn = {
                name: self._value(_bare(inner), lengths)
                for name, inner in hints.items()
                if _bare(inner) is inner or self.rng.random() < 0.3  # without noise, mostly
            }
            return drawn | ({"width": self.schema.width} if "width" in hints else {})
        origin = get_origin(hint)
        if origin is Annotated:
            plain, *rules = get_args(hint)
            for rule in rules:
                if isinstance(rule, Shape):
                    return self._array(rule, lengths)
                if isinstance(rule, Classes):
                    return self.schema.classes
                if isinstance(rule, Fitted):
                    return self._model(rule)
                if rule in TREES:
                    return self._tree(self.schema.outputs if rule is TREES[0] else 1)
            metas = [rule for rule in rules if isinstance(rule, Meta)]
            return self._number(plain, metas) if metas else self._value(plain, lengths)
        if is_union(hint):
            parts = get_args(hint)
            return self._value(parts[self.rng.integers(len(parts))], lengths)
        if origin is Literal:
            choices = get_args(hint)
            if "train" in choices and self.rng.random() < 0.7:  # there are no other rows here
                return "train"
            return choices[self.rng.integers(len(choices))]
        if origin in (list, tuple) or hint is list:
            (element, *_) = get_args(hint) or (float,)
            size = self.rng.choice([*range(4), self.schema.width])
            return [self._value(element, lengths) for _ in range(size)]
        if hint is bool:
            return bool(self.rng.integers(2))
        if hint in (int, float):
            return self._number(hint, [])
        if hint is str:
            return str(self.rng.choice(["a", "", "x" * 50]))
        return {}

    def _number(self, plain: Any, metas: list[Meta]) -> Any:
        low = max([m.ge for m in metas if m.ge is not None], default=-LARGE)
        low = max([low, *(m.gt + 1e-9 for m in metas if m.gt is not None)])
        high = min([m.le for m in metas if m.le is not None], default=LARGE)
        high = min([high, *(m.lt - 1e-9 for m in metas if m.lt is not None)])
        if plain is int:
            high = min(high, max(low, MOST))
        if get_origin(plain) is not None or plain not in (int, float):
            plain = float
        choices = [
            low,
            high,
            min(max(low, 1), high),
            min(max(low, 3), high),
            min(max(low, 0), high),
        ]
        value = choices[self.rng.integers(len(choices))]
        if plain is float and self.rng.random() < 0.5:
            value = float(np.clip(10.0 ** self.rng.uniform(-9, 3), low, high))
        return plain(value)

    def _array(self, shape: Shape, lengths: dict[str, int]) -> Any:
        size = tuple(
            axis
            if isinstance(axis, int)
            else lengths.setdefault(axis, int(self.rng.integers(1, 5)))
            for axis in shape.axes
        )
        if shape.kind == "b":
            return self.rng.integers(2, size=size).astype(bool)
        if shape.kind == "i":
            low = int(max(shape.least, -3))
            high = int(min(shape.most, low + 6))
            return self.rng.integers(low, high + 1, size=size)
        value = self._floats(size)
        return np.clip(value, shape.least, shape.most)

    def _floats(self, size: tuple[int, ...]) -> Any:
        way = self.rng.integers(7)
        if way == 0:
            return np.zeros(size)
        if way == 1:
            return self.rng.normal(size=size)
        if way == 2:
            return self.rng.normal(size=size) * 8
        if way == 3:
            return self.rng.normal(size=size) * LARGE
        values = np.sort(np.asarray(self.X, dtype=float)[:, 0])
        if way == 4 and len(size):  # cuts next to each other
            at = self.rng.integers(len(values), size=size)
            return values[at] + 1e-9
        if way == 5 and len(size) == 2 and size[1] == self.X.shape[1]:
            return np.asarray(self.X, dtype=float)[self.rng.integers(len(self.X), size=size[0])]
        return np.abs(self.rng.normal(size=size)) + 1e-3

    def _model(self, rule: Fitted) -> Any:
        fitting = [model for model in self.models if isinstance(model, rule.of)]
        if not fitting:
            return {}
        return describe_fitted(fitting[self.rng.integers(len(fitting))])

    def _tree(self, outputs: int) -> Any:
        """Two levels of splits at values of rows, which part as many rows as the driver likes."""
        builder = TreeBuilder(outputs)
        level = [builder.add(np.ones(outputs), 1.0)]
        for _ in range(self.rng.integers(1, 3)):
            column = int(self.rng.integers(self.X.shape[1]))
            cut = float(self.rng.choice(np.asarray(self.X, dtype=float)[:, column])) + 1e-9
            below = [builder.add(self.rng.random(outputs), 1.0) for _ in range(2 * len(level))]
            for i, node in enumerate(level):
                builder.split(node, column, below[2 * i : 2 * i + 2], threshold=cut)
            level = below
        return builder.build().to_payload()


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if str(get_origin(hint)).endswith("NotRequired") else hint
