"""The losses of a training as a table for its report."""

from __future__ import annotations

import json
from pathlib import Path

NUM_LINES = 6
"""Lines of the table."""


def losses(metrics: Path) -> list[str]:
    """A table of some steps, and a word if the held-out loss has risen."""
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    full = [r for r in records if any(k.startswith("val_") for k in r)] or records
    shown = (
        [full[round(k * (len(full) - 1) / (NUM_LINES - 1))] for k in range(NUM_LINES)]
        if len(full) > NUM_LINES
        else full
    )
    names = [k for k in shown[-1] if k not in ("step", "lr", "steps_per_second")]
    lines = [f"| step | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {r['step']} | {' | '.join(f'{r[k]:.4g}' if k in r else '–' for k in names)} |" for r in shown]
    name = "val_likelihood" if "val_likelihood" in full[-1] else "val_diffusion"
    likelihood = [(r[name], r["step"]) for r in full if name in r]
    if likelihood and likelihood[-1][0] > min(likelihood)[0] + 0.02:
        lines += ["", f"The held-out loss was lowest at step {min(likelihood)[1]}: try fewer steps or a smaller net."]
    return lines
