"""A tree as text, JSON and Graphviz, with the names of features and classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from solera.core.schema import Schema
from solera.learn.conditions import Condition
from solera.learn.trees.explanation import branch_condition
from solera.learn.trees.tree import Tree, shares

_PALETTE = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442")


Raw = Callable[[Condition], Condition]
"""A condition on the columns of a tree as one on those that a person has."""


def as_it_is(condition: Condition) -> Condition:
    """The condition of a tree whose columns are the person's."""
    return condition


def split_text(tree: Tree, node: int, schema: Schema, raw: Raw = as_it_is) -> str:
    """What a node asks: "age ≤ 32.5", "job"."""
    first, second = (raw(branch_condition(tree, node, way, schema)) for way in (0, 1))
    if tree.categorical[node]:
        return first.feature
    return str(second if first.negated else first)


def branch_text(tree: Tree, node: int, way: int, schema: Schema, raw: Raw = as_it_is) -> str:
    """What a branch answers: "yes", "no", "clerk", "≤ 32.5", "missing"."""
    condition = raw(branch_condition(tree, node, way, schema))
    if not tree.categorical[node]:
        first = raw(branch_condition(tree, node, 0, schema))
        return "yes" if (way == 0) != first.negated else "no"
    return condition.category or condition.predicate.removeprefix("is ")


def leaf_text(tree: Tree, node: int, schema: Schema) -> str:
    """What a node answers: its most probable class, or its number."""
    if schema.target != "classes":
        return f"{tree.value[node, 0]:.6g}"
    p = shares(tree.value[node])
    best = int(p.argmax())
    return f"{schema.classes[best]} ({p[best]:.2f})"


def to_text(tree: Tree, schema: Schema, raw: Raw = as_it_is) -> str:
    """The tree as indented text."""
    return "\n".join(_lines(tree, 0, schema, raw, "")) + "\n"


def _lines(tree: Tree, node: int, schema: Schema, raw: Raw, indent: str) -> Iterator[str]:
    if tree.feature[node] < 0:
        yield f"{indent}→ {leaf_text(tree, node, schema)}"
        return
    for way, child in tree.children(node):
        condition = raw(branch_condition(tree, node, way, schema))
        bounded = condition.lower < condition.upper
        yield f"{indent}{condition}{' or missing' if condition.missing and bounded else ''}"
        yield from _lines(tree, child, schema, raw, indent + "  ")


def to_json(tree: Tree, schema: Schema, raw: Raw = as_it_is) -> str:
    """The tree as nested JSON: {feature, threshold, branches: {answer: node}, value, support}."""
    return json.dumps(_nested(tree, 0, schema, raw), ensure_ascii=False)


def _nested(tree: Tree, node: int, schema: Schema, raw: Raw) -> dict[str, Any]:
    nested: dict[str, Any] = {"support": float(tree.support[node])}
    if schema.target == "classes":
        labels = [str(name) for name in schema.classes.tolist()]
        nested["probabilities"] = dict(zip(labels, shares(tree.value[node]).tolist(), strict=True))
    else:
        nested["value"] = tree.value[node].tolist()
    if tree.feature[node] < 0:
        return nested
    first = raw(branch_condition(tree, node, 0, schema))
    nested["feature"] = first.feature
    if first.negated:
        nested["category"] = first.category
    elif not tree.categorical[node]:
        nested["threshold"] = first.upper
        nested["missing"] = "yes" if first.missing else "no"
    nested["branches"] = {
        branch_text(tree, node, way, schema, raw): _nested(tree, child, schema, raw)
        for way, child in tree.children(node)
    }
    return nested


def to_graphviz(tree: Tree, schema: Schema, raw: Raw = as_it_is) -> str:
    """The tree in the language of Graphviz; ``dot -Tpng`` draws it."""
    lines = ["digraph tree {", '  node [shape=box, style="rounded,filled", fontname="sans-serif"];']
    for node in range(len(tree)):
        inner = tree.feature[node] >= 0
        text = split_text(tree, node, schema, raw) if inner else leaf_text(tree, node, schema)
        colour = f"{node_colour(tree, node, schema)}40"
        lines.append(f"  n{node} [label={_quoted(text)}, fillcolor={_quoted(colour)}];")
        for way, child in tree.children(node):
            label = _quoted(branch_text(tree, node, way, schema, raw))
            lines.append(f"  n{node} -> n{child} [label={label}];")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def node_colour(tree: Tree, node: int, schema: Schema) -> str:
    """The colour of a node's most probable class (Okabe & Ito 2008)."""
    if schema.target != "classes":
        return _PALETTE[0]
    return _PALETTE[int(tree.value[node].argmax()) % len(_PALETTE)]
