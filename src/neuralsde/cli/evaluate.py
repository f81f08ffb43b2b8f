"""The command `nsde evaluate`: how good a trained model is on a table, in its own task, or as a policy in simulation."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from tyro.conf import Positional

from neuralsde.cli.forecast import OF_TABLES, TableOptions, refuse_videos
from neuralsde.cli.options import flags_of, in_flags, keywords, refuse
from neuralsde.core.extras import need
from neuralsde.core.records import check, to_dict
from neuralsde.data.tables.series import Series
from neuralsde.experiments.config import Variant

if TYPE_CHECKING:
    from neuralsde.experiments.pusht.rollout import Episode, Rollout

FORECASTS = {"horizon", "num_times", "origins_per_path", "output", *OF_TABLES}  # options of tables alone
FILMS, PICTURES = (".gif", ".mp4"), (".png", ".pdf", ".svg")
WRITERS = {".gif": "PIL", ".mp4": "av"} | dict.fromkeys(PICTURES, "matplotlib")  # modules that write kinds of files


def policy_folder(path: Path) -> Path | None:
    """Where policy.json is: in the folder itself, or in the model of a run folder."""
    return next((folder for folder in (path / "model", path) if (folder / "policy.json").is_file()), None)


def check_writable(file: Path) -> None:
    """Refuse a file whose writer is not installed."""
    need(f"To write {file.name}", WRITERS[file.suffix.lower()])


@dataclass(frozen=True, kw_only=True)
class World(Variant):
    """How the policy is run, and what is made hard for it."""

    name: tyro.conf.Suppress[str] = ""


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """For a policy, which is scored in simulation: a folder with policy.json, or the run folder of a Push-T recipe."""

    num_episodes: int = 500
    """Episodes; what is reported needs 500."""
    first_seed: int = 200_000
    """Seed of the first one. Seeds 100000 to 100499 are for numbers that are reported: nothing may be chosen by them."""
    num_workers: int = 2
    """Processes that simulate."""
    video: Path | None = None
    """Film of one episode, .gif or .mp4."""
    picture: Path | None = None
    """Its paths and plans on the plane, .png, .pdf or .svg."""
    video_seed: int | None = None
    """Seed of the episode that is shown; default the first one."""
    world: tyro.conf.OmitArgPrefixes[World] = field(default_factory=World)

    def run(self, folder: Path, output: Path | None) -> None:
        from neuralsde.experiments.pusht.sim import PushT
        from neuralsde.experiments.result_tables import lost_episodes, policy_scores
        from neuralsde.experiments.tasks.pusht import act_as, evaluate
        from neuralsde.metrics.imitation import ranges, summary

        self._check(output)
        PushT(self.world.control_hz)  # what no worker could do is refused here
        parameters = sum(p.numel() for p in act_as(str(folder), self.world).model.parameters())
        seeds = range(self.first_seed, self.first_seed + self.num_episodes)
        watched = sys.stderr.isatty()
        rollout = evaluate(folder, seeds, variant=self.world, num_workers=self.num_workers, progress=watched)
        found = summary(rollout.episodes)
        print(policy_scores(found))
        lost = [{"seeds": ranges(f.seeds), "message": f.message} for f in rollout.failures]
        for line in lost_episodes(lost):
            print(line)
        self._draw(rollout)
        if output is not None:
            from neuralsde.core.files import writable_folder
            from neuralsde.training.run_folder import provenance, write_results

            writable_folder(output.parent)
            record = {"policy": str(folder), "parameters": parameters, "variant": to_dict(self.world), **provenance()}
            best = {str(episode.seed): episode.best for episode in rollout.episodes}
            write_results(output, record | {"scores": found, "failures": lost, "best_coverage": best})
            print(f"Wrote {output}")

    def _check(self, output: Path | None) -> None:
        """Refuse, before anything is simulated, what could not be written after it."""
        check(self.num_episodes >= 1, f"`--num-episodes` must be at least 1. Got {self.num_episodes}.")
        if output is not None and output.suffix != ".json":
            raise ValueError(f"`--output` must end in .json for a policy. Got {output}.")
        for flag, file, kinds in (("video", self.video, FILMS), ("picture", self.picture, PICTURES)):
            if file is None:
                continue
            check(file.suffix.lower() in kinds, f"`--{flag}` must end in {' or '.join(kinds)}. Got {file}.")
            check_writable(file)
        last = self.first_seed + self.num_episodes - 1
        if self.video_seed is not None and not self.first_seed <= self.video_seed <= last:
            seeds = f"{self.first_seed} to {last}"
            raise ValueError(f"`--video-seed` must be one of the episodes, {seeds}. Got {self.video_seed}.")

    def _draw(self, rollout: Rollout) -> None:
        if self.video is None and self.picture is None:
            return
        from neuralsde.experiments.pusht.pictures import save_episode, trajectory_picture
        from neuralsde.experiments.tasks.pusht import conditions

        wanted = self.first_seed if self.video_seed is None else self.video_seed
        shown: Episode | None = next((e for e in rollout.episodes if e.seed == wanted), None)
        if shown is None:
            print(f"! The episode of seed {wanted} was lost: nothing is drawn.")
            return
        setting = conditions(self.world)
        if self.video is not None:
            print(f"Wrote {save_episode(shown, self.video, setting)}, the episode of seed {shown.seed}")
        if self.picture is not None:
            self.picture.parent.mkdir(parents=True, exist_ok=True)
            trajectory_picture({"": [shown]}, setting).savefig(self.picture)
            print(f"Wrote {self.picture}, the episode of seed {shown.seed}")


@dataclass(frozen=True)
class Evaluate(TableOptions):
    """Score a model on a table that it was not trained on; without --data, a finished run of `nsde train`, or a policy."""

    model: Positional[Path]
    """Run folder, or a folder written by save_pretrained: of a policy, or with --data of any model."""
    data: Path | None = None
    """Table with one row per observation: .csv or .parquet."""
    horizon: float | None = None
    """Steps ahead of a model of series (default as in its fit); else time ahead in the units of the stamps (default 20
    training steps, or half the longest series)."""
    num_times: int = 20
    """Observations scored per forecast of a model of uneven stamps."""
    num_paths: int | None = None
    """Samples per forecast (default 200), or paths to draw for a run (default as in its config)."""
    origins_per_path: int | None = None
    """Forecasts per series; default as in the backtest, or 100 over all series of uneven stamps."""
    seed: int = 0
    """Seed of the samples."""
    output: Path | None = None
    """Folder for results.json, fans.png and calibration.png, default `evaluation` in the model's folder; of a policy: a .json."""
    episodes: tyro.conf.OmitArgPrefixes[Episodes] = field(default_factory=Episodes)

    def run(self) -> None:
        folder = policy_folder(self.model)
        if folder is not None:
            tables = {f.name for f in dataclasses.fields(self)} - {"model", "output", "episodes"}
            refuse(flags_of(self, tables), f"{self.model} holds a policy, which is scored in simulation. Leave it out.")
            self.episodes.run(folder, self.output)
            return
        refuse(flags_of(self.episodes), f"this is for a policy. {self.model} holds none: it has no policy.json.")
        if self.data is None:
            self._score_run()
        else:
            self._score_table(self.data)

    def _score_run(self) -> None:
        from neuralsde.experiments.run import score_run

        refuse_videos(self.model)
        if Series.load(self.model) is not None:
            raise ValueError(f"{self.model} was fitted on a table. Give one to score it on: --data FILE.")
        refuse(flags_of(self, FORECASTS), "this is for a table. Give one with --data, or leave it out.")
        settings = {} if self.num_paths is None else {"num_paths": self.num_paths}
        print(json.dumps(score_run(self.model, seed=self.seed, **settings), indent=1))

    def _score_table(self, file: Path) -> None:
        from neuralsde.forecast.tables import evaluate_table

        model, table = self.open(self.model, file)
        place = {"output": self.model / "evaluation"}
        scores = evaluate_table(model, table, **place | keywords(evaluate_table, self))
        print(f"\n{in_flags(str(scores), Evaluate)}\n\nWrote {', '.join(map(str, scores.files))}")
        if len(scores.files) == 1:
            print("No figures: pip install 'neuralsde[plots]'.")
