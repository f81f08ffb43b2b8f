"""What happens in the worker of the Push-T tab: two tables, a policy at one of them, the visitor at the other.

The physics advance in frames of 1/50 s. The policy acts every fifth frame, at the 10 Hz of its demonstrations, whatever the
visitor does: all of a match follows from its seed and from what is held at which frame. Other plans that the policy could have
drawn are computed beside the match, by a second copy of the policy, and change nothing in it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from neuralsde.experiments.demos.pusht import shipped
from neuralsde.experiments.pusht.sim import SIZE, PushT, coverage, observe
from neuralsde.metrics.imitation import SUCCESS
from neuralsde.policy.controller import SDEPolicy
from neuralsde.studio.desk import Desk

FRAME_HZ, CONTROL_HZ = 50, 10
FRAMES = FRAME_HZ // CONTROL_HZ  # of one action
SHOWN_HZ = 50  # frames per second that are sent, at most
LEASH = (
    80.0  # pixels ahead of a pusher that a hand draws it at most: 400 px/s, or a quick mouse would shoot the block away
)
BEHIND = 0.25  # seconds of delay after which the match goes on slower, rather than catching up
PATIENCE = 45.0  # seconds of play without success after which the next seed begins
PRAISE = 3.0  # seconds for which a solved table is shown
AWAY = 60.0  # seconds without anyone who looks, after which the worker ends
HELD = 0.25  # seconds between two sets of futures while something is held


@dataclass(frozen=True)
class Hold:
    """What a visitor holds of the policy's table, and where."""

    what: str  # "block" or "agent"
    place: Float[np.ndarray, "2"]
    grip: Float[np.ndarray, "2"]  # the point that is held, in the frame of the block


class Match:
    """The policy at its table and, if the visitor plays, another table beside it that begins alike."""

    def __init__(self, policy: SDEPolicy) -> None:
        self.policy = policy
        self.tables = (PushT(FRAME_HZ), PushT(FRAME_HZ))
        self.begin(0)

    def begin(self, seed: int, playing: bool = False) -> None:
        """A new episode."""
        self.seed, self.playing, self.frame = seed, playing, 0
        self.states = np.stack([table.reset(seed) for table in self.tables])
        self.policy.reset(seed)
        self.action = self.states[0, :2].copy()
        self.start: np.ndarray | None = None  # the action from which the policy last went on
        self.aim = self.states[1, :2].copy()
        self.held: Hold | None = None
        self.calm_since = 0
        self.covered = coverage(self.states)
        self.best = self.covered.copy()
        self.solved: list[float | None] = [None, None]

    @property
    def step(self) -> int:
        """Actions that are done."""
        return self.frame // FRAMES

    @property
    def seconds(self) -> float:
        """Time on the tables."""
        return self.frame / FRAME_HZ

    def act(self) -> bool:
        """Let the policy choose an action if one is due; whether it has planned."""
        if self.frame % FRAMES or self.solved[0] is not None or (self.held and self.held.what == "agent"):
            return False
        seen = observe(self.states[:1], self.policy.observation)[0]  # type: ignore[arg-type]
        self.start = self.policy.previous
        self.action = np.clip(self.policy.select_action(seen).astype(np.float64), 0, SIZE)
        return self.policy.plan is not None

    def advance(self) -> None:
        """One frame of both tables; `act` comes before it."""
        self.pull()
        by_hand = self.held is not None and self.held.what == "agent"
        target = _led(self.states[0, :2], self.held.place) if by_hand and self.held else self.action
        self.states[0] = self.tables[0].advance(target)
        if self.playing:
            self.states[1] = self.tables[1].advance(_led(self.states[1, :2], self.aim))
        self.frame += 1
        self.score()

    def pull(self, paused: bool = False) -> None:
        """Move what is held to where the hand is; the agent goes there by itself unless the match is paused."""
        if self.held is None:
            return
        if self.held.what == "block":
            self.states[0] = self.tables[0].pull(self.held.grip, self.held.place)
        elif paused:
            self.states[0] = self.tables[0].place_agent(self.held.place)

    def score(self) -> None:
        """How much of each goal is covered now."""
        self.covered = coverage(self.states)
        self.best = np.maximum(self.best, self.covered)
        for k in range(1 + self.playing):
            if self.solved[k] is None and self.covered[k] > SUCCESS and not (k == 0 and self.held):
                self.solved[k] = self.seconds
                if k == 0:
                    self.action = self.states[0, :2].copy()  # it stays where it is

    def hold(self, held: Hold) -> None:
        """A hand is at the policy's table."""
        self.held, self.solved[0] = held, None

    def release(self) -> None:
        """It lets go, and the policy plans anew from what it then sees."""
        self.held, self.calm_since = None, self.frame
        self.policy.seen, self.policy.previous = [], None
        self.policy.left = self.policy.left[:, :0]

    @property
    def over(self) -> bool:
        """Whether the policy is done, or has tried for long enough."""
        return self.held is None and (self.frame - self.calm_since) / FRAME_HZ > PATIENCE


