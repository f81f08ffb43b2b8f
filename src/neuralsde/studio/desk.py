"""What a job has at hand in its worker process, and the records in which worker and parent speak.

A record is JSON with arrays after it, so that reading one runs nothing.
"""

from __future__ import annotations

import io
import json
import os
import queue
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

ARRAY = "$array"  # in the place of an array: where it begins


class Desk:
    """What a job has in its worker: a folder of its own, a way to report, and what the page says meanwhile."""

    def __init__(self, folder: Path, output: BinaryIO) -> None:
        self.folder = folder
        """Of the job; the tab that started it reads from there what the job leaves."""
        self._output, self._lock = output, threading.Lock()
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def report(self, event: str, **values: Any) -> None:
        """Send an event to the page: numbers, text, and numpy arrays at the top level."""
        self.send(("event", {"event": event, **values}))

    def messages(self, wait: float = 0.0) -> list[dict[str, Any]]:
        """What `Job.tell` sent since the last call; `wait` seconds for the first."""
        found: list[dict[str, Any]] = []
        try:
            found.append(self._said.get(timeout=wait) if wait > 0 else self._said.get_nowait())
            while True:
                found.append(self._said.get_nowait())
        except queue.Empty:
            return found

    def send(self, record: tuple[str, Any]) -> None:
        """Write a record to the parent, whole."""
        with self._lock:
            write(self._output, record)

    def listen(self, source: BinaryIO) -> None:
        """Keep what the parent says; without a parent, end the process."""
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
