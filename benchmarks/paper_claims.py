"""The paper's remaining claims, on SDEs whose truth is known and on paths that fork. Three training seeds each.

    python benchmarks/paper_claims.py --output results/paper_claims.json --workers 14

alpha: the weight of the score, learned as a function of the state, against a constant and against the balance. One training
gives all of them: they are ways of drawing. The fitted constant maximises the likelihood of Euler's step over training pairs.
delta: the constant of the log loss over three decades, and the squared error that it tends to.
joint: the likelihood of a step as one objective for f and g, against the paper's decoupled losses and ours. The gradients of
`Euler(flow_loss="nll")` are those of the joint likelihood: its two losses are that likelihood, with g and with r held fixed.
ablation: the paper's figure of the fork, flow with and without diffusion and denoiser, as numbers.

Known SDEs are learned from start states for delta and joint, so that the flow is the drift, and from interpolated ones for alpha.
Rows are written as they come in; those that the output holds already are not run again.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn

from neuralsde.core.processes import worker_pool
from neuralsde.core.records import to_dict
from neuralsde.data.trajectories import Transitions
from neuralsde.experiments.config import Experiment, KnownSDEConfig
from neuralsde.experiments.recipes import branching as forks
from neuralsde.experiments.recipes import known_sdes as sdes
from neuralsde.experiments.task import task_for
from neuralsde.experiments.tasks import branching, known_sdes
from neuralsde.models.build import build
from neuralsde.sde.config import Euler, NeuralSDEConfig, Sampler
from neuralsde.sde.model import NeuralSDE
from neuralsde.solvers.integrate import Diverged
from neuralsde.training.config import RunOptions
from neuralsde.training.fit import fit
from neuralsde.training.run_folder import provenance, write_results

SYSTEMS = ("ou", "cir", "van_der_pol")
DENSITIES = (1, 10)
DELTAS = (1e-4, 1e-3, 1e-2, 1e-1)
LAWS = {
    "joint likelihood": Euler(flow_loss="nll"),
    "decoupled, the paper's losses": Euler(flow_loss="log", diffusion_loss="match"),
    "decoupled, ours": Euler(),
}
NUM_PAIRS = 50_000  # from which the constant is fitted


@dataclass(frozen=True)
class Job:
    """A training of a claim, and what it is scored on."""

    claim: str
    case: str
    way: str
    experiment: Experiment

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Its rows share this."""
        return self.claim, self.case, self.way, self.experiment.train.seed


def _learned_by(run: Experiment, law: Euler) -> Experiment:
    assert isinstance(run.model, NeuralSDEConfig)
    return replace(run, model=replace(run.model, law=law))


def _with_alpha(run: Experiment) -> Experiment:
    assert isinstance(run.model, NeuralSDEConfig) and run.model.denoiser is not None
    return replace(run, model=replace(run.model, denoiser=replace(run.model.denoiser, alpha=True)))


def experiments() -> Iterator[tuple[str, str, str, Experiment]]:
    """Claim, case, way of training, experiment."""
    cases = [(name, name) for name in SYSTEMS] + [(f"fork, density {d}", d) for d in DENSITIES]
    for case, what in cases:
        known = isinstance(what, str)
        if known:
            start, inside = sdes.start(what), sdes.interpolated(what)
            start = replace(start, task=replace(start.task, reference=False))
            base = {"alpha": inside, "delta": start, "joint": start}
        else:
            ours, paper = (forks.at_density(run(), what) for run in (forks.neural_sde, forks.paper))
            base = {"alpha": ours, "delta": paper, "joint": ours}
            yield "ablation", case, "ours", ours
            yield "ablation", case, "paper's choices", paper
        yield "alpha", case, "", _with_alpha(base["alpha"])
        for delta in DELTAS:
            law = Euler(flow_loss="log", delta=delta, diffusion_loss="match")
            yield "delta", case, f"δ = {delta:g}", _learned_by(base["delta"], law)
        yield "delta", case, "squared error", _learned_by(base["delta"], Euler(diffusion_loss="match"))
        for way, law in LAWS.items():
            yield "joint", case, way, _learned_by(base["joint"], law)


def jobs(args: argparse.Namespace) -> list[Job]:
    """All that was asked for."""
    found = []
    for seed in range(args.seeds):
        for claim, case, way, run in experiments():
            train = replace(run.train, seed=seed, steps=args.steps or run.train.steps)
            task = run.task
            if args.transitions and isinstance(task, KnownSDEConfig):
                task = replace(task, num_transitions=args.transitions)
            if any(text in f"{claim}; {case}; {way}" for text in args.only or [""]):
                found.append(Job(claim, case, way, replace(run, train=train, task=task)))
    return found


class ConstantShare(nn.Module):
    """In place of the net of α(x): the same share of the typical g² everywhere."""

    def __init__(self, share: float) -> None:
        super().__init__()
        raw = 2 + math.log(math.expm1(share)) if share > 0 else -math.inf
        self.register_buffer("raw", torch.tensor(raw))

    def forward(self, state: Tensor, condition: Tensor | None) -> Tensor:
        return self.raw.expand(len(state), *state.shape[2:])


def with_constant(model: NeuralSDE, share: float) -> NeuralSDE:
    """A copy of the model whose α is a constant."""
    other = copy.deepcopy(model)
    other.nets["alpha"] = ConstantShare(share).to(model.scale.mean.device)
    return other


