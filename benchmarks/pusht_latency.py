"""Milliseconds per plan for one episode: the Neural SDE and its rivals on Push-T, on one CPU core and on a GPU if there is one.

    python benchmarks/pusht_latency.py --output results/pusht_latency.json

A plan is one call of `select_action` that plans: from an observation to the next eight actions, or to one action where a
method plans no more (`num_actions`). Latency does not depend on the weights: nets are those of the recipes, built for a few
random episodes; ours is the policy that comes with the library, if it is there, or that of --policy. Methods take turns, so
that a machine that is busy is so for all. A quick method rehearses each turn: the others have emptied the caches. Then each
quick one makes as many plans in a row, as on a robot of its own (`alone_ms`, the median).
What the file knows of another device stays (`--devices gpu` on another machine, say).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neuralsde.experiments.bench import random_demonstrations, untrained_policy
from neuralsde.experiments.config import Variant
from neuralsde.experiments.pusht.sim import observe
from neuralsde.experiments.recipes.pusht import comparison
from neuralsde.experiments.tasks.pusht import act_as
from neuralsde.policy.controller import SDEPolicy
from neuralsde.policy.shipped import shipped
from neuralsde.solvers.replay import READY
from neuralsde.training.run_folder import provenance, write_results

OURS = "NSDE"
SLOW = 0.1
"""Seconds from which a plan is slow: it is timed in fewer rounds, and needs no rehearsal."""


def shipped_policy() -> Path | None:
    """The trained policy that comes with the library, if this copy has it."""
    try:
        return shipped()
    except ValueError:
        return None


def contenders(also: tuple[str, ...] = (), trained: Path | None = None) -> dict[str, SDEPolicy]:
    """The method and its rivals under the names of the results table, and those of its variants named by `also`.

    Of rows that differ in their training alone, the first.
    """
    demos, found, known_plans = random_demonstrations(), {}, []
    for label, run in comparison().items():
        plans = (run.model, run.task.policy, run.task.observation)
        if label not in also and (plans in known_plans or (label.startswith(OURS) and label != OURS)):
            continue
        known_plans.append(plans)
        variants = [Variant(name="")] + [v for v in run.task.variants if v.generation is not None]
        with tempfile.TemporaryDirectory() as scratch:
            known = trained is not None and label == OURS
            folder = str(trained) if known else str(untrained_policy(run, demos).save_pretrained(scratch))
            for variant in variants:
                found[f"{label}, {variant.name}" if variant.name else label] = act_as(folder, variant)
    return found


@dataclass
class Entrant:
    """A method in the race."""

    plan: Callable[[int], Any]
    """Make plan number k; what it needs beforehand is done by `prepare`."""
    prepare: Callable[[int], Any] = lambda k: None
    seconds: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    slow: bool = False

    def turn(self, k: int, clock: Callable[[], float]) -> float:
        """One timed plan."""
        self.prepare(k)
        began = clock()
        self.plan(k)
        return clock() - began


def race(
    entrants: Mapping[str, Entrant], rounds: int, slow_rounds: int, clock: Callable[[], float] = time.perf_counter
) -> None:
    """All take turns; slow ones in `slow_rounds` of the rounds, evenly spread. At the end the quick ones go alone."""
    for entrant in entrants.values():
        for k in range(READY):  # what is built on first use, and what is recorded; the last turn counts
            entrant.slow = entrant.turn(k, clock) > SLOW
    for k in range(rounds):
        now_slow = k * slow_rounds // rounds != (k - 1) * slow_rounds // rounds
        for entrant in entrants.values():
            if not entrant.slow:
                entrant.turn(2 * k, clock)
            if not entrant.slow or now_slow:
                entrant.seconds.append(entrant.turn(2 * k + 1, clock))
    for entrant in entrants.values():
        if not entrant.slow:
            entrant.alone = [entrant.turn(k, clock) for k in range(rounds)]


def entrant(policy: SDEPolicy, device: str) -> Entrant:
    """A policy on a device, given one random observation after the other."""
    policy.model.to(device)
    seen = observe(random_demonstrations().observations["state"], policy.observation)  # type: ignore[arg-type]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def prepare(k: int) -> None:
        policy.reset([k])
        wait()

    def plan(k: int) -> None:
        policy.select_action(seen[k % len(seen)])
        wait()

    return Entrant(plan, prepare)


def digest(entrants: Mapping[str, Entrant]) -> dict[str, dict[str, float]]:
    """Percentiles, and how many times the median of ours."""
    ours = entrants.get(OURS)
    base = None if ours is None else statistics.median(ours.seconds)
    out = {}
    for label, each in entrants.items():
        middle, late = np.percentile(each.seconds, [50, 95]).tolist()
        out[label] = {"p50_ms": 1e3 * middle, "p95_ms": 1e3 * late, "n": len(each.seconds)}
        out[label] |= {} if base is None else {"ratio": middle / base}
        out[label] |= {"alone_ms": 1e3 * statistics.median(each.alone)} if each.alone else {}
    return out


def measure(
    policies: Mapping[str, SDEPolicy], rounds: int, slow_rounds: int, devices: Sequence[str] = ("cpu",)
) -> dict[str, Any]:
    """Rows of the results file."""
    rows: dict[str, Any] = {}
    for name in devices:
        place = "cuda" if name == "gpu" else name
        entrants = {label: entrant(policy, place) for label, policy in policies.items()}
        race(entrants, rounds, slow_rounds)
        for label, found in digest(entrants).items():
            rows.setdefault(label, {})[name] = found
    for label, policy in policies.items():
        rows[label]["num_actions"] = policy.config.chunk
        rows[label]["network_passes"] = sum(policy.nfe.values())
        rows[label]["parameters"] = sum(p.numel() for p in policy.model.parameters())
    return rows


def merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Two files of results: of a device that both have measured, the later."""
    runs = {**before.get("runs", {}), **now["runs"]}
    rows = {label: {**before.get("rows", {}).get(label, {}), **row} for label, row in now["rows"].items()}
    for label, row in before.get("rows", {}).items():
        kept = {name: found for name, found in row.items() if name not in now["runs"]}
        if label not in rows and any(name in kept for name in runs):
            rows[label] = kept
    return {"runs": runs, "rows": rows}


