"""Speed beside rivals: one comparison, all contestants in one run, taking turns.

Times are medians of interleaved repeats, with the fastest and the slowest. Speed is a ratio within a run; the load of the
machine is recorded. A rival that is not installed is reported as absent. Nets are those of the defaults, the same for all, or of
the recipes; they are not trained, since time does not depend on their weights. On a GPU steps of all models are recorded as a
CUDA graph and replayed; plans and frames are also given with compiled layers, and step by step.
"""

from __future__ import annotations

import copy
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralsde.baselines.config import DDIMConfig, DiffusionSteps, Generation, RectifiedFlowConfig
from neuralsde.core.records import check
from neuralsde.data.robots.demonstrations import Demonstrations
from neuralsde.data.trajectories import Trajectories
from neuralsde.experiments.config import Experiment
from neuralsde.experiments.pusht.sim import SIZE, observe
from neuralsde.experiments.recipes import pusht, video
from neuralsde.experiments.tasks.pusht import DT
from neuralsde.models.build import build
from neuralsde.plots.paths import Contestant, speeds
from neuralsde.policy.controller import SDEPolicy, action_paths
from neuralsde.policy.shipped import shipped
from neuralsde.sde.config import NeuralSDEConfig
from neuralsde.sde.model import NeuralSDE
from neuralsde.solvers.noise import Noise
from neuralsde.solvers.replay import READY
from neuralsde.training.graphs import repeated_layers
from neuralsde.training.run_folder import provenance, write_results

DIM, NUM_SEQUENCES, BATCH = 2, 64, 512
LATENTS = (4, 8, 8)  # of a frame of 64 × 64
NUM_BATCHES = 100
IN_A_ROW = 20
PATIENCE = 10.0  # seconds of a rehearsal
PLANNERS = ("Diffusion Policy, U-Net", "Diffusion Policy, transformer", "Rectified Flow policy", "behaviour cloning")
OURS = "ours"
Way = Callable[[], Any]
"""One call of a contestant."""


@dataclass(frozen=True)
class Field:
    """One comparison: a setting, and who takes part; None where a rival is absent."""

    setting: dict[str, Any]
    ways: Mapping[str, Way | None]
    calls: int = 1  # of a turn, one right after the other
    learns: bool = False  # calls are training steps: what they keep for their gradients counts too


def race(field: Field, repeats: int, wait: Way = lambda: None) -> list[dict[str, Any]]:
    """A row for each contestant: milliseconds of a call, by interleaved turns, and how many times those of ours."""
    present = {name: way for name, way in field.ways.items() if way is not None}
    took: dict[str, list[float]] = {name: [] for name in present}
    for way in present.values():
        rehearse(way)
        wait()
    for _ in range(repeats):
        for name, way in present.items():
            wait()
            began = time.perf_counter()
            for _ in range(field.calls):
                way()
            wait()
            took[name].append(1e3 * (time.perf_counter() - began) / field.calls)
    ours = statistics.median(took[OURS])
    rows = []
    for name in field.ways:
        row: dict[str, Any] = {**field.setting, "method": name}
        if name in took:
            ms = statistics.median(took[name])
            row |= {"ms": ms, "fastest_ms": min(took[name]), "slowest_ms": max(took[name]), "times_ours": ms / ours}
            row |= {"kept_mib": kept_bytes(present[name]) / 2**20} if field.learns else {}
        else:
            row["absent"] = "not installed"
        rows.append(row)
    return rows


def kept_bytes(call: Way) -> int:
    """What a call keeps for its gradients, each piece of memory once, weights apart."""
    kept: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not (tensor.is_leaf and tensor.requires_grad):
            kept[storage.data_ptr()] = storage  # held, or its address would be used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return sum(storage.nbytes() for storage in kept.values())


def rehearse(way: Way, most: int = READY) -> None:
    """Calls until what comes again has been recorded; of a slow one as many as fit into ten seconds, at least two."""
    began = time.perf_counter()
    for k in range(most):
        if k < 2 or time.perf_counter() - began < PATIENCE:
            way()


def walks(num: int, length: int) -> Trajectories:
    """Random walks: time does not depend on what is learned."""
    steps = np.random.default_rng(0).standard_normal((num, length, DIM)).astype(np.float32)
    return Trajectories.from_arrays(list(0.1 * steps.cumsum(1)))


