"""Push-T: a policy learned from demonstrations, scored in simulation (the paper's Section 4.2).

The *score* is the mean over episodes of the best reward, coverage / 0.95 up to 1: what the literature calls success rate.
Strict *success* is a coverage above 0.95.
"""

from __future__ import annotations

import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

from neuralsde.config import PushTConfig
from neuralsde.data.demonstrations import Demonstrations
from neuralsde.data.imitation import read_demonstrations
from neuralsde.metrics.imitation import summary
from neuralsde.policy import SDEPolicy, action_paths
from neuralsde.sequence import SequenceModel
from neuralsde.tasks.pusht_rollout import Conditions, Rollout, roll_out
from neuralsde.tasks.pusht_sim import SIZE, observe
from neuralsde.trajectories import Trajectories

DT = 0.1
"""Time between the instants of the demonstrations."""


@cache
def _read(path: str) -> Demonstrations:
    return read_demonstrations(path, observations=["state"], dt=DT)


def demonstrations(config: PushTConfig) -> Demonstrations:
    """The recorded episodes."""
    if not Path(config.data).exists():
        raise ValueError(f"{config.data} does not exist. `nsde data pusht` makes it; --task.data names another place.")
    demos = _read(str(config.data))
    if config.num_demonstrations is None:
        return demos
    if config.num_demonstrations > len(demos):
        raise ValueError(f"There are {len(demos)} demonstrations. Got num_demonstrations={config.num_demonstrations}.")
    return demos.take(range(config.num_demonstrations))


def data(config: PushTConfig, seed: int = 0) -> Trajectories:
    """Paths of actions with what was seen before them."""
    demos = demonstrations(config)
    return action_paths(demos, observe(demos.observations["state"], config.observation), config.policy)


def policy(model: SequenceModel, config: PushTConfig) -> SDEPolicy:
    """The model as a controller."""
    limits = ([0.0, 0.0], [float(SIZE), float(SIZE)])
    demos = demonstrations(config)
    return SDEPolicy.for_demonstrations(model, config.policy, demos, limits=limits, observation=config.observation)


def evaluate(
    folder: str | Path,
    seeds: range,
    *,
    conditions: Conditions | None = None,
    num_workers: int = 2,
    progress: bool = False,
    **changes: Any,
) -> Rollout:
    """Episodes of the policy in a folder; `changes` are fields of its `PolicyConfig`, or its model's `sampler`."""
    conditions = conditions or Conditions()
    kind = SDEPolicy.from_pretrained(folder).observation
    make = partial(_load, str(folder), 1 / conditions.control_hz, changes)
    return roll_out(
        make, seeds, observe_kind=kind, conditions=conditions, num_workers=num_workers, batch_size=32, progress=progress
    )


def _load(folder: str, control_dt: float, changes: dict[str, Any]) -> SDEPolicy:
    sampler = changes.get("sampler")
    rest = {k: v for k, v in changes.items() if k != "sampler"}
    loaded = SDEPolicy.from_pretrained(folder, control_dt=control_dt, **rest)
    if sampler is not None:
        loaded.model.sampler = sampler
    return loaded


def assess(model: SequenceModel, config: PushTConfig, *, seed: int = 0) -> tuple[dict[str, Any], None]:
    """Score and success over the seeds of the config."""
    with tempfile.TemporaryDirectory() as folder:
        policy(model, config).save_pretrained(folder)
        seeds = range(config.first_seed, config.first_seed + config.num_episodes)
        rollout = evaluate(folder, seeds, num_workers=config.num_workers)
    scores = summary(rollout.episodes)
    if rollout.failures:
        raise ValueError(f"{len(rollout.failures)} batch(es) of episodes were lost: {rollout.failures[0].message}")
    parameters = sum(p.numel() for p in model.parameters())
    return {**scores, "parameters": parameters}, None