def table(rows: Mapping[str, Any]) -> str:
    """The rows as Markdown."""
    lines = ["| method | actions per plan | network passes | ms per plan: p50 (p95), × ours |", "|---|---|---|---|"]
    for label, row in rows.items():
        times = "; ".join(
            f"{device} {row[device]['p50_ms']:.3g} ({row[device]['p95_ms']:.3g}), × {row[device].get('ratio', 1):.3g}"
            + (f", alone {row[device]['alone_ms']:.3g}" if "alone_ms" in row[device] else "")
            for device in ("cpu", "gpu")
            if device in row
        )
        lines.append(f"| {label} | {row['num_actions']} | {row['network_passes']} | {times} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/pusht_latency.json"))
    parser.add_argument("--policy", type=Path, default=shipped_policy(), help="folder of the policy timed as ours")
    parser.add_argument("--also", nargs="*", default=[], help="further rows of the comparison, by name")
    parser.add_argument("--only", nargs="*", default=[], help="only rows whose name contains one of these")
    there = ["cpu"] + (["gpu"] if torch.cuda.is_available() else [])
    parser.add_argument("--devices", nargs="+", choices=there, default=there)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--slow-rounds", type=int, default=10, help="rounds of methods that take 0.1 s or more")
    args = parser.parse_args()
    torch.set_num_threads(1)
    policies = {
        label: policy
        for label, policy in contenders(tuple(args.also), args.policy).items()
        if not args.only or any(text in label for text in args.only)
    }
    if not policies:
        raise SystemExit(f"No row contains {' or '.join(args.only)}. Rows: {'; '.join(comparison())}.")
    load = os.getloadavg()[0]
    rows = measure(policies, args.rounds, args.slow_rounds, args.devices)
    print(table(rows))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    source = {**provenance(), "load_before": load, "trained_policy": args.policy is not None}
    before = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {}
    write_results(args.output, merged(before, {"runs": dict.fromkeys(args.devices, source), "rows": rows}))
    print(f"Wrote {args.output}")


if __name__ == "__main__":
    main()