def sampling(device: str, repeats: int) -> list[dict[str, Any]]:
    """Paths from one start: ours, torchsde's Euler with the same nets, and generative models that make every state anew."""
    gpu = device == "cuda"
    pairs = walks(NUM_SEQUENCES, 50).transitions()
    model: Any = NeuralSDE.for_data(walks(NUM_SEQUENCES, 50)).to(device).eval()
    anew = {
        "Flow Matching, 10 passes": RectifiedFlowConfig(target="increment", sampler=Generation(num_steps=10)),
        "DDIM, 10 passes": DDIMConfig(target="increment", sampler=DiffusionSteps(num_steps=10)),
        "DDPM, 100 passes": DDIMConfig(target="increment", sampler=DiffusionSteps(num_steps=100, variant="ddpm")),
    }
    others = {
        name: None if _missing(*config.needs) else build(config, pairs).to(device).eval()
        for name, config in anew.items()
    }
    rows = []
    for num, steps in ((1, 8), (1, 100), (4_096, 1_000) if gpu else (256, 100)):
        start, times = np.zeros((1, DIM)), np.arange(steps + 1.0)

        def draw(model: Any, start: Any = start, times: Any = times, num: int = num) -> Way:
            sampler = replace(model.sampler, box=None)
            return lambda: model.sample(start, times, num_paths=num, rng=0, sampler=sampler)

        ways: dict[str, Way | None] = {OURS: draw(model), "torchsde, Euler": _by_torchsde(model, num, steps)}
        long = steps > 8  # where a hundred passes a state would take minutes
        ways |= {k: None if m is None else draw(m) for k, m in others.items() if not (long and "100" in k)}
        rows += race(Field({"paths": num, "steps": steps}, ways), repeats, _wait(device))
    return rows


def _missing(*modules: str) -> bool:
    """Whether one of these is not installed."""
    return any(find_spec(module) is None for module in modules)


def _by_torchsde(model: NeuralSDE, num: int, steps: int) -> Way | None:
    if _missing("torchsde"):
        return None
    import torchsde

    device = model.scale.mean.device
    sde, start = model.as_torchsde(), torch.zeros(num, DIM, device=device)
    times = torch.arange(steps + 1.0, device=device)

    @torch.no_grad()
    def draw() -> Tensor:
        return torchsde.sdeint(sde, start, times, method="euler", dt=1.0)

    return draw


def training(device: str, repeats: int) -> list[dict[str, Any]]:
    """One optimiser step against the length of the sequences: ours from pairs, torchsde's by simulating them."""
    rows = []
    for length in (10, 100, 1_000) if device == "cuda" else (10, 100):
        data = walks(NUM_SEQUENCES, length + 1)
        ways: dict[str, Way | None] = {
            OURS: _pairs_step(data, NUM_SEQUENCES * length, device),
            f"ours, {BATCH} pairs": _pairs_step(data, BATCH, device),
            "torchsde, back-propagation": _simulated_step(data, device),
        }
        field = Field({"sequences": NUM_SEQUENCES, "length": length}, ways, learns=True)
        rows += race(field, repeats, _wait(device))
    return rows


def _pairs_step(data: Trajectories, num: int, device: str) -> Way:
    """Ours: flow, diffusion and denoiser from so many transitions; all of the data, or a minibatch."""
    return _loss_step(NeuralSDE.for_data(data).to(device).train(), data.to(device).transitions(), num)


