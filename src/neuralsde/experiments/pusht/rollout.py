"""Episodes of Push-T under a controller: many at once, on several processes, reproducible one by one.

Episodes are played in batches, in lock step: one `select_action` for all. The batches depend on `seeds` and
`batch_size` alone, and all randomness of an episode on its seed, so that the number of processes changes nothing. An
episode that has succeeded is no longer simulated; its row stays in the batch, for the sake of the others.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from tqdm import tqdm

from neuralsde.core.processes import end_with_parent
from neuralsde.core.records import check
from neuralsde.experiments.pusht.sim import OBSERVATION_SIZE, SIZE, ObservationKind, PushT, coverage, observe
from neuralsde.metrics.imitation import SUCCESS

_NOISE, _PUSH = 1, 2  # streams of an episode: default_rng([seed, stream])
_NUM_DIRECTIONS = 16


@runtime_checkable
class Controller(Protocol):
    """What acts. Row b of everything belongs to episode b; its draws must depend on its seed alone.

    A controller that plans may have an attribute `plan`: after `select_action`, the actions (B, H, A) that this call
    planned, the one to be done now first, or None if it went on with an earlier plan. They are kept for pictures.
    """

    def reset(self, seeds: Sequence[int]) -> None:
        """Begin one episode per seed."""

    def select_action(self, observations: np.ndarray) -> np.ndarray:
        """(B, C) float32 -> (B, A)."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What is made hard."""

    noise: float = 0.0
    """Standard deviation of the observed state, as a share: `noise` · 512 px in positions, `noise` · π in the angle."""
    delay: int = 0  # control steps until an action acts; until the first does, the agent stays where it is
    push: float = 0.0
    """Pixels by which the block is displaced at half time, in a random direction, with a turn of `push` / 100 rad."""
    control_hz: float = 10.0  # observations and actions per second
    seconds: float = 30.0  # length of an episode

    def __post_init__(self) -> None:
        for name in ("noise", "delay", "push"):
            check(0 <= getattr(self, name) < math.inf, f"`{name}` must be >= 0. Got {getattr(self, name)}.")
        check(self.delay == int(self.delay), f"`delay` must be a whole number of control steps. Got {self.delay}.")
        long = math.isfinite(self.seconds) and self.num_steps >= 1
        check(long, f"`seconds` must hold a control step. Got {self.seconds:g} at {self.control_hz:g} Hz.")

    @property
    def num_steps(self) -> int:
        return round(self.seconds * self.control_hz)


@dataclass(eq=False)
class Episode:
    """What happened for one seed."""

    seed: int
    best: float  # greatest coverage after any step
    final: float  # coverage after the last step
    states: np.ndarray  # (T + 1, 5): the true state before each action and after the last one
    actions: np.ndarray  # (T, 2): as selected at each step, within the plane; with a delay they act later
    num_clipped: int = 0  # actions that were brought back to the plane
    pushed_at: int | None = None  # step before which the block was displaced
    plans: list[tuple[int, np.ndarray]] = field(default_factory=list)
    """Step and actions (H, 2) of each plan, if the controller tells."""

    @property
    def success(self) -> bool:
        """Whether the coverage ever exceeded 0.95."""
        return self.best > SUCCESS

    @property
    def steps(self) -> int:
        return len(self.actions)


@dataclass(frozen=True)
class Failure:
    """Episodes that were not finished, and why."""

    seeds: tuple[int, ...]
    message: str


@dataclass
class Rollout:
    """Finished episodes in the order of their seeds, and the others."""

    episodes: list[Episode]
    failures: list[Failure]


