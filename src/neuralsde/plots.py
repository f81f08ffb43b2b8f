"""Figures: arrays in, Figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BRANCH_COLOURS = ("#1f77b4", "#e8702a", "#2a9d5c", "#9355c2", "#c23b6e", "#8c6d31")
LOST = "#d62728"
TRUTH = "#b8b8b8"


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("Figures need matplotlib: pip install 'neuralsde[plots]'.") from None
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained", dpi=130)
    return figure, np.atleast_2d(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False))


def draw_paths(axes: Axes, paths: np.ndarray, labels: np.ndarray, truth: np.ndarray) -> None:
    """Planar paths (N, T, 2), coloured by the branch they end on (-1: none), over the true ones."""
    for line in truth:
        axes.plot(line[:, 0], line[:, 1], color=TRUTH, linewidth=4, solid_capstyle="round", zorder=1)
    alpha = float(np.clip(12 / len(paths), 0.06, 0.8))
    for path, label in zip(paths, labels):
        colour = LOST if label < 0 else BRANCH_COLOURS[label % len(BRANCH_COLOURS)]
        axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=0.9, alpha=alpha, zorder=2)
    low, high = truth.min((0, 1)), truth.max((0, 1))
    pad = 0.12 * (high - low)
    axes.set_xlim(low[0] - 0.3, high[0] + pad[0])
    axes.set_ylim(low[1] - 2 * pad[1], high[1] + 2 * pad[1])


def caption(labels: np.ndarray, num_branches: int) -> str:
    """Shares of the branches, uppermost first, and of paths that end on none."""
    shares = " : ".join(f"{100 * np.mean(labels == k):.3g}" for k in range(num_branches))
    lost = np.mean(labels < 0)
    return f"{shares} %" + (f", {100 * lost:.3g} % on no branch" if lost else "")


@dataclass(frozen=True)
class PathPanel:
    """Paths of one model at one setting."""

    paths: np.ndarray
    labels: np.ndarray
    truth: np.ndarray


def path_grid(panels: Mapping[str, Mapping[str, PathPanel]]) -> Figure:
    """Rows of panels: {row title: {column title: panel}}."""
    columns = list(next(iter(panels.values())))
    figure, axes = _figure(len(panels), len(columns), 4.1, 2.9)
    for i, (row, entries) in enumerate(panels.items()):
        for j, column in enumerate(columns):
            ax, panel = axes[i, j], entries[column]
            draw_paths(ax, panel.paths, panel.labels, panel.truth)
            ax.set_title((f"{column}\n" if i == 0 else "") + caption(panel.labels, len(panel.truth)), fontsize=10)
            if j == 0:
                ax.set_ylabel(f"{row}\ny")
            if i == len(panels) - 1:
                ax.set_xlabel("x")
    return figure


@dataclass(frozen=True)
class FieldPanel:
    """Paths over the drift that made them, and where noise is added."""

    title: str
    paths: PathPanel
    points: np.ndarray
    """(K, 2)"""
    drift: np.ndarray
    """(K, 2)"""
    noise: np.ndarray
    """(K,) size of the diffusion, 0 where it is off."""


def field_grid(panels: Sequence[FieldPanel], *, columns: int = 2) -> Figure:
    """Vector fields with paths; arrows show the direction, their length the speed on a compressed scale."""
    rows = -(-len(panels) // columns)
    figure, axes = _figure(rows, columns, 5.6, 3.5)
    top = max(float(p.noise.max()) for p in panels) or 1.0
    for ax, panel in zip(axes.flat, panels):
        draw_paths(ax, panel.paths.paths, panel.paths.labels, panel.paths.truth)
        speed = np.linalg.norm(panel.drift, axis=1, keepdims=True)
        typical = np.median(speed) + 1e-12
        arrows = panel.drift / (speed + 1e-12) * np.minimum(speed / typical, 2.0) ** 0.5
        ax.quiver(*panel.points.T, *arrows.T, color="#555555", alpha=0.55, scale=38, width=0.0022, zorder=3)
        on = panel.noise > 0.05 * top
        if on.any():
            ax.scatter(
                *panel.points[on].T, s=60 * panel.noise[on] / top, color="#2a9d5c", alpha=0.35, linewidth=0, zorder=4
            )
        ax.set_title(f"{panel.title}: {caption(panel.paths.labels, len(panel.paths.truth))}", fontsize=10)
    for ax in axes[-1]:
        ax.set_xlabel("x")
    for ax in axes[:, 0]:
        ax.set_ylabel("y")
    return figure