def _led(agent: Float[np.ndarray, "2"], hand: Float[np.ndarray, "2"]) -> Float[np.ndarray, "2"]:
    """Where a hand draws an agent to: to itself, but not too fast."""
    way = hand - agent
    return agent + way * min(1.0, LEASH / max(float(np.linalg.norm(way)), 1e-9))


class Futures:
    """Plans that the policy could draw from where it is, up to its horizon; computed beside the match, newest question first."""

    def __init__(self, policy: SDEPolicy, report: Callable[..., None]) -> None:
        self.policy, self.report, self.num = policy, report, 12
        self.policy.config = replace(policy.config, chunk=policy.config.horizon)
        self._asked: tuple[Any, ...] | None = None
        self._some = threading.Condition()
        threading.Thread(target=self._work, daemon=True).start()

    def draw(self, seen: list[np.ndarray], previous: np.ndarray | None, step: int) -> Float[np.ndarray, "N H 2"]:
        """As many plans as are wanted; what is seen at which step says which."""
        num = self.num
        self.policy.reset(list(range(num)))
        self.policy.num_plans = step
        self.policy.seen = [np.repeat(each, num, 0) for each in seen]
        self.policy.previous = None if previous is None else np.repeat(previous, num, 0)
        return self.policy.draw_plan()

    def ask(self, seen: list[np.ndarray], previous: np.ndarray | None, step: int, **told: Any) -> None:
        """Have plans drawn and reported; what was asked before and is not begun is dropped."""
        with self._some:
            self._asked = (seen, previous, step, told)
            self._some.notify()

    def _work(self) -> None:
        while True:
            with self._some:
                while self._asked is None:
                    self._some.wait()
                (seen, previous, step, told), self._asked = self._asked, None
            if self.num:
                self.report("futures", futures=self.draw(seen, previous, step), step=step, **told)


