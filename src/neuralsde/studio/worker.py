"""A worker process of the studio: it waits for one job, does it, and ends. To cancel a job is to kill its process.

Parent and worker speak through the worker's standard input and output, one pickled record after the other, both written by the
studio itself; nothing that comes from a page is unpickled. The worker imports torch and takes a training step before its job
comes, so that a job starts at once.
"""

from __future__ import annotations

import os
import pickle
import queue
import struct
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

Work = Callable[..., "dict[str, Any] | None"]
"""`work(desk, **given)`: what a worker does for a tab."""


class Desk:
    """What a job has in its worker: a folder of its own, a way to report, and what the page says meanwhile."""

    def __init__(self, folder: Path, output: BinaryIO) -> None:
        self.folder = folder
        """Of the job; the tab that started it reads from there what the job leaves."""
        self._output, self._lock = output, threading.Lock()
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def report(self, event: str, **values: Any) -> None:
        """Send an event to the page: numbers, text, and numpy arrays at the top level."""
        self._send(("event", {"event": event, **values}))

    def messages(self, wait: float = 0.0) -> list[dict[str, Any]]:
        """What `Job.tell` sent since the last call; `wait` seconds for the first."""
        found: list[dict[str, Any]] = []
        try:
            found.append(self._said.get(timeout=wait) if wait > 0 else self._said.get_nowait())
            while True:
                found.append(self._said.get_nowait())
        except queue.Empty:
            return found

    def _send(self, record: tuple[str, Any]) -> None:
        with self._lock:
            write(self._output, record)

    def _listen(self, source: BinaryIO) -> None:
        while True:
            record = read(source)
            if record is None:
                os._exit(0)  # the parent is gone
            self._said.put(record)


def write(stream: BinaryIO, record: Any) -> None:
    """One record of parent or worker."""
    data = pickle.dumps(record, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(struct.pack("<I", len(data)) + data)
    stream.flush()


def read(stream: BinaryIO) -> Any:
    """The next record; None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    size = struct.unpack("<I", head)[0]
    data = stream.read(size)
    return None if len(data) < size else pickle.loads(data)


def main() -> None:
    """Wait for a job, do it, say what came of it."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not mix with records
    sys.stdout = sys.stderr
    source = sys.stdin.buffer
    import torch

    torch.set_num_threads(1)
    import_module("neuralsde.studio.learning").warm_up()
    write(output, ("ready", None))
    asked = read(source)
    if asked is None:
        return
    place, folder, given = asked
    desk = Desk(Path(folder), output)
    threading.Thread(target=desk._listen, args=(source,), daemon=True).start()
    module, name = place.split(":")
    from neuralsde.core.records import RunError

    try:
        work: Work = getattr(import_module(module), name)
        desk._send(("done", work(desk, **given) or {}))
    except (ValueError, RunError) as error:
        desk._send(("failed", str(error)))
    except MemoryError:
        desk._send(("failed", "There is not enough memory for this. Give less data."))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads that listen are not waited for
