"""Milliseconds per Push-T plan on one CPU core: eager, ONNX, ONNX with 8-bit weights, and Diffusion Policy's U-Net.

    python benchmarks/export.py --output results/export.json

A plan goes from an observation to the next eight actions. The methods take turns, as in `pusht_latency.py`. What is counted
is the time of the processor, all on one thread: on a busy machine the clock would also count the waiting, and long plans wait
more often than short ones. Ours is the policy that comes with the library, exported here; its noise is drawn by numpy inside
the time. The U-Net has the sizes of its recipe and takes ten steps of DDIM. Errors are those of the exported plans against
the eager one on the same noise, over random observations. At the end each plays the same episodes of Push-T.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from pusht_latency import Entrant, digest, entrant, race
from pusht_latency import contenders as all_contenders

from neuralsde.experiments.pusht.rollout import roll_out
from neuralsde.experiments.pusht.sim import SIZE
from neuralsde.export.formats import largest_error
from neuralsde.export.graphs import Graph, policy_graphs
from neuralsde.export.write import export_model
from neuralsde.metrics.imitation import summary
from neuralsde.policy.controller import SDEPolicy
from neuralsde.policy.shipped import shipped
from neuralsde.solvers.noise import Noise
from neuralsde.training.run_folder import provenance, write_results

OURS, ONNX, QUANTISED, RIVAL = "NSDE", "NSDE, ONNX", "NSDE, ONNX, 8-bit weights", "Diffusion Policy, U-Net"
FIRST_SEED = 100_000  # of the episodes
SEED = 5  # of the random observations
BATCHES = (1, 63)


def session_of(file: Path) -> Any:
    """A session of onnxruntime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def with_products(model: Any) -> Any:
    """Layers as product and sum: the tool turns the weights of a `Gemm` round once for every step that shares them."""
    from onnx import helper, numpy_helper

    graph, nodes = model.graph, []
    weights, turned = {w.name: w for w in graph.initializer}, dict[str, Any]()
    for node in graph.node:
        if node.op_type != "Gemm" or node.input[1] not in weights:
            nodes.append(node)
            continue
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        assert (
            given.get("transB") == 1
            and not given.get("transA")
            and {given.get("alpha", 1), given.get("beta", 1)} == {1}
        )
        x, weight, bias = node.input
        name = f"{weight}_turned"
        turned.setdefault(name, numpy_helper.from_array(numpy_helper.to_array(weights[weight]).T.copy(), name))
        product = f"{node.output[0]}_product"
        nodes.append(helper.make_node("MatMul", [x, name], [product]))
        nodes.append(helper.make_node("Add", [product, bias], list(node.output)))
    left = {name for node in nodes for name in node.input}
    kept = [w for w in graph.initializer if w.name in left] + list(turned.values())
    for field, values in ((graph.node, nodes), (graph.initializer, kept), (graph.value_info, [])):
        del field[:]
        field.extend(values)
    return model