class Show:
    """A match, as fast as the visitor likes, told to the page."""

    def __init__(self, desk: Desk, *, speed: float, futures: int, paused: bool) -> None:
        self.desk = desk
        self.match = Match(SDEPolicy.from_pretrained(shipped()))
        self.futures = Futures(SDEPolicy.from_pretrained(shipped()), desk.report)
        self.futures.num = futures
        self.speed, self.paused, self.watched, self.onward = speed, paused, True, True
        self.pause_at: int | None = None
        self.episode, self.due, self.last_look, self.last_asked = 0, 0.0, time.monotonic(), 0.0
        self.changed = True
        self.plan_ms: deque[float] = deque(maxlen=9)
        self.acted: deque[float] = deque(maxlen=11)

    def run(self) -> None:
        """Until nobody looks."""
        while self.watched or time.monotonic() - self.last_look < AWAY:
            still = self.paused or not self.watched
            for message in self.desk.messages(0.5 if still else max(0.0, self.due - time.monotonic())):
                getattr(self, f"on_{message.pop('do')}")(**message)
            now = time.monotonic()
            if not self.paused and self.watched and now >= self.due:
                self.due = max(self.due, now - BEHIND) + 1 / (FRAME_HZ * self.speed)
                self.advance()
            elif self.paused and self.changed:
                self.match.pull(paused=True)
                self.match.score()
                self.look_ahead()
                self.report()

    def advance(self) -> None:
        """One frame, and what comes of it."""
        match, began = self.match, time.perf_counter()
        planned = match.act()
        if match.frame % FRAMES == 0:
            self.acted.append(time.monotonic())
        if planned:
            self.plan_ms.append(1e3 * (time.perf_counter() - began))
            policy = match.policy
            assert policy.plan is not None
            told = {"plan": policy.plan[0], "passes": sum(policy.nfe.values()), **self.rates()}
            self.desk.report("plan", episode=self.episode, step=match.step, **told)
            self.futures.ask(list(policy.seen), match.start, match.step, episode=self.episode)
        match.advance()
        self.changed = True
        if match.frame % max(1, round(FRAME_HZ * self.speed / SHOWN_HZ)) == 0:
            self.report()
        self.look_ahead()
        if match.frame % FRAMES == 0 and match.step == self.pause_at:
            self.paused, self.pause_at = True, None
            self.desk.report("paused")
            self.report()
        elif self.onward and not match.playing:
            solved = match.solved[0]
            if match.over or (solved is not None and match.seconds - solved > PRAISE):
                self.on_begin(match.seed + 1)

    def look_ahead(self) -> None:
        """While something is held, show what the policy would do from here."""
        now = time.monotonic()
        if self.match.held is None or now - self.last_asked < HELD:
            return
        self.last_asked = now
        seen = [observe(self.match.states[:1], self.match.policy.observation)]  # type: ignore[arg-type]
        self.futures.ask(seen, None, self.match.step, episode=self.episode)

    def rates(self) -> dict[str, float]:
        """Actions per second as they came, and milliseconds of a plan."""
        span = self.acted[-1] - self.acted[0] if len(self.acted) > 1 else 0.0
        return {"hz": (len(self.acted) - 1) / span if span else 0.0, "ms": float(np.median(self.plan_ms))}

    def report(self) -> None:
        """Where everything is."""
        match, shown = self.match, 1 + self.match.playing
        self.changed = False
        self.desk.report(
            "frame",
            poses=match.states[:shown].astype(np.float32),
            episode=self.episode,
            seed=match.seed,
            step=match.step,
            seconds=match.seconds,
            covered=match.covered[:shown].tolist(),
            best=match.best[:shown].tolist(),
            solved=match.solved[:shown],
            held=match.held is not None,
            paused=self.paused,
        )

    # What the visitor does

    def on_begin(self, seed: int, playing: bool | None = None, pause_at: int | None = None) -> None:
        self.match.begin(seed, self.match.playing if playing is None else playing)
        self.episode, self.pause_at, self.due = self.episode + 1, pause_at, time.monotonic()
        self.acted.clear()
        self.report()

    def on_control(self, paused: bool, speed: float, futures: int) -> None:
        if self.paused and not paused:
            self.due = time.monotonic()
            self.acted.clear()
        self.paused, self.speed, self.futures.num, self.changed = paused, speed, futures, True

    def on_step(self) -> None:
        if self.paused:
            for _ in range(FRAMES - self.match.frame % FRAMES):
                self.advance()
            self.report()

    def on_hold(self, what: str, x: float, y: float, grip: list[float], down: bool) -> None:
        self.changed = True
        if down:
            self.match.hold(Hold(what, np.array([x, y]), np.array(grip)))
        elif self.match.held is not None:
            self.match.hold(Hold(what, np.array([x, y]), np.array(grip)))
            self.match.pull(self.paused)
            self.match.release()

    def on_aim(self, x: float, y: float) -> None:
        self.match.aim = np.array([x, y])

    def on_watch(self, on: bool) -> None:
        self.watched, self.last_look, self.due, self.changed = on, time.monotonic(), time.monotonic(), True
        self.acted.clear()


def play(desk: Desk, seed: int, playing: bool, pause_at: int | None, **settings: Any) -> dict[str, Any]:
    """Work of the Push-T tab: play until nobody looks."""
    show = Show(desk, **settings)
    show.on_begin(seed, playing, pause_at)
    show.run()
    return {}
