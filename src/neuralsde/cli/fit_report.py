"""The report of a model that was fitted on a table: what was read, what was learned, how good it is on what was held out."""

from __future__ import annotations

import math
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuralsde.config import NeuralSDEConfig
from neuralsde.data.describe import Description
from neuralsde.data.tables import Table
from neuralsde.forecast.futures import forecasts
from neuralsde.forecast.report import half_width, save_figures, score_table
from neuralsde.forecast.skill import negative_log_likelihood, score_forecasts
from neuralsde.records import RunError, to_dict
from neuralsde.run_folder import losses
from neuralsde.sequence import SequenceModel
from neuralsde.trajectories import Trajectories

NUM_FORECASTS = 100
"""Forecasts that are scored."""
HORIZON = 20
"""Training steps that they reach ahead, where the held-out data lasts so long."""


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
        """The log-likelihood, in words."""
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
            lines.append(
                "That is worse than Brownian motion. If the val losses still fall, train longer (--steps); if they rise, the "
                "data is known by heart: fewer steps, a smaller net (--net.width 32 --net.depth 1), more --noise, or more data."
            )
        return [*lines, ""]


def score(model: SequenceModel, known: Table, held_out: Table, words: str, folder: Path) -> HeldOut:
    """Score the model on what was held out, and draw figures into `folder` where matplotlib is there."""
    values: dict[str, Any] = {"nll": None, "brownian_nll": None}
    data = held_out.data
    with suppress(ValueError):  # the model is trained and saved: the report goes without
        values["nll"] = negative_log_likelihood(model, data)
        values["brownian_nll"] = brownian_nll(known.data, data)
    horizon = min(HORIZON * model.scale.step, 0.5 * float(data.durations.max()))
    per_path = math.ceil(NUM_FORECASTS / len(data))
    try:
        made = forecasts(model, data, horizon=horizon, origins_per_path=per_path, hold_context=True)
        values |= score_forecasts(made, data, reference=known.data)
    except (ValueError, RunError) as error:  # the model is trained and saved: the report says what it cannot do
        return HeldOut(words, values, f"No forecasts were scored: {error}")
    figures = tuple(file.name for file in save_figures(made, values, held_out, folder))
    return HeldOut(words, values, score_table(values), figures)


def brownian_nll(train: Trajectories, held_out: Trajectories) -> float | None:
    """Mean of -log p of a held-out observation under dx = m dt + s dw, fitted to the training steps.

    None where s is 0, or not known because training saw no step of a feature that has some held out.
    """
    dx, dt, seen = _steps(train)
    mean = (dx * seen).sum(0) / (dt * seen).sum(0)  # NaN without steps
    variance = ((dx - mean * dt) ** 2 / dt * seen).sum(0) / seen.sum(0)
    still = variance <= 1e-10 * (dx**2 / dt).mean(0)
    dx, dt, seen = _steps(held_out)
    if bool((still | (variance.isnan() & (seen.sum(0) > 0))).any()):
        return None
    terms = 0.5 * (dx - mean * dt) ** 2 / (variance * dt) + 0.5 * torch.log(2 * math.pi * variance * dt)
    return float(terms.where(seen > 0, 0.0).sum(1).mean())


def _steps(data: Trajectories) -> tuple[Tensor, Tensor, Tensor]:
    """Δx (K, F), Δt (K, 1), and 1 where Δx was observed, else 0."""
    pairs = data.transitions()
    batch = pairs[torch.arange(len(pairs), device=pairs.start.device)]
    dx = (batch.next - batch.history[:, -1]).flatten(1).double()
    seen = torch.ones_like(dx) if batch.mask is None else batch.mask.flatten(1).double()
    return dx, batch.dt[:, None].double(), seen


def write_report(
    folder: Path, table: Table, summary: Description, model: SequenceModel, held_out: HeldOut | None
) -> None:
    """Write `report.md` into the run folder, beside its metrics.jsonl."""
    report = table.report
    lines = [f"# A Neural SDE of {report.file}", "", "## What was read", ""]
    lines += [f"- {line.removeprefix('- ')}" for line in str(report).splitlines()]
    lines += [f"- features: {', '.join(table.columns)}"]
    lines += [f"- context: {', '.join(table.context)}"] if table.context else []
    lines += [f"- time: {_time(table)}", "", "## The data", "", "```"]
    numbers, words = str(summary).splitlines(), [f"! {w}" for w in summary.warnings]
    lines += [*(line for line in numbers if line not in words), "```", ""]
    lines += [f"- look at this: {warning}" for warning in summary.warnings]
    lines += ["", "## The model", "", f"- {_settings(model)}"]
    lines += [
        f"- {sum(p.numel() for p in model.parameters()):,} weights; one step is {model.scale.step:g} {table.time.unit or 'of time'}"
    ]
    lines += ["", "## Training", "", *losses(folder / "metrics.jsonl")]
    lines += ["", "## On what was held out", "", *_scores(held_out)]
    lines += ["", "## Go on", "", "```", *_commands(folder, table), "```", ""]
    (folder / "report.md").write_text("\n".join(lines), encoding="utf-8")


def _time(table: Table) -> str:
    axis = table.time
    return {
        "order": "rows in their order, 1 apart",
        "numbers": f"{axis.column}, numbers as in the file",
        "dates": f"{axis.column}, dates; counted in {axis.unit} from {axis.origin}",
        "durations": f"{axis.column}, durations; counted in {axis.unit}",
    }[axis.kind]


def _settings(model: SequenceModel) -> str:
    """The settings that are not the defaults."""
    own, default = _flat(to_dict(model.config)), _flat(to_dict(NeuralSDEConfig()))
    changed = {"lag": model.lag, **{k: v for k, v in own.items() if v != default.get(k)}}
    words = ", ".join(f"{k} = {v}" for k, v in changed.items() if v is not None)
    return f"the default settings, but {words}" if words else "the default settings"


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names, as options of the command line have them."""
    parts = [
        _flat(v, f"{prefix}{k}.") if isinstance(v, dict) else {prefix + k: v} for k, v in record.items() if k != "kind"
    ]
    return {k: v for part in parts for k, v in part.items()}


def _scores(held_out: HeldOut | None) -> list[str]:
    if held_out is None:
        return ["Nothing was held out (`--holdout 0`): how good the model is was not measured."]
    return [
        *held_out.lines(),
        "```",
        held_out.forecasts,
        "```",
        "",
        *(f"![{name}]({name})" for name in held_out.figures),
    ]


def _commands(folder: Path, table: Table) -> list[str]:
    file, folder = shlex.quote(table.report.file), Path(shlex.quote(str(folder)))
    return [
        f"nsde forecast {folder} --data {file}    # quantiles of the futures of each path",
        f"nsde sample {folder} --data {file} --stop T    # the futures themselves",
        f"nsde evaluate {folder} --data OTHER_FILE    # scores on other data",
    ]
