"""A sequence model as a controller: what it learns from demonstrations, and how it acts.

The model is an SDE *over the action path*: it starts at the previous action and moves from one action to the next, given
the last observations and the time since the plan began. A plan is drawn in one go, part of it is carried out, and the
next plan starts where that part ended: plans join without a jump. Times are physical, so a policy can be run at another
rate than that of the demonstrations. Models that draw a whole plan at once (Diffusion Policy) fit the same controller:
their state is the plan.
"""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from neuralsde.core.doors import Positive, Range, Seed, door
from neuralsde.core.files import read_document
from neuralsde.core.records import check, from_dict, in_short, to_dict, with_settings
from neuralsde.data.arrays import Device, as_array, as_tensor
from neuralsde.data.robots.demonstrations import Demonstrations
from neuralsde.data.trajectories import Trajectories
from neuralsde.models.build import load
from neuralsde.models.config import Drawing
from neuralsde.models.hub import local_folder, push
from neuralsde.models.sequence import SequenceModel
from neuralsde.policy.config import PolicyConfig
from neuralsde.solvers.noise import PATH, Noise

RECORD = "policy.json"
FIELDS: dict[str, Any] = {
    "config": PolicyConfig,
    "limits": None,  # two lists of numbers; they may be infinite
    "default_action": tuple[float, ...],
    "levels": None,  # lists of numbers, by entry
    "observation": str,
}
"""What the record of a policy holds."""
Limits = Annotated[Sequence[Any], Range("two: lowest and highest", lambda v: len(v) == 2)]
"""Lowest and highest actions."""

MAX_ENTRIES = 2**28  # numbers of rows in the histories and plans of all instants
MAX_PLAN = 1_000_000  # actions of a plan
MAX_LEVELS = 16  # values that a discrete entry of the action may take
MAX_UNEVEN = 0.1  # how far gaps may be off the usual one where times cannot be kept


@door
def action_paths(demonstrations: Demonstrations, observations: Any, config: PolicyConfig) -> Trajectories:
    """One path per instant: the previous action and those to come, with the last observations as context.

    Plans that would outlast the episode hold its last action. `observations` (L, C) is what the policy will see; it is kept
    once, as it is if uint8 or float16. Times are those recorded.
    """
    if isinstance(observations, Mapping):
        raise ValueError(
            f"`observations` must be one array (L, C). Got arrays by name: {', '.join(map(str, observations))}. Pass one of "
            "them, or several joined: np.concatenate([d.observations[name] for name in names], 1)."
        )
    seen, num = _observed(observations), len(demonstrations.actions)
    most = MAX_ENTRIES // max(1, num)
    if max(config.history, config.horizon + 1) > most:
        remedy = f"Got {config.history=}, {config.horizon=}. At most {most} for {num:,} instants."
        raise ValueError(f"`history` and `horizon` are kept for every instant. {remedy}")
    if seen.ndim != 2 or len(seen) != num:
        raise ValueError(f"`observations` must have one row (C,) per instant, {num}. Got {tuple(seen.shape)}.")
    _levels(demonstrations, config)
    actions = torch.from_numpy(demonstrations.actions)
    rows = demonstrations.rows_around(1, config.horizon)
    plans = actions[torch.from_numpy(rows)]
    starts = torch.from_numpy(demonstrations.starts)
    plans[starts, 0] = _first_actions(seen[starts], actions[starts], config)
    if config.form == "state":
        whole = torch.cat([seen.float(), plans[:, 0]], dim=1)
        return Trajectories(whole, torch.from_numpy(demonstrations.times), torch.from_numpy(demonstrations.lengths))
    if config.form == "path":
        length, states = config.horizon + 1, plans.flatten(0, 1)
        times = _path_times(demonstrations, config.horizon)
    else:
        length, times = 2, np.tile([0.0, _even_step(demonstrations)], num)
        states = torch.stack([plans[:, :1].expand(-1, config.horizon, -1), plans[:, 1:]], dim=1).flatten(0, 1)
    context_rows = torch.from_numpy(demonstrations.rows_around(config.history - 1, 1))
    return Trajectories(
        states=states,
        times=torch.from_numpy(times),
        lengths=torch.full((num,), length),
        context=seen if seen.dtype in (torch.uint8, torch.float16) else seen.float(),  # images stay small
        context_rows=context_rows.repeat_interleave(length, 0),
    )


