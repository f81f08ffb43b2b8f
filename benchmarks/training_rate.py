"""Training steps per second on a GPU: perceptrons, three nets and one that is shared, and U-ViTs of three sizes in bf16.

    python benchmarks/training_rate.py --output results/training_rate.json

Kernels of a step are launched one by one, recorded as a CUDA graph, or recorded with compiled layers. Rates of U-ViTs are those
of the lines of metrics.jsonl after the first two. Operations are those of the products: counted in the forward pass by torch,
twice as many for the gradients. Beside them the rate of one large product in bf16, in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import neuralsde as nsde
from neuralsde.nets.config import UViTConfig
from neuralsde.solvers.noise import Noise
from neuralsde.training.graphs import operations
from neuralsde.training.run_folder import provenance, write_results

BATCH, STEPS, REPEATS = 512, 2_000, 5
WAYS = {
    "three nets": {"shared": False},
    "one shared net": {"shared": True},
}
WIDTHS = (192, 512, 768)  # of the U-ViT: 2.4, 37 and 115 million parameters
FRAMES, LINE, LINES = 256, 10, 5  # transitions in a step; steps of a line of metrics.jsonl, and lines
FORMS: dict[str, dict[str, Any]] = {
    "launched one by one": {"graph": False, "compile": False},
    "recorded": {"graph": True, "compile": False},
    "recorded, compiled": {"graph": True, "compile": True},
}


def rate(data: nsde.Trajectories, steps: int, *, shared: bool, graph: bool) -> float:
    """Steps per second of one training, from a model to a model."""
    model = nsde.NeuralSDE.for_data(data, shared=shared).cuda()
    torch.cuda.synchronize()
    began = time.perf_counter()
    nsde.fit(model, data, steps=steps, batch_size=BATCH, graph=graph, progress=False)
    torch.cuda.synchronize()
    return steps / (time.perf_counter() - began)


def perceptrons() -> list[dict[str, Any]]:
    """Three nets beside one that is shared."""
    walks = np.random.default_rng(0).standard_normal((64, 200, 2)).cumsum(1) * 0.05
    data = nsde.Trajectories.from_arrays(list(walks))
    found: dict[tuple[str, bool], list[float]] = {(name, graph): [] for name in WAYS for graph in (True, False)}
    for turn in range(REPEATS + 1):  # the first is a rehearsal
        for (name, graph), rates in found.items():
            measured = rate(data, STEPS if graph and turn else STEPS // 10, graph=graph, **WAYS[name])
            rates += [measured] if turn else []
    rows: list[dict[str, Any]] = []
    for (name, graph), rates in found.items():
        median, first = statistics.median(rates), statistics.median(found["one shared net", graph])
        row = {"nets": name, "graph": graph, "steps_per_s": median, "slowest": min(rates), "fastest": max(rates)}
        rows.append({**row, "of_shared": median / first})
        print(rows[-1], flush=True)
    return rows


def product_rate(size: int = 8_192, repeats: int = 20) -> float:
    """Operations per second of a product in bf16, at its best."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    took = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        a @ b
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return 2 * size**3 / min(took)


def operations_of_a_row(model: nsde.NeuralSDE, data: nsde.Trajectories, num: int = 8) -> float:
    """Of the products of the losses of a transition."""
    pairs = data.to("cuda").transitions(history=model.config.history)
    noise = Noise.for_step(0, 0, torch.arange(num, device="cuda"))
    return operations(lambda: model.loss(pairs.batch(noise), noise)) / num


def transformers() -> list[dict[str, Any]]:
    """U-ViTs over latents of 16 x 16 with four slots."""
    rng = np.random.default_rng(0)
    data = nsde.Trajectories.from_arrays(list(rng.standard_normal((8, 40, 4, 16, 16)).astype(np.float32)))
    peak, rows = product_rate(), []
    for width in WIDTHS:
        settings: dict[str, Any] = {"net": UViTConfig(width=width), "history": 4, "shared": True, "denoiser": None}
        for form, options in FORMS.items():
            model = nsde.NeuralSDE.for_data(data, **settings).cuda()
            forward = FRAMES * operations_of_a_row(model, data)
            with tempfile.TemporaryDirectory() as folder:
                steps = {"steps": LINE * (LINES + 2), "batch_size": FRAMES, "log_every": LINE, "precision": "bf16"}
                nsde.fit(model, data, run_dir=f"{folder}/run", progress=False, **steps, **options)
                lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
            rates = [json.loads(line)["steps_per_second"] for line in lines[2:]]
            median = statistics.median(rates)
            rows.append(
                {
                    "millions": sum(p.numel() for p in model.parameters()) / 1e6,
                    "kernels": form,
                    "steps_per_s": median,
                    "slowest": min(rates),
                    "fastest": max(rates),
                    "teraflops": 3 * forward * median / 1e12,
                    "of_product": 3 * forward * median / peak,
                }
            )
            print(rows[-1], flush=True)
    return [*rows, {"product_teraflops": peak / 1e12}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    found = {"rows": perceptrons(), "frames": transformers()}
    record = {"command": f"python benchmarks/training_rate.py --output results/{args.output.name}", "batch_size": BATCH}
    write_results(args.output, {**record, "n": REPEATS, "seed": 0, **found, **provenance()})


if __name__ == "__main__":
    main()
