"""The commands `nsde forecast` and `nsde evaluate`: a trained model on the user's own table."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

if TYPE_CHECKING:
    import numpy as np

    from neuralsde.forecast import Forecasts
    from neuralsde.plots import Fan
    from neuralsde.sequence import SequenceModel
    from neuralsde.tables import Table
    from neuralsde.trajectories import Trajectories

DEFAULT_STEPS = 20
"""Training steps in a horizon that was not asked for."""
ENOUGH_FORECASTS = 100
"""Forecasts that are scored, where it was not said how many."""
MAX_FANS, MAX_ROWS = 3, 6
"""Forecasts and features in a fan chart."""


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table is read, where the model's own record (series.json) does not say it or is not to be followed."""

    id: str | None = None
    """Column that names the path of a row."""
    time: str | None = None
    """Column of the time stamps."""
    columns: tuple[str, ...] = ()
    """Columns of the features, in the order of the training."""
    context: tuple[str, ...] = ()
    """Columns of the context, in the order of the training."""
    time_unit: str | None = None
    """Unit of dates and durations: us, ms, s, min, h or d."""
    date_format: str | None = None
    """How dates are written that are not ISO, as for strptime."""

    def read(self, file: Path, model_folder: Path, model: SequenceModel) -> Table:
        """The table in `file`, in the form that the model was trained on."""
        from neuralsde.tables import read_table

        options = recorded_options(model_folder)
        options |= {f.name: getattr(self, f.name) for f in dataclasses.fields(TableOptions) if getattr(self, f.name)}
        table = read_table(file, **options)
        print(table.report)
        wanted = (math.prod(model.scale.shape), model.scale.context_size)
        if (len(table.columns), len(table.context)) != wanted:
            raise ValueError(
                f"The model takes {wanted[0]} feature(s) and {wanted[1]} context value(s). Got {', '.join(table.columns)} and "
                f"{', '.join(table.context) or 'no context'}. Name them with --columns and --context."
            )
        return table


def recorded_options(model_folder: Path) -> dict[str, Any]:
    """What `nsde fit` noted about the table it was given; nothing for models from elsewhere."""
    for folder in (model_folder, model_folder / "model"):
        if (folder / "series.json").is_file():
            record = json.loads((folder / "series.json").read_text(encoding="utf-8"))
            known = {f.name for f in dataclasses.fields(TableOptions)}
            return {k: v for k, v in record.items() if k in known and v}
    return {}


def load_model(folder: Path) -> SequenceModel:
    """The model of a run folder, or of a folder written by save_pretrained."""
    from neuralsde.models import load

    return load(folder / "model" if (folder / "model").is_dir() else folder)


@dataclass(frozen=True)
class Forecast(TableOptions):
    """Forecast each path of a table from its last observation."""

    model: Positional[Path]
    """Folder written by save_pretrained, or a run folder."""
    data: Path
    """Table with one row per observation: .csv or .parquet."""
    horizon: float | None = None
    """Time ahead, in the units of the stamps (of dates: in the unit of the training); default 20 training steps."""
    num_times: int = 50
    """Forecast times."""
    num_paths: int = 200
    """Samples per path."""
    quantiles: tuple[float, ...] = (0.05, 0.5, 0.95)
    """Probabilities of the quantiles in the file."""
    seed: int = 0
    """Seed of the samples."""
    output: Path = Path("forecast.csv")
    """Where to write: id, time, feature, mean, quantiles."""
    plot: Path | None = None
    """Image file of a fan chart of the first paths."""

    def run(self) -> None:
        """Forecast and write."""
        from neuralsde.forecast import futures
        from neuralsde.metrics.forecast import quantiles

        if self.output.suffix != ".csv":
            raise ValueError(f"`--output` must end in .csv. Got {self.output}.")
        model = load_model(self.model)
        table = self.read(self.data, self.model, model)
        horizon = DEFAULT_STEPS * model.scale.step if self.horizon is None else self.horizon
        made = futures(
            model, table.data, horizon=horizon, num_times=self.num_times, num_paths=self.num_paths, seed=self.seed
        )
        samples = made.samples.flatten(3).movedim(1, 0)
        columns = [samples.double().mean(0), *quantiles(samples, self.quantiles)]
        with open(self.output, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "time", "feature", "mean", *(f"q{p:g}" for p in self.quantiles)])
            for b, path in enumerate(made.path.tolist()):
                for t, time in enumerate(made.times[b].tolist()):
                    for k, name in enumerate(table.columns):
                        values = [f"{float(c[b, t, k]):.8g}" for c in columns]
                        writer.writerow([table.ids[path], show_time(table, time), name, *values])
        print(f"Wrote forecasts of {len(made.path)} path(s), {horizon:g} ahead, to {self.output}.")
        if self.plot is not None:
            draw_fans(made, table.data, table, list(range(min(MAX_FANS, len(made.path)))), self.plot)
            print(f"Wrote {self.plot}")


