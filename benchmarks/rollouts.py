"""Roll-outs on a GPU, beside the same kernels launched one by one, and beside torchsde with the same nets.

    python benchmarks/rollouts.py --output results/rollouts.json
    python benchmarks/rollouts.py --cpu --output results/rollouts_cpu.json

Perceptrons: one kernel for all nets, steps replayed as a CUDA graph; a short roll-out that comes again is one graph. Frames:
a U-ViT of 256 tokens and four slots, in bf16 as it would be trained, beside float32. All ways draw with the same keys. Times
are medians of interleaved repeats; those of a brief roll-out of one path are of twenty calls in a row. Beside them the largest
difference of states from those of kernels launched one by one, after one step and at the end, in units of the data's standard
deviation. On one core of a CPU: perceptrons alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import neuralsde as nsde
from neuralsde.experiments.bench import rehearse
from neuralsde.experiments.collisions.physics import simulate
from neuralsde.experiments.collisions.render import Renderer
from neuralsde.metrics.video import psnr
from neuralsde.models import sequence
from neuralsde.nets import fused
from neuralsde.nets.config import UViTConfig
from neuralsde.solvers import noise
from neuralsde.solvers.replay import READY
from neuralsde.training.run_folder import provenance, write_results
from neuralsde.video.model import load_video_model
from neuralsde.video.predict import as_values, predict

REPEATS, IN_A_ROW = 3, 20
BRIEF = 100  # steps of one path, up to which calls are timed in a row: what other work leaves in the host's caches is as long
WIDTHS = (192, 512, 768)  # of the U-ViT: 2.4, 37 and 115 million parameters


@contextmanager
def launched() -> Iterator[None]:
    """Every operation of torch on its own."""
    before = sequence.ENOUGH, sequence.SHORT, fused.KERNELS, noise.KERNELS
    sequence.ENOUGH, sequence.SHORT, fused.KERNELS, noise.KERNELS = 10**9, 0, "none", "none"
    try:
        yield
    finally:
        sequence.ENOUGH, sequence.SHORT, fused.KERNELS, noise.KERNELS = before


def timed(draw: Callable[[], Tensor], calls: int = 1) -> tuple[float, Tensor]:
    """Milliseconds of a call, and the paths."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else int
    wait()
    began = time.perf_counter()
    for _ in range(calls):
        paths = draw()
    wait()
    return 1e3 * (time.perf_counter() - began) / calls, paths


