"""List what in results/ is stale: rows whose settings are no longer those of their recipe, and files whose script has changed
since. Their numbers stand with the commit that they name.

python docs/stale.py
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from neuralsde.experiments.compare import stale_rows
from neuralsde.experiments.recipes.registry import COMPARISONS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
SCRIPT = re.compile(r"python (\S+\.py)")


def by_recipe() -> dict[str, dict[str, str]]:
    """Of each comparison, its stale rows."""
    files = {task: RESULTS / f"{task.replace('-', '_')}.json" for task in COMPARISONS}
    return {file.name: stale_rows(task, file) for task, file in files.items() if file.exists()}


def by_script() -> dict[str, str]:
    """Files whose script git has changed since the commit that they name, and how often."""
    found = {}
    for file in sorted(RESULTS.glob("*.json")):
        values = json.loads(file.read_text(encoding="utf-8"))
        script, commit = SCRIPT.match(str(values.get("command"))), values.get("commit")
        if script and commit:
            since = _git("rev-list", "--count", f"{commit}..HEAD", "--", script[1])
            if since != "0":
                found[file.name] = (
                    f"{script[1]} has changed since {commit[:7]}: {since or 'an unknown number of'} commits"
                )
    return found


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> None:
    """Print it."""
    for name, rows in by_recipe().items():
        print(f"{name}: {'as its recipes say' if not rows else ''}")
        for label, why in rows.items():
            print(f"  {label}: {why}")
    for name, why in by_script().items():
        print(f"{name}: {why}")


if __name__ == "__main__":
    main()
