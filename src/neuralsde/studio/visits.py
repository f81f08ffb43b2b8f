"""Visitors: who they are, what they have, and how they are forgotten.

A visitor is a random name that the studio gives to a page and that the page keeps for as long as its browser tab is open.
Whoever knows the name finds the models and jobs that belong to it; nobody else does. Two browser tabs are two visitors.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from neuralsde.core.records import check
from neuralsde.studio.frames import encode
from neuralsde.studio.jobs import DONE, FAILED, Job, Jobs
from neuralsde.studio.limits import Limits
from neuralsde.studio.tabs import TABS, Tab, tab_class

log = logging.getLogger("neuralsde.studio")
NAME_BYTES = 24
MOST_WAITING = 4 * 2**20  # bytes that wait to be sent to a page before it is heard again


class Line:
    """The socket of one page, seen from any thread: frames wait in order, and old events are dropped if the page is slow."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop, self._most = loop, most
        self._frames: list[tuple[bool, str | bytes]] = []
        self.waiting = 0  # characters or bytes of them
        self._some = asyncio.Event()

    def put(self, message: Mapping[str, Any], *, droppable: bool = False) -> None:
        """A message for the page, from any thread."""
        frame = encode(message)
        with suppress(RuntimeError):  # the studio is closing
            self._loop.call_soon_threadsafe(self._add, frame, droppable)

    def _add(self, frame: str | bytes, droppable: bool) -> None:
        if self.full:
            old = next((k for k, (can, _) in enumerate(self._frames) if can), None)
            if old is not None:
                self._take(old)
            elif droppable:
                return
        self._frames.append((droppable, frame))
        self.waiting += len(frame)
        self._some.set()

    @property
    def full(self) -> bool:
        """Whether the page reads more slowly than it asks."""
        return len(self._frames) >= self._most or self.waiting >= MOST_WAITING

    def _take(self, number: int) -> str | bytes:
        frame = self._frames.pop(number)[1]
        self.waiting -= len(frame)
        return frame

    async def get(self) -> str | bytes:
        """The next frame."""
        while not self._frames:
            self._some.clear()
            await self._some.wait()
        return self._take(0)


class Visit:
    """One visitor: tabs with what they hold, pages that are open."""

    def __init__(self, name: str, folder: Path, jobs: Jobs, limits: Limits) -> None:
        self.name, self.folder, self.limits = name, folder, limits
        self.lines: list[Line] = []
        self.last_seen = time.monotonic()
        self._jobs, self._lock = jobs, threading.RLock()
        self._tabs: dict[str, Tab] = {}
        folder.mkdir(mode=0o700)

    def tab(self, name: str) -> Tab:
        """The visitor's tab of this name, made when it is first asked for."""
        with self._lock:
            if name not in self._tabs:
                self._tabs[name] = tab_class(name)(self, name)
            return self._tabs[name]

    def send(self, message: Mapping[str, Any], *, droppable: bool = False) -> None:
        """A message for every open page of this visitor."""
        for line in list(self.lines):
            line.put(message, droppable=droppable)

    # Jobs

    def start(self, tab: Tab, work: str, *, seconds: float | None, live: bool, given: Mapping[str, Any]) -> Job:
        """A job of a tab."""
        most = self.limits.live_job_seconds if live else self.limits.job_seconds
        folder = Path(tempfile.mkdtemp(prefix=f"{tab.name}-", dir=self.folder))
        seconds = min(seconds or most, most)

        def on_event(job: Job, event: dict[str, Any]) -> None:
            if tab.job is job:
                tab.on_event(event)
                self.send({"tab": tab.name, **event}, droppable=True)

        def on_end(job: Job) -> None:
            message: dict[str, Any] = {}
            try:
                if job.state == DONE and tab.job is job:
                    message = tab.on_done(job.result, folder)
            except (ValueError, OSError) as error:
                job.state, job.error = FAILED, str(error)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            if tab.job is job:
                self.send({"tab": tab.name, "event": "end", "state": job.state, "error": job.error, **message})

        job = Job(work, given, folder, seconds, live, on_event, on_end)
        try:
            return self._jobs.start(job)
        except ValueError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def cancel(self, job: Job) -> None:
        """End a job of this visitor."""
        self._jobs.cancel(job)

    def end_live_jobs(self) -> None:
        """End what is only for those who watch."""
        for tab in list(self._tabs.values()):
            if tab.job is not None and tab.job.live:
                self._jobs.cancel(tab.job)

    def close(self) -> None:
        """Forget the visitor."""
        with self._lock:
            tabs, self._tabs = list(self._tabs.values()), {}
        for tab in tabs:
            if tab.job is not None:
                self._jobs.cancel(tab.job)
            tab.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Visits:
    """All visitors of a studio."""

    def __init__(self, folder: Path, jobs: Jobs, limits: Limits) -> None:
        self.folder, self.jobs, self.limits = folder, jobs, limits
        self._known: dict[str, Visit] = {}
        self._lock = threading.RLock()

    def enter(self, name: Any) -> Visit:
        """The visitor of this name, or a new one with a name of its own."""
        with self._lock:
            known = self.find(name)
            if known is not None:
                return known
            self._make_room()
            new = secrets.token_urlsafe(NAME_BYTES)
            visit = self._known[new] = Visit(new, self.folder / secrets.token_hex(8), self.jobs, self.limits)
            return visit

    def find(self, name: Any) -> Visit | None:
        """The visitor of this name, if there is one."""
        with self._lock:
            visit = self._known.get(name) if isinstance(name, str) else None
            if visit is not None:
                visit.last_seen = time.monotonic()
            return visit

    @property
    def num_lines(self) -> int:
        """Open pages."""
        with self._lock:
            return sum(len(visit.lines) for visit in self._known.values())

    def _make_room(self) -> None:
        away = sorted((v for v in self._known.values() if not v.lines), key=lambda v: v.last_seen)
        while len(self._known) >= self.limits.visitors and away:
            self._forget(away.pop(0))
        check(
            len(self._known) < self.limits.visitors, "The studio is full. Close another page of it, or come back later."
        )

    def _forget(self, visit: Visit) -> None:
        self._known.pop(visit.name, None)
        visit.close()

    def tidy(self) -> None:
        """Forget who was away for long, and end what nobody watches; called every second or so."""
        now = time.monotonic()
        with self._lock:
            for visit in [v for v in self._known.values() if not v.lines]:
                away = now - visit.last_seen
                if away > self.limits.away_seconds:
                    self._forget(visit)
                elif away > self.limits.live_seconds:
                    visit.end_live_jobs()
        self.jobs.overdue()

    def close(self) -> None:
        """Forget everyone."""
        with self._lock:
            for visit in list(self._known.values()):
                self._forget(visit)


def tab_names() -> list[str]:
    """Tabs of the page, in order."""
    return list(TABS)
