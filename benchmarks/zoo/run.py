"""The zoo: `nsde.fit` on small data sets of many kinds, beside its default, the best candidate in hindsight and rivals.

    python benchmarks/zoo/run.py --budget "2 min" --num-workers 16 --output results/zoo.json
    python benchmarks/zoo/run.py --kind strange --output results/zoo_strange.json
    python benchmarks/zoo/run.py --kind shapes --output results/zoo_shapes.json

Rows that the output holds already are kept where they are of the same commit, or of a set and method that are not asked for: a run
may be stopped, or made in parts by `--methods` and `--only`. A row names its commit.
Test paths are scored once. Every method forecasts from the same origins; the score is that of `neuralsde.selection.scores`,
with 100 samples each. The best in hindsight is the best test score of the candidates, their changes and their samplers.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
import warnings
import zlib
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from rivals import RIVALS
from sets import SETS, Set
from shapes import SHAPES, drawn
from strange import STRANGE

import neuralsde as nsde
from neuralsde.core.processes import worker_pool
from neuralsde.data.diagnosis import diagnose
from neuralsde.metrics.forecast import interval_coverage
from neuralsde.selection.candidates import Candidate, combined, plan
from neuralsde.selection.scores import Segments
from neuralsde.selection.search import further_samplers, in_words
from neuralsde.selection.stack import fit_together, form_of
from neuralsde.selection.trials import build_for, sampler_of, small_products
from neuralsde.training.run_folder import provenance, rows_before, write_results

SAMPLES = 100
MOST_IN_HINDSIGHT = 12  # candidates, each with every sampler
KINDS = {"zoo": list(SETS), "strange": list(STRANGE), "shapes": [f"shape {s}" for s in SHAPES]}
DEFAULT_STEPS = 5_000  # of the default: `NeuralSDE.for_data` and `fit` without settings


def paths(own: Set, *, test: bool) -> nsde.Trajectories:
    """Training or test paths of a set."""
    states, times = (own.test, own.test_times) if test else (own.train, own.train_times)
    return nsde.Trajectories.from_arrays(states, times, dt=None if times else own.dt, missing=own.missing)


def make(name: str, seed: int) -> Set:
    """A set, or a drawn shape."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    every = SETS | STRANGE
    if name in every:
        return every[name](rng)
    demos = drawn(name.removeprefix("shape "), 13, rng)
    return Set(demos[:7], demos[7:], dt=0.02, stationary=False, from_start=True, kind="few paths")


def segments(own: Set) -> Segments:
    """Where test paths are forecast."""
    return Segments.of(paths(own, test=True), paths(own, test=False), most=48, from_start=own.from_start)


def fitted(name: str, seed: int, budget: str, models: Path | None) -> dict[str, Any]:
    """`nsde.fit` and its score; its model is kept in the folder `models`."""
    own = make(name, seed)
    data, where = paths(own, test=False), segments(own)
    began = time.perf_counter()
    model = nsde.fit(data, budget=budget, seed=seed, progress=False, cpu=True)
    seconds = time.perf_counter() - began
    score = where.score(model, num_paths=SAMPLES)
    report = model.report
    out = {"method": "nsde.fit", "seconds": seconds, **score.to_dict(), "error": score.error}
    out |= {
        "choice": report["choice"],
        "sampler": report["sampler"],
        "reported": report["score"],
        "unit": report["unit"],
    }
    out |= {"traits": [t["name"] for t in report["traits"]], "kind": own.kind}
    if own.from_start and data.shape == (2,):
        out["motion"] = motion(model, own)
    if own.kind == "second order":
        out["coverage"] = coverage(model, where)
    if models is not None:
        model.save_pretrained(model_folder(models, name))
    return out


def model_folder(models: Path, name: str) -> Path:
    """Where the model of a set is kept."""
    return models / name.replace(" ", "_")


def coverage(model: Any, where: Segments) -> float:
    """How often what followed lies inside the band that holds 80 % of the samples."""
    truth, _ = where.truth()
    samples = where.samples(model, num_paths=SAMPLES).double() / where.scale
    return float(interval_coverage(samples.movedim(1, 0), truth, 0.8).mean())


def motion(model: Any, own: Set) -> dict[str, float]:
    """Roll-outs from new starts: error in units of the figure's size, and the share that arrives."""
    test = own.test
    size = float(np.ptp(np.concatenate(own.train), axis=0).max())
    start = np.stack([p[0] for p in test])
    times = own.dt * np.arange(len(test[0]))
    drawn_paths = (
        model.sample(start[:, None].repeat(model.config.history, 1), times, num_paths=SAMPLES, rng=0).cpu().numpy()
    )
    truth = np.stack(test)[:, None]
    error = np.linalg.norm(drawn_paths - truth, axis=-1).mean() / size
    goals = np.stack([p[-1] for p in own.train])
    arrives = np.linalg.norm(drawn_paths[:, :, -1, None] - goals, axis=-1).min(-1) < 0.05 * size
    near = []
    for p in test:
        k = int(np.argmin([np.linalg.norm(q[0] - p[0]) for q in own.train]))
        near.append(np.linalg.norm(own.train[k] - p, axis=-1).mean() / size)
    ends = drawn_paths[:, :, -1].reshape(-1, 2)
    shares = [
        float((np.linalg.norm(ends[:, None] - np.unique(goals.round(6), axis=0), axis=-1).argmin(1) == k).mean())
        for k in range(len(np.unique(goals.round(6), axis=0)))
    ]
    return {
        "error": float(error),
        "nearest": float(np.mean(near)),
        "arrives": float(arrives.mean()),
        "shares": shares[:5],
    }


