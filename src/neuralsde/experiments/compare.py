"""Many runs side by side, one results file.

Runs go to worker processes of one thread each: small nets gain nothing from more. The file is written after each run
and runs that it already holds are not repeated, so a comparison can be filled bit by bit.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from neuralsde.core.files import alone, read_json, writable_folder
from neuralsde.core.formats import current
from neuralsde.core.processes import worker_pool
from neuralsde.core.records import check, from_dict, need_extras, to_dict, with_settings
from neuralsde.experiments.config import Experiment
from neuralsde.experiments.recipes.registry import RECIPES, rows_of
from neuralsde.experiments.result_tables import TABLES
from neuralsde.experiments.run import run
from neuralsde.metrics.forecast import student_t
from neuralsde.training.config import RunOptions
from neuralsde.training.run_folder import provenance, write_results

COUNTS = ("num_paths", "num_forecasts", "num_episodes", "num_clips", "num_frames", "parameters")
"""Scores that are sizes, the same for every seed."""


def work(
    label: str, experiment: Experiment, run_dir: str | None, cpu: bool = False
) -> tuple[str, Experiment, dict[str, Any]]:
    """One run, in a worker process: its scores, and the checksums of what they stand on."""
    import torch

    torch.set_num_threads(1)
    outcome = run(experiment, run_dir, options=RunOptions(progress=False, cpu=cpu))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # for the runs beside it
    return label, experiment, {**outcome.checksums, "scores": outcome.results}


def run_all(
    jobs: Sequence[tuple[str, Experiment, str | None]], num_workers: int, *, cpu: bool = False
) -> Iterator[tuple[str, Experiment, dict[str, Any]]]:
    """Run (label, experiment, run folder) in worker processes; yield as they finish. A failure is raised when all are done."""
    need_extras(*(part for _, experiment, _ in jobs for part in (experiment.task, experiment.model)))
    failure = None
    with worker_pool(num_workers) as pool:
        futures = [pool.submit(work, *job, cpu) for job in jobs]
        for future in as_completed(futures):
            failure = failure or future.exception()
            if future.exception() is None:
                yield future.result()
    if failure is not None:
        raise failure


def compare(
    rows: Mapping[str, Experiment],
    output: Path,
    *,
    num_seeds: int,
    num_workers: int,
    cpu: bool = False,
    fresh: bool = False,
    local: Mapping[str, Any] | None = None,
    command: Callable[[str, int], str] | None = None,
) -> dict[str, Any]:
    """Run every row with seeds 0 … num_seeds - 1 and write all scores and their summary to `output`.

    `local` are settings of the tasks that belong to this machine, such as the place of the data: runs take them, the file does
    not record them. `command` gives the one that repeats a row, by its label and the number of seeds.
    """
    writable_folder(output.parent)
    with alone(output):
        return _compare(rows, output, num_seeds, num_workers, cpu, fresh, local or {}, command)


def _compare(
    rows: Mapping[str, Experiment],
    output: Path,
    num_seeds: int,
    num_workers: int,
    cpu: bool,
    fresh: bool,
    local: Mapping[str, Any],
    command: Callable[[str, int], str] | None,
) -> dict[str, Any]:
    runs = _runs_in(output) if output.exists() else []
    order = list(dict.fromkeys([*(r["label"] for r in runs), *rows]))  # rows of the file that are not asked for stay
    asked: dict[tuple[str, int], Experiment] = {}
    for seed in range(num_seeds):
        for label, row in rows.items():
            experiment = replace(row, train=replace(row.train, seed=seed))
            old = [r["experiment"] for r in runs if (r["label"], r["seed"]) == (label, seed)]
            if fresh or not any(_read(record) == experiment for record in old):
                asked[label, seed] = experiment
    runs = [r for r in runs if (r["label"], r["seed"]) not in asked]
    source = provenance()
    jobs = [(label, _with_task(experiment, local), None) for (label, _), experiment in asked.items()]
    for k, (label, ran, found) in enumerate(run_all(jobs, num_workers, cpu=cpu), 1):
        seed = ran.train.seed
        print(f"[{k}/{len(jobs)}] {label}, seed {seed}: {found['scores']['train_seconds']:.0f} s", flush=True)
        run_of = {"label": label, "seed": seed, "experiment": to_dict(asked[label, seed])}
        again = {} if command is None else {"command": command(label, seed + 1)}
        runs.append({**run_of, **again, **source, **found})
        runs.sort(key=lambda r: (order.index(r["label"]), r["seed"]))
        write_results(output, _summary(runs, order))
    return _summary(runs, order)


def _runs_in(file: Path) -> list[dict[str, Any]]:
    """The runs that a results file holds."""
    values = read_json(file)
    runs = values.get("runs") if isinstance(values, dict) else None
    keys = {"label", "seed", "experiment", "scores"}
    whole = isinstance(runs, list) and all(isinstance(run_, dict) and run_.keys() >= keys for run_ in runs)
    check(whole, f"{file} is no results file of `nsde compare`. Move it away, or name another `output`.")
    return list(runs or [])


def stale_rows(task: str, file: Path) -> dict[str, str]:
    """Rows of a task's comparison that `nsde compare` would run again, and why; rows without a recipe among them.

    A record is read as today's settings; a row stands where a run of it has the settings of its recipe.
    """
    runs, rows, found = _runs_in(file), rows_of(task), {}
    beside = {r["label"]: r["experiment"].get("name") for r in runs if r["label"] not in rows}  # an autoencoder, say
    rows |= {label: RECIPES[name]() for label, name in beside.items() if name in RECIPES}
    for label, row in rows.items():
        records = [r["experiment"] for r in runs if r["label"] == label]
        if not records:
            found[label] = "not measured"
        elif not any(_without_seed(_read(record)) == _without_seed(row) for record in records):
            found[label] = "measured with other settings"
    return found | {r["label"]: "has no recipe" for r in runs if r["label"] not in rows}


def _read(record: Any) -> Experiment | None:
    """A recorded experiment, or None where today's settings cannot say it."""
    try:
        return from_dict(Experiment, current(record))
    except ValueError:
        return None


