"""Figures of paths, forecasts and fields: arrays in, Figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from neuralsde.core.extras import need
from neuralsde.metrics.power_law import fit_power_law

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BRANCH_COLOURS = ("#1f77b4", "#e8702a", "#2a9d5c", "#9355c2", "#c23b6e", "#8c6d31")
LOST = "#d62728"
TRUTH = "#b8b8b8"
INK = "#333333"
BANDS = {0.95: "#dbe8f3", 0.8: "#b4d0e7", 0.5: "#83b2d8"}
"""Central intervals of a fan, widest first."""
MULTIPLES = 3  # forecasts beside each other: more are small multiples
Share = Literal["all", "row", "col", "none"]


def _figure(
    rows: int, columns: int, width: float, height: float, *, sharex: Share = "all", sharey: Share = "all"
) -> tuple[Figure, np.ndarray]:
    need("A figure", "matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained", dpi=130)
    return figure, np.atleast_2d(figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False))


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
            size = 60 * panel.noise[on] / top
            ax.scatter(*panel.points[on].T, s=size, color="#2a9d5c", alpha=0.35, linewidth=0, zorder=4)
        ax.set_title(f"{panel.title}: {caption(panel.paths.labels, len(panel.paths.truth))}", fontsize=10)
    for ax in axes[-1]:
        ax.set_xlabel("x")
    for ax in axes[:, 0]:
        ax.set_ylabel("y")
    return figure


@dataclass(frozen=True)
class Fan:
    """One forecast of D features."""

    title: str
    past_times: np.ndarray
    """(K,), the last is the origin."""
    past: np.ndarray
    """(K, D)"""
    times: np.ndarray
    """(T,)"""
    samples: np.ndarray
    """(N, T, D)"""
    truth: np.ndarray
    """(T, D), NaN where it was not observed."""


def fan_chart(
    fans: Sequence[Fan], names: Sequence[str], *, num_paths: int = 4, time_label: str = "time", title: str = ""
) -> Figure:
    """The past, bands that hold 50, 80 and 95 % of the samples, their median, some of them, and the truth.

    One row per feature, one column per forecast; many forecasts of one feature are small multiples.
    """
    multiples = len(names) == 1 and len(fans) > MULTIPLES
    columns = MULTIPLES if multiples else len(fans)
    rows = -(-len(fans) // columns) if multiples else len(names)
    width = 4.6 if columns > 1 else 7.5  # the legend is wider than one panel
    one = len({(fan.past_times[0], fan.times[-1]) for fan in fans}) == 1
    share: Share = ("all" if one else "none") if multiples else "col"
    figure, axes = _figure(rows, columns, width, 2.5 if rows > 1 else 3.0, sharex=share, sharey="none")
    place = (lambda j, k: axes.flat[j]) if multiples else (lambda j, k: axes[k, j])
    for ax in axes.flat[len(fans) :] if multiples else ():
        ax.set_visible(False)
    for j, fan in enumerate(fans):
        times = np.concatenate([fan.past_times[-1:], fan.times])
        start = np.broadcast_to(fan.past[-1], (len(fan.samples), 1, fan.past.shape[1]))
        samples = np.concatenate([start, fan.samples], axis=1)
        for k in range(len(names)):
            ax = place(j, k)
            _draw_fan(ax, times, samples[..., k], num_paths)
            ax.plot(fan.past_times, fan.past[:, k], color=INK, linewidth=1.1, label="past", zorder=4)
            seen = np.isfinite(fan.truth[:, k])
            if seen.any():
                x, y = np.append(times[0], fan.times[seen]), np.append(fan.past[-1, k], fan.truth[seen, k])
                style = {"color": BRANCH_COLOURS[1], "linewidth": 1.1, "marker": "o", "markersize": 2.5}
                ax.plot(x, y, markevery=slice(1, None), label="truth", zorder=5, **style)
            if j % columns == 0:
                ax.set_ylabel(names[k])
        place(j, 0).set_title(fan.title, fontsize=10)
        last = place(j, len(names) - 1)
        below = not multiples or j + columns >= len(fans)
        last.set_xlabel(time_label if below else "")
        if fan.times.dtype.kind == "M":
            _date(last)
            last.tick_params(axis="x", labelbottom=below or not one)
    if title:
        figure.suptitle(title, fontsize=11)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


def _date(ax: Axes) -> None:
    """Dates with no more words than are needed to tell them apart."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=7)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _draw_fan(ax: Axes, times: np.ndarray, samples: np.ndarray, num_paths: int) -> None:
    """Bands, median and some of the samples (N, T)."""
    colour = BRANCH_COLOURS[0]
    for level, shade in BANDS.items():
        ends = [(1 - level) / 2, (1 + level) / 2]
        low, high = np.quantile(samples, ends, axis=0, method="weibull")
        ax.fill_between(times, low, high, color=shade, linewidth=0, label=f"{100 * level:g} %", zorder=1)
    for k, sample in enumerate(samples[:num_paths]):
        ax.plot(times, sample, color=colour, linewidth=0.6, alpha=0.7, label=None if k else "samples", zorder=2)
    ax.plot(times, np.quantile(samples, 0.5, axis=0), color=colour, linewidth=1.6, label="median", zorder=3)


def calibration(scores: Mapping[str, Any]) -> Figure:
    """Observed against nominal coverage, the PIT histogram, and the CRPS by lead time with that of the references.

    `scores` is what `evaluate_forecasts` gives.
    """
    figure, axes = _figure(1, 3, 4.2, 3.6, sharex="none", sharey="none")
    _draw_reliability(axes[0, 0], scores["reliability"])
    _draw_pit(axes[0, 1], scores["pit"])
    _draw_leads(axes[0, 2], {"model": scores, **scores["references"]}, scores.get("leads", {}))
    return figure


