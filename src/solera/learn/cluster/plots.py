"""Plots of centroids."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.errors import UsageError
from solera.core.pictures import new_figure
from solera.core.schema import Schema


def plot_centroids(
    centroids: Any, counts: Any, schema: Schema, shape: tuple[int, int] | None
) -> Any:
    """A heat map of clusters × columns, or one picture per cluster."""
    k, width = centroids.shape
    titles = [f"cluster {j}: {rows:,} rows" for j, rows in enumerate(counts.tolist())]
    if shape is not None:
        if int(np.prod(shape)) != width:
            raise UsageError(f"plot(shape={shape}): the centroids have {width} columns")
        figure = new_figure(figsize=(2.2 * k, 2.6))
        for axes, centroid, title in zip(figure.subplots(1, k, squeeze=False)[0], centroids, titles,
                                         strict=True):  # fmt: skip
            axes.imshow(centroid.reshape(shape), cmap="cividis")
            axes.set_title(title, fontsize=8)
            axes.set_axis_off()
        return figure
    figure = new_figure(figsize=(2 + 0.35 * min(width, 60), 1.6 + 0.4 * k))
    axes = figure.subplots()
    spread = np.ptp(centroids, axis=0)
    shares = (centroids - centroids.min(axis=0)) / np.where(spread > 0, spread, 1)
    image = axes.imshow(shares, cmap="cividis", aspect="auto", vmin=0, vmax=1)
    axes.set_yticks(range(k), titles)
    if width <= 60:
        axes.set_xticks(range(width), [f.name for f in schema.features], rotation=60, ha="right")
    figure.colorbar(image, label="smallest to largest centroid")
    return figure
