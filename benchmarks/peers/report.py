"""Tables of the results: quality at each time, how much sooner we reach it, and memory."""

from __future__ import annotations

import statistics
from typing import Any

OURS = "neuralsde"
LABELS = {
    "neuralsde": "ours",
    "neuralsde_measured": "ours, noise learned",
    "gaussian_mlp": "Gaussian MLP",
    "sde_matching": "SDE Matching",
    "torchsde_bptt": "torchsde, back-propagation",
    "torchsde_adjoint": "torchsde, adjoint",
    "torchsde_reversible": "torchsde, reversible Heun",
    "sde_matching_notebook": "SDE Matching, notebook's noise",
    "torchsde_bptt_example": "torchsde, example's noise",
}
TASK_LABELS = {
    "ou": "Ornstein-Uhlenbeck",
    "double_well": "double well",
    "lorenz": "Lorenz",
    "ou_noisy": "Ornstein-Uhlenbeck, noisy",
}
QUALITIES = {"excess_nll": "excess NLL", "drift_error": "drift error", "energy_10": "10-step energy distance"}
"""Lower is better."""
RESOLUTION = {"excess_nll": 1e-3, "energy_10": 1e-3}
"""Below this, a difference is chance: a value counts as no better."""
NEAR = 1.05
"""A rival has reached its best at the first mark within this factor of it."""

GAPS = {
    "neuralsde": 512,
    "gaussian_mlp": 512,
    "sde_matching": 64 * 40,
    "torchsde_bptt": 64 * 20,
    "torchsde_adjoint": 64 * 20,
}
"""That a training step learns from: transitions, or windows of several."""
LONG = 30
"""Seconds of a training from which on its time per step is read."""

Curve = list[tuple[float, float]]
"""Seconds of the core that trains (on an idle machine, seconds) and quality, by time."""


def curve(rows: list[dict[str, Any]], task: str, method: str, seed: int, quality: str) -> Curve:
    """What a method reaches after how long."""
    own = [r for r in rows if (r["task"], r["method"], r["seed"]) == (task, method, seed)]
    least = RESOLUTION.get(quality, 0.0)
    return sorted((r["cpu_seconds"], max(least, r[quality])) for r in own if r.get(quality) is not None)


def own_best(points: Curve) -> tuple[float, float] | None:
    """When a method first is where it does not get much better, and how good that is."""
    if not points:
        return None
    limit = NEAR * min(value for _, value in points)
    return next((seconds, value) for seconds, value in points if value <= limit)


def reached(points: Curve, value: float) -> float | None:
    """The first time at which the quality is at least this good."""
    return next((seconds for seconds, got in points if got <= value), None)


