"""Plots of trees, importances and filters."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from solera.core.clients import BoolArray, FloatArray
from solera.core.pictures import new_figure
from solera.core.schema import Schema
from solera.learn.trees.export import (
    Raw,
    as_it_is,
    branch_text,
    leaf_text,
    node_colour,
    split_text,
)
from solera.learn.trees.tree import Tree


def _axes(ax: Any, size: tuple[float, float]) -> Any:
    if ax is None:
        ax = new_figure(figsize=size).add_subplot()
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _layout(tree: Tree, max_depth: int) -> tuple[FloatArray, list[int]]:
    """Places (x, depth) of the nodes down to a depth, leaves side by side, and which they are."""
    place = np.zeros((len(tree), 2))
    shown: list[int] = []
    next_x = 0.0

    def walk(node: int, depth: int) -> None:
        nonlocal next_x
        shown.append(node)
        children = [child for _, child in tree.children(node)] if depth < max_depth else []
        for child in children:
            walk(child, depth + 1)
        if children:
            x = float(np.mean([place[child, 0] for child in (children[0], children[-1])]))
        else:
            x = next_x
            next_x += 1
        place[node] = x, depth

    walk(0, 0)
    return place, shown


def plot_tree(
    tree: Tree, schema: Schema, raw: Raw = as_it_is, *, ax: Any = None, max_depth: int = 4
) -> Any:
    """The tree down to a depth, as a matplotlib figure."""
    place, shown = _layout(tree, max_depth)
    leaves = place[shown, 0].max() + 1
    ax = _axes(ax, (min(24.0, 1.6 * leaves + 1), 1.3 * (place[shown, 1].max() + 1) + 0.5))
    for node in shown:
        x, y = place[node, 0], -place[node, 1]
        children = tree.children(node)
        cut = bool(children) and -y == max_depth
        for way, child in [] if cut else children:
            cx, cy = place[child, 0], -place[child, 1]
            ax.plot([x, cx], [y, cy], color="0.7", linewidth=1, zorder=1)
            label = branch_text(tree, node, way, schema, raw)
            ax.text((x + cx) / 2, (y + cy) / 2, label, ha="center", fontsize=7, color="0.35")
        if children and not cut:
            text = split_text(tree, node, schema, raw)
        else:
            text = leaf_text(tree, node, schema) + (" …" if cut else "")
        style = {"boxstyle": "round", "facecolor": "white", "linewidth": 1.5,
                 "edgecolor": node_colour(tree, node, schema)}  # fmt: skip
        ax.text(x, y, text, ha="center", va="center", fontsize=8, bbox=style, zorder=2)
    ax.set_xlim(-0.6, leaves - 0.4)
    ax.set_ylim(-place[shown, 1].max() - 0.5, 0.5)
    ax.axis("off")
    return ax.figure


def to_svg(figure: Any) -> str:
    """A figure as an ``<svg>`` element that any browser shows, the same text each time."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "solera"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]


def plot_importance(
    importance: FloatArray, schema: Schema, *, ax: Any = None, most: int = 20
) -> Any:
    """The most important columns as bars, as a matplotlib figure."""
    order = np.argsort(-importance, kind="stable")[:most][::-1]
    ax = _axes(ax, (6, 0.8 + 0.25 * len(order)))
    ax.barh([schema.features[j].name for j in order], importance[order], color="#0072b2")
    ax.set_xlabel("importance")
    return ax.figure


def plot_filter_effect(rows: Sequence[Mapping[str, float]], *, ax: Any = None) -> Any:
    """Accuracy and macro-F1 against the filter's percentile (thesis Figure 2.3), and trees kept."""
    ax = _axes(ax, (6, 3.6))
    x = [row["percentile"] for row in rows]
    for metric, colour in (("accuracy", "#0072b2"), ("macro_f1", "#d55e00")):
        label = metric.replace("_f1", "-F1")
        ax.plot(x, [100 * row[metric] for row in rows], "o-", color=colour, label=label)
    ax.set_xlabel("trees below this percentile are dropped")
    ax.set_ylabel("%")
    ax.legend(frameon=False)
    for row in rows:
        ax.annotate(f"{row['trees']:.0f}", (row["percentile"], 100 * row["accuracy"]),
                    textcoords="offset points", xytext=(0, 6), ha="center", fontsize=7)  # fmt: skip
    return ax.figure


def plot_filter(
    scores: FloatArray, kept: BoolArray, threshold: float, metric: str, *, ax: Any = None
) -> Any:
    """The clients' trees by their mean metric at the other clients: which ones the filter kept."""
    order = np.argsort(scores, kind="stable")
    ax = _axes(ax, (6, 3))
    colours = np.where(kept, "#0072b2", "#d55e00")[order]
    ax.bar(np.arange(1, len(order) + 1), 100 * scores[order], color=colours.tolist())
    label = f"threshold {100 * threshold:.2f} %: {int(kept.sum())} of {len(kept)} trees kept"
    ax.axhline(100 * threshold, color="0.3", linestyle="dashed", label=label)
    ax.set_xlabel("trees, from the worst to the best at the other clients")
    ax.set_ylabel(f"mean {metric} in %")
    ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1))
    return ax.figure
