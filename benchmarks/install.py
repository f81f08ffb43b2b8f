"""What the library adds to torch: seconds to import it, and megabytes to download.

python benchmarks/install.py --output results/install.json

Imports are timed in fresh processes, in turn, by their CPU time: the machine may be busy. The download is the sum of the wheels,
for this machine, of everything that the base install needs and that torch and numpy do not need themselves, at the versions
that are installed here, and of the library itself without the weights that it ships.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from neuralsde.training.run_folder import provenance, write_results

ROOT = Path(__file__).parents[1]
IMPORTS = {
    "torch": "import torch",
    "neuralsde": "import neuralsde",
    "neuralsde, to train": "import neuralsde; neuralsde.NeuralSDE, neuralsde.Trajectories, neuralsde.fit",
}
WEIGHTS = ("weights/", ".safetensors")


def import_seconds(num: int) -> dict[str, list[float]]:
    """CPU time of a Python that imports and ends."""
    found: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for k in range(num + 1):
        for name, code in IMPORTS.items():
            began = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], check=True)
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            if k:  # the first round fills the cache of the disk
                found[name].append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
    return found


def closure(names: list[str]) -> set[str]:
    """These packages and what they need without extras, as far as it is installed."""
    found, left = set[str](), list(names)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found:
            continue
        try:
            needs = requires(name) or []
        except PackageNotFoundError:  # for other systems or Pythons
            continue
        found.add(name)
        left += [re.match(r"[\w.-]+", need)[0] for need in needs if "extra ==" not in need]  # type: ignore[index]
    return found


def wheel_sizes(names: set[str]) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as place:
        wanted = [f"{name}=={version(name)}" for name in sorted(names)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, *wanted]
        subprocess.run(command, check=True)
        return {file.name: file.stat().st_size for file in sorted(Path(place).iterdir())}


def own_size() -> tuple[int, int]:
    """Bytes of the library's own wheel: without the weights that it ships, and theirs."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, str(ROOT)]
        subprocess.run(command, check=True)
        (wheel,) = Path(place).iterdir()
        with zipfile.ZipFile(wheel) as content:
            weights = sum(f.compress_size for f in content.infolist() if any(part in f.filename for part in WEIGHTS))
        return wheel.stat().st_size - weights, weights


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("results/install.json"))
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    seconds = import_seconds(args.rounds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    names = closure(["neuralsde"]) - closure(["torch", "numpy"]) - {"neuralsde"}
    wheels = wheel_sizes(names)
    own, weights = own_size()
    values = {
        "command": "python benchmarks/install.py",
        "seed": None,
        "n": args.rounds,
        "load_average": load,
        "import": {
            name: {
                "seconds": medians[name],
                "range": [min(seconds[name]), max(seconds[name])],
                "of_torch": medians[name] / medians["torch"],
            }
            for name in IMPORTS
        },
        "wheels": wheels,
        "own_wheel_bytes": own,
        "shipped_weights_bytes": weights,
        "download_bytes": sum(wheels.values()) + own,
    }
    print(values)
    write_results(args.output, {**provenance(), **values})


if __name__ == "__main__":
    main()
