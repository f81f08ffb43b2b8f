"""The folder of a run: one run at a time, and what is left there besides the model: results with their origin, and losses."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from neuralsde.core.files import alone, replacing, writable_folder
from neuralsde.core.records import check

NUM_LINES = 6  # lines of the table of losses
CHECKPOINTS = ("checkpoints", "autoencoder/checkpoints")


@dataclass(frozen=True)
class RunFolder(os.PathLike[str]):
    """A folder that a run has to itself; what is called within the run takes it as it is."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)


@contextmanager
def open_run(path: str | os.PathLike[str] | None, *, resume: bool) -> Iterator[RunFolder | None]:
    """The folder of a run, made if need be, for this run alone. None, or one that is open already, stays what it is."""
    if path is None or isinstance(path, RunFolder):
        yield path
        return
    check_run(path, resume=resume)
    folder = writable_folder(path)
    if not first_process():  # of several processes that train together, the first one locks
        yield RunFolder(folder)
        return
    with alone(folder):
        check_run(folder, resume=resume)  # again: the run before may just have ended
        yield RunFolder(folder)


def first_process() -> bool:
    """Whether this is the process that writes, of several that torchrun or accelerate has started."""
    return os.environ.get("RANK", "0") == "0"


def check_run(
    path: str | os.PathLike[str] | None, *, resume: bool, holdout: float = 0.0, steps: int | None = None
) -> None:
    """Refuse what no run can do."""
    check(0 <= holdout < 1, f"`holdout` is a share within [0, 1). Got {holdout}.")
    check(steps is None or steps >= 1, f"`steps` must be at least 1. Got {steps}.")
    check(not resume or path is not None, "`resume=True` needs the folder of the run to go on with. Got none.")
    if path is not None and not resume and holds_run(path):
        raise ValueError(f"{path} already holds a run. Give `resume=True` to go on with it, or another folder.")


def holds_run(path: str | os.PathLike[str]) -> bool:
    """Whether there is a training to go on with."""
    return any(place.name.isdigit() for name in CHECKPOINTS for place in (Path(path) / name).glob("*"))


def provenance() -> dict[str, Any]:
    """Where a number came from: commit, versions, hardware."""
    packages = {}
    for name in ("neuralsde", "torch", "numpy", "accelerate", "diffusers"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "commit": commit(),
        "versions": {"python": platform.python_version(), **packages},
        "hardware": {"gpu": gpu, "cpu": _cpu(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
    }


def commit() -> str:
    """The commit of the source tree, "-dirty" where more than results differs; NEURALSDE_COMMIT names it where git cannot."""
    named = os.environ.get("NEURALSDE_COMMIT")
    if named:
        return named
    try:
        name = _git("describe", "--always", "--abbrev=12")
        return name + ("-dirty" if _git("status", "--porcelain", "-uno", "--", ":/", ":(top,exclude)results") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*words: str) -> str:
    """What a command of git says about the source tree."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_results(path: Path, values: dict[str, Any]) -> None:
    """Write JSON (what is not finite as null), or leave the file as it was; its folder is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new:
        new.write_text(json.dumps(_finite(values), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def rows_before(path: Path, budget: str, commit: str, again: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Rows that an earlier run left in a results file, if its budget was the same: those of this commit, and those of sets and
    methods that are not asked for again."""
    if not path.exists():
        return []
    before = json.loads(path.read_text(encoding="utf-8"))
    if before["budget"] != budget:
        return []
    asked = set(again)
    rows = [{"commit": before["commit"], **row} for row in before["rows"]]
    return [row for row in rows if row["commit"] == commit or (row["set"], row["method"]) not in asked]


def losses(metrics: Path) -> list[str]:
    """A table of some steps, and a word if the held-out loss has risen."""
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    full = [r for r in records if any(k.startswith("val_") for k in r)] or records
    shown = (
        [full[round(k * (len(full) - 1) / (NUM_LINES - 1))] for k in range(NUM_LINES)]
        if len(full) > NUM_LINES
        else full
    )
    names = [k for k in shown[-1] if k not in ("step", "lr", "steps_per_second", "waiting")]
    lines = [f"| step | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {r['step']} | {' | '.join(f'{r[k]:.4g}' if k in r else '–' for k in names)} |" for r in shown]
    name = "val_likelihood" if "val_likelihood" in full[-1] else "val_diffusion"
    likelihood = [(r[name], r["step"]) for r in full if name in r]
    if likelihood and likelihood[-1][0] > min(likelihood)[0] + 0.02:
        lines += ["", f"The held-out loss was lowest at step {min(likelihood)[1]}: try fewer steps or a smaller net."]
    return lines