def fitted_share(model: NeuralSDE, pairs: Transitions, sampler: Sampler) -> float:
    """The constant, as a share of the typical g², under which Euler's step makes training pairs most likely."""
    batch = pairs.spread(NUM_PAIRS)
    x, dt = batch.history[:, -1], batch.dt[:, None].double()
    (drift, g), (more, _) = (with_constant(model, share).fields(x, sampler=sampler) for share in (0.0, 1.0))
    drift, g, more = (v.double().to(x.device) for v in (drift, g, more))
    weight, left, push = dt / g**2, (batch.next - x).double() / dt - drift, more - drift
    return max(0.0, float((weight * push * left).sum() / (weight * push**2).sum()))


def drawings(job: Job, model: NeuralSDE, pairs: Transitions) -> dict[str, tuple[NeuralSDE, Sampler, dict[str, float]]]:
    """The ways in which one training is drawn: a model, a sampler, and what was fitted."""
    own, balance = model.sampler, 1.0 - model.config.start_probability
    bare = replace(own, balance=0.0, pull=0.0)
    if job.claim == "ablation":
        quiet = replace(bare, diffusion=0.0)
        parts = {
            "flow": quiet,
            "flow + diffusion": bare,
            "flow + denoiser": replace(quiet, pull=own.pull),
            "all": own,
        }
        return {f"{job.way}: {name}": (model, sampler, {}) for name, sampler in parts.items()}
    if job.claim != "alpha":
        return {job.way: (model, own, {})}
    learned = replace(own, pull=0.0)
    share = fitted_share(model, pairs, learned)
    known = isinstance(job.experiment.task, KnownSDEConfig)
    rate = 1 / model.scale.step if known else 1.0  # the authors' data of the fork are a unit of time apart
    ways = {
        "no score": (model, bare, {}),
        "constant of the authors' code": (model, replace(bare, pull=rate), {}),
        "constant, fitted": (with_constant(model, share), learned, {"share": share}),
        "learned α(x)": (model, learned, {}),
        "balance": (model, replace(learned, balance=balance), {}),
    }
    return ways | ({"balance and pull": (model, replace(own, balance=balance), {})} if own.pull else {})


def scores(job: Job, model: NeuralSDE, sampler: Sampler) -> dict[str, Any]:
    """Of one way of drawing."""
    task, seed = job.experiment.task, job.experiment.train.seed
    if not isinstance(task, KnownSDEConfig):
        paths = branching.draw(model, task, seed=seed, sampler=sampler).paths[0].cpu()
        return branching.evaluate(paths, task)
    read = SimpleNamespace(fields=lambda x: model.fields(x, sampler=sampler))
    out = known_sdes.field_errors(read, task, seed)
    if job.claim != "alpha":  # a likelihood takes the model's own drift
        out |= known_sdes.excess_nll(model, task, seed)
    return out | known_sdes.laws(model, task, sampler, seed) | known_sdes.coverage(model, task, sampler, seed)


def run(job: Job, cpu: bool) -> list[dict[str, Any]]:
    """Train, and score each way of drawing."""
    torch.set_num_threads(1)
    experiment, rows = job.experiment, []
    data = task_for(experiment.task).data(experiment.train.seed)
    pairs = data.transitions(lag=experiment.task.lag)
    model = build(experiment.model, pairs, seed=experiment.train.seed)
    assert isinstance(model, NeuralSDE)
    began = time.perf_counter()
    fit(model, data, config=experiment.train, options=RunOptions(progress=False, cpu=cpu))
    seconds = round(time.perf_counter() - began, 1)
    about = {"claim": job.claim, "case": job.case, "trained": job.way, "seed": experiment.train.seed}
    for way, (drawn, sampler, found) in drawings(job, model, pairs).items():
        row = {**about, "way": way, "sampler": to_dict(sampler), **found, "train_seconds": seconds}
        try:
            row["scores"] = scores(job, drawn, sampler)
        except Diverged as error:  # a result too
            row["error"] = str(error)
        rows.append(row)
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="+", help="only trainings whose 'claim; case; way' contains one of these texts")
    parser.add_argument("--steps", type=int, help="training steps (those of the recipes if not given)")
    parser.add_argument("--transitions", type=int, help="transitions of known SDEs (those of the recipes if not given)")
    parser.add_argument("--cpu", action="store_true", help="stay on the CPU though there is a GPU")
    args = parser.parse_args(argv)
    rows = json.loads(args.output.read_text(encoding="utf-8"))["rows"] if args.output.exists() else []
    done = {(row["claim"], row["case"], row["trained"], row["seed"]) for row in rows}
    waiting = [job for job in jobs(args) if job.key not in done]
    order = {job.key: k for k, job in enumerate(jobs(args))}
    head = {"command": f"python benchmarks/paper_claims.py --output results/{args.output.name}", **provenance()}
    settings = {k: v for k, v in vars(args).items() if k not in ("output", "cpu", "workers")}
    failure = None
    with worker_pool(args.workers) as pool:
        for future in as_completed([pool.submit(run, job, args.cpu) for job in waiting]):
            failure = failure or future.exception()
            if future.exception() is not None:
                continue
            rows += future.result()
            rows.sort(key=lambda r: order.get((r["claim"], r["case"], r["trained"], r["seed"]), -1))
            write_results(args.output, {**head, "settings": settings, "rows": rows})
            last = future.result()[-1]
            print(last["claim"], last["case"], last["way"], last["seed"], last["train_seconds"], "s", flush=True)
    if failure is not None:
        raise failure


if __name__ == "__main__":
    main()