def _simulated_step(data: Trajectories, device: str) -> Way | None:
    """torchsde's: the same flow and diffusion nets, simulated along the sequences, squared error to the data."""
    if _missing("torchsde"):
        return None
    import torchsde

    config = NeuralSDEConfig(denoiser=None)
    model: Any = build(config, data.transitions()).to(device).train()
    states = torch.stack(data.states.split(data.lengths.tolist())).to(device, torch.float32)
    sde, times = model.as_torchsde(), torch.arange(float(states.shape[1]), device=device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        paths = torchsde.sdeint(sde, states[:, 0], times, method="euler", dt=1.0)
        (paths.transpose(0, 1) - states).square().mean().backward()
        optimiser.step()

    return step


def plans(device: str, repeats: int) -> list[dict[str, Any]]:
    """From an observation of one robot to its next eight actions: the shipped policy, and policies of the recipes.

    On a GPU also many plans in a row: one after other work finds little of what it needs in the caches of the host.
    """
    demos = random_demonstrations()
    recipes = pusht.comparison()
    ways: dict[str, Way | None] = {}
    ways |= _plans(OURS, SDEPolicy.from_pretrained(shipped(), device=device), demos)
    for label in PLANNERS:
        run = recipes[label]
        if _missing(*run.model.needs):
            ways[label] = None
            continue
        policy = untrained_policy(run, demos)
        policy.model.to(device)
        ways |= _plans(label, policy, demos)
    in_a_row = (1, IN_A_ROW) if device == "cuda" else (1,)
    fields = [Field({"plans in a row": calls}, ways, calls) for calls in in_a_row]
    return [row for field in fields for row in race(field, repeats, _wait(device))]


def random_demonstrations(num_episodes: int = 4, length: int = 60) -> Demonstrations:
    """Episodes of Push-T's form: an agent and a block that wander."""
    rng = np.random.default_rng(0)
    places = 256 + rng.normal(0, 8, (num_episodes, length, 4)).cumsum(1)
    angle = rng.uniform(0, 6, (num_episodes, 1, 1)) + rng.normal(0, 0.05, (num_episodes, length, 1)).cumsum(1)
    states = np.concatenate([places, angle], axis=2).reshape(-1, 5)
    return Demonstrations.from_arrays({"state": states}, states[:, :2], [length] * num_episodes, dt=DT)


def untrained_policy(run: Experiment, demos: Demonstrations) -> SDEPolicy:
    """The policy of a recipe."""
    seen = observe(demos.observations["state"], run.task.observation)  # type: ignore[attr-defined]
    settings = run.task.policy  # type: ignore[attr-defined]
    model = build(run.model, action_paths(demos, seen, settings).transitions())
    limits, kind = ([0.0, 0.0], [float(SIZE), float(SIZE)]), run.task.observation  # type: ignore[attr-defined]
    return SDEPolicy.for_demonstrations(model, settings, demos, limits=limits, observation=kind)


def _plans(label: str, policy: SDEPolicy, demos: Demonstrations) -> dict[str, Way]:
    """The ways of one policy."""
    ways = {}
    for name, model in forms(label, policy.model).items():
        own = copy.copy(policy)
        own.model = model
        ways[name] = _plan(own, demos)
    return ways


def _plan(policy: SDEPolicy, demos: Demonstrations) -> Way:
    seen = observe(demos.observations["state"], policy.observation)  # type: ignore[arg-type]
    turn = iter(range(10**9))

    def plan() -> None:
        k = next(turn)
        policy.reset([k])
        policy.select_action(seen[k % len(seen)])

    return plan


def forms(label: str, model: Any) -> dict[str, Any]:
    """A model as it is; on a GPU also a copy whose repeated layers are compiled, and one that launches each kernel by itself."""
    if not model.scale.mean.is_cuda:
        return {label: model}
    compiled, single = copy.deepcopy(model), copy.deepcopy(model)
    for layer in repeated_layers(compiled):
        layer.compile()
    single.repeats = lambda sampler, context: False
    return {label: model, f"{label}, compiled": compiled, f"{label}, step by step": single}


def films(device: str, repeats: int) -> list[dict[str, Any]]:
    """Latents of 64 × 64 frames: one training step, and futures drawn frame by frame; the same net for all."""
    gpu = device == "cuda"
    rng = np.random.default_rng(0)
    clips = Trajectories.from_arrays(list(rng.standard_normal((8, 24, *LATENTS)).astype(np.float32)))
    pairs = clips.to(device).transitions(history=video.CONTEXT)
    runs = {
        OURS: video.neural_sde(),
        "Flow Matching, 10 passes": video.flow_matching(),
        "PFI, 10 passes": video.pfi(),
        "regression": video.regression(),
    }
    models = {name: build(run.model, pairs).to(device) for name, run in runs.items()}
    for name, run in runs.items():
        models[name].precision = run.train.precision  # as after a training
    start = torch.zeros(1, video.CONTEXT, *LATENTS, device=device)
    rows = []
    for num, frames in ((1, 32), (64, 32)) if gpu else ((1, 4),):
        ways: dict[str, Way | None] = {}
        for name, model in models.items():
            for label, each in forms(name, model).items():
                ways[label] = _film(each.eval(), start, np.arange(frames + 1.0), num)
        rows += race(Field({"futures": num, "frames": frames}, ways), repeats, _wait(device))
    batch = 256 if gpu else 8
    steps = {name: _loss_step(model.train(), pairs, batch) for name, model in models.items()}
    return rows + race(Field({"batch of transitions": batch}, steps), repeats, _wait(device))


def _film(model: Any, start: Tensor, times: np.ndarray, num: int) -> Way:
    return lambda: model.sample(start, times, num_paths=num, rng=0)


def _loss_step(model: Any, pairs: Any, num: int) -> Way:
    """Loss, gradients and an optimiser's step from so many transitions."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rows = torch.arange(num, device=model.scale.mean.device)

    def step() -> None:
        noise = Noise.for_step(0, 0, rows)
        optimiser.zero_grad()
        sum(model.loss(pairs.batch(noise), noise).values()).backward()
        optimiser.step()

    return step


def loading(device: str, repeats: int) -> list[dict[str, Any]]:
    """A hundred batches of transitions from memory: ours, and torch's DataLoader over the same pairs."""
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

    rows = []
    for num in (10_000, 1_000_000):
        data = walks(num // 1_000, 1_001)
        pairs = data.to(device).transitions()
        states = torch.stack(data.states.split(data.lengths.tolist())).float()
        table = TensorDataset(states[:, :-1].flatten(0, 1), states[:, 1:].flatten(0, 1))
        batches = BatchSampler(RandomSampler(table), BATCH, drop_last=False)

        def ours(pairs: Any = pairs) -> None:
            for k in range(NUM_BATCHES):
                pairs.batch(Noise.for_step(0, k, torch.arange(BATCH, device=device)))

        def theirs(loader: Any) -> Way:
            return lambda: [(x.to(device), y.to(device)) for _, (x, y) in zip(range(NUM_BATCHES), _forever(loader))]

        ways: dict[str, Way | None] = {
            OURS: ours,
            "DataLoader": theirs(DataLoader(table, BATCH, shuffle=True)),
            "DataLoader, whole batches": theirs(DataLoader(table, batch_size=None, sampler=batches)),
        }
        rows += race(Field({"transitions": num}, ways), repeats, _wait(device))
    return rows


def _forever(loader: Any) -> Any:
    while True:
        yield from loader


def imports(device: str, repeats: int) -> list[dict[str, Any]]:
    """A fresh Python that imports what a training needs, and ends."""
    code = {
        OURS: "import neuralsde; neuralsde.NeuralSDE, neuralsde.Trajectories, neuralsde.fit",
        **{name: f"import {name}" for name in ("torch", "torchsde", "diffusers", "statsforecast", "neuralforecast")},
    }
    ways: dict[str, Way | None] = {
        name: None if name != OURS and _missing(name) else _python(line) for name, line in code.items()
    }
    return race(Field({}, ways), repeats)


def _python(code: str) -> Way:
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def _wait(device: str) -> Way:
    return torch.cuda.synchronize if device == "cuda" else lambda: None


COMPARISONS: dict[str, Callable[[str, int], list[dict[str, Any]]]] = {
    "sampling": sampling,
    "training": training,
    "plans": plans,
    "video": films,
    "loading": loading,
    "import": imports,
}


def bench(name: str, output: Path, *, repeats: int = 7, cpu: bool = False) -> list[dict[str, Any]]:
    """Run a comparison; write its rows and a picture beside them."""
    check(name in COMPARISONS, f"There is no comparison {name!r}. Comparisons: {', '.join(COMPARISONS)}.")
    check(repeats >= 1, f"`repeats` must be at least 1. Got {repeats}.")
    device = "cpu" if cpu or not torch.cuda.is_available() else "cuda"
    load = os.getloadavg()[0]
    rows = COMPARISONS[name](device, repeats)
    record = {"command": f"nsde bench {name}", "device": device, "repeats": repeats, "load_before": load, "rows": rows}
    write_results(output, {**record, **provenance()})
    panels: dict[str, list[Contestant]] = {}
    for row in rows:
        if "ms" in row:
            entry = Contestant(row["method"], row["ms"], row["fastest_ms"], row["slowest_ms"])
            panels.setdefault(_setting(row), []).append(entry)
    speeds(panels).savefig(output.with_suffix(".png"))
    return rows


def _setting(row: dict[str, Any]) -> str:
    """What stands before the method: paths and steps, say."""
    return ", ".join(f"{row[k]:,} {k}" for k in list(row)[: list(row).index("method")])


def table(rows: list[dict[str, Any]]) -> str:
    """The rows, for a terminal."""
    lines = []
    for row in rows:
        found = row.get("absent") or (
            f"{row['ms']:10.2f} ms ({row['fastest_ms']:.2f} to {row['slowest_ms']:.2f}), {row['times_ours']:.1f} × ours"
            + (f", {row['kept_mib']:.1f} MiB kept for gradients" if "kept_mib" in row else "")
        )
        lines.append(f"{_setting(row):28} {row['method']:28} {found}")
    return "\n".join(lines)