def factors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each task, rival and quality: the time the rival needs for its best over the time we need for the same.

    One value per seed; `first` where we have it at our first mark already, so that the factor is a lower bound.
    `back` is the time the rival needs for our best over the time we need, None where it never gets there: it then needs
    more than `beyond` times our time.
    """
    out = []
    pairs = sorted({(r["task"], r["method"]) for r in rows if not r["method"].startswith(OURS)})
    for task, method in pairs:
        for quality in QUALITIES:
            found = []
            for seed in sorted({r["seed"] for r in rows if (r["task"], r["method"]) == (task, method)}):
                ours, theirs = (curve(rows, task, name, seed, quality) for name in (OURS, method))
                goal, ours_goal = own_best(theirs), own_best(ours)
                if goal is None or ours_goal is None:
                    continue
                needed, returned = reached(ours, goal[1]), reached(theirs, ours_goal[1])
                found.append(
                    {
                        "seed": seed,
                        "rival_seconds": goal[0],
                        "rival_value": goal[1],
                        "our_seconds": needed,
                        "factor": None if needed is None else goal[0] / needed,
                        "first": needed is not None and needed == ours[0][0],
                        "our_best": ours_goal[1],
                        "back": None if returned is None else returned / ours_goal[0],
                        "beyond": theirs[-1][0] / ours_goal[0],
                    }
                )
            if found:
                out.append({"task": task, "method": method, "quality": quality, "seeds": found})
    return out


def spread(values: list[float], *, least: float | None = None) -> str:
    """Median, and the range over the seeds; `least` is what a value was raised to where it was below."""
    if not values:
        return "–"

    def show(value: float) -> str:
        text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"
        return f"≤ {text}" if value == least else text

    low, middle, high = (show(v) for v in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def _lines(head: list[str], body: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _num_seeds(values: dict[str, Any]) -> int:
    return len({r["seed"] for r in values["rows"]})


def _tasks(rows: list[dict[str, Any]]) -> list[str]:
    return [t for t in TASK_LABELS if any(r["task"] == t for r in rows)]


def _methods(rows: list[dict[str, Any]], task: str) -> list[str]:
    return [m for m in LABELS if any((r["task"], r["method"]) == (task, m) for r in rows)]


def quality_table(values: dict[str, Any], quality: str, *, noisy: bool = False) -> str:
    """A row per system and method, a column per mark that the rivals were read at; [n] where not all seeds were run."""
    rows = [r for r in values["rows"] if r["task"].endswith("noisy") == noisy]
    rivals = {r["method"] for r in rows if not r["method"].startswith(OURS) and r["method"] != "gaussian_mlp"}
    marks = sorted({r["mark"] for r in rows if r["method"] in rivals})
    marks = marks or sorted({r["mark"] for r in rows})
    num = len({r["seed"] for r in rows})
    body = []
    for task in _tasks(rows):
        for method in _methods(rows, task):
            own = [r for r in rows if (r["task"], r["method"]) == (task, method) and r.get(quality) is not None]
            last = max((r["mark"] for r in own), default=0)
            read = [[r[quality] for r in own if r["mark"] == m] for m in marks]
            cells = [spread(v) + (f" [{len(v)}]" if 0 < len(v) < num else "") for v in read]
            stops = own and method not in rivals  # and needs no more time; a rival was not read
            cells = [f"as at {last:g} s" if stops and m > last else cell for m, cell in zip(marks, cells)]
            if own:
                body.append([TASK_LABELS[task], LABELS[method], *cells])
    return _lines(["system", "method", *(f"{m:g} s" for m in marks)], body)


def factor_table(values: dict[str, Any]) -> str:
    """How much sooner we are where a rival is at best, and it where we are."""
    rows = [r for r in values["rows"] if not r["task"].endswith("noisy")]
    names = list(TASK_LABELS), list(LABELS), list(QUALITIES)
    entries = factors(rows)
    entries.sort(key=lambda e: [order.index(e[k]) for k, order in zip(("task", "method", "quality"), names)])
    body = []
    for entry in entries:
        seeds, least = entry["seeds"], RESOLUTION.get(entry["quality"])
        sooner = [s["factor"] for s in seeds if s["factor"] is not None]
        back = [s["back"] for s in seeds if s["back"] is not None]
        beyond = spread([s["beyond"] for s in seeds if s["back"] is None])
        bound = "≥ " if any(s["first"] for s in seeds) else ""
        best = spread([s["rival_value"] for s in seeds], least=least)
        body.append(
            [
                TASK_LABELS[entry["task"]],
                LABELS[entry["method"]],
                QUALITIES[entry["quality"]],
                f"{len(seeds)}",
                f"{best} at {spread([s['rival_seconds'] for s in seeds])} s",
                f"{bound}{spread(sooner)} ×" if len(sooner) == len(seeds) else "not reached by us",
                spread([s["our_best"] for s in seeds], least=least),
                f"{spread(back)} × our time" if len(back) == len(seeds) else f"over {beyond} × our time",
            ]
        )
    head = [
        "system",
        "rival",
        "quality",
        "seeds",
        "its best",
        "we reach it sooner by",
        "our best",
        "it reaches that in",
    ]
    return _lines(head, body)


def steps_table(values: dict[str, Any]) -> str:
    """What a training step takes, and what it takes for each gap that it learns from."""
    took: dict[tuple[str, str], list[float]] = {}
    for row in values["rows"]:
        if row["mark"] >= LONG and row["method"] in GAPS and not row["task"].endswith("noisy"):
            took.setdefault((row["task"], row["method"]), []).append(1e3 * row["cpu_seconds"] / row["steps"])
    body = []
    for task in (t for t in _tasks(values["rows"]) if (t, OURS) in took):
        for method in (m for m in GAPS if (task, m) in took):
            each = statistics.median(took[task, method])
            ratio = each / GAPS[method] / (statistics.median(took[task, OURS]) / GAPS[OURS])
            sizes = (f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in (each, 1e3 * each / GAPS[method]))
            cells = [f"{GAPS[method]:,}", *sizes, f"{ratio:.2g} ×"]
            body.append([TASK_LABELS[task], LABELS[method], *cells])
    return _lines(["system", "method", "gaps in a step", "ms a step", "µs a gap", "of a gap, ours = 1"], body)


def memory_table(values: dict[str, Any]) -> str:
    """Mebibytes saved for the backward pass, by length."""
    rows = values["memory"]
    lengths = sorted({r["length"] for r in rows})
    body = []
    for method, batch in sorted({(r["method"], r["batch"]) for r in rows}, key=lambda k: (list(LABELS).index(k[0]), k)):
        own = {r["length"]: r for r in rows if (r["method"], r["batch"]) == (method, batch)}
        cells = [spread([own[n]["bytes"] / 2**20]) if n in own else "–" for n in lengths]
        body.append([LABELS[method], batch, *cells])
    return _lines(["method", "one step takes", *(f"{n:,}" for n in lengths)], body)


def table(values: dict[str, Any]) -> str:
    """All tables, in Markdown."""
    parts = []
    if values["rows"]:
        for quality, label in QUALITIES.items():
            parts.append(
                f"**{label[0].upper()}{label[1:]}**, median and range over {_num_seeds(values)} seeds ([n]: over n)"
            )
            parts.append(quality_table(values, quality))
        parts += ["**Time to quality**", factor_table(values)]
        parts += ["**One training step**", steps_table(values)]
        if any(r["task"].endswith("noisy") for r in values["rows"]):
            for quality in ("drift_error", "diffusion_error"):
                parts.append(f"**With observation noise as large as a step's: {quality.replace('_', ' ')}**")
                parts.append(quality_table(values, quality, noisy=True))
    if values["memory"]:
        parts += ["**MiB saved for the backward pass, by length of the sequences**", memory_table(values)]
    return "\n\n".join(parts)
