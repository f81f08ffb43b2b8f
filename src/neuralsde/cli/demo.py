"""The command `nsde demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from neuralsde.cli.options import flags_of, refuse
from neuralsde.core.extras import need
from neuralsde.core.records import check

OWN = {
    "branching": {"num_paths", "seed", "steps", "num_workers"},
    "pusht": {"policy", "num_episodes", "num_workers"},
    "video": {"num_paths", "seed", "model"},
}
"""Options of each demonstration."""


@dataclass(frozen=True)
class Demo:
    """Branching: train NSDE, DDIM and Rectified Flow on forking paths, draw and score them. Push-T: watch a trained policy. Video:
    see futures of a scene with a collision."""

    task: Positional[Literal["branching", "pusht", "video"]] = "branching"
    """The demonstration."""
    output: Path | None = None
    """Folder for figures, results.json and report.html; default runs/demo, runs/demo-pusht or runs/demo-video."""
    num_workers: int = 2
    """Trainings side by side, or processes that simulate."""
    num_paths: int | None = None
    """Branching: paths drawn from each model, 200. Video: futures, 4."""
    seed: int = 0
    """Branching: seed of training and sampling. Video: which scene."""
    steps: int | None = None
    """Branching: training steps of each model (those of the recipe if not given)."""
    policy: Path | None = None
    """Push-T: folder of a policy, or run folder; default the policy that comes with the library."""
    num_episodes: int = 20
    """Push-T: episodes."""
    model: Path | None = None
    """Video: folder of a model, or run folder; default the model that comes with the library."""

    def run(self) -> None:
        for task, names in OWN.items():
            refuse(flags_of(self, names - OWN[self.task]), f"this is for `nsde demo {task}`.")
        demos = {"branching": self._branching, "pusht": self._pusht, "video": self._video}
        output = self.output or Path("runs/demo" if self.task == "branching" else f"runs/demo-{self.task}")
        demos[self.task](output)
        print(f"Report:  {output / 'report.html'}")

    def _branching(self, output: Path) -> None:
        from neuralsde.experiments.demos.branching import run_demo
        from neuralsde.experiments.result_tables import branching

        num, workers = self.num_paths or 200, self.num_workers
        values = run_demo(output, num_paths=num, seed=self.seed, num_workers=workers, steps=self.steps)
        print(f"\n{branching(values)}\n")
        print(f"Figures: {output / 'density.png'}, {output / 'ablation.png'}")

    def _pusht(self, output: Path) -> None:
        from neuralsde.cli.evaluate import check_writable, policy_folder

        check(self.num_episodes >= 1, f"`--num-episodes` must be at least 1. Got {self.num_episodes}.")
        for name in ("episode.gif", "trajectories.png"):
            check_writable(output / name)
        from neuralsde.experiments.demos.pusht import run_demo, shipped
        from neuralsde.experiments.pusht.sim import PushT
        from neuralsde.experiments.result_tables import lost_episodes, policy_scores

        PushT()  # says what is missing
        folder = shipped() if self.policy is None else policy_folder(self.policy)
        if folder is None:
            raise ValueError(f"{self.policy} holds no policy.json. Give the run folder of `nsde train pusht`.")
        values = run_demo(folder, output, num_episodes=self.num_episodes, num_workers=self.num_workers)
        print("\n" + "\n".join([policy_scores(values["scores"]), *lost_episodes(values["failures"])]) + "\n")
        print(f"Episode: {output / 'episode.gif'}")
        print(f"Paths:   {output / 'trajectories.png'}")

    def _video(self, output: Path) -> None:
        from neuralsde.cli.evaluate import check_writable

        for name in ("futures.mp4", "futures.gif"):
            check_writable(output / name)
        need("A collision", "pymunk")
        from neuralsde.experiments.demos.video import run_demo, shipped
        from neuralsde.video.model import load_video_model

        video = load_video_model(shipped() if self.model is None else self.model)
        num_paths = 4 if self.num_paths is None else self.num_paths
        values = run_demo(video, output, num_paths=num_paths, seed=self.seed)
        done, slow = values["futures"], values["slow"]
        print(f"{num_paths} futures of {done['frames']} frames in {done['seconds']:.2f} s,", end=" ")
        print(f"{done['network_passes']} network passes each; slow motion in {slow['seconds']:.2f} s.")
        print(f"Futures: {output / 'futures.mp4'}, {output / 'futures.png'}")
        print(f"Slow:    {output / 'slow.mp4'}, {output / 'slow.png'}")