def _observed(values: Any) -> Tensor:
    """Observations as they are kept: images as uint8."""
    array = as_array(values, "observations")
    tensor = as_tensor(array, "observations", torch.uint8 if array.dtype == np.uint8 else torch.float32, "cpu")
    if array.dtype == np.float16:
        tensor = tensor.half()
    if tensor.dtype != torch.uint8 and not bool(torch.isfinite(tensor).all()):
        raise ValueError("`observations` must be finite. Got NaN or infinity. Drop or mend those episodes.")
    return tensor


def _first_actions(observations: Tensor, actions: Tensor, config: PolicyConfig) -> Tensor:
    """What stands for the action before the first; `observations` and `actions` are those of the first instants."""
    if not config.first_action:
        return actions.mean(0).expand(len(observations), -1)
    if len(config.first_action) != actions.shape[1] or max(config.first_action) >= observations.shape[1]:
        raise ValueError(
            f"`first_action` must name one entry of the {observations.shape[1]} observed ones for each of the "
            f"{actions.shape[1]} of an action. Got {config.first_action}."
        )
    return observations[:, list(config.first_action)].float()


def _path_times(demonstrations: Demonstrations, horizon: int) -> np.ndarray:
    """(L (horizon + 1),): when each action of a path was done, since the one before it; beyond the episode at its usual pace."""
    step, rows = demonstrations.step, np.arange(len(demonstrations.actions))[:, None] + np.arange(-1, horizon)[None]
    held = demonstrations.rows_around(1, horizon)
    places = np.round(demonstrations.times / step, 6)[held] + (rows - held)  # even stamps give whole numbers
    return ((places - places[:, :1]) * step).flatten()


def _even_step(demonstrations: Demonstrations) -> float:
    """The time between instants; plans that are drawn at once have no other."""
    gaps, step = np.diff(demonstrations.times), demonstrations.step
    off = np.abs(gaps / step - 1)[gaps > 0]
    if len(off) and off.max() > MAX_UNEVEN:
        raise ValueError(
            f"form='chunk' takes actions that are evenly spaced. Got gaps up to {100 * off.max():.0f} % off the usual {step:g}. "
            "Use form='path', which takes any, or resample."
        )
    return step


def _levels(demonstrations: Demonstrations, config: PolicyConfig) -> dict[int, np.ndarray]:
    """The values of each discrete entry of the action."""
    levels, num = {}, demonstrations.actions.shape[1]
    for k in config.discrete:
        if not 0 <= k < num:
            raise ValueError(f"`discrete` must name some of the {num} entries of an action, from 0 on. Got {k}.")
        levels[k] = np.unique(demonstrations.actions[:, k])
        if len(levels[k]) > MAX_LEVELS:
            raise ValueError(f"`discrete` names entry {k} of the action, which takes {len(levels[k])} values.")
    return levels