def roll_out(
    make: Callable[[], Controller],
    seeds: Sequence[int],
    *,
    observe_kind: ObservationKind,
    conditions: Conditions | None = None,
    num_workers: int = 1,
    batch_size: int = 16,
    progress: bool = False,
) -> Rollout:
    """One episode per seed under the controller that `make` builds, in each of `num_workers` processes.

    With one worker, episodes are played here and errors are raised. With more, `make` must be importable and picklable
    (a function or `functools.partial` at the top of a module), every process computes on one thread, and a worker that
    fails or is killed costs the batch it was at: it is told in `failures`, and the others go on.
    """
    names = [int(seed) for seed in seeds]
    if not names or min(names) < 0 or len(set(names)) < len(names):
        raise ValueError(f"`seeds` must be different integers >= 0, at least one. Got {names[:8]}.")
    if num_workers < 1 or batch_size < 1:
        raise ValueError(f"`num_workers` and `batch_size` must be at least 1. Got {num_workers} and {batch_size}.")
    setting = conditions or Conditions()
    num_batches = -(-len(names) // batch_size)
    batches = [part.tolist() for part in np.array_split(np.array(names), num_batches)]
    with tqdm(total=num_batches * setting.num_steps, disable=not progress, unit="step", desc="episodes") as bar:
        if num_workers == 1:
            controller = make()
            played = [play(controller, batch, observe_kind, setting, tick=bar.update) for batch in batches]
            return Rollout([episode for batch in played for episode in batch], [])
        return _share_out(batches, (make, observe_kind, setting), min(num_workers, num_batches), bar)


def play(
    controller: Controller,
    seeds: Sequence[int],
    observe_kind: ObservationKind,
    conditions: Conditions,
    *,
    tick: Callable[[int], Any] = lambda _: None,
) -> list[Episode]:
    """One episode per seed, in lock step; `tick` hears how many steps were done."""
    num, total = len(seeds), conditions.num_steps
    envs = [PushT(conditions.control_hz) for _ in seeds]
    states = np.stack([env.reset(seed) for env, seed in zip(envs, seeds)])
    noise = [np.random.default_rng([seed, _NOISE]) for seed in seeds]
    scale = conditions.noise * np.array([SIZE, SIZE, SIZE, SIZE, math.pi])
    seen = np.zeros((total + 1, num, 5))
    chosen = np.zeros((total, num, 2))
    covered = np.zeros((total, num))
    clipped, ends = np.zeros(num, int), np.full(num, total)
    plans: list[list[tuple[int, np.ndarray]]] = [[] for _ in seeds]
    pushed: list[int | None] = [None] * num
    running, observed = np.ones(num, bool), np.zeros((num, OBSERVATION_SIZE[observe_kind]), np.float32)
    held = states[:, :2].copy()
    controller.reset(list(seeds))
    for step in range(total):
        rows = np.flatnonzero(running).tolist()
        if conditions.push and step == total // 2:
            for b in rows:
                states[b] = _disturb(envs[b], np.random.default_rng([seeds[b], _PUSH]), conditions.push)
                pushed[b] = step
        seen[step] = states
        # One batch for all; rows that are done repeat their last observation.
        error = scale * np.stack([noise[b].standard_normal(5) for b in rows])
        observed[rows] = observe(states[rows] + error, observe_kind)
        actions = _checked_actions(controller.select_action(observed.copy()), seeds, running, step)
        chosen[step] = np.clip(actions, 0, SIZE)
        clipped[rows] += (chosen[step] != actions).any(1)[rows]
        plan = getattr(controller, "plan", None)
        if plan is not None:
            for b in rows:
                plans[b].append((step, np.array(plan[b], np.float64)))
        acting = chosen[step - conditions.delay] if step >= conditions.delay else held
        for b in rows:
            states[b] = envs[b].advance(acting[b])
        covered[step, rows] = coverage(states[rows])
        ends[running & (covered[step] > SUCCESS)] = step + 1
        running &= covered[step] <= SUCCESS
        seen[step + 1] = states
        tick(1)
        if not running.any():
            tick(total - step - 1)
            break
    return [
        Episode(
            seed=seed,
            best=float(covered[:end, b].max()),
            final=float(covered[end - 1, b]),
            states=seen[: end + 1, b].copy(),
            actions=chosen[:end, b].copy(),
            num_clipped=int(clipped[b]),
            pushed_at=pushed[b],
            plans=plans[b],
        )
        for b, (seed, end) in enumerate(zip(seeds, ends.tolist()))
    ]


def _checked_actions(actions: Any, seeds: Sequence[int], running: np.ndarray, step: int) -> np.ndarray:
    """Actions (B, 2) as float64; those of episodes that are done may be anything."""
    array = np.asarray(actions, np.float64)
    if array.shape != (len(seeds), 2):
        raise ValueError(f"`select_action` must return actions of shape {(len(seeds), 2)}. Got {array.shape}.")
    bad = running & ~np.isfinite(array).all(1)
    if bad.any():
        b = int(bad.argmax())
        raise ValueError(f"Actions must be finite. Got {array[b].tolist()} for seed {seeds[b]} at step {step}.")
    return np.where(running[:, None], array, 0.0)


def _disturb(env: PushT, rng: np.random.Generator, size: float) -> np.ndarray:
    """Displace the block in the first of some random directions that is free; if none is, as far as it goes."""
    angles = rng.uniform(0, 2 * math.pi, _NUM_DIRECTIONS)
    turn = math.copysign(size / 100, rng.uniform(-1, 1))
    shifts = size * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    free = [shift for shift in shifts if env.has_room(shift, turn)]
    return env.push(free[0] if free else shifts[0], turn)


# Processes


def _work(pipe: Connection, job: tuple[Callable[[], Controller], ObservationKind, Conditions]) -> None:
    """A worker: seeds in, episodes or an error out, until None comes."""
    end_with_parent()
    import torch

    torch.set_num_threads(1)
    make, observe_kind, conditions = job
    controller: Controller | None = None
    waiting = 0

    def tick(num: int) -> None:
        nonlocal waiting
        waiting += num
        if waiting >= 20:
            pipe.send(("tick", waiting))
            waiting = 0

    while (seeds := pipe.recv()) is not None:
        try:
            controller = controller or make()
            episodes = play(controller, seeds, observe_kind, conditions, tick=tick)
        except Exception as error:
            pipe.send(("failed", f"{type(error).__name__}: {error}"))
        else:
            pipe.send(("done", episodes))


def _share_out(batches: list[list[int]], job: tuple[Any, ...], num_workers: int, bar: tqdm) -> Rollout:
    """Hand batches to processes, each its own with a pipe, so that none takes the others down."""
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, Any] = {}
    at: dict[Connection, list[int]] = {}
    todo, done, failures = list(reversed(batches)), {}, []

    def hand_over(pipe: Connection) -> None:
        at.pop(pipe, None)
        try:
            pipe.send(todo[-1] if todo else None)
        except OSError:
            return  # it died between two batches, and its pipe says so next
        if todo:
            at[pipe] = todo.pop()

    try:
        for _ in range(num_workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, job), daemon=True)
            try:
                process.start()
            except Exception as error:  # of several kinds, where something cannot be pickled
                remedy = "Use a function or functools.partial at the top of a module, or num_workers=1."
                raise ValueError(f"`make` cannot be sent to a worker: {error}. {remedy}") from None
            theirs.close()
            workers[ours] = process
            hand_over(ours)
        while workers:
            for ready in wait(list(workers)):
                pipe = cast(Connection, ready)
                try:
                    kind, content = pipe.recv()
                except (EOFError, OSError):
                    process = workers.pop(pipe)
                    process.join()
                    if pipe in at:
                        failures.append(Failure(tuple(at.pop(pipe)), _obituary(process.exitcode)))
                    continue
                if kind == "tick":
                    bar.update(content)
                    continue
                if kind == "done":
                    done.update({episode.seed: episode for episode in content})
                else:
                    failures.append(Failure(tuple(at[pipe]), content))
                hand_over(pipe)
    finally:
        for process in workers.values():
            process.kill()
    failures += [Failure(tuple(batch), "No worker was left.") for batch in reversed(todo)]
    if not done:
        raise ValueError(f"No episode was finished. {failures[0].message}")
    return Rollout([done[seed] for batch in batches for seed in batch if seed in done], failures)


def _obituary(code: int | None) -> str:
    main = 'a script that starts workers needs `if __name__ == "__main__":`'
    why = {-9: " (killed: out of memory, or by hand)", 1: f" (its error is printed above; {main})"}
    return f"The worker died with exit code {code}{why.get(code or 0, '')}."
