"""Figures of the video results: numbers in, Figure out. Frames are shown by `video_pictures`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neuralsde.metrics.power_law import fit_power_law
from neuralsde.plots.paths import BRANCH_COLOURS, INK, TRUTH, _figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    """A score over network passes per frame."""

    x: Sequence[float]
    y: Sequence[float]
    half_width: Sequence[float | None] | None = None
    """Of the 95 % intervals."""


def score_curves(
    panels: Mapping[str, Mapping[str, Curve]],
    *,
    x_label: str,
    references: Mapping[str, Mapping[str, float]] | None = None,
) -> Figure:
    """A panel per score, a curve per method; `references` are dashed lines by panel and name.

    Scores that differ by more than a factor of ten stand on a logarithmic axis.
    """
    figure, axes = _figure(1, len(panels), 4.2, 3.4, sharey="none")
    for ax, (title, curves) in zip(axes[0], panels.items()):
        for (name, curve), colour in zip(curves.items(), BRANCH_COLOURS * 2):
            spread = None if curve.half_width is None else [v or 0.0 for v in curve.half_width]
            ax.errorbar(curve.x, curve.y, spread, color=colour, marker="o", markersize=4, capsize=2, label=name)
        for name, value in (references or {}).get(title, {}).items():
            ax.axhline(value, color=TRUTH, linestyle="--", linewidth=1.2)
            ax.annotate(name, (0.99, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
        values = [y for curve in curves.values() for y in curve.y]
        if values and 0 < 10 * min(values) < max(values):
            ax.set_yscale("log")
        ax.set_xscale("log")
        ticks = sorted({x for curve in curves.values() for x in curve.x})
        ax.set_xticks(ticks, [f"{x:g}" for x in ticks], minor=False)
        ax.set_xticks([], minor=True)
        ax.set(title=title, xlabel=x_label)
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, fontsize=9)
    return figure


def scaling_law(parameters: Sequence[float], losses: Sequence[float]) -> Figure:
    """Losses over sizes, both on logarithmic axes, and the straight line through them."""
    law = fit_power_law(parameters, losses)
    figure, axes = _figure(1, 1, 4.8, 3.6)
    ax = axes[0, 0]
    line = np.array([min(parameters), max(parameters)], dtype=float)
    ax.plot(line, [law(x) for x in line], color=TRUTH, linewidth=2, zorder=1)
    ax.plot(parameters, losses, color=INK, marker="o", linestyle="none", zorder=2)
    ax.set(xscale="log", yscale="log", xlabel="parameters", ylabel="reduced validation loss L'")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    ax.yaxis.set_minor_formatter(lambda value, _: f"{value:.3g}")
    ax.set_title(f"L' ∝ N^{law.exponent:.3f}, Pearson {law.pearson:.4f}", fontsize=10)
    ax.spines[["top", "right"]].set_visible(False)
    return figure