class SDEPolicy:
    """Acts in many episodes at once: `reset`, then `select_action` at every instant.

    All randomness of an episode is a function of its seed, whatever runs beside it.
    """

    @door
    def __init__(
        self,
        model: SequenceModel,
        config: PolicyConfig,
        *,
        limits: Limits,
        default_action: Any,
        levels: Mapping[int, Any] | None = None,
        observation: str = "",
        control_dt: Positive | None = None,
        sampler: Drawing = None,
    ) -> None:
        """Use `for_demonstrations`, or `from_pretrained`; this takes what they measured."""
        self.model = model.eval()
        self.config = config
        self.default_action = _numbers("default_action", default_action)
        low, high = (_numbers("limits", v, len(self.default_action)) for v in limits)
        wrong = np.flatnonzero(~(low <= high)).tolist()
        check(
            not wrong, f"`limits` must be the lowest and the highest action. Got {low} and {high}: see entry {wrong}."
        )
        self.limits = (low, high)
        self.levels = {int(k): _numbers("levels", v) for k, v in (levels or {}).items()}
        self.sampler = sampler
        """How plans are drawn; None: as the model's sampler says."""
        self.observation = observation
        """Name of what it observes, for those who run it."""
        self.num_actions = len(self.default_action)
        self.num_features = self._check_model()
        for name, entries, num in (
            ("first_action", config.first_action, self.num_features),
            ("levels", self.levels, self.num_actions),
        ):
            known = all(0 <= k < num for k in entries)
            check(known, f"`{name}` must name entries from 0 to {num - 1}. Got {list(entries)}.")
        first = config.first_action
        check(len(first) in (0, self.num_actions), f"`first_action` must name {self.num_actions}. Got {first}.")
        self.control_dt = self.dt if control_dt is None else float(control_dt)
        """Time between two actions; that of the demonstrations unless told otherwise."""
        if not 1 <= config.chunk * self.dt / self.control_dt + 1 <= MAX_PLAN:
            raise ValueError(f"`control_dt` must give plans of at most {MAX_PLAN:,} actions. Got {control_dt=}.")
        self.reset()

    @classmethod
    @door
    def for_demonstrations(
        cls,
        model: SequenceModel,
        config: PolicyConfig,
        demonstrations: Demonstrations,
        *,
        limits: Limits | None = None,
        observation: str = "",
    ) -> SDEPolicy:
        """A controller with the limits and discrete values of these actions; `limits` may be wider, as the robot's are."""
        actions = demonstrations.actions
        return cls(
            model,
            config,
            limits=(actions.min(0), actions.max(0)) if limits is None else limits,
            default_action=actions[demonstrations.starts].mean(0),  # what comes later would tell it that it is late
            levels=_levels(demonstrations, config),
            observation=observation,
        )

    @property
    def dt(self) -> float:
        """Time between the actions of the demonstrations."""
        return self.model.scale.step

    @door
    def reset(self, seeds: Seed | Sequence[Seed] | None = None) -> None:
        """Begin one episode per seed, of which there may be one or several (None: one, with a new seed)."""
        seeds = int.from_bytes(os.urandom(7), "big") if seeds is None else seeds
        numbers = [int(seed) for seed in (seeds if isinstance(seeds, Sequence) else [seeds])]
        if not numbers:
            raise ValueError("`seeds` must hold at least one. Got none.")
        self.keys = Noise.for_seeds(numbers)
        self.seen: list[np.ndarray] = []
        self.left = np.zeros((len(numbers), 0, self.num_actions), np.float32)
        self.plan: np.ndarray | None = None
        """The actions (B, n, A) that the last call of `select_action` planned; None if it went on with an earlier plan."""
        self.nfe: dict[str, int] = {}
        """Network passes of the last plan, by net."""
        self.num_plans = 0
        self.previous: np.ndarray | None = None

    def select_action(self, observations: Any) -> np.ndarray:
        """The next action (A,) of one episode that sees (C,), or (B, A) of all that see (B, C)."""
        if isinstance(observations, Mapping):
            raise ValueError(
                f"`observations` must be an array. Got arrays by name: {', '.join(map(str, observations))}. Join them as "
                "for `action_paths`."
            )
        with np.errstate(over="ignore"):
            seen = np.array(as_array(observations, "observations"), np.float32)  # a copy: callers reuse their buffers
        single = seen.ndim == 1
        seen = seen[None] if single else seen
        if seen.shape != (len(self.keys), self.num_features):
            raise ValueError(
                f"`observations` must have shape {(len(self.keys), self.num_features)}: {len(self.keys)} episode(s) begun by "
                f"`reset`, {self.num_features} features (with history={self.config.history}). Got {seen.shape}."
            )
        if not np.isfinite(seen).all():
            row, k = (int(i) for i in np.argwhere(~np.isfinite(seen))[0])
            raise ValueError(
                f"`observations` must be finite. Got [{row}, {k}]={seen[row, k]}. Hold the last good one, or stop the robot."
            )
        keep = 1 + math.ceil((self.config.history - 1) * self.dt / self.control_dt - 1e-9)
        self.seen = [*self.seen[-keep:], seen]
        self.plan = None
        if not self.left.shape[1]:
            self.left = self.plan = self.draw_plan()
        action, self.left = self.left[:, 0], self.left[:, 1:]
        self.previous = action
        return (action[0] if single else action).copy()  # the next plan starts here, whatever is done to it outside

    @torch.no_grad()
    def draw_plan(self) -> np.ndarray:
        """The next (B, n, A) actions: those of `chunk` data steps, at the rate of control."""
        if not self.seen:
            raise ValueError("`draw_plan` needs what is seen. Got no observation since `reset`. Call `select_action`.")
        keys = self.keys.child(self.num_plans)
        self.num_plans += 1
        context = self.seen[-1] if self.config.form == "state" else self._context()
        plan, self.nfe = self.plan_from(self._start(), context, keys)
        return plan

    @property
    def plan_times(self) -> list[float]:
        """When the actions of a plan are done, since the action before it."""
        dt = self.dt
        num = max(1, round(self.config.chunk * dt / self.control_dt))
        return [dt + self.control_dt * k for k in range(num)]  # in the data, one step after the previous action

    @property
    def plan_start(self) -> float:
        """The time of the action before the plan, in the time of the demonstrations."""
        return 0.0 if self.config.form == "chunk" else max(0.0, self.dt - self.control_dt)

    @torch.no_grad()
    def plan_from(self, start: np.ndarray, seen: np.ndarray, keys: Noise) -> tuple[np.ndarray, dict[str, int]]:
        """Actions (B, n, A) after the actions `start` (B, A), and the network passes that they took.

        `seen` (B, H C) holds the last observations, one data step apart and the oldest first.
        """
        times, dt = self.plan_times, self.dt
        if self.levels:
            keys = Still(keys, [k - self.num_actions for k in self.levels])
        context = None if self.config.form == "state" else seen
        if self.config.form != "chunk":
            begin = start if context is not None else np.concatenate([seen, start], 1)
            at = [self.plan_start, *times]
            drawn = self.model.draw(begin, at, context=context, rng=keys, sampler=self.sampler)
            plan = drawn.numpy()[:, 0, 1:, -self.num_actions :]
        else:
            held = np.repeat(start[:, None], self.config.horizon, 1)
            drawn = self.model.draw(held, [0.0, dt], context=context, rng=keys, sampler=self.sampler)
            chunk = drawn.numpy()[:, 0, 1]
            plan = np.stack(_at([start, *chunk.swapaxes(0, 1)], [time / dt for time in times]), 1)
        plan = np.minimum(np.maximum(plan, self.limits[0]), self.limits[1])
        for k, values in self.levels.items():
            plan[..., k] = values[np.abs(plan[..., k, None] - values).argmin(-1)]
        return plan, drawn.nfe

    def _check_model(self) -> int:
        """Features of an observation, by the model's sizes, which must be those of such a policy."""
        config, scale, num = self.config, self.model.scale, self.num_actions
        whole = scale.shape[0] if config.form == "state" else scale.context_size
        shape = {"path": (num,), "chunk": (config.horizon, num), "state": (whole,)}[config.form]
        features, rest = (whole - num, scale.context_size) if config.form == "state" else divmod(whole, config.history)
        if scale.shape != shape or features < 1 or rest:
            raise ValueError(
                f"The model must have learned from `action_paths` with form={config.form!r}, history={config.history}, "
                f"horizon={config.horizon} and {num} actions: states of shape {shape}, {config.history} observations as context. "
                f"Got states of shape {scale.shape} and {scale.context_size} numbers as context. Pass the config of its training."
            )
        return features

    def _start(self) -> np.ndarray:
        if self.previous is not None:
            return self.previous
        if self.config.first_action:
            return self.seen[-1][:, list(self.config.first_action)]
        return np.repeat(self.default_action[None], len(self.keys), 0)

    def _context(self) -> np.ndarray:
        """The last observations, one data step apart, oldest first; the first one stands for those before it."""
        last, dt = len(self.seen) - 1, self.dt
        places = [last - back * dt / self.control_dt for back in range(self.config.history - 1, -1, -1)]
        return np.concatenate(_at(self.seen, places), 1)

    @door
    def save_pretrained(self, path: str | os.PathLike[str], *, half: bool = False) -> Path:
        """Write the model and `policy.json` into the folder; `half` keeps the weights in 16 bits."""
        record = {
            "config": to_dict(self.config),
            "limits": [v.tolist() for v in self.limits],
            "default_action": self.default_action.tolist(),
            "levels": {str(k): v.tolist() for k, v in self.levels.items()},
            "observation": self.observation,
        }
        return self.model.save_pretrained(path, half=half, beside={RECORD: record})

    @door
    def push_to_hub(
        self, name: str, *, private: bool = False, data: str = "", scores: Mapping[str, Any] | None = None
    ) -> str:
        """Upload the policy to the Hugging Face Hub as "user/model", with a card: see `SequenceModel.push_to_hub`."""
        card = self.model.card(name, data=data, scores=scores, loader="nsde.SDEPolicy.from_pretrained")
        return push(name, self.save_pretrained, card, private=private)

    @classmethod
    @door
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        *,
        control_dt: Positive | None = None,
        sampler: Mapping[str, Any] | None = None,
        device: Device = "cpu",
        **changes: Any,
    ) -> SDEPolicy:
        """The policy in a folder, or of that name on the Hub.

        `changes` are fields of its config, e.g. `chunk=4`, those of `sampler` of its sampler.
        """
        path = local_folder(path)
        record = read_document(path, RECORD)
        if record is None:
            remedy = "Save one with SDEPolicy.save_pretrained."
            raise ValueError(f"{path} holds no policy.json of its model: it is no policy. {remedy}")
        model = load(path).to(device)
        try:
            found = _read_record(record)
            policy = cls(model, **found)
        except ValueError as error:
            raise ValueError(f"{Path(path) / RECORD} cannot be used: {error} Save the policy again.") from None
        config = with_settings(policy.config, changes)
        found |= {"config": config, "control_dt": control_dt}
        return cls(model, **found, sampler=with_settings(model.sampler, dict(sampler or {})))


