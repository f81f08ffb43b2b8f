"""Figures of Push-T: arrays in, Figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neuralsde.plots.paths import INK, TRUTH, _figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

GOAL_COLOUR = "#8fd694"
PLAN_COLOUR = "#d6604d"


@dataclass(frozen=True, eq=False)
class PushPanel:
    """One episode on the plane."""

    goal: np.ndarray
    """(K, 2): the corners of the block on the goal."""
    first: np.ndarray
    """(K, 2): at the start."""
    last: np.ndarray
    """(K, 2): at the end."""
    agent: np.ndarray
    """(T, 2)"""
    times: np.ndarray
    """(T,) seconds."""
    plans: Sequence[np.ndarray] = ()
    """(H, 2) each: planned targets of the agent."""
    caption: str = ""


def push_grid(panels: Mapping[str, Mapping[str, PushPanel]], *, side: float = 512.0) -> Figure:
    """Rows of episodes: {row title: {column title: panel}}; the agent's path is coloured by time, plans are thin lines."""
    columns = list(next(iter(panels.values())))
    figure, axes = _figure(len(panels), len(columns), 3.6, 3.7 if len(columns) > 1 else 4.2)
    longest = max(float(panel.times[-1]) for row in panels.values() for panel in row.values())
    for i, (row, entries) in enumerate(panels.items()):
        for j, column in enumerate(columns):
            ax, panel = axes[i, j], entries[column]
            line = _draw_episode(ax, panel, longest)
            ax.set_title("\n".join(filter(None, [column if i == 0 else "", panel.caption])), fontsize=10)
            ax.set(xlim=(0, side), ylim=(side, 0), aspect="equal", xticks=[], yticks=[])
            if j == 0:
                ax.set_ylabel(row)
    figure.colorbar(line, ax=axes, label="seconds", shrink=0.7, pad=0.01)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    ncols = len(labels) if len(columns) > 1 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=ncols, frameon=False, fontsize=9)
    return figure


def _draw_episode(ax: Axes, panel: PushPanel, longest: float) -> LineCollection:
    from matplotlib.collections import LineCollection

    ax.fill(*panel.goal.T, color=GOAL_COLOUR, alpha=0.55, linewidth=0, label="goal", zorder=1)
    ax.fill(*panel.first.T, facecolor="none", edgecolor=TRUTH, linestyle="--", label="block at the start", zorder=2)
    ax.fill(*panel.last.T, facecolor="none", edgecolor=INK, linewidth=1.4, label="block at the end", zorder=3)
    for k, plan in enumerate(panel.plans):
        ax.plot(*plan.T, color=PLAN_COLOUR, linewidth=0.6, alpha=0.6, label=None if k else "plans", zorder=4)
    pairs = np.stack([panel.agent[:-1], panel.agent[1:]], axis=1)
    line = LineCollection(list(pairs), cmap="viridis", linewidth=1.8, zorder=5, capstyle="round")
    line.set_array(panel.times[:-1])
    line.set_clim(0, longest)
    ax.add_collection(line)
    ax.plot([], [], color=line.get_cmap()(0.5), linewidth=1.8, label="agent")
    ax.plot(*panel.agent[0], marker="o", color=INK, markersize=4, zorder=6)
    return line
