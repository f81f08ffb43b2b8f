"""How fast are clips of colliding objects made: scenes simulated and frames drawn per second.

python benchmarks/collisions_rate.py --device cuda --workers 16 --output results/collisions_rate.json
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from neuralsde.experiments.collisions import camera
from neuralsde.experiments.collisions.physics import Scenes, simulate
from neuralsde.experiments.collisions.render import Renderer
from neuralsde.training.run_folder import provenance, write_results

TIMES = np.arange(26) * 25 / 128


def seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median time of a call, until the device is done."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    call()  # memory is reserved and kernels are loaded
    taken = []
    for _ in range(repeats):
        wait()
        began = time.perf_counter()
        call()
        wait()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def physics(num: int, workers: int) -> tuple[dict[str, float], Scenes]:
    """Scenes per second of processor time and of wall time, and how much happens in them."""
    few = min(num, 100)
    simulate([0], TIMES)
    began = time.process_time()
    scenes = simulate(range(few), TIMES)
    values = {"scenes_per_core_second": few / (time.process_time() - began)}
    began = time.perf_counter()
    if num > few or workers > 1:
        scenes = simulate(range(num), TIMES, num_workers=workers)
        values["scenes_per_second"] = num / (time.perf_counter() - began)
    hits = scenes.contacts
    seen = camera.outside(np.stack([hits["x"], hits["y"]], axis=1)) < 0
    per_scene = np.bincount(hits["scene"][seen], minlength=num)
    values |= {
        "share_with_collision_in_view": float((per_scene > 0).mean()),
        "collisions_in_view": per_scene.mean().item(),
    }
    return values, scenes


def rate(scenes: Scenes, size: int, num: int, device: torch.device, compiled: bool, repeats: int) -> dict[str, float]:
    """Frames per second; the states are on the device, as they are in training."""
    num_times = scenes.mask.shape[1]
    parts = (scenes.states, np.repeat(scenes.kinds[:, None], num_times, axis=1), scenes.mask)
    rows = torch.arange(num) % (len(scenes.mask) * num_times)
    states, kinds, mask = (torch.from_numpy(v).flatten(0, 1)[rows].to(device) for v in parts)
    renderer = Renderer(size, device=device)
    if compiled:
        renderer.light = torch.compile(renderer.light, dynamic=False)  # type: ignore[method-assign]
    taken = seconds(lambda: renderer(states, kinds, mask), device, repeats)
    values = {"frames_per_second": num / taken, "frames": num}
    if device.type == "cuda":
        values["peak_gigabytes"] = torch.cuda.max_memory_allocated(device) / 1e9
        torch.cuda.reset_peak_memory_stats(device)
    return values


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("results/collisions_rate.json"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--scenes", type=int, default=1_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--frames", type=int, help="frames of 64 x 64 drawn at a time; a quarter as many of 128 x 128")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="with torch.compile as well")
    args = parser.parse_args()
    device = torch.device(args.device)
    num_frames = args.frames or (32_768 if device.type == "cuda" else 256)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"

    values, scenes = physics(args.scenes, args.workers)
    print(", ".join(f"{k} {v:.3g}" for k, v in values.items()), flush=True)
    drawn = {}
    for compiled in (False, True) if args.compile else (False,):
        for size, num in ((64, num_frames), (128, max(1, num_frames // 4))):
            key = f"{size} compiled" if compiled else str(size)
            drawn[key] = rate(scenes, size, num, device, compiled, args.repeats)
            print(f"{key}: {drawn[key]['frames_per_second']:,.0f} frames/s on {name}", flush=True)
    settings = {"n": args.scenes, "seed": 0, "workers": args.workers, "renderer": name}
    write_results(args.output, {**provenance(), **settings, "physics": values, "frames": drawn})


if __name__ == "__main__":
    main()
