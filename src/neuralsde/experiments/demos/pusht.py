"""The demonstration of Push-T: the policy that comes with the library pushes a block, and how well is counted."""

from __future__ import annotations

import html
import time
from pathlib import Path
from typing import Any

from neuralsde.core.files import writable_folder
from neuralsde.experiments.config import Variant
from neuralsde.experiments.demos.page import image, page
from neuralsde.experiments.pusht.pictures import panel, save_episode
from neuralsde.experiments.result_tables import policy_scores
from neuralsde.experiments.tasks import pusht
from neuralsde.metrics.imitation import ranges, summary
from neuralsde.plots.pusht import push_grid
from neuralsde.policy.shipped import shipped as shipped
from neuralsde.training.run_folder import provenance, write_results

FIRST_SEED = 200_000  # of the episodes; those of reported numbers are others
NUM_SHOWN = 4  # episodes in the picture


def run_demo(policy: Path, output: Path, *, num_episodes: int = 20, num_workers: int = 2) -> dict[str, Any]:
    """Play the episodes, draw some of them, and leave results and a report in `output`."""
    began = time.perf_counter()
    folder = writable_folder(output)
    seeds = range(FIRST_SEED, FIRST_SEED + num_episodes)
    print(f"Playing {num_episodes} episode(s) of Push-T; well under a minute.", flush=True)
    rollout = pusht.evaluate(policy, seeds, num_workers=num_workers)
    found = summary(rollout.episodes)
    lost = [{"seeds": ranges(f.seeds), "message": f.message} for f in rollout.failures]

    print("Drawing.", flush=True)
    setting = pusht.conditions(Variant(name=""))
    save_episode(rollout.episodes[0], folder / "episode.gif", setting)
    panels = {f"seed {e.seed}": panel(e, setting) for e in rollout.episodes[:NUM_SHOWN]}
    push_grid({"": panels}).savefig(folder / "trajectories.png")
    values = {"scores": found, "failures": lost, "seconds": round(time.perf_counter() - began, 1)}
    write_results(folder / "results.json", {**provenance(), **values})
    (folder / "report.html").write_text(report(folder, values, rollout.episodes[0].seed), encoding="utf-8")
    return values


def report(folder: Path, values: dict[str, Any], seed: int) -> str:
    """One HTML page that needs no other file."""
    lines = "<br>".join(html.escape(line) for line in policy_scores(values["scores"]).splitlines())
    return page(
        "Push-T",
        f"""<p>A round agent pushes a T-shaped block onto a goal. The policy is a Neural SDE over the path of actions, learned from
206 demonstrations by hand: it draws eight actions at a time, given what it saw last. All of it was played on this machine
in {values["seconds"]:.0f} seconds.</p>
<h2>One episode (seed {seed})</h2>
{image(folder / "episode.gif", "The agent pushes the block")}
<h2>Scores</h2>
<p>{lines}</p>
<p>The settings of the policy were chosen on such seeds; the numbers that are reported in the documentation are of others.</p>
<h2>Paths of the agent, and what it planned</h2>
{image(folder / "trajectories.png", "Paths of the agent in several episodes, with the plans it drew")}""",
    )
