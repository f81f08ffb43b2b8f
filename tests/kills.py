"""Kill what writes, at random moments, go on with it, and look whether anything was lost or left behind.

`python tests/kills.py --kills 500 --output results/faults.json`. Each trial starts one kind of work, kills it up to four times
(three in four with SIGKILL, else with SIGTERM), going on with it in between, and lets it end. Then the folder must be
the one that an uninterrupted run leaves, byte by byte but for measured times, and no process may have outlived its parent.

The work is forked from a process that has imported everything, so that it is not the imports that are killed. Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

MARK = "NEURALSDE_KILLS"  # in the environment of everything that a trial starts
PATIENCE = 60.0  # seconds until work that does not end counts as hung
GRACE = 5.0  # seconds in which workers must have ended after their parent; those that still import look only then
SHARES = {"train": 0.24, "fit": 0.16, "compare": 0.04, "data": 0.16, "save": 0.4}
"""Of the kills; processes of `compare` take seconds to start."""
FREE = {
    "train_seconds",
    "sample_seconds",
    "steps_per_second",
    "commit",
    "versions",
    "hardware",
}  # values that may differ
NET = ["--model.net.width", "8", "--model.net.depth", "1"]
OPTIONS = ["--no-progress", "--cpu", "--checkpoint-every", "3", "--log-every", "4"]


# The work: functions of the folder of a trial, run in a process of their own


def train(folder: Path) -> None:
    from neuralsde.cli import main

    size = [
        *NET,
        "--train.steps",
        "24",
        "--train.batch-size",
        "16",
        "--task.num-paths",
        "2",
        "--model.sampler.substeps",
        "1",
    ]
    main(["train", "branching", "--output", str(folder / "run"), "--resume", *size, *OPTIONS])


def fit(folder: Path) -> None:
    from neuralsde.cli import main

    net = [part.replace("--model.", "--") for part in NET]
    size = [*net, "--steps", "24", "--train.batch-size", "16", "--holdout", "0"]
    table = ["--id", "id", "--time", "t"]
    main(
        ["fit", str(folder.parent / "table.csv"), "--output", str(folder / "run"), "--resume", *table, *size, *OPTIONS]
    )


def compare(folder: Path) -> None:
    from neuralsde.experiments.compare import compare as run_rows

    run_rows(rows(), folder / "results.json", num_seeds=2, num_workers=2, cpu=True)


def data(folder: Path) -> None:
    from neuralsde.cli import main

    films = ["--from", str(folder.parent / "films"), "--output", str(folder / "shards")]
    main(["data", "videos", *films, "--size", "16", "--num-workers", "1"])


def save(folder: Path) -> None:
    """Over and over, until killed; the last save of a trial, which is not, is of the first model."""
    once = folder / "once"
    models = two_models()
    models[0].save_pretrained(folder / "model")
    while not once.exists():
        for model in reversed(models):
            model.save_pretrained(folder / "model")
    once.unlink()


WORK: dict[str, Callable[[Path], None]] = {"train": train, "fit": fit, "compare": compare, "data": data, "save": save}


def rows() -> dict[str, Any]:
    from neuralsde.experiments.recipes import branching as recipes

    one = recipes.neural_sde()
    net, sampler = replace(one.model.net, width=8, depth=1), replace(one.model.sampler, substeps=1)
    small = {"train": replace(one.train, steps=20, batch_size=16), "task": replace(one.task, num_paths=2)}
    models = {"NSDE": one.model, "noisier": replace(one.model, noise=0.1)}
    return {
        name: replace(one, model=replace(model, net=net, sampler=sampler), **small) for name, model in models.items()
    }


def two_models() -> list[Any]:
    """Of one shape, so that the files of one could be taken for those of the other."""
    import torch

    from neuralsde import Trajectories
    from neuralsde.models.build import build
    from neuralsde.nets.config import MLPConfig
    from neuralsde.sde.config import NeuralSDEConfig, Sampler

    states = torch.arange(20.0).reshape(10, 2)
    pairs = Trajectories.from_arrays(states[None].numpy(), torch.arange(10.0).numpy()).transitions()
    configs = [NeuralSDEConfig(net=MLPConfig(width=64, depth=2), sampler=Sampler(substeps=k)) for k in (1, 2)]
    return [build(config, pairs, seed=k) for k, config in enumerate(configs)]


def inputs(place: Path) -> None:
    """The table and the films that are learned from."""
    import numpy as np

    from neuralsde.video.files import write_video

    rng = np.random.default_rng(0)
    walks = rng.normal(size=(6, 30)).cumsum(1)
    lines = [f"{k},{t},{x:.6f}" for k, walk in enumerate(walks) for t, x in enumerate(walk)]
    (place / "table.csv").write_text("\n".join(["id,t,x", *lines]) + "\n", encoding="utf-8")
    for k in range(4):
        write_video(rng.integers(0, 255, (12, 32, 32, 3), dtype=np.uint8), place / "films" / f"{k}.mp4", fps=10)


# Processes


def start(kind: str, folder: Path) -> int:
    """A process that works, in a folder for temporary files of its own; its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        os.environ[MARK] = str(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
        log = os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = _work(kind, folder)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _work(kind: str, folder: Path) -> int:
    from neuralsde.core.processes import Interrupted, terminable

    try:
        with terminable():
            WORK[kind](folder)
    except Interrupted:
        return 128 + signal.SIGTERM
    return 0


def end_of(pid: int, seconds: float) -> int | None:
    """The exit code, negative for a signal; None where it still runs after so many seconds."""
    limit = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > limit:
            return None
        time.sleep(0.002)


def workers_of(folder: Path) -> Iterator[int]:
    """Processes that a trial in the folder started, by the mark in their environment."""
    mark = f"{MARK}={folder}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (place / "environ").read_bytes().split(b"\0"):
                yield int(place.name)
        except OSError:  # ended, or somebody else's
            continue


def orphans_after(folder: Path) -> tuple[float, list[int]]:
    """Seconds until all workers had ended, and those that had not within the grace, which are then killed."""
    began = time.monotonic()
    while left := list(workers_of(folder)):
        if time.monotonic() - began > GRACE:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.01)
    return time.monotonic() - began, left


