"""The command `nsde demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from neuralsde.cli.options import given, refuse

OWN = {"branching": {"num_paths", "seed", "steps"}, "pusht": {"policy", "num_episodes"}}
"""Options of one demonstration alone."""


@dataclass(frozen=True)
class Demo:
    """Branching: train NSDE, DDIM and Rectified Flow on forking paths, draw and score them. Push-T: watch a trained policy."""

    task: Positional[Literal["branching", "pusht"]] = "branching"
    """The demonstration."""
    output: Path | None = None
    """Folder for figures, results.json and report.html; default runs/demo, or runs/demo-pusht."""
    num_workers: int = 2
    """Trainings side by side, or processes that simulate."""
    num_paths: int = 200
    """Branching: paths drawn from each model."""
    seed: int = 0
    """Branching: seed of training and sampling."""
    steps: int | None = None
    """Branching: training steps of each model, if not the recipe's."""
    policy: Path | None = None
    """Push-T: folder of a policy, or run folder; default the policy that comes with the library."""
    num_episodes: int = 20
    """Push-T: episodes."""

    def run(self) -> None:
        """Do it, and say where it is."""
        for task, names in OWN.items():
            if task != self.task:
                refuse(given(self, names), f"this is for `nsde demo {task}`.")
        if self.task == "branching":
            self._branching(self.output or Path("runs/demo"))
        else:
            self._pusht(self.output or Path("runs/demo-pusht"))

    def _branching(self, output: Path) -> None:
        from neuralsde.demo.branching import run_demo
        from neuralsde.result_tables import branching

        values = run_demo(
            output, num_paths=self.num_paths, seed=self.seed, num_workers=self.num_workers, steps=self.steps
        )
        print(f"\n{branching(values)}\n")
        print(f"Figures: {output / 'density.png'}, {output / 'ablation.png'}")
        print(f"Report:  {output / 'report.html'}")

    def _pusht(self, output: Path) -> None:
        from neuralsde.cli.episodes import check_writable, policy_folder

        if self.num_episodes < 1:
            raise ValueError(f"`--num-episodes` must be at least 1. Got {self.num_episodes}.")
        for name in ("episode.gif", "trajectories.png"):
            check_writable(output / name)
        from neuralsde.demo.pusht import run_demo, shipped
        from neuralsde.result_tables import lost_episodes, policy_scores
        from neuralsde.tasks.pusht_sim import PushT

        PushT()  # says what is missing
        folder = shipped() if self.policy is None else policy_folder(self.policy)
        if folder is None:
            raise ValueError(f"{self.policy} holds no policy.json. Give the run folder of `nsde train pusht`.")
        values = run_demo(folder, output, num_episodes=self.num_episodes, num_workers=self.num_workers)
        print("\n" + "\n".join([policy_scores(values["scores"]), *lost_episodes(values["failures"])]) + "\n")
        print(f"Episode: {output / 'episode.gif'}")
        print(f"Paths:   {output / 'trajectories.png'}")
        print(f"Report:  {output / 'report.html'}")
