"""Several processes that decode files at the same time."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from neuralsde.core.records import RunError
from neuralsde.data.videos.clips import Clip
from neuralsde.data.videos.decode import FrameSettings
from neuralsde.data.videos.jobs import decode_into, to_line
from neuralsde.data.videos.report import ClipRecord, FileRecord, record_of

Job = tuple[str, list[Clip]]
"""A key and the clips of one file."""
TRIES = 2  # at a file on which a worker ends: it may have been stopped from outside


def decode_jobs(
    jobs: Sequence[Job], folder: Path, settings: FrameSettings, num_workers: int
) -> Generator[tuple[int, FileRecord], None, None]:
    """Do all jobs and tell of each, by its place, as it is done; without workers in this process, in order."""
    if num_workers < 1:
        for k, (key, clips) in enumerate(jobs):
            yield k, decode_into(folder, key, clips, settings)
        return
    workers = _Workers(num_workers)
    with ThreadPoolExecutor(num_workers) as threads:
        try:
            lines = [to_line(folder, key, clips, settings) for key, clips in jobs]
            futures: dict[Future[FileRecord], int] = {
                threads.submit(workers.do, line, clips): k for k, (line, (_, clips)) in enumerate(zip(lines, jobs))
            }
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            workers.close()


class _Workers:
    """Processes that are idle, busy or not yet started."""

    def __init__(self, number: int) -> None:
        self.closed = False
        self.idle: queue.SimpleQueue[subprocess.Popen[str] | None] = queue.SimpleQueue()
        self.all: list[subprocess.Popen[str]] = []
        for _ in range(number):
            self.idle.put(None)

    def do(self, line: str, clips: list[Clip]) -> FileRecord:
        """One job, on the next worker that is idle."""
        worker = self.idle.get()
        try:
            for _ in range(TRIES):
                if self.closed:
                    break
                if worker is None or worker.poll() is not None:
                    worker = self.start()
                answer = _ask(worker, line)
                if answer is not None:
                    return _record(answer)
                worker.wait()
        finally:
            self.idle.put(worker)
        code = None if worker is None else worker.returncode
        return FileRecord(
            clips[0].name if len(clips) == 1 else clips[0].place,
            f"brings the decoder down (exit code {code})",
            clips=[ClipRecord(clip.name) for clip in clips],
        )

    def start(self) -> subprocess.Popen[str]:
        paths = os.pathsep.join(path for path in sys.path if path)
        worker = subprocess.Popen(
            [sys.executable, "-m", "neuralsde.data.videos.jobs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=os.environ | {"PYTHONPATH": paths},
        )
        self.all.append(worker)
        if self.closed:
            worker.terminate()
        assert worker.stdout is not None
        if worker.stdout.readline() != "ready\n" and not self.closed:
            raise RunError("A process to decode videos cannot be started; see above. Or do without: num_workers=0.")
        return worker

    def close(self) -> None:
        """End all of them, also in the middle of a file: what is done is on disk."""
        self.closed = True
        for worker in self.all:
            worker.terminate()
        for worker in self.all:
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # what it was still to be told
                        pipe.close()


def _ask(worker: subprocess.Popen[str], line: str) -> str | None:
    """The answer of a worker; None if it ended over the job."""
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(line + "\n")
        worker.stdin.flush()
        return worker.stdout.readline() or None
    except (BrokenPipeError, ValueError):  # ValueError: closed meanwhile
        return None


def _record(answer: str) -> FileRecord:
    values = json.loads(answer)
    if "stop" in values:
        raise RunError(values["stop"])
    return record_of(values["record"])