def quantise(file: Path) -> Path:
    """The same graph with weights in 8 bits; activations are quantised as they come."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = with_products(onnx.load(file))
    target = file.with_name("quantised.onnx")
    options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(model, target, weight_type=QuantType.QInt8, extra_options=options)
    return target


def plan_entrant(file: Path, observations: np.ndarray, policy: SDEPolicy) -> Entrant:
    """A plan by onnxruntime from one random observation after the other, with noise of its own."""
    session, rng = session_of(file), np.random.default_rng(0)
    shape = (1, len(policy.plan_times), policy.num_actions)
    places = list(policy.config.first_action)

    def plan(k: int) -> np.ndarray:
        seen = observations[k % len(observations)]
        given = {
            "observations": np.stack([seen, seen])[None],
            "previous_action": seen[None, places],
            "noise": rng.standard_normal(shape, dtype=np.float32),
        }
        return session.run(None, given)[0]

    return Entrant(plan)


def run_file(file: Path) -> Callable[..., torch.Tensor]:
    """A function of the inputs."""
    session = session_of(file)
    names = [value.name for value in session.get_inputs()]
    return lambda *inputs: torch.from_numpy(session.run(None, {n: v.numpy() for n, v in zip(names, inputs)})[0])


def errors(graph: Graph, file: Path) -> dict[str, float]:
    """How far plans are off the eager ones: the largest in units of the scale, and in pixels the median and the largest."""
    run, rng, off = run_file(file), torch.Generator().manual_seed(SEED), []
    with torch.no_grad():
        for batch in BATCHES:
            inputs = graph.random(batch, rng)
            off.append((run(*inputs) - graph.check(*inputs)).abs().flatten())
    every = torch.cat(off)
    worst, _ = largest_error(graph, run, BATCHES, SEED)
    return {"max_error": worst, "median_pixels": float(every.median()), "max_pixels": float(every.max())}


class ExportedPolicy(SDEPolicy):
    """The policy of the library, whose plans a file makes from the same noise."""

    session: Any

    @classmethod
    def of(cls, file: Path) -> ExportedPolicy:
        policy = cls.from_pretrained(shipped())
        policy.session = session_of(file)
        return policy

    def plan_from(self, start: np.ndarray, seen: np.ndarray, keys: Noise) -> tuple[np.ndarray, dict[str, int]]:
        num = len(self.plan_times)
        given = {
            "observations": seen.reshape(len(start), self.config.history, -1),
            "previous_action": start,
            "noise": keys.normal(torch.arange(num), (self.num_actions,)).numpy(),
        }
        return self.session.run(None, given)[0], {}


def play(files: dict[str, Path], num_episodes: int) -> dict[str, Any]:
    """Scores over the same seeds, with their intervals; plain plans are those of the eager policy."""
    seeds, kind = range(FIRST_SEED, FIRST_SEED + num_episodes), SDEPolicy.from_pretrained(shipped()).observation
    makers: dict[str, Callable[[], Any]] = {OURS: partial(SDEPolicy.from_pretrained, shipped())}
    makers |= {label: partial(ExportedPolicy.of, file) for label, file in files.items()}
    found = {}
    for label, make in makers.items():
        found[label] = summary(roll_out(make, seeds, observe_kind=kind, batch_size=32).episodes)  # type: ignore[arg-type]
    return found


def measure(folder: Path, rounds: int, slow_rounds: int, num_episodes: int) -> dict[str, Any]:
    """Rows of the results file."""
    policy = SDEPolicy.from_pretrained(shipped())
    rivals = {label: p for label, p in all_contenders((), shipped()).items() if label in (OURS, RIVAL)}
    plain = export_model(policy, folder / "pusht").folder / "plan.onnx"
    files = {ONNX: plain, QUANTISED: quantise(plain)}
    size = policy.num_features
    seen = np.random.default_rng(0).uniform(0, SIZE, (64, size)).astype(np.float32)
    entrants = {label: entrant(each, "cpu") for label, each in rivals.items()}
    entrants |= {label: plan_entrant(file, seen, policy) for label, file in files.items()}
    race(entrants, rounds, slow_rounds, clock=time.thread_time)
    rows: dict[str, Any] = digest(entrants)
    graph = policy_graphs(policy)["plan"]
    for label, file in files.items():
        rows[label] |= {"megabytes": file.stat().st_size / 2**20, **errors(graph, file)}
        paired = [a / b for a, b in zip(entrants[OURS].seconds, entrants[label].seconds)]
        low, high = np.percentile(paired, [25, 75]).tolist()
        rows[label]["faster_than_eager"] = {"median": statistics.median(paired), "quartiles": [low, high]}
    for label, scores in (play(files, num_episodes) if num_episodes else {}).items():
        rows[label]["episodes"] = scores
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/export.json"))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--slow-rounds", type=int, default=20, help="rounds of methods that take 0.1 s or more")
    parser.add_argument("--episodes", type=int, default=100, help="episodes of Push-T, the same for each; 0: none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(Path(scratch), args.rounds, args.slow_rounds, args.episodes)
    for label, row in sorted(rows.items(), key=lambda r: r[1]["p50_ms"]):
        print(f"{label}: {row['p50_ms']:.3g} ms ({row['p95_ms']:.3g}), × {row['ratio']:.3g}")
    command = f"python benchmarks/export.py --rounds {args.rounds} --slow-rounds {args.slow_rounds} --episodes {args.episodes}"
    config = {"rounds": args.rounds, "slow_rounds": args.slow_rounds, "threads": 1, "seed": SEED, "plans": sum(BATCHES)}
    config |= {"episodes": args.episodes, "first_seed": FIRST_SEED}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    source = {"command": command, "config": config, **provenance(), "load_before": load}
    write_results(args.output, {**source, "rows": rows})
    print(f"Wrote {args.output}")


if __name__ == "__main__":
    main()