# What is left


def content(folder: Path) -> dict[str, str]:
    """Every file by its place, and a digest of what it holds but for measured times; of checkpoints only oddities."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        odd = any(part.startswith(".") and part != ".lock" for part in name.split("/")) or file.suffix in (
            ".tmp",
            ".part",
        )
        kept = [part for part in name.split("/") if part.isdigit()]
        if name == "tmp" or (not odd and ("checkpoints" in name.split("/") and kept)):
            continue
        found[name] = "" if file.is_dir() else hashlib.sha256(_lasting(file)).hexdigest()
    return found


def _lasting(file: Path) -> bytes:
    if file.suffix == ".npz":  # a zip with the hour in it
        import numpy as np

        with np.load(file) as arrays:
            return b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays))
    if file.suffix not in (".json", ".jsonl"):
        return file.read_bytes()
    text = file.read_text(encoding="utf-8")
    values = json.loads(text) if file.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    return json.dumps(_without(values)).encode()


def _without(values: Any) -> Any:
    if isinstance(values, dict):
        return {k: _without(v) for k, v in values.items() if k not in FREE}
    return [_without(v) for v in values] if isinstance(values, list) else values


def mixed(folder: Path, whole: list[dict[str, Any]]) -> str:
    """Why a folder of a killed save is neither model; empty where it is one of them, or none was saved yet."""
    from neuralsde import load

    if not folder.exists() or not any(file.is_file() for file in folder.iterdir()):
        return ""
    try:
        found = _described(load(folder))
    except Exception as error:
        return f"does not load: {error}"
    return "" if found in whole else "is neither of the two models"


def _described(model: Any) -> dict[str, Any]:
    import torch

    state = {name: hashlib.sha256(value.numpy().tobytes()).hexdigest() for name, value in model.state_dict().items()}
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    return {"config": repr(model.config), **state}


# Trials


@dataclass
class Tally:
    """What happened to one kind of work."""

    sigkill: int = 0
    sigterm: int = 0
    trials: int = 0
    too_late: int = 0  # the work had ended before the kill
    slowest_worker: float = 0.0  # seconds from the end of a parent to that of its last worker
    failures: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return self.sigkill + self.sigterm


class Killer:
    """Trials of all kinds in one place."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.random = place, random.Random(seed)
        self.tallies: dict[str, Tally] = {}
        self.whole: dict[str, dict[str, str]] = {}
        self.seconds: dict[str, float] = {}
        inputs(place)
        self.models = [_described(model) for model in two_models()]

    def folder(self, name: str) -> Path:
        folder = self.place / name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "tmp").mkdir(parents=True)
        return folder

    def reference(self, kind: str) -> None:
        """An uninterrupted run: what it leaves, and how long it takes."""
        folder, began = self.folder(kind), time.monotonic()
        if kind == "save":
            (folder / "once").touch()
        code = end_of(start(kind, folder), PATIENCE)
        if code != 0:
            raise RuntimeError(f"{kind} fails without any kill, code {code}: {_log(folder)}")
        self.whole[kind] = content(folder)
        self.seconds[kind] = 0.1 if kind == "save" else time.monotonic() - began
        self.tallies[kind] = Tally()

    def trial(self, kind: str, most: int) -> None:
        """Kill at most so many times, let it end, and look."""
        tally, folder = self.tallies[kind], self.folder(kind)
        tally.trials += 1
        for _ in range(most):
            if not self._kill(kind, folder, tally):
                break
        if kind == "save":
            (folder / "once").touch()
        code = end_of(pid := start(kind, folder), PATIENCE)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            end_of(pid, PATIENCE)
        self._orphans(folder, tally)
        if code != 0:
            tally.failures.append(f"going on ends with code {code}: {_log(folder)}")
            return
        found, whole = content(folder), self.whole[kind]
        wrong = [name for name in sorted(found.keys() | whole.keys()) if found.get(name) != whole.get(name)]
        if wrong:
            words = [
                f"{n} ({'left behind' if n not in whole else 'missing' if n not in found else 'differs'})"
                for n in wrong
            ]
            tally.failures.append(", ".join(words))
        if any((folder / "tmp").iterdir()):
            tally.failures.append(f"temporary files: {[file.name for file in (folder / 'tmp').iterdir()]}")

    def _kill(self, kind: str, folder: Path, tally: Tally) -> bool:
        """Start, wait, kill; whether there was something to kill."""
        pid = start(kind, folder)
        number = signal.SIGTERM if self.random.random() < 0.25 else signal.SIGKILL
        if end_of(pid, self.random.uniform(0, self.seconds[kind])) is not None:
            tally.too_late += 1
            return False
        os.kill(pid, number)
        code = end_of(pid, PATIENCE)
        if code is None:
            tally.failures.append(f"{number.name} does not end it")
            os.kill(pid, signal.SIGKILL)
            end_of(pid, PATIENCE)
        elif code not in (0, -number, 128 + number):
            tally.failures.append(f"{number.name} ends it with code {code}: {_log(folder)}")
        if number is signal.SIGTERM:
            tally.sigterm += 1
        else:
            tally.sigkill += 1
        self._orphans(folder, tally)
        if kind == "save" and (why := mixed(folder / "model", self.models)):
            tally.failures.append(f"after {number.name} the folder {why}")
            shutil.rmtree(folder / "model")
        return True

    def _orphans(self, folder: Path, tally: Tally) -> None:
        seconds, left = orphans_after(folder)
        tally.slowest_worker = max(tally.slowest_worker, round(seconds, 2))
        if left:
            tally.failures.append(f"{len(left)} process(es) outlived their parent by {GRACE:g} s")


