"""List what in results/ is stale, one line per file. Numbers stand with the commit that they name.

python docs/stale.py

A line says how many commits changed the script of a file since its rows were measured, and how many the rooms of the library
that matter most to it; of several commits the least and the most. Below it stand rows whose settings are no longer those of
their recipe, and rows of a tree that was not clean.
"""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from neuralsde.experiments.compare import stale_rows
from neuralsde.experiments.recipes.registry import COMPARISONS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
SCRIPT = re.compile(r"python (\S+\.py)")
SCRIPTS = {
    "bench_plans": "src/neuralsde/experiments/bench.py",
    "bench_video": "src/neuralsde/experiments/bench.py",
    "branching_next_state_long": "src/neuralsde/experiments/recipes/branching.py",
    "collisions_rate": "benchmarks/collisions_rate.py",
    "data_rate": "benchmarks/data_rate.py",
    "history": "benchmarks/history.py",
    "inverse_dynamics": "examples/inverse_dynamics.py",
    "known_sdes_peers": "benchmarks/known_sdes.py",
    "pusht_choice": "src/neuralsde/experiments/recipes/pusht.py",
    "pusht_latency": "benchmarks/pusht_latency.py",
    "pusht_shipped": "src/neuralsde/experiments/tasks/pusht.py",
    "training_time": "benchmarks/training_time.py",
    "video_people_choice": "src/neuralsde/experiments/recipes/video.py",
}
"""Of files that name none in their command."""
ROOMS = {
    "bench": "solvers nets models",
    "branching": "sde baselines",
    "collisions": "experiments/collisions",
    "data": "data training",
    "export": "export",
    "faults": "core training",
    "forecasting": "forecast selection",
    "install": "core",
    "inverse": "policy",
    "processes": "training",
    "pusht": "policy sde baselines",
    "rollouts": "solvers nets models",
    "streaming": "data training",
    "studio": "studio",
    "training": "training nets",
    "transport": "sde baselines",
    "video": "video sde baselines",
    "walking": "selection",
    "zoo": "selection",
}
"""Rooms of src/neuralsde that matter most to a file, by how its name begins; the others stand on the method itself."""
METHOD = "sde"
UNCLEAN = "-dirty"
NAMES = ("label", "claim", "set", "system", "case", "method", "way", "seed")


def rows_in(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Of each row of a results file what it is called, and its commit: its own, or that of the file."""
    rows = next((values[key] for key in ("runs", "rows", "cases") if values.get(key)), values)
    named = rows if isinstance(rows, dict) else {k: row for k, row in enumerate(rows)}
    found = []
    for key, row in named.items():
        own = row if isinstance(row, dict) else {}
        said = [str(own[part]) for part in NAMES if part in own]
        name = key if isinstance(key, str) else " ".join(said) or f"row {key}"
        commit = own.get("commit", values.get("commit"))
        if commit and (rows is not values or "commit" in own):
            found.append((name, str(commit)))
    return found or [("the file", str(values["commit"]))]


def script_of(stem: str, values: dict[str, Any]) -> str:
    """What measures the rows: the recipes of a comparison, or a script by the command that the file holds."""
    if (task := stem.replace("_", "-")) in COMPARISONS:
        return f"src/{COMPARISONS[task].__module__.replace('.', '/')}.py"
    within = [values.get("command"), *(row.get("command") for row in values.values() if isinstance(row, dict))]
    commands = [found[1] for text in within if (found := SCRIPT.match(str(text)))]
    return commands[0] if commands else SCRIPTS[stem]


def rooms_of(stem: str) -> list[str]:
    """The rooms of the library that matter most to a file."""
    return ROOMS.get(stem.split("_", maxsplit=1)[0], METHOD).split()


@cache
def commits_since(commit: str, *paths: str) -> int | None:
    """How many commits changed these paths since that one; None where git does not know it."""
    command = ["git", "rev-list", "--count", f"{commit.removesuffix(UNCLEAN)}..HEAD", "--", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else None


def _since(commits: set[str], *paths: str) -> str:
    """How often these paths were changed since the commits: the least and the most."""
    counts = {commits_since(commit, *paths) for commit in commits}
    known = sorted(count for count in counts if count is not None)
    ends = [f"+{count}" for count in dict.fromkeys([*known[:1], *known[-1:]])]
    return " to ".join(ends) + (" or unknown" if None in counts else "")


def stale(file: Path) -> list[str]:
    """The line of a file, and those below it."""
    values, stem = json.loads(file.read_text(encoding="utf-8")), file.stem
    rows, script = rows_in(values), script_of(stem, values)
    commits, rooms = {commit for _, commit in rows}, rooms_of(stem)
    source = _since(commits, *(f"src/neuralsde/{room}" for room in rooms))
    what = f"{len(rows)} row{'s' * (len(rows) > 1)} of {len(commits)} commit{'s' * (len(commits) > 1)}"
    lines = [f"{file.name}: {what}; {Path(script).name} {_since(commits, script)}, {' '.join(rooms)} {source}"]
    task = stem.replace("_", "-")
    if task in COMPARISONS:
        lines += [f"  {label}: {why}" for label, why in stale_rows(task, file).items()]
    unclean = [name for name, commit in rows if commit.endswith(UNCLEAN)]
    return lines + ([f"  not of a clean tree: {'; '.join(unclean)}"] if unclean else [])


def main() -> None:
    """Print it."""
    print("Commits since the rows were measured, in their script and in the library; rows that are stale or unclean:")
    for file in sorted(RESULTS.glob("*.json")):
        print("\n".join(stale(file)))


if __name__ == "__main__":
    main()