def _read_record(record: Any) -> dict[str, Any]:
    """What policy.json holds, as arguments of a policy."""
    check(isinstance(record, dict), f"It must hold a record. Got {in_short(record)}.")
    lacking = [name for name in FIELDS if name not in record]
    check(not lacking, f"It lacks {', '.join(lacking)}.")
    levels = record["levels"]
    named = isinstance(levels, dict) and all(str(k).isdecimal() for k in levels)
    check(named, f"`levels` must hold values by entry. Got {in_short(levels)}.")
    limits = record["limits"]
    check(isinstance(limits, list) and len(limits) == 2, f"`limits` must be two actions. Got {in_short(limits)}.")
    found = {name: from_dict(hint, record[name], name) for name, hint in FIELDS.items() if hint is not None}
    values = {int(k): from_dict(tuple[float, ...], v, "levels") for k, v in levels.items()}
    return found | {"limits": tuple(limits), "levels": values}


def _numbers(name: str, values: Any, num: int | None = None) -> np.ndarray:
    """One number for each of `num` entries, or as many as there are."""
    try:
        with np.errstate(over="ignore"):
            found = as_array(values, name).astype(np.float32)
    except (TypeError, OverflowError):
        raise ValueError(f"`{name}` must hold numbers. Got {in_short(values)}.") from None
    whole = found.ndim == 1 and len(found) == (num or len(found)) > 0
    check(whole, f"`{name}` must hold {num or 'one or more'} number(s) in a row. Got {in_short(values)}.")
    finite = np.isfinite(found) | (np.isinf(found) & (name == "limits"))  # no limit is one
    check(bool(finite.all()), f"`{name}` must be finite. Got {found.tolist()}.")
    return found