def _log(folder: Path) -> str:
    lines = folder.with_suffix(".log").read_text(encoding="utf-8", errors="replace").split("\n")
    text = " / ".join(line for line in lines if line.strip())[-300:]
    return re.sub(r"(?<![\w.])/\S+/(?=[\w.]+)", "…/", text)  # a record names no place of this machine


def kill(kills: dict[str, int], seed: int, say: Callable[[str], None] = print) -> dict[str, Tally]:
    """So many kills of each kind; what happened."""
    import accelerate  # noqa: F401
    import pandas as pd  # noqa: F401
    import torch
    import torch._inductor.config

    import neuralsde.cli.experiments
    import neuralsde.data.videos.sharding
    import neuralsde.experiments.compare
    import neuralsde.experiments.tasks.branching
    import neuralsde.forecast.fit
    import neuralsde.video.model  # noqa: F401

    torch.set_num_threads(1)  # and no thread before the forks
    memory = Path(
        "/dev/shm"
    )  # where the disk need not be waited for: a kill of processes loses nothing that was written
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        killer = Killer(Path(place), seed)
        for kind, num in kills.items():
            killer.reference(kind)
            began, tally = time.monotonic(), killer.tallies[kind]
            while tally.kills < num and tally.too_late < 20 + 5 * num:
                killer.trial(kind, min(4, num - tally.kills))
            told = f"{tally.kills} kills in {tally.trials} trials, {len(tally.failures)} failures"
            say(f"{kind}: {told}, {time.monotonic() - began:.0f} s")
            for failure in tally.failures[:5]:
                say(f"  {failure}")
    return killer.tallies


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="over all kinds")
    parser.add_argument("--only", nargs="*", choices=list(WORK), default=list(WORK), help="kinds of work")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="results file")
    args = parser.parse_args(arguments)
    share = sum(SHARES[kind] for kind in args.only)
    kills = {kind: max(1, round(args.kills * SHARES[kind] / share)) for kind in args.only}
    began = time.monotonic()
    tallies = kill(kills, args.seed)
    failures = sum(len(tally.failures) for tally in tallies.values())
    num = sum(tally.kills for tally in tallies.values())
    print(f"{num} kills, {failures} failures, {time.monotonic() - began:.0f} s")
    if args.output is not None:
        from neuralsde.training.run_folder import provenance, write_results

        kinds = {kind: {"kills": tally.kills, **vars(tally)} for kind, tally in tallies.items()}
        command = f"python tests/kills.py --kills {args.kills} --seed {args.seed}"
        record = {
            "command": command,
            "seed": args.seed,
            "n": num,
            "failures": failures,
            "device": "cpu",
            **provenance(),
        }
        write_results(args.output, {"kills": {**record, "seconds": round(time.monotonic() - began), "kinds": kinds}})
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