def compare(ways: dict[str, Callable[[], Tensor]], scale: float, calls: int = 1) -> dict[str, Any]:
    """Median times of interleaved repeats, after one of each, and how far the paths are from those of the first way."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        rehearse(way, 3 if torch.cuda.is_available() else READY)  # a CUDA graph is recorded at the second call
    paths = {name: timed(way)[1] for name, way in ways.items()}
    for _ in range(REPEATS):
        for name, way in ways.items():
            took[name].append(timed(way, calls)[0])
    first = next(iter(ways))
    row: dict[str, Any] = {f"{name}_ms": float(np.median(values)) for name, values in took.items()}
    row |= {f"{name}_ratio": row[f"{name}_ms"] / row[f"{first}_ms"] for name in ways if name != first}
    if "launched" in ways:
        apart = (paths[first] - paths["launched"]).abs() / scale
        row |= {"apart_one_step": float(apart[:, :, 1].max()), "apart_at_the_end": float(apart[:, :, -1].max())}
    return row


def perceptron(history: int, shared: bool, rng: np.random.Generator, device: str) -> Any:
    """A trained perceptron of two dimensions."""
    x = rng.standard_normal((64, 200, 2)).cumsum(1) * 0.05
    data = nsde.Trajectories.from_arrays(list(x))
    model = nsde.NeuralSDE.for_data(data, history=history, shared=shared)
    return nsde.fit(model, data, config=nsde.TrainConfig(steps=200), options=nsde.RunOptions(progress=False)).to(device)


def by_torchsde(model: Any, num: int, steps: int) -> Callable[[], Tensor] | None:
    """The same nets under torchsde's Euler scheme; None where it is not installed or the nets are shared."""
    try:
        import torchsde
    except ImportError:
        return None
    if model.config.shared or model.config.history > 1:
        return None
    fields = model._fields()

    class Field(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def f(self, t: Tensor, y: Tensor) -> Tensor:
            return fields.flow(y[:, None], None)

        def g(self, t: Tensor, y: Tensor) -> Tensor:
            return fields.log_diffusion(y[:, None], None).exp()

    device = model.scale.mean.device
    times, start = torch.arange(steps + 1.0, device=device), torch.zeros(num, 2, device=device)

    @torch.no_grad()
    def draw() -> Tensor:
        with launched():
            return torchsde.sdeint(Field(), start, times, method="euler", dt=1.0).transpose(0, 1)[:, None]

    return draw


def frames(width: int, rng: np.random.Generator) -> Any:
    """A U-ViT over latents of 16 x 16, its last layer as if something had been learned."""
    x = rng.standard_normal((4, 12, 4, 16, 16)).astype(np.float32)
    data = nsde.Trajectories.from_arrays(list(x))
    net = UViTConfig(width=width)
    model: Any = nsde.NeuralSDE.for_data(data, net=net, history=4, shared=True, noise=0.1, denoiser=None)
    torch.nn.init.normal_(model.nets["trunk"].outward.weight, std=0.02, generator=torch.Generator().manual_seed(0))
    return model.cuda().eval()


def shipped(scenes: Path | None) -> dict[str, Any]:
    """The shipped video model on test clips: the same futures in bf16 and in float32."""
    if scenes is None:
        found = simulate(range(900_000, 900_032), np.arange(26) * 25 / 128)
        states, kinds, mask = (torch.from_numpy(v) for v in (found.states, found.kinds, found.mask))
    else:
        with np.load(scenes) as file:
            states, kinds, mask = (torch.from_numpy(file[name]) for name in ("states", "kinds", "mask"))
    num, length = mask.shape[:2]
    every = kinds[:, None].expand(-1, length, -1, -1)
    draw = Renderer(64, device="cuda")
    clips = draw(states.flatten(0, 1).cuda(), every.flatten(0, 1).cuda(), mask.flatten(0, 1).cuda())
    video = load_video_model(Path(nsde.__file__).parent / "weights" / "video")
    model, autoencoder = video.model.cuda(), video.autoencoder.cuda()
    frames = clips.unflatten(0, (num, length))[:, : video.context + 16]
    times = video.step * torch.arange(frames.shape[1]).expand(num, -1)
    truth = as_values(frames[:, video.context :])
    paths, scores = {}, {}
    for precision in ("no", "bf16"):
        model.precision = precision
        drawn, latents = predict(model, autoencoder, frames, times, context=video.context, seed=0)
        paths[precision], scores[precision] = latents.paths, psnr(drawn[:, 0], truth).mean(1).cpu()
    apart = (paths["bf16"] - paths["no"]).abs() / model.scale.std
    change = scores["bf16"] - scores["no"]
    return {
        "net": "shipped video model",
        "clips": num,
        "rms_one_step": float(apart[:, :, 1].square().mean().sqrt()),
        "rms_at_the_end": float(apart[:, :, -1].square().mean().sqrt()),
        "psnr_float32": float(scores["no"].mean()),
        "psnr_change": float(change.mean()),
        "psnr_change_error": float(change.std() / num**0.5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--scenes", type=Path, help="states of scenes, where they cannot be simulated")
    parser.add_argument("--cpu", action="store_true", help="perceptrons on one core")
    args = parser.parse_args()
    if args.cpu:
        torch.set_num_threads(1)
    rows, rng = [], np.random.default_rng(0)
    sampler = nsde.Sampler(box=None)

    def slow(draw: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def drawn() -> Tensor:
            with launched():
                return draw()

        return drawn

    for history, shared in ((1, False), (1, True), (4, False)):
        model = perceptron(history, shared, rng, "cpu" if args.cpu else "cuda")
        scale = float(model.scale.std.min())
        for num, steps in ((4_096, 100 if args.cpu else 1_000), (64, 1_000), (1, 1_000), (1, 100), (1, 8)):
            times = np.arange(steps + 1.0)
            own = partial(model.sample, np.zeros((1, history, 2)), times, num_paths=num, rng=0, sampler=sampler)
            ways = {"ours": own, "launched": slow(own)}
            other = by_torchsde(model, num, steps)
            if args.cpu and num > 1:  # many steps of many paths take minutes: beside torchsde alone
                if other is None:
                    continue
                del ways["launched"]
            calls = IN_A_ROW if num == 1 and steps <= BRIEF else 1
            row = compare(ways | ({} if other is None else {"torchsde": other}), scale, calls)
            rows.append(
                {
                    "net": "perceptron",
                    "history": history,
                    "shared": shared,
                    "paths": num,
                    "steps": steps,
                    "calls in a row": calls,
                    **row,
                }
            )
            print(rows[-1], flush=True)
    for width in () if args.cpu else WIDTHS:
        model = frames(width, rng)
        millions = sum(p.numel() for p in model.parameters()) / 1e6
        for num in (64, 1):
            given, times = rng.standard_normal((1, 4, 4, 16, 16)), np.arange(33.0)

            def own(
                precision: str, given: Any = given, times: Any = times, num: int = num, model: Any = model
            ) -> Tensor:
                model.precision = precision
                return model.sample(given, times, num_paths=num, rng=0, sampler=sampler)

            row = compare({"ours": partial(own, "bf16"), "launched": slow(partial(own, "no"))}, 1.0)
            row["frames_per_s"] = 1e3 * 32 * num / row["ours_ms"]
            rows.append({"net": "U-ViT", "millions": millions, "paths": num, "steps": 32, **row})
            print(rows[-1], flush=True)
    if not args.cpu:
        rows.append(shipped(args.scenes))
        print(rows[-1], flush=True)
    said = "--cpu " if args.cpu else ""
    record = {"command": f"python benchmarks/rollouts.py {said}--output results/{args.output.name}", "rows": rows}
    write_results(args.output, {**record, **provenance()})


if __name__ == "__main__":
    main()
