"""A worker process of the studio: it waits for one job, does it, and ends. To cancel a job is to kill its process.

Parent and worker speak through the worker's standard input and output, one record after the other: JSON
and arrays, so that reading one runs nothing. The worker imports torch and takes a training step before its job
comes, so that a job starts at once.
"""

from __future__ import annotations

import io
import json
import os
import queue
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

ARRAY = "$array"  # in the place of an array: where it begins
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


@contextmanager
def meanwhile(watch: Callable[[threading.Event], None]) -> Iterator[None]:
    """Have `watch(over)` report in a thread beside the work; it returns when `over` is set, and is waited for."""
    over = threading.Event()
    thread = threading.Thread(target=watch, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def write(stream: BinaryIO, record: Any) -> None:
    """One record of parent or worker: JSON, with its arrays after it."""
    arrays = io.BytesIO()

    def apart(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            place = arrays.tell()
            np.save(arrays, value, allow_pickle=False)
            return {ARRAY: place}
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"A record holds plain values and arrays. Got a {type(value).__name__}.")

    text = json.dumps(record, default=apart).encode()
    stream.write(struct.pack("<II", len(text), arrays.tell()) + text + arrays.getvalue())
    stream.flush()


def read(stream: BinaryIO) -> Any:
    """The next record, with lists for tuples; None at the end."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    size, more = struct.unpack("<II", head)
    data = stream.read(size + more)
    if len(data) < size + more:
        return None
    arrays = io.BytesIO(data[size:])

    def with_arrays(values: dict[str, Any]) -> Any:
        if values.keys() != {ARRAY}:
            return values
        arrays.seek(values[ARRAY])
        return np.load(arrays, allow_pickle=False)

    return json.loads(data[:size], object_hook=with_arrays)


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
