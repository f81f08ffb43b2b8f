"""The Push-T tab: the shipped policy pushes a block onto its goal, while a visitor drags things away or plays beside it."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import numpy as np

from neuralsde.core.doors import Range
from neuralsde.core.extras import need
from neuralsde.core.records import check
from neuralsde.studio.jobs import RUNNING, WAITING
from neuralsde.studio.tabs import Tab, action

REACH = 2_000.0  # pixels off the table at which a pointer may be
LONGEST = 4_000  # points of a curve
EVERY = 0.1  # seconds between them
Seed = Annotated[int, Range("from 0 to 2^31", lambda v: 0 <= v < 2**31)]
Step = Annotated[int, Range("from 1 to 100,000", lambda v: 1 <= v <= 100_000)]
Speed = Annotated[float, Range("from 0.25 to 8", lambda v: 0.25 <= v <= 8)]
Futures = Annotated[int, Range("from 0 to 48", lambda v: 0 <= v <= 48)]
Place = Annotated[float, Range(f"within {REACH:g} of the table", lambda v: abs(v) <= REACH)]


class PushTTab(Tab):
    """A match in a worker, and what a page that is loaded again needs of it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lock = threading.RLock()
        self.settings: dict[str, Any] = {"paused": False, "speed": 1.0, "futures": 12}
        self.match: dict[str, Any] = {"seed": 0, "playing": False}
        self.episode = -1
        self.curve: list[list[float]] = []

    def state(self) -> dict[str, Any]:
        with self.lock:
            return {
                "lacks": _lacks(),
                "job": None if self.job is None else {"state": self.job.state, "error": self.job.error},
                "settings": self.settings,
                "match": self.match,
                "curve": np.array(self.curve, np.float32).reshape(-1, 3),
            }

    @property
    def running(self) -> bool:
        """Whether a match is on."""
        return self.job is not None and self.job.state in (RUNNING, WAITING)

    @action
    def begin(self, seed: Seed, playing: bool = False, pause_at: Step | None = None, paused: bool = False) -> None:
        """A new episode from `seed`; with `playing`, the visitor has a table too; `pause_at` a step it waits for a hand."""
        need("Push-T", "gym_pusht")
        with self.lock:
            self.match = {"seed": seed, "playing": playing}
            self.settings["paused"] = paused
            if self.running and self.job is not None:
                self.job.tell(do="control", **self.settings)
                self.job.tell(do="begin", pause_at=pause_at, **self.match)
            else:
                self.curve, self.episode = [], -1
                given = {"pause_at": pause_at, **self.match, **self.settings}
                self.start("neuralsde.studio.pushing:play", live=True, **given)

    @action
    def control(self, paused: bool | None = None, speed: Speed | None = None, futures: Futures | None = None) -> None:
        """Pause or go on, faster or slower, with more or fewer plans drawn ahead."""
        given = {"paused": paused, "speed": speed, "futures": futures}
        with self.lock:
            self.settings |= {name: value for name, value in given.items() if value is not None}
            self._tell("control", **self.settings)

    @action
    def step(self) -> None:
        """One action of the policy, while paused."""
        self._tell("step")

    @action
    def hold(self, what: Literal["block", "agent"], x: Place, y: Place, u: Place, v: Place, down: bool) -> None:
        """Hold the block, by its point (u, v), or the agent at (x, y) of the policy's table, or let go there."""
        self._tell("hold", what=what, x=x, y=y, grip=[u, v], down=down)

    @action
    def aim(self, x: Place, y: Place) -> None:
        """Where the visitor's own agent is to go."""
        self._tell("aim", x=x, y=y)

    @action
    def watch(self, on: bool) -> None:
        """Whether somebody looks: without, the match waits."""
        if self.running:
            self._tell("watch", on=on)

    def _tell(self, do: str, **values: Any) -> None:
        check(self.running and self.job is not None, "The match has ended. Press reset.")
        assert self.job is not None
        self.job.tell(do=do, **values)

    def on_event(self, event: dict[str, Any]) -> None:
        with self.lock:
            if event["event"] == "paused":  # by itself, where it was asked to
                self.settings["paused"] = True
            if event["event"] != "frame":
                return
            if event["episode"] != self.episode:
                self.episode, self.curve = event["episode"], []
            self.match["seed"] = event["seed"]
            if not self.curve or event["seconds"] >= self.curve[-1][0] + EVERY:
                covered = [*event["covered"], 0.0][:2]
                self.curve.append([event["seconds"], *covered])
                del self.curve[:-LONGEST]


def _lacks() -> str:
    """What to install; empty if all is there."""
    if find_spec("gym_pusht") is not None:
        return ""
    return "Push-T needs its simulator: pip install 'neuralsde[pusht]', then start the studio again."
