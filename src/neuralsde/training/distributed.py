"""Several processes on one machine that train together: started, watched, and ended as one.

They are processes as torchrun starts them, with the same environment; Accelerate does the rest. The store at which they meet is
this process's own, so no port can be taken in between. If one of them is lost, the others are ended, and the message says
which and how to go on.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, multiprocessing
from tqdm import tqdm

from neuralsde.core.processes import Interrupted, end_with_parent, stop_signals
from neuralsde.core.records import RunError

LOCAL = "127.0.0.1"
GRACE = 3.0  # seconds in which processes that have lost another one say so themselves
LOOK = 0.2  # seconds between looks at signals


class ProcessLost(RunError):
    """One of several processes that trained together has ended."""


def num_launched() -> int:
    """Processes of the group that this one belongs to, if torchrun, accelerate or `in_processes` has started it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


Work = Callable[..., dict[str, Tensor]]


def in_processes(function: Work, arguments: tuple[Any, ...], num: int, folder: Path | None) -> dict[str, Tensor]:
    """What `function(*arguments)` gives in the first of `num` processes that run it together; `folder` is for messages."""
    from torch.distributed import TCPStore

    store = TCPStore(LOCAL, 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // num)
    group: list[Any] = []
    ends: list[Connection] = []
    try:
        with stop_signals() as stop:
            for rank in range(num):
                ours, theirs = context.Pipe(duplex=False)
                environment = _environment(rank, num, store.port)
                process = context.Process(target=_work, args=(theirs, environment, threads, function, arguments))
                _start(process)
                theirs.close()
                group.append(process)
                ends.append(ours)
            result = _watch(group, ends, stop, folder)
            for process in group:
                process.join(GRACE)
            return result
    finally:
        for process in group:
            process.kill()
        for process in group:
            process.join()


def _start(process: Any) -> None:
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"`processes` hands model and data over to other processes, and this cannot be: {error}. Define nets and hooks at the "
            "top of a module, or start the script with torchrun."
        ) from None


def _environment(rank: int, num: int, port: int) -> dict[str, str]:
    """As torchrun sets it; the last entry says that the store is there already."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num),
        "LOCAL_WORLD_SIZE": str(num),
        "MASTER_ADDR": LOCAL,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _work(
    end: Connection, environment: dict[str, str], threads: int, function: Work, arguments: tuple[Any, ...]
) -> None:
    """The life of one process: its result, or what went wrong, is sent through the pipe."""
    os.setpgrp()  # Ctrl-C is the parent's to hear, which asks the first process to save
    end_with_parent()
    os.environ.update(environment)
    torch.set_num_threads(threads)
    tqdm.set_lock(threading.RLock())  # its usual one is the system's, and a process that is killed leaves that behind
    first = environment["RANK"] == "0"
    try:
        result = function(*arguments)
        # As bytes: tensors in shared memory would be gone with this process. Copies: nets may share a tensor.
        end.send((True, save({k: v.cpu().clone() for k, v in result.items()}) if first else None))
    except BaseException as error:
        _tell(end, error)
        raise SystemExit(1) from None


def _tell(end: Connection, error: BaseException) -> None:
    """Send an error, or its words where it cannot travel or be made again."""
    try:
        type(error)(*error.args)  # as it is made at the other end
        end.send((False, error))
    except Exception:
        end.send((False, RuntimeError(f"{type(error).__name__}: {error}")))


def _watch(group: list[Any], ends: list[Connection], stop: list[int], folder: Path | None) -> dict[str, Tensor]:
    """Wait until the first process has its result, or any has failed."""
    told: dict[int, Any] = {}
    asked = False
    while 0 not in told:
        if stop and not asked:
            os.kill(group[0].pid, stop[0])
            asked = True
        wait([*(p.sentinel for p in group), *ends], timeout=LOOK)
        _listen(ends, told)
        failed = [
            rank for rank, process in enumerate(group) if process.exitcode not in (None, 0) or _is_error(told.get(rank))
        ]
        if failed:
            _fail(group, ends, told, folder)
    kind, result = told[0]
    assert kind
    return load(result)


def _is_error(message: Any) -> bool:
    return message is not None and not message[0]


def _listen(ends: list[Connection], told: dict[int, Any]) -> None:
    for rank, end in enumerate(ends):
        try:
            while rank not in told and end.poll():
                told[rank] = end.recv()
        except (EOFError, OSError):  # it has ended without a word
            continue


def _fail(group: list[Any], ends: list[Connection], told: dict[int, Any], folder: Path | None) -> None:
    """Say what has happened first: a process that was killed makes the others fail at their next exchange."""
    until = time.monotonic() + GRACE
    while time.monotonic() < until and not any((process.exitcode or 0) < 0 for process in group):
        left = [process.sentinel for process in group if process.exitcode is None]
        if not left:
            break
        wait(left, timeout=LOOK)
        _listen(ends, told)
    errors = [told[rank][1] for rank in sorted(told) if _is_error(told[rank])]
    for error in errors:
        if isinstance(error, (Interrupted, ValueError, RunError)):
            raise error
    for rank, process in enumerate(group):
        if (process.exitcode or 0) < 0:
            name = signal.Signals(-process.exitcode).name
            why = " Has the memory run out?" if name == "SIGKILL" else ""
            raise ProcessLost(f"Process {rank} of {len(group)} was ended by {name}.{why} {_remedy(folder)}")
    for error in errors:
        raise error
    rank = next(rank for rank, process in enumerate(group) if process.exitcode)
    raise ProcessLost(f"Process {rank} of {len(group)} ended with status {group[rank].exitcode}. {_remedy(folder)}")


def _remedy(folder: Path | None) -> str:
    if folder is None:
        return "Without a run folder nothing was saved."
    return f"Go on from the last checkpoint with the same command and --resume, or fit(…, run_dir={str(folder)!r}, resume=True)."
