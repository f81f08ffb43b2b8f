"""Push-T: a policy learned from demonstrations, scored in simulation (the paper's Section 4.2).

The *score* is the mean over episodes of the best reward, coverage / 0.95 up to 1: what the literature calls success rate.
Strict *success* is a coverage above 0.95.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from neuralsde.baselines.config import NOISE_LEVELS, DDIMConfig
from neuralsde.core.files import sha256_of_file
from neuralsde.core.records import RunError, check
from neuralsde.data.robots.demonstrations import Demonstrations
from neuralsde.data.robots.read import read_demonstrations
from neuralsde.data.trajectories import Trajectories
from neuralsde.experiments.config import PushTConfig, Variant
from neuralsde.experiments.pusht import sim
from neuralsde.experiments.pusht.rollout import Conditions, Rollout, roll_out
from neuralsde.experiments.pusht.sim import OBSERVATION_SIZE, SIZE, ObservationKind
from neuralsde.experiments.task import Scores, Task
from neuralsde.metrics.imitation import summary
from neuralsde.models.saving import read_model
from neuralsde.models.sequence import SequenceModel
from neuralsde.policy.controller import SDEPolicy, action_paths

DT = 0.1  # time between the instants of the demonstrations


@cache
def _read(path: str) -> Demonstrations:
    return read_demonstrations(path, observations=["state"], dt=DT)


def evaluate(
    folder: str | Path,
    seeds: Sequence[int],
    *,
    variant: Variant | None = None,
    num_workers: int = 2,
    progress: bool = False,
    device: str = "cpu",
) -> Rollout:
    """Episodes of the policy in a folder, one per seed; large nets think faster on a `device` like "cuda"."""
    variant = variant or Variant(name="")
    kind = SDEPolicy.from_pretrained(folder).observation
    if kind not in OBSERVATION_SIZE:
        raise ValueError(f"{folder} does not act on Push-T: it observes {kind!r}, not {', '.join(OBSERVATION_SIZE)}.")
    make, world = partial(act_as, str(folder), variant, device), conditions(variant)
    how: dict[str, Any] = {"num_workers": num_workers, "batch_size": 32, "progress": progress}
    return roll_out(make, seeds, observe_kind=cast(ObservationKind, kind), conditions=world, **how)


def conditions(variant: Variant) -> Conditions:
    """The world of a variant."""
    return Conditions(noise=variant.noise, delay=variant.delay, push=variant.push, control_hz=variant.control_hz)


def act_as(folder: str, variant: Variant, device: str = "cpu") -> SDEPolicy:
    """The policy in a folder, run as the variant says."""
    changes: dict[str, Any] = {} if variant.chunk is None else {"chunk": variant.chunk}
    sampler: dict[str, Any] = {k: v for k in ("diffusion", "pull") if (v := getattr(variant, k)) is not None}
    if variant.generation is not None:
        config = read_model(folder).config
        if not isinstance(config, DDIMConfig):
            raise ValueError(f"`generation` is for diffusion models. Got a {type(config).__name__}.")
        steps = NOISE_LEVELS if variant.generation == "ddpm" else 10
        sampler |= {"variant": variant.generation, "num_steps": steps}
    changes |= {"control_dt": 1 / variant.control_hz, "sampler": sampler, "device": device}
    return SDEPolicy.from_pretrained(folder, **changes)


class PushTTask(Task[PushTConfig]):
    """Demonstrations to imitate, and the scores of the policy in simulation."""

    def demonstrations(self) -> Demonstrations:
        """The recorded episodes, and their mirror images if asked for."""
        file, num = self.config.data, self.config.num_demonstrations
        if not Path(file).exists():
            raise ValueError(f"{file} does not exist. `nsde data pusht` makes it; --task.data names another place.")
        demos = _read(str(file))
        if num is not None:
            check(num <= len(demos), f"There are {len(demos)} demonstrations. Got num_demonstrations={num}.")
            demos = demos.take(range(num))
        if not self.config.mirror:
            return demos
        state = sim.mirrored(demos.observations["state"]).astype(np.float32)
        return demos.with_more(replace(demos, observations={"state": state}, actions=SIZE - demos.actions[:, ::-1]))

    def data(self, seed: int = 0) -> Trajectories:
        """Paths of actions with what was seen before; images in half precision, which has room for bytes and quarter pixels."""
        sim.gym_pusht()  # what will score the policy; an error now, not after the training
        config, demos = self.config, self.demonstrations()
        states = demos.observations["state"]
        if config.observation != "image":
            return action_paths(demos, sim.observe(states, config.observation), config.policy)
        images = sim.demonstration_images(config.data, _read(str(config.data)).observations["state"])
        if config.mirror:
            images = images[: len(states) // 2]
            images = np.concatenate([images, images[:, ::-1, ::-1].swapaxes(1, 2)])
        return action_paths(demos, sim.with_images(states, images[: len(states)], np.float16), config.policy)

    def checksums(self) -> dict[str, str]:
        return {"demonstrations_sha256": sha256_of_file(self.config.data)}

    def policy(self, model: SequenceModel) -> SDEPolicy:
        limits = ([0.0, 0.0], [float(SIZE), float(SIZE)])
        kind = self.config.observation
        demos = self.demonstrations()
        return SDEPolicy.for_demonstrations(model, self.config.policy, demos, limits=limits, observation=kind)

    def save(self, model: SequenceModel, folder: Path) -> None:
        self.policy(model).save_pretrained(folder)

    def score(self, model: SequenceModel, seed: int = 0) -> Scores:
        """Score and success over the seeds of the config, as the policy is and as its variants, on the model's device."""
        config, device = self.config, str(model.scale.mean.device)
        seeds = range(config.first_seed, config.first_seed + config.num_episodes)
        scores: dict[str, Any] = {"num_episodes": len(seeds), "parameters": sum(p.numel() for p in model.parameters())}
        with tempfile.TemporaryDirectory() as folder:
            self.save(model, Path(folder))
            for variant in (Variant(name=""), *config.variants):
                rollout = evaluate(folder, seeds, variant=variant, device=device)
                if rollout.failures:
                    lost = sum(len(failure.seeds) for failure in rollout.failures)
                    raise RunError(f"{lost} of {len(seeds)} episodes were lost. {rollout.failures[0].message}")
                found, prefix = summary(rollout.episodes), f"{variant.name}: " if variant.name else ""
                for key in ("score", "success", "final_coverage"):
                    scores[f"{prefix}{key}"] = found[key]["mean"]
                scores[f"{prefix}score_half_width"] = found["score"]["ci95"]
        return Scores(scores)