def _means(points: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Means and half widths of their intervals, 0 where there is none."""
    return np.array([p["mean"] for p in points], float), np.array([p["ci95"] or 0.0 for p in points], float)


def _draw_reliability(ax: Axes, points: Sequence[Mapping[str, Any]]) -> None:
    level = np.array([p["level"] for p in points])
    mean, half = _means(points)
    ax.plot([0, 1], [0, 1], color=TRUTH, linewidth=3, zorder=1, label="calibrated")
    ax.fill_between(level, mean - half, mean + half, color=BRANCH_COLOURS[0], alpha=0.2, linewidth=0, label="95 %")
    ax.plot(level, mean, color=BRANCH_COLOURS[0], marker="o", markersize=3.5, linewidth=1.4, label="observed")
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="nominal coverage", ylabel="observed coverage", aspect="equal")
    ax.set_title("Coverage of central intervals", fontsize=10)
    ax.legend(frameon=False, fontsize=9, loc="upper left")


def _draw_pit(ax: Axes, histogram: Mapping[str, Any]) -> None:
    fraction = np.array(histogram["fraction"])
    num = len(fraction)
    ax.bar((np.arange(num) + 0.5) / num, num * fraction, width=0.94 / num, color=BRANCH_COLOURS[0], alpha=0.75)
    if histogram["low"] is not None:
        label = "95 % if calibrated"
        ax.axhspan(num * histogram["low"], num * histogram["high"], color=INK, alpha=0.15, linewidth=0, label=label)
        ax.legend(frameon=False, fontsize=9, loc="upper center")
    ax.axhline(1, color=INK, linewidth=0.8)
    top = max(2.0, 1.25 * num * float(fraction.max()))
    ax.set(xlim=(0, 1), ylim=(0, top), xlabel="place of the truth among the samples", ylabel="density")
    ax.set_title("PIT: ∪ too narrow, ∩ too wide", fontsize=10)


def _draw_leads(ax: Axes, laws: Mapping[str, Mapping[str, Any]], scale: Mapping[str, Any]) -> None:
    for k, (name, scores) in enumerate(laws.items()):
        lead = np.array([p["lead"] for p in scores["crps_by_lead"]])
        lead = np.array(scale["at"]) if len(scale.get("at", ())) == len(lead) else lead
        mean, half = _means(scores["crps_by_lead"])
        colour = BRANCH_COLOURS[k % len(BRANCH_COLOURS)]
        ax.fill_between(lead, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
        ax.plot(lead, mean, color=colour, marker="o", markersize=3.5, linewidth=1.4, label=name.replace("_", " "))
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.set(xlabel=scale.get("label", "lead time"), ylabel="CRPS (standard deviations of the data)")
    ax.set_title("Error by lead time, less is better", fontsize=10)
    ax.legend(frameon=False, fontsize=9)


def field_curves(x: np.ndarray, curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Drift and diffusion (each (K,)) of one feature over its values x (K,), by name; the first is the truth."""
    figure, axes = _figure(1, 2, 4.8, 3.2, sharey="none")
    for k, title in enumerate(("drift", "diffusion")):
        for i, (name, fields) in enumerate(curves.items()):
            wide = {"color": TRUTH, "linewidth": 5} if i == 0 else {"color": BRANCH_COLOURS[i - 1], "linewidth": 1.6}
            axes[0, k].plot(x, fields[k], label=name, **wide)
        axes[0, k].set_title(title, fontsize=10)
        axes[0, k].set_xlabel("x")
    axes[0, 1].set_ylim(bottom=0)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


# Results


@dataclass(frozen=True)
class Point:
    """Two scores at a number of network passes."""

    x: float
    y: float
    passes: float


def score_fronts(methods: Mapping[str, Sequence[Point]], *, x_label: str, y_label: str) -> Figure:
    """Two scores against each other, a line through the numbers of passes of each method."""
    figure, axes = _figure(1, 1, 6.4, 4.2)
    ax = axes[0, 0]
    for (name, points), colour, marker in zip(methods.items(), BRANCH_COLOURS, "os^Dvp"):
        x, y = [p.x for p in points], [p.y for p in points]
        ax.plot(x, y, color=colour, marker=marker, markersize=5, linewidth=1.4, label=name)
        for p in points:
            ax.annotate(f"{p.passes:g}", (p.x, p.y), (4, 4), textcoords="offset points", color=colour, fontsize=8)
    ax.set(xlabel=x_label, ylabel=y_label)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9)
    return figure


@dataclass(frozen=True)
class Contestant:
    """A method in a race: milliseconds."""

    name: str
    median: float
    fastest: float
    slowest: float


def speeds(panels: Mapping[str, Sequence[Contestant]]) -> Figure:
    """Times on a logarithmic axis, the fastest on top; a panel per setting."""
    most = max(map(len, panels.values()), default=0)
    figure, axes = _figure(1, len(panels), 6.2, max(2.8, 0.25 * most + 0.8), sharex="none", sharey="none")
    for ax, (title, entries) in zip(axes[0], panels.items()):
        order = sorted(entries, key=lambda e: -e.median)
        colours = [BRANCH_COLOURS[0] if e.name.startswith("ours") else TRUTH for e in order]
        errors = [[e.median - e.fastest for e in order], [e.slowest - e.median for e in order]]
        ax.barh([e.name for e in order], [e.median for e in order], xerr=errors, color=colours, ecolor=INK)
        ax.set(xlabel="ms", xscale="log")
        ax.set_title(title, fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
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
