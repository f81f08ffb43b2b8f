"""The demonstration: `nsde.fit` on forking paths, then everything of the branching experiment, trained on the spot and drawn."""

from __future__ import annotations

import html
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future, as_completed
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from neuralsde.core.extras import need
from neuralsde.core.files import writable_folder
from neuralsde.core.processes import worker_pool
from neuralsde.core.records import need_extras
from neuralsde.experiments import compare, result_tables
from neuralsde.experiments.config import BranchingConfig, Experiment
from neuralsde.experiments.demos.page import image, page, table
from neuralsde.experiments.recipes import branching as recipes
from neuralsde.experiments.run import load_run
from neuralsde.experiments.tasks import branching
from neuralsde.experiments.tasks.branching import panel
from neuralsde.plots import paths as plots
from neuralsde.sde.config import Sampler
from neuralsde.sde.model import NeuralSDE
from neuralsde.selection.fit import fit_data
from neuralsde.selection.trials import small_products
from neuralsde.training.run_folder import provenance, write_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DENSITIES = (1, 10)
BUDGET = "1 min"  # of the model that `nsde.fit` chooses
BATCH = 256  # half of the recipe's: six minutes on two cores
METHODS = {
    "NSDE": recipes.neural_sde,
    "DDIM, predicts the sample": recipes.ddim,
    "Rectified Flow": recipes.rectified_flow,
}
ABLATION: dict[str, Sampler | None] = {
    "Flow": Sampler(diffusion=0.0, balance=0.0),
    "Flow + diffusion": Sampler(balance=0.0),
    "Flow + denoiser": Sampler(diffusion=0.0, balance=0.0, pull=0.5),
    "Flow + diffusion + denoiser": None,
}
"""The paper's four panels as sampler settings of one trained model; None is the model's own."""


def ablation_figure(model: NeuralSDE, task: BranchingConfig, paths: Sequence[Tensor]) -> Figure:
    """The four panels with the drift that each of them follows, and the paths of each."""
    x, y = torch.meshgrid(torch.linspace(0, 9.6, 33), torch.linspace(-3.2, 3.2, 23), indexing="ij")
    points = torch.stack([x.flatten(), y.flatten()], dim=1)
    points = points[branching.distance(points, task) < 0.5]  # elsewhere the nets saw no data and mean nothing
    entries = []
    for (title, sampler), shown in zip(ABLATION.items(), paths):
        drift, noise = model.fields(points, sampler=sampler)
        size = noise.norm(dim=1)
        entries.append(plots.FieldPanel(title, panel(shown, task), *(v.numpy() for v in (points, drift, size))))
    return plots.field_grid(entries)


def train_one(label: str, experiment: Experiment, run_dir: str) -> tuple[str, Experiment, dict[str, Any]]:
    """One run, in a worker process, by what is fastest for small nets."""
    with small_products:
        return compare.work(label, experiment, run_dir)


def draw_panel(run_dir: Path, sampler: Sampler, num_paths: int, seed: int) -> np.ndarray:
    """Paths of one panel, in a worker process; without noise all paths are one."""
    torch.set_num_threads(1)
    model, experiment = load_run(run_dir)
    num = num_paths if sampler.diffusion else 1
    with small_products:
        paths = branching.draw(model, experiment.task, num_paths=num, seed=seed, sampler=sampler).paths[0]
    return paths.cpu().numpy()


def show_choice(folder: Path, num_paths: int, seed: int, budget: str) -> dict[str, Any]:
    """Paths that fork, and nothing said about them: what `nsde.fit` makes of them, drawn in fit.png by a worker process."""
    torch.set_num_threads(1)
    task = replace(recipes.neural_sde().task, num_paths=num_paths)
    model = fit_data(branching.BranchingTask(task).data(seed), budget=budget, seed=seed, progress=False)
    paths = branching.draw(model, task, num_paths=num_paths, seed=seed).paths[0].cpu()
    assert model.report is not None
    title = f"{model.report['choice']},\n{model.report['sampler']}"
    plots.path_grid({"nsde.fit(paths)": {title: panel(paths, task)}}).savefig(folder / "fit.png")
    return {"choice": model.report["choice"], "reason": model.report["reason"], **branching.evaluate(paths, task)}