def _without_seed(experiment: Experiment | None) -> Experiment | None:
    return experiment and replace(experiment, train=replace(experiment.train, seed=0))


def compare_methods(
    task: str,
    output: Path | None = None,
    *,
    only: Collection[str] = (),
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> str:
    """Run the rows of a task's comparison (`only` those with these texts in their names) and give the table of all results.

    `settings` change the tasks of the rows; `options` are those of `compare`. By default the file is results/TASK.json.
    """
    output = output or Path("results") / f"{task.replace('-', '_')}.json"
    rows = {label: _with_task(row, settings or {}) for label, row in rows_of(task, only).items()}
    changed = [f"--{name.replace('_', '-')}={value}" for name, value in (settings or {}).items()]

    def command(label: str, num_seeds: int) -> str:
        words = ["nsde", "compare", task, "--only", label, "--num-seeds", str(num_seeds)]
        return shlex.join([*words, *changed, "--output", f"results/{output.name}"])

    values = compare(rows, output, command=command, **options)
    times = output.with_name(f"{output.stem}_latency.json")  # of benchmarks/pusht_latency.py
    if times.is_file():
        values["latency"] = read_json(times)
    return TABLES[task](values)


def _with_task(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    return replace(experiment, task=with_settings(experiment.task, dict(settings)))


def _summary(runs: list[dict[str, Any]], order: list[str]) -> dict[str, Any]:
    return {"summary": {name: summarise([r for r in runs if r["label"] == name]) for name in order}, "runs": runs}


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean over training seeds with its 95 % interval, and the extremes, of every number; of those runs that have it."""
    if not runs:
        return {}
    every: dict[str, list[Any]] = {}
    for run_ in runs:
        for key, value in run_["scores"].items():
            every.setdefault(key, []).append(value)
    counts = {key: values[0] for key, values in every.items() if key in COUNTS}
    out: dict[str, Any] = {"num_seeds": len(runs), "seeds": [r["seed"] for r in runs], **counts}
    for key, values in every.items():
        if key in counts or isinstance(values[0], str):
            continue
        if isinstance(values[0], list):
            out[key] = [interval(parts) for parts in zip(*values)]
        else:
            out[key] = interval(values)
    return out


def interval(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean and half of its 95 % interval; scores that do not exist (null in the file) are left out."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return {"mean": None}
    mean, n = statistics.fmean(known), len(known)
    half = student_t(n - 1) * statistics.stdev(known) / math.sqrt(n) if n > 1 else None
    return {"mean": mean, "ci95": half, "min": min(known), "max": max(known), "n": n}
