"""A tree as text, JSON and Graphviz, with the names of features and classes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from solera.core.schema import Schema
from solera.learn.trees.tree import Tree, shares

HUGE = 1e300
"""A bound beyond this is no bound."""

_PALETTE = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442")


def split_text(tree: Tree, node: int, schema: Schema) -> str:
    """What a node asks: "age ≤ 32.5", "job"."""
    feature = schema.features[int(tree.feature[node])]
    if tree.categorical[node]:
        return feature.name
    cut = float(tree.threshold[node])
    return f"{feature.name} is known" if cut > HUGE else f"{feature.name} ≤ {feature.text(cut)}"


def branch_text(tree: Tree, node: int, way: int, schema: Schema) -> str:
    """What a branch answers: "yes", "no", "clerk", "missing"."""
    if not tree.categorical[node]:
        return "yes" if way == 0 else "no"
    names = schema.features[int(tree.feature[node])].categories
    return names[way] if way < len(names) else "missing"


def leaf_text(tree: Tree, node: int, schema: Schema) -> str:
    """What a node answers: its most probable class, or its number."""
    if schema.target != "classes":
        return f"{tree.value[node, 0]:.6g}"
    p = shares(tree.value[node])
    best = int(p.argmax())
    return f"{schema.classes[best]} ({p[best]:.2f})"


def to_text(tree: Tree, schema: Schema) -> str:
    """The tree as indented text."""
    return "\n".join(_lines(tree, 0, schema, "")) + "\n"


def _lines(tree: Tree, node: int, schema: Schema, indent: str) -> Iterator[str]:
    if tree.feature[node] < 0:
        yield f"{indent}→ {leaf_text(tree, node, schema)}"
        return
    name = schema.features[int(tree.feature[node])].name
    for way, child in tree.children(node):
        if tree.categorical[node]:
            answer = branch_text(tree, node, way, schema)
            asked = f"{name} is missing" if answer == "missing" else f"{name} = {answer}"
        else:
            asked = split_text(tree, node, schema)
            asked = asked if way == 0 else asked.replace("≤", ">").replace("known", "missing")
            if (way == 0) == bool(tree.missing_left[node]) and "missing" not in asked:
                asked += " or missing"
        yield f"{indent}{asked}"
        yield from _lines(tree, child, schema, indent + "  ")


def to_json(tree: Tree, schema: Schema) -> str:
    """The tree as nested JSON: {feature, threshold, branches: {answer: node}, value, support}."""
    return json.dumps(_nested(tree, 0, schema), ensure_ascii=False)


def _nested(tree: Tree, node: int, schema: Schema) -> dict[str, Any]:
    nested: dict[str, Any] = {"support": float(tree.support[node])}
    if schema.target == "classes":
        labels = [str(name) for name in schema.classes.tolist()]
        nested["probabilities"] = dict(zip(labels, shares(tree.value[node]).tolist(), strict=True))
    else:
        nested["value"] = tree.value[node].tolist()
    if tree.feature[node] < 0:
        return nested
    nested["feature"] = schema.features[int(tree.feature[node])].name
    if not tree.categorical[node]:
        nested["threshold"] = float(tree.threshold[node])
        nested["missing"] = "yes" if tree.missing_left[node] else "no"
    nested["branches"] = {
        branch_text(tree, node, way, schema): _nested(tree, child, schema)
        for way, child in tree.children(node)
    }
    return nested


def to_graphviz(tree: Tree, schema: Schema) -> str:
    """The tree in the language of Graphviz; ``dot -Tpng`` draws it."""
    lines = ["digraph tree {", '  node [shape=box, style="rounded,filled", fontname="sans-serif"];']
    for node in range(len(tree)):
        text = (split_text if tree.feature[node] >= 0 else leaf_text)(tree, node, schema)
        colour = f"{node_colour(tree, node, schema)}40"
        lines.append(f"  n{node} [label={_quoted(text)}, fillcolor={_quoted(colour)}];")
        for way, child in tree.children(node):
            label = _quoted(branch_text(tree, node, way, schema))
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
