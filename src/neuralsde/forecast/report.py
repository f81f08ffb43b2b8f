"""Reports: scores of forecasts in words, columns and figures, and what a model that was fitted on a table is."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralsde.data.describe import Description
from neuralsde.data.tables.calendars import time_words
from neuralsde.data.tables.read import Table
from neuralsde.data.tables.time_axis import SECONDS
from neuralsde.data.tables.zones import as_text
from neuralsde.forecast.futures import Forecasts
from neuralsde.models.config import Sampling
from neuralsde.models.sequence import SequenceModel
from neuralsde.nets.config import NetConfig
from neuralsde.sde.config import NeuralSDEConfig
from neuralsde.selection.report import Report
from neuralsde.training.run_folder import losses

if TYPE_CHECKING:
    from neuralsde.plots.paths import Fan

MAX_FANS, MAX_ROWS, MAX_MULTIPLES = 3, 6, 12  # forecasts and features in a fan chart; forecasts of one feature
PASTS = 3  # horizons of the past in a fan chart
MAX_LEADS = 4  # parts of the horizon whose scores are shown
SCALES = (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))

FEWEST = 3
"""Paths from which on intervals are shown: with two, a 95 % interval is 9 standard deviations wide to each side."""
ENOUGH = 0.1  # half of the interval of a coverage from which on it says little


def score_table(scores: dict[str, Any]) -> str:
    """The scores in words and aligned columns."""
    laws = {"model": scores, **scores["references"]}
    unit = {"path": "paths", "origin": "forecasts of the one path"}[scores["independent"]]
    few = scores["crps"]["num_groups"] < FEWEST
    lines = [
        f"{scores['num_origins']} forecasts from {scores['num_series']} path(s), up to {_span(scores)} ahead, "
        f"{scores['num_paths']} samples each; "
        + (f"too few {unit} for intervals." if few else f"± is a 95 % interval over {unit}."),
        "",
    ]
    rows: dict[str, list[dict[str, Any] | None]] = {}
    if scores["nll"] is not None:
        rows["NLL per observation"] = [scores["nll"], *(None for _ in scores["references"])]
    for name, key in (("CRPS", "crps"), ("energy score", "energy_score"), ("RMSE of the mean", "rmse")):
        rows[name] = [law[key] for law in laws.values()]
    for key in ("coverage", "width"):
        for level in scores[key]:
            rows[f"{key} of {100 * float(level):g} %"] = [law[key][level] for law in laws.values()]
    rows["skill of the model"] = [None, *(law["skill"] for law in scores["references"].values())]
    rows |= {f"CRPS, {name}": [law["crps_by_lead"][k] for law in laws.values()] for k, name in _lead_rows(scores)}
    shown = {"": [name.replace("_", " ") for name in laws]} | {
        n: [show_score(v) for v in row] for n, row in rows.items()
    }
    width = max(20 if len(laws) < 4 else 16, *(2 + len(cell) for row in shown.values() for cell in row))
    lines += [f"{name:24}" + "".join(f"{cell:>{width}}" for cell in row) for name, row in shown.items()]
    units = "CRPS, energy score, RMSE and widths are in standard deviations of the data. By feature, in its units:"
    lines += ["", units, "", f"{'':24}{'CRPS':>20}{'RMSE':>20}"]
    features = zip(scores["features"], scores["crps_by_feature"], scores["rmse_by_feature"])
    lines += [f"{name[:23]:24}{show_score(a):>20}{show_score(b):>20}" for name, a, b in features]
    return "\n".join([*lines, "", *verdict(scores)])


def _span(scores: dict[str, Any]) -> str:
    return str(scores["leads"]["span"]) if "leads" in scores else f"{scores['horizon']:.4g}"


def _lead_rows(scores: dict[str, Any]) -> list[tuple[int, str]]:
    """Some parts of the horizon, and their names."""
    own = scores["crps_by_lead"]
    if any(len(law["crps_by_lead"]) != len(own) for law in scores["references"].values()):
        return []
    names = scores["leads"]["words"] if "leads" in scores else [f"{p['lead']:.3g} ahead" for p in own]
    places = np.unique(np.linspace(0, len(own) - 1, MAX_LEADS).round().astype(int)).tolist()
    return [(k, names[k]) for k in places]


def lead_words(scores: dict[str, Any], table: Table) -> dict[str, Any]:
    """The horizon and the leads of scores in words, and a scale of leads for a figure."""
    unit = SECONDS.get(table.time.unit or "", 0.0)
    leads = [part["lead"] for part in scores["crps_by_lead"]]
    if not unit:
        words = [f"{lead:.3g} ahead" for lead in leads]
        return {"span": f"{scores['horizon']:.4g}", "words": words, "at": leads, "label": "lead time"}
    words = [f"{time_words(unit * lead)} ahead" for lead in leads]
    span = time_words(unit * scores["horizon"])
    name, size = next((n, s) for n, s in SCALES if unit * scores["horizon"] >= 2 * s or s <= 1)
    return {"span": span, "words": words, "at": [unit * x / size for x in leads], "label": f"lead time ({name})"}


def show_score(value: dict[str, Any] | None) -> str:
    """A mean and its interval with the digits that the interval leaves."""
    if value is None or value["mean"] is None:
        return "–"
    mean, half = value["mean"], half_width(value)
    size = half if half else abs(mean)
    digits = 3 if size == 0 else min(8, max(0, 1 - math.floor(math.log10(size))))
    return f"{mean:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def half_width(value: dict[str, Any]) -> float | None:
    """Half of the interval of a mean; None where it is over too few to say anything."""
    return None if value.get("num_groups", FEWEST) < FEWEST else value["ci95"]


def verdict(scores: dict[str, Any]) -> list[str]:
    """What the numbers say, in two sentences."""
    at = scores["coverage"]["0.8"]
    shown = half_width(at)
    off, half = at["mean"] - 0.8, math.inf if shown is None else shown
    fits = "no sign of miscalibration" if half <= ENOUGH else "too few to tell whether that is right"
    kind = fits if abs(off) <= half else "too narrow" if off < 0 else "too wide"
    margin = "" if shown is None else f" ± {100 * half:.0f}"
    lines = [f"80 % intervals hold {100 * at['mean']:.0f}{margin} % of the truths: {kind}."]
    for name, law in scores["references"].items():
        skill = law["skill"]
        if skill["mean"] is None:
            continue
        sure = skill["ci95"] is not None and abs(skill["mean"]) > skill["ci95"]
        word = "no clear difference" if not sure else "better" if skill["mean"] > 0 else "worse"
        lines.append(f"CRPS against the {name.replace('_', ' ')}: {100 * skill['mean']:+.0f} % skill, {word}.")
    return lines


def draw_fans(
    made: Forecasts, table: Table, chosen: list[int], output: Path | None, *, past: float = 0.0, num: int = 0
) -> Any:
    """A fan chart of the chosen forecasts, of `num`, of the first features; with at least so much of their past."""
    from neuralsde.plots import paths as plots

    axis = table.time
    label = axis.column or "step" if axis.kind != "durations" else f"{axis.column} ({axis.unit})"
    fans = []
    for b in chosen:
        origin = float(made.origin[b])
        time = as_text(table.time.clock(np.array([origin])), None)[0] if table.time.kind == "dates" else f"{origin:.4g}"
        name = "" if table.id is None else f"{table.ids[int(made.path[b])]}, "
        fans.append(_fan(made, table, b, f"{name}from {time}", past))
    title = f"{len(chosen)} of {num} series" if num > len(chosen) else ""
    figure = plots.fan_chart(fans, table.columns[:MAX_ROWS], time_label=label, title=title)
    if output is not None:
        figure.savefig(output)
    return figure


def _fan(made: Forecasts, table: Table, b: int, title: str, past: float) -> Fan:
    """One forecast with a past of three horizons, of ten observations, or of `past` where that is longer."""
    from neuralsde.plots.paths import Fan

    data = table.data
    first = int(data.lengths[: int(made.path[b])].sum())
    stamps = data.times[first : first + int(data.lengths[int(made.path[b])])].numpy()
    origin = int(np.searchsorted(stamps, float(made.origin[b])))
    ago = max(PASTS * float(made.lead[b].max()), past)
    begin = min(int(np.searchsorted(stamps, float(made.origin[b]) - ago)), max(0, origin - 10))
    rows = slice(first + begin, first + origin + 1)
    seen = data.states[rows].flatten(1).numpy().copy()
    if data.observed is not None:
        seen[~data.observed[rows].flatten(1).numpy()] = np.nan
    seen[-1] = made.start[b].flatten().numpy()
    known = made.mask[b].flatten(1)
    shown = known.any(1) if bool(known.any()) else ~known.any(1)
    truth: np.ndarray = made.truth[b].flatten(1).where(known, math.nan)[shown].numpy()
    return Fan(
        title=title,
        past_times=table.time.clock(stamps[begin : origin + 1]),
        past=seen,
        times=table.time.clock(made.times[b][shown].numpy()),
        samples=made.samples[b][:, shown].flatten(2).numpy(),
        truth=truth,
    )


def save_figures(made: Forecasts, scores: dict[str, Any], table: Table, folder: Path) -> list[Path]:
    """Fans of some forecasts and the calibration of all, as images in `folder`; none where there is no matplotlib."""
    if find_spec("matplotlib") is None:
        return []
    from neuralsde.plots import paths as plots

    num = min(MAX_FANS, len(made.path))
    chosen = [(2 * k + 1) * len(made.path) // (2 * num) for k in range(num)]
    draw_fans(made, table, chosen, folder / "fans.png")
    plots.calibration(scores).savefig(folder / "calibration.png")
    return [folder / "fans.png", folder / "calibration.png"]


@dataclass(frozen=True)
class HeldOut:
    """What a model was not trained on, and its scores there."""

    words: str
    """What was held out."""
    values: dict[str, Any]
    """Scores as plain numbers: `nll` per observation, that of Brownian motion, and those of forecasts, if there are any."""
    forecasts: str
    """Scores of forecasts in words and columns, or why there are none."""
    figures: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        nll, lines = self.values["nll"], [f"Held out: {self.words}.", ""]
        if nll is None:
            return lines
        half = half_width(nll)
        interval = "" if half is None else f" ± {half:.2g}"
        text, brownian = f"Log-likelihood per observation: {-nll['mean']:.4g}{interval}", self.values["brownian_nll"]
        if brownian is None:
            return [*lines, f"{text}.", ""]
        lines.append(f"{text} (Brownian motion with the mean and variance of the training steps: {-brownian:.4g}).")
        if nll["mean"] > brownian:
            lines.append("That is worse than Brownian motion. If the val losses still fall, train for more steps. ")
            lines[-1] += (
                "If they rise, the model overfits: train for fewer steps, with a smaller net, more noise or data."
            )
        return [*lines, ""]


def fit_report(
    table: Table, summary: Description, model: SequenceModel, held_out: HeldOut | None, folder: Path | None = None
) -> str:
    """The report of a fit as Markdown; with its run folder, also the losses in metrics.jsonl and what to do next."""
    report, unit = table.report, table.time.unit or "of time"
    lines = [f"# A Neural SDE of {report.file}", "", "## What was read", ""]
    lines += [f"- {line.removeprefix('- ')}" for line in str(report).splitlines()]
    lines += [f"- features: {', '.join(table.columns)}"]
    lines += [f"- context: {', '.join(table.context)}"] if table.context else []
    lines += [f"- time: {_time(table)}", "", "## The data", "", "```"]
    numbers, words = str(summary).splitlines(), [f"! {w}" for w in summary.warnings]
    lines += [*(line for line in numbers if line not in words), "```", ""]
    lines += [f"- look at this: {warning}" for warning in summary.warnings]
    num_weights = sum(p.numel() for p in model.parameters())
    lines += ["", "## The model", "", f"- {_settings(model)}"]
    lines += [f"- {num_weights:,} weights; one step is {model.scale.step:g} {unit}"]
    lines += ["", "## Training", "", *losses(folder / "metrics.jsonl")] if folder is not None else []
    lines += ["", *str(Report.of(model)).replace("# ", "## ").splitlines()] if model.report else []
    lines += ["", "## On what was held out", ""]
    if held_out is None:
        lines += ["Nothing was held out: how good the model is was not measured."]
    else:
        figures = [f"![{name}]({name})" for name in held_out.figures]
        lines += [*held_out.lines(), "```", held_out.forecasts, "```", "", *figures]
    lines += ["", "## Go on", "", "```", *_commands(folder, table), "```", ""] if folder is not None else []
    return "\n".join(lines)


def _time(table: Table) -> str:
    axis = table.time
    return {
        "order": "rows in their order, 1 apart",
        "numbers": f"{axis.column}, numbers as in the file",
        "dates": f"{axis.column}, dates; counted in {axis.unit} from {axis.date(0.0) if axis.kind == 'dates' else 0}",
        "durations": f"{axis.column}, durations; counted in {axis.unit}",
    }[axis.kind]


def _settings(model: SequenceModel) -> str:
    """The settings that are not the defaults."""
    changed, usual = {"lag": model.lag}, NeuralSDEConfig()
    for name, value in vars(model.config).items():
        default = getattr(usual, name)
        if isinstance(value, type(default)) and isinstance(value, NetConfig | Sampling):
            changed |= {f"{name}.{k}": v for k, v in vars(value).items() if v != getattr(default, k, None)}
        elif value != default:
            changed[name] = value
    words = ", ".join(f"{k} = {v}" for k, v in changed.items() if v is not None)
    return f"the default settings, but {words}" if words else "the default settings"


def _commands(folder: Path, table: Table) -> list[str]:
    file, folder = shlex.quote(table.report.file), Path(shlex.quote(str(folder)))
    return [
        f"nsde forecast {folder} --data {file}    # the mean and bands of the futures of each path",
        f"nsde sample {folder} --data {file} --stop T    # the futures themselves",
        f"nsde evaluate {folder} --data OTHER_FILE    # scores on other data",
    ]