def run_demo(
    output: Path, *, num_paths: int = 200, seed: int = 0, num_workers: int = 2, steps: int | None = None
) -> dict[str, Any]:
    """`nsde.fit`, then NSDE, DDIM and Rectified Flow at both densities: figures, models and a report in `output`."""
    need("A figure", "matplotlib")
    need_extras(*(recipe().model for recipe in METHODS.values()))
    began = time.perf_counter()
    folder = writable_folder(output)
    shutil.rmtree(folder / "models", ignore_errors=True)
    budget = BUDGET if steps is None else "1 s"
    jobs = []
    for density in reversed(DENSITIES):  # the longest first
        for name, recipe in METHODS.items():
            run = recipes.at_density(recipe(), density)
            train = replace(run.train, seed=seed, steps=steps or run.train.steps, batch_size=BATCH)
            run = replace(run, train=train, task=replace(run.task, num_paths=num_paths))
            jobs.append((f"{name}, density {density}", run, str(folder / "models" / f"{name}-{density}")))
    print(f"nsde.fit(paths) chooses and trains a model within {budget}.")
    print(f"Beside it {len(jobs)} models are trained, {num_workers} at a time; a few minutes.", flush=True)
    dense = f"NSDE, density {DENSITIES[-1]}"
    runs: list[dict[str, Any]] = []
    fitted: dict[str, Any] = {}
    drawing: list[Future[np.ndarray]] = []
    with worker_pool(num_workers) as pool:
        choice = pool.submit(show_choice, folder, num_paths, seed, budget)
        training: list[Future[Any]] = [pool.submit(train_one, *job) for job in jobs]
        for done in as_completed([choice, *training]):
            if done is choice:
                fitted = choice.result()
                print(f"  {fitted['choice']}. {fitted['reason']}\n  First figure: {folder / 'fit.png'}", flush=True)
                continue
            label, _, found = done.result()
            print(f"  {label}: trained in {found['scores']['train_seconds']:.0f} s", flush=True)
            runs.append({"label": label, "seed": seed, **found})
            if label == dense:  # the other panels are of this model
                where = folder / "models" / f"NSDE-{DENSITIES[-1]}"
                hows = [how for how in ABLATION.values() if how is not None]
                drawing = [pool.submit(draw_panel, where, how, num_paths, seed) for how in hows]
        shown = [torch.from_numpy(one.result()) for one in drawing]
    order = [f"{name}, density {d}" for d in DENSITIES for name in METHODS]
    runs.sort(key=lambda r: order.index(r["label"]))
    values = {"summary": {r["label"]: compare.summarise([r]) for r in runs}, "runs": runs}

    print("Drawing.", flush=True)
    experiments = {label: experiment for label, experiment, _ in jobs}
    drawn = {label: torch.from_numpy(np.load(Path(run_dir) / "paths.npz")["paths"]) for label, _, run_dir in jobs}
    grid = {
        f"density {d}": {n: panel(drawn[f"{n}, density {d}"], experiments[f"{n}, density {d}"].task) for n in METHODS}
        for d in DENSITIES
    }
    plots.path_grid(grid).savefig(folder / "density.png")
    model, experiment = load_run(folder / "models" / f"NSDE-{DENSITIES[-1]}")
    assert isinstance(model, NeuralSDE)
    ablation_figure(model, experiment.task, [*shown, drawn[dense]]).savefig(folder / "ablation.png")
    seconds = time.perf_counter() - began
    write_results(folder / "results.json", {**provenance(), "seconds": round(seconds, 1), "fit": fitted, **values})
    (folder / "report.html").write_text(report(folder, fitted, values, seconds), encoding="utf-8")
    return values


def report(folder: Path, fitted: dict[str, Any], values: dict[str, Any], seconds: float) -> str:
    """One HTML page that needs no other file."""
    return page(
        "Paths that fork",
        f"""<p>Half of the training paths turn up at (4.5, 0), half turn down. A good model takes both branches with even odds,
turns at the fork and stays on the grey lines, however densely the paths were recorded. Everything here was trained on this
machine in {seconds:.0f} seconds; every method has the same number of parameters and training steps.</p>
<h2>nsde.fit(paths)</h2>
{image(folder / "fit.png", "Paths sampled from the model that nsde.fit chose")}
<p>Nothing was said about the data. Chosen: {html.escape(fitted["choice"])}. {html.escape(fitted["reason"])}</p>
<h2>Three methods, two densities</h2>
{image(folder / "density.png", "Sampled paths of three methods at two densities")}
<p>Colours are branches, red is neither. Numbers are the shares of the branches, the upper one first.</p>
<h2>Scores</h2>
{table(result_tables.branching(values))}
<p>distance: of all points to the true figure. fork offset: how late paths turn. end error: of the last point. passes:
network evaluations for one path.</p>
<h2>What each part of the Neural SDE does (density 10)</h2>
{image(folder / "ablation.png", "Vector fields and paths with and without diffusion and denoiser")}
<p>Arrows: the drift. Green: where noise is added. The flow alone drifts off and takes one branch; the diffusion makes the
choice; the denoiser keeps paths on the data.</p>""",
    )
