"""Processes: workers that never outlive the process that started them, and signals that end a command in order.

A worker holds one end of a pipe and its parent the other. However the parent ends, also by SIGKILL, its end closes, and a thread
of the worker that waits for this ends the worker at once.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Stopped from outside, by a signal."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = number


@contextmanager
def terminable() -> Iterator[None]:
    """Within it SIGTERM ends the work as Ctrl-C does: what is open is closed and put back."""
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread alone
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise Interrupted("Stopped.", number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """A list that gets an entry on Ctrl-C or SIGTERM, so that the running step can finish; a second Ctrl-C is immediate."""
    stop: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: object) -> None:
        if stop:
            raise Interrupted("Stopped.", number)
        stop.append(number)

    old = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)


@contextmanager
def worker_pool(num_workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes for the calls of a block; where it is left by an error they end at once, in the middle of a call."""
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    plain = warnings.formatwarning is warning_line
    with theirs, ours, ProcessPoolExecutor(num_workers, context, _begin, (theirs, plain)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # then `ours` is closed
            raise


def _begin(end: Connection, plain: bool) -> None:
    """A worker: it ends with its parent, and warns as that does."""
    end_with(end)
    if plain:
        warnings.formatwarning = warning_line


def warning_line(message: Warning | str, *_: object, **__: object) -> str:
    """A warning for a terminal: what is wrong, not the line of code that found it."""
    return f"Warning: {message}\n"


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings as lines for a terminal, also those of workers."""
    before = warnings.formatwarning
    warnings.formatwarning = warning_line
    try:
        yield
    finally:
        warnings.formatwarning = before


def end_with_parent() -> None:
    """End this process, started by `multiprocessing`, when its parent ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        end_with(parent.sentinel)


def end_with(end: Connection | int) -> None:
    """End this process when the other end of a pipe closes; nothing may ever be sent through it."""

    def watch() -> None:
        wait([end])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def lines_of_parent(lines: Iterable[str]) -> Iterator[str]:
    """The lines that a parent writes, as they come; this process ends when they do."""
    read: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def watch() -> None:
        for line in lines:
            read.put(line)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    while True:
        yield read.get()