class Still(Noise):
    """Noise that leaves some last entries alone: a discrete one, once noisy, is rounded to and fro."""

    def __init__(self, noise: Noise, entries: Sequence[int]) -> None:
        super().__init__(noise.keys)
        self.noise = noise
        self.entries = list(entries)

    def __getitem__(self, rows: slice) -> Still:
        return Still(self.noise[rows], self.entries)

    def with_keys(self, keys: Tensor) -> Still:
        return Still(self.noise.with_keys(keys), self.entries)

    @property
    def kind(self) -> Hashable | None:
        return None if self.noise.kind is None else (self.noise.kind, *self.entries)

    def normal(self, step: int | Tensor, shape: tuple[int, ...] = (), *, stream: int = PATH) -> Tensor:
        z = self.noise.normal(step, shape, stream=stream)
        for entry in self.entries:
            z.select(-1, entry).zero_()
        return z

    def uniform(self, step: int | Tensor, shape: tuple[int, ...] = (), *, stream: int = PATH) -> Tensor:
        return self.noise.uniform(step, shape, stream=stream)

    def signs(self, step: int | Tensor, shape: tuple[int, ...] = (), *, stream: int = PATH) -> Tensor:
        return self.noise.signs(step, shape, stream=stream)


def _at(values: Sequence[np.ndarray], places: Sequence[float]) -> list[np.ndarray]:
    """Values read at fractional places, linearly; the first and the last hold beyond the ends."""
    found = []
    for place in places:
        place = min(max(place, 0.0), len(values) - 1.0)
        low = int(place)
        weight = np.float32(place - low)
        found.append((1 - weight) * values[low] + weight * values[min(low + 1, len(values) - 1)])
    return found
