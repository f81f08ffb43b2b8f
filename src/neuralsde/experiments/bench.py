"""Speed beside rivals: one comparison, all contestants in one run, taking turns.

Times are medians of interleaved repeats, with the fastest and the slowest. Speed is a ratio within a run; the load of the
machine is recorded. A rival that is not installed is reported as absent. Nets are those of the defaults, the same for all;
they are not trained, since time does not depend on their weights.
"""

from __future__ import annotations

import os
import statistics
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
from neuralsde.data.trajectories import Trajectories
from neuralsde.models.build import build
from neuralsde.plots.paths import Contestant, speeds
from neuralsde.sde.config import NeuralSDEConfig
from neuralsde.sde.model import NeuralSDE
from neuralsde.solvers.noise import Noise
from neuralsde.training.run_folder import provenance, write_results

DIM, NUM_SEQUENCES, BATCH = 2, 64, 512
OURS = "ours"
Way = Callable[[], Any]
"""One turn of a contestant."""


@dataclass(frozen=True)
class Field:
    """One comparison: a setting, and who takes part; None where a rival is absent."""

    setting: dict[str, Any]
    ways: Mapping[str, Way | None]


def race(field: Field, repeats: int, wait: Way = lambda: None) -> list[dict[str, Any]]:
    """A row for each contestant: milliseconds of interleaved turns, and how many times those of ours."""
    present = {name: way for name, way in field.ways.items() if way is not None}
    took: dict[str, list[float]] = {name: [] for name in present}
    for way in present.values():  # twice: what comes again may be recorded
        way(), way(), wait()
    for _ in range(repeats):
        for name, way in present.items():
            wait()
            began = time.perf_counter()
            way()
            wait()
            took[name].append(1e3 * (time.perf_counter() - began))
    ours = statistics.median(took[OURS])
    rows = []
    for name in field.ways:
        row: dict[str, Any] = {**field.setting, "method": name}
        if name in took:
            ms = statistics.median(took[name])
            row |= {"ms": ms, "fastest_ms": min(took[name]), "slowest_ms": max(took[name]), "times_ours": ms / ours}
        else:
            row["absent"] = "not installed"
        rows.append(row)
    return rows


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
        rows += race(Field({"sequences": NUM_SEQUENCES, "length": length}, ways), repeats, _wait(device))
    return rows


def _pairs_step(data: Trajectories, num: int, device: str) -> Way:
    """Ours: flow, diffusion and denoiser from so many transitions; all of the data, or a minibatch."""
    model: Any = NeuralSDE.for_data(data).to(device).train()
    pairs = data.to(device).transitions()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        noise = Noise.for_step(0, 0, torch.arange(num, device=device))
        optimiser.zero_grad()
        sum(model.loss(pairs.batch(noise), noise).values()).backward()
        optimiser.step()

    return step


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


def _wait(device: str) -> Way:
    return torch.cuda.synchronize if device == "cuda" else lambda: None


COMPARISONS: dict[str, Callable[[str, int], list[dict[str, Any]]]] = {"sampling": sampling, "training": training}


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
        )
        lines.append(f"{_setting(row):28} {row['method']:28} {found}")
    return "\n".join(lines)