def hindsight(name: str, seed: int, steps: int) -> dict[str, Any]:
    """Every first candidate and each of its changes, with each sampler, on the test paths."""
    own = make(name, seed)
    data, where = paths(own, test=False), segments(own)
    tried = plan(diagnose(data))
    candidates = [tried.default, *tried.first]
    candidates += [c for one in tried.first for move in tried.moves if (c := combined(one, move)) is not None]
    stacks: dict[Any, list[tuple[Candidate, Any, Any]]] = {}
    for candidate in candidates[:MOST_IN_HINDSIGHT]:
        model, pairs = build_for(candidate, data, seed)
        stacks.setdefault(form_of(model, pairs), []).append((candidate, model, pairs))
    scores = {}
    for members in stacks.values():
        fit_together(
            [m for _, m, _ in members],
            [p for _, _, p in members],
            nsde.TrainConfig(**{**vars(tried.train), "steps": steps}),
        )
        for candidate, model, _ in members:
            for how in [{}, *(h for part in further_samplers(candidate) for h in part.values())]:
                scores[f"{candidate.name}; {in_words(how)}"] = where.score(model, sampler_of(model, how)).mean
    best = min(scores, key=lambda key: scores[key])
    return {"method": "best in hindsight", "score": scores[best], "choice": best, "num_tried": len(scores)}


def default(name: str, seed: int) -> dict[str, Any]:
    """What `NeuralSDE.for_data(data)` and `fit` without settings give."""
    own = make(name, seed)
    data, where = paths(own, test=False), segments(own)
    model = nsde.NeuralSDE.for_data(data, seed=seed)
    nsde.fit(model, data, seed=seed, steps=DEFAULT_STEPS, progress=False)
    score = where.score(model, num_paths=SAMPLES)
    return {"method": "default", **score.to_dict(), "error": score.error}


def rival(name: str, seed: int, method: str) -> dict[str, Any]:
    """One of the others."""
    own = make(name, seed)
    data, where = paths(own, test=False), segments(own)
    train = [p.numpy().astype(float) for p in data.states.split(data.lengths.tolist())]
    ends = where.data.lengths.cumsum(0)
    path = torch.searchsorted(ends, where.row, right=True)
    origins = [(int(p), int(r - (ends - where.data.lengths)[p])) for p, r in zip(path, where.row)]
    test = [p.numpy().astype(float) for p in where.data.states.split(where.data.lengths.tolist())]
    samples = RIVALS[method](train, test, origins, where.ahead.numpy(), SAMPLES, seed)
    return {"method": method, **where._score(torch.tensor(samples)).to_dict()}


def one(job: tuple[str, str, int, str, Path | None]) -> dict[str, Any]:
    """A set and a method."""
    torch.set_num_threads(1)
    name, method, seed, budget, models = job
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if method == "nsde.fit":
                found = fitted(name, seed, budget, models)
            elif method == "best in hindsight":
                with small_products:
                    found = hindsight(name, seed, 800)
            else:
                found = default(name, seed) if method == "default" else rival(name, seed, method)
        except Exception as error:
            found = {"method": method, "failed": f"{type(error).__name__}: {error}"}
    row = {"set": name, "seed": seed, **found, "wall": time.perf_counter() - began}
    print(
        {
            k: round(v, 3) if isinstance(v, float) else v
            for k, v in row.items()
            if k in ("set", "method", "score", "choice", "motion", "wall", "failed")
        },
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="2 min")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--methods", nargs="*", default=["nsde.fit", "best in hindsight", "default", *RIVALS])
    parser.add_argument("--kind", choices=list(KINDS), default="zoo", help="drawn shapes: by nsde.fit alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=Path, help="folder that keeps the models of nsde.fit")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    every = KINDS[args.kind]
    names = [n for n in every if not args.only or n in args.only]
    methods = ["nsde.fit"] if args.kind == "shapes" else args.methods
    jobs = [(name, method, args.seed, args.budget, args.models) for method in methods for name in names]
    command, here = f"python benchmarks/zoo/run.py {shlex.join(sys.argv[1:])}", provenance()
    rows = rows_before(args.output, args.budget, here["commit"], [(job[0], job[1]) for job in jobs])
    rows = [row for row in rows if "failed" not in row]
    known = {(row["set"], row["method"], row["seed"]) for row in rows}
    jobs = [job for job in jobs if job[:3] not in known]
    order = {name: k for k, name in enumerate(("nsde.fit", "best in hindsight", "default", *RIVALS))}
    with worker_pool(args.num_workers) as pool:
        for done in as_completed([pool.submit(one, job) for job in jobs]):
            rows.append({**done.result(), "commit": here["commit"], "gpu": here["hardware"]["gpu"]})
            rows.sort(key=lambda row: (row["seed"], every.index(row["set"]), order[row["method"]]))
            write_results(args.output, {"command": command, "budget": args.budget, "rows": rows, **here})


if __name__ == "__main__":
    main()