@dataclass(frozen=True)
class Evaluate(TableOptions):
    """Score a model on a table that it was not trained on; without --data, score a finished run of `nsde train` again."""

    model: Positional[Path]
    """Run folder, or with --data also a folder written by save_pretrained."""
    data: Path | None = None
    """Table with one row per observation: .csv or .parquet."""
    horizon: float | None = None
    """Time ahead, in the units of the stamps; default 20 training steps, or half the longest path."""
    num_times: int = 20
    """Observations scored per forecast."""
    num_paths: int | None = None
    """Samples per forecast (default 200), or paths to draw for a run (default 1000)."""
    origins_per_path: int | None = None
    """Forecasts per path; default 100 over all paths."""
    seed: int = 0
    """Seed of the samples."""
    output: Path | None = None
    """Folder for results.json, fans.png and calibration.png; default `evaluation` in the model's folder."""

    def run(self) -> None:
        """Score and print."""
        if self.data is None:
            self._score_run()
        else:
            self._score_table(self.data)

    def _score_run(self) -> None:
        from neuralsde.experiment import evaluate, load_run

        model, experiment = load_run(self.model)
        task = experiment.task
        if hasattr(task, "num_paths"):
            task = dataclasses.replace(task, num_paths=1_000 if self.num_paths is None else self.num_paths)
        train = dataclasses.replace(experiment.train, seed=self.seed)
        print(json.dumps(evaluate(model, dataclasses.replace(experiment, task=task, train=train))[0], indent=1))

    def _score_table(self, file: Path) -> None:
        from neuralsde import plots
        from neuralsde.experiment import provenance, write_results
        from neuralsde.files import writable_folder
        from neuralsde.forecast import forecasts
        from neuralsde.skill import negative_log_likelihood, score_forecasts

        model = load_model(self.model)
        table = self.read(file, self.model, model)
        data = table.data
        default = min(DEFAULT_STEPS * model.scale.step, 0.5 * _longest(data))
        origins = math.ceil(ENOUGH_FORECASTS / len(data))
        made = forecasts(
            model,
            data,
            horizon=default if self.horizon is None else self.horizon,
            num_times=self.num_times,
            num_paths=200 if self.num_paths is None else self.num_paths,
            origins_per_path=origins if self.origins_per_path is None else self.origins_per_path,
            seed=self.seed,
        )
        nll = negative_log_likelihood(model, data)
        scores: dict[str, Any] = {"nll": nll} | score_forecasts(made, data, seed=self.seed)
        print(f"\n{score_table(scores)}\n")
        folder = writable_folder(self.output or self.model / "evaluation")
        record = {"model": str(self.model), "data": table.report.to_dict(), **provenance(), "scores": scores}
        write_results(folder / "results.json", record)
        print(f"Wrote {folder / 'results.json'}")
        if find_spec("matplotlib") is None:
            print("No figures: they need matplotlib, pip install 'neuralsde[plots]'.")
            return
        num = min(MAX_FANS, len(made.path))
        chosen = [(2 * k + 1) * len(made.path) // (2 * num) for k in range(num)]
        draw_fans(made, data, table, chosen, folder / "fans.png")
        plots.calibration(scores).savefig(folder / "calibration.png")
        print(f"Wrote {folder / 'fans.png'}, {folder / 'calibration.png'}")


def _longest(data: Trajectories) -> float:
    ends = data.lengths.cumsum(0)
    return float((data.times[ends - 1] - data.times[ends - data.lengths]).max())


def show_time(table: Table, time: float) -> str:
    """A time as the table writes it: a date, or a number."""
    return table.time.date(time) if table.time.kind == "dates" else f"{time:.10g}"


def _short_time(table: Table, time: float) -> str:
    return show_time(table, time)[:19].replace("T", " ") if table.time.kind == "dates" else f"{time:.4g}"


def draw_fans(made: Forecasts, data: Trajectories, table: Table, chosen: list[int], output: Path) -> None:
    """A fan chart of the chosen forecasts, of the first features."""
    from neuralsde import plots

    unit = table.time.unit
    label = "time" if unit is None else f"time ({unit})"
    titles = [f"{table.ids[int(made.path[b])]}, from {_short_time(table, float(made.origin[b]))}" for b in chosen]
    fans = [_fan(made, data, b, title) for b, title in zip(chosen, titles)]
    plots.fan_chart(fans, table.columns[:MAX_ROWS], time_label=label).savefig(output)


def _fan(made: Forecasts, data: Trajectories, b: int, title: str) -> Fan:
    """One forecast with a past as long as its horizon, or of ten observations."""
    import numpy as np

    from neuralsde.plots import Fan

    first = int(data.lengths[: int(made.path[b])].sum())
    stamps = data.times[first : first + int(data.lengths[int(made.path[b])])].numpy()
    origin = int(np.searchsorted(stamps, float(made.origin[b])))
    begin = min(int(np.searchsorted(stamps, float(made.origin[b] - made.lead[b].max()))), max(0, origin - 10))
    rows = slice(first + begin, first + origin + 1)
    past = data.states[rows].flatten(1).numpy().copy()
    if data.observed is not None:
        past[~data.observed[rows].flatten(1).numpy()] = np.nan
    past[-1] = made.start[b].flatten().numpy()
    known = made.mask[b].flatten(1)
    shown = known.any(1) if bool(known.any()) else ~known.any(1)
    truth: np.ndarray = made.truth[b].flatten(1).where(known, math.nan)[shown].numpy()
    return Fan(
        title=title,
        past_times=stamps[begin : origin + 1],
        past=past,
        times=made.times[b][shown].numpy(),
        samples=made.samples[b][:, shown].flatten(2).numpy(),
        truth=truth,
    )


def score_table(scores: dict[str, Any]) -> str:
    """The scores in words and aligned columns."""
    laws = {"model": scores, **scores["references"]}
    unit = {"path": "paths", "origin": "forecasts of the one path"}[scores["independent"]]
    lines = [
        f"{scores['num_origins']} forecasts from {scores['num_series']} path(s), up to {scores['horizon']:.4g} ahead, "
        f"{scores['num_paths']} samples each; ± is a 95 % interval over {unit}.",
        "",
        f"{'':24}" + "".join(f"{name.replace('_', ' '):>20}" for name in laws),
    ]
    rows = {
        "NLL per observation": [scores["nll"], None, None],
        "CRPS": [law["crps"] for law in laws.values()],
        "energy score": [law["energy_score"] for law in laws.values()],
        "RMSE of the mean": [law["rmse"] for law in laws.values()],
    }
    for level in scores["coverage"]:
        rows[f"coverage of {100 * float(level):g} %"] = [law["coverage"][level] for law in laws.values()]
    for level in scores["width"]:
        rows[f"width of {100 * float(level):g} %"] = [law["width"][level] for law in laws.values()]
    rows["skill of the model"] = [None, *(law["skill"] for law in scores["references"].values())]
    lines += [f"{name:24}" + "".join(f"{show_score(value):>20}" for value in values) for name, values in rows.items()]
    lines += [
        "",
        "CRPS, energy score, RMSE and widths are in standard deviations of the data. By feature, in its units:",
        "",
    ]
    lines += [f"{'':24}{'CRPS':>20}{'RMSE':>20}"]
    features = zip(scores["features"], scores["crps_by_feature"], scores["rmse_by_feature"])
    lines += [f"{name[:23]:24}{show_score(a):>20}{show_score(b):>20}" for name, a, b in features]
    return "\n".join([*lines, "", *verdict(scores)])


def show_score(value: dict[str, Any] | None) -> str:
    """A mean and its interval with the digits that the interval leaves."""
    if value is None or value["mean"] is None:
        return "–"
    mean, half = value["mean"], value["ci95"]
    size = half if half else abs(mean)
    digits = 3 if size == 0 else min(8, max(0, 1 - math.floor(math.log10(size))))
    return f"{mean:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def verdict(scores: dict[str, Any]) -> list[str]:
    """What the numbers say, in two sentences."""
    at = scores["coverage"]["0.8"]
    off, half = at["mean"] - 0.8, math.inf if at["ci95"] is None else at["ci95"]
    kind = "no sign of miscalibration" if abs(off) <= half else "too narrow" if off < 0 else "too wide"
    margin = "" if at["ci95"] is None else f" ± {100 * half:.0f}"
    lines = [f"80 % intervals hold {100 * at['mean']:.0f}{margin} % of the truths: {kind}."]
    for name, law in scores["references"].items():
        skill = law["skill"]
        if skill["mean"] is None:
            continue
        sure = skill["ci95"] is not None and abs(skill["mean"]) > skill["ci95"]
        word = "no clear difference" if not sure else "better" if skill["mean"] > 0 else "worse"
        lines.append(f"CRPS against the {name.replace('_', ' ')}: {100 * skill['mean']:+.0f} % skill, {word}.")
    return lines
