"""Jobs of the studio: each in a process of its own, with a limit of time, to be cancelled at once.

One worker stands ready at all times, with torch imported, so that a job starts when it is asked for. Jobs beyond the number
that may run at one time wait in the order in which they came.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuralsde.core.records import check
from neuralsde.studio.desk import read, write
from neuralsde.studio.limits import Limits

log = logging.getLogger("neuralsde.studio")
SPARE_AFTER = (
    6.0  # seconds after which the next worker is made ready, if the job has not ended before: it takes a core to begin
)
READY_WITHIN = 120.0  # seconds that a worker may take to begin, beside those of its job
WAITING, RUNNING, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"


class Worker:
    """A process that waits for one job."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "neuralsde.studio.worker"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = threading.Lock()

    def send(self, record: Any) -> None:
        """A record for the worker; one that has ended hears nothing."""
        stream = self.process.stdin
        assert stream is not None
        with self._lock, suppress(OSError, ValueError):
            write(stream, record)  # type: ignore[arg-type]

    def receive(self) -> Any:
        """The next record of the worker; None when it has ended."""
        stream = self.process.stdout
        assert stream is not None
        try:
            return read(stream)  # type: ignore[arg-type]
        except (OSError, ValueError):  # it was killed meanwhile
            return None

    def end(self) -> None:
        """Kill it, whatever it does."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


@dataclass(eq=False)
class Job:
    """Work of a tab in a worker process."""

    work: str  # "module:function" of `neuralsde.studio`
    given: Mapping[str, Any]
    folder: Path
    seconds: float
    live: bool  # whether it is for those who watch: it ends when nobody does
    on_event: Callable[[Job, dict[str, Any]], None]
    on_end: Callable[[Job], None]
    state: str = WAITING
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    worker: Worker | None = None
    began: float = 0.0
    _early: list[dict[str, Any]] | None = field(default_factory=list)  # said before the worker has its work
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in (DONE, FAILED, CANCELLED)

    def tell(self, **values: Any) -> None:
        """Say something to the job: `desk.messages()` gives it there."""
        with self._lock:
            if self._early is not None:
                self._early.append(values)
            elif self.state == RUNNING and self.worker is not None:
                self.worker.send(values)

    def hand_over(self, worker: Worker) -> None:
        """Give the worker its work, and what was said meanwhile."""
        with self._lock:
            worker.send((self.work, str(self.folder), dict(self.given)))
            for values in self._early or ():
                worker.send(values)
            self._early = None


class Jobs:
    """All jobs of a studio."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._lock = threading.RLock()
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._closed = False
        self._spare: Worker | None = None

    def start(self, job: Job) -> Job:
        """Run the job, now or when there is room."""
        with self._lock:
            check(not self._closed, "The studio is closing.")
            check(
                len(self._waiting) < self.limits.waiting,
                "Too many people are learning at once. Wait a moment, then press the button again.",
            )
            self._waiting.append(job)
        self._next()
        return job

    def cancel(self, job: Job) -> None:
        """End a job at once; one that is over stays as it is."""
        self._end(job, CANCELLED)

    def close(self) -> None:
        """End everything."""
        with self._lock:
            self._closed = True
            jobs, spare, self._spare = [*self._waiting, *self._running], self._spare, None
        for job in jobs:
            self.cancel(job)
        if spare is not None:
            spare.end()

    def overdue(self) -> None:
        """End jobs that take longer than they may; called every second or so."""
        with self._lock:
            late = [job for job in self._running if time.monotonic() - job.began > job.seconds]
        for job in late:
            limit = f"It took longer than {job.seconds:.0f} seconds and was stopped."
            self._end(job, FAILED, limit)

    @property
    def num_running(self) -> int:
        """Jobs that are at work."""
        with self._lock:
            return len(self._running)

    def _next(self) -> None:
        with self._lock:
            if self._closed or not self._waiting or len(self._running) >= self.limits.jobs:
                return
            job = self._waiting.pop(0)
            self._running.append(job)
            worker, self._spare = self._spare or Worker(), None
            job.worker, job.state, job.began = worker, RUNNING, time.monotonic() + READY_WITHIN
        threading.Thread(target=self._follow, args=(job, worker), daemon=True).start()

    def _follow(self, job: Job, worker: Worker) -> None:
        """Hand on what a job reports until it ends."""
        while True:
            record = worker.receive()
            if record is None:
                self._end(job, FAILED, "The worker process ended before its work was done. Try again with less data.")
                return
            kind, value = record
            if kind == "ready":
                job.began = time.monotonic()
                job.hand_over(worker)
                threading.Timer(SPARE_AFTER, self.prepare).start()
            elif kind == "event":
                if not job.over:
                    job.on_event(job, value)
            elif kind == "done":
                self._end(job, DONE, result=value)
                return
            else:
                self._end(job, FAILED, value)
                return

    def prepare(self) -> None:
        """Have the next worker ready."""
        with self._lock:
            if self._spare is None and not self._closed:
                self._spare = Worker()

    def _end(self, job: Job, state: str, error: str = "", result: dict[str, Any] | None = None) -> None:
        with self._lock:
            if job.over:
                return
            job.state, job.error, job.result = state, error, result or {}
            for jobs in (self._waiting, self._running):
                if job in jobs:
                    jobs.remove(job)
        if job.worker is not None:
            job.worker.end()
        self.prepare()
        try:
            job.on_end(job)
        finally:
            self._next()
