"""The command `nsde evaluate`: how good a trained model is on a table, in its own task, or as a policy in simulation."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from tyro.conf import Positional

from neuralsde.cli.episodes import Episodes, policy_folder
from neuralsde.cli.forecast import OF_TABLES, TableOptions, refuse_videos
from neuralsde.cli.options import given, in_flags, keywords, refuse
from neuralsde.data.tables.series import Series

FORECASTS = {"horizon", "num_times", "origins_per_path", "output", *OF_TABLES}
"""Options of tables alone."""


@dataclass(frozen=True)
class Evaluate(TableOptions):
    """Score a model on a table that it was not trained on; without --data, a finished run of `nsde train`, or a policy."""

    model: Positional[Path]
    """Run folder, or a folder written by save_pretrained: of a policy, or with --data of any model."""
    data: Path | None = None
    """Table with one row per observation: .csv or .parquet."""
    horizon: float | None = None
    """Time ahead, in the units of the stamps; default 20 training steps, or half the longest path."""
    num_times: int = 20
    """Observations scored per forecast."""
    num_paths: int | None = None
    """Samples per forecast (default 200), or paths to draw for a run (default as in its config)."""
    origins_per_path: int | None = None
    """Forecasts per path; default 100 over all paths."""
    seed: int = 0
    """Seed of the samples."""
    output: Path | None = None
    """Folder for results.json, fans.png and calibration.png, default `evaluation` in the model's folder; of a policy: a .json."""
    episodes: tyro.conf.OmitArgPrefixes[Episodes] = field(default_factory=Episodes)

    def run(self) -> None:
        """Score and print."""
        folder = policy_folder(self.model)
        if folder is not None:
            tables = {f.name for f in dataclasses.fields(self)} - {"model", "output", "episodes"}
            refuse(given(self, tables), f"{self.model} holds a policy, which is scored in simulation. Leave it out.")
            self.episodes.run(folder, self.output)
            return
        refuse(given(self.episodes), f"this is for a policy. {self.model} holds none: it has no policy.json.")
        if self.data is None:
            self._score_run()
        else:
            self._score_table(self.data)

    def _score_run(self) -> None:
        from neuralsde.experiments.run import score_run

        refuse_videos(self.model)
        if Series.load(self.model) is not None:
            raise ValueError(f"{self.model} was fitted on a table. Give one to score it on: --data FILE.")
        refuse(given(self, FORECASTS), "this is for a table. Give one with --data, or leave it out.")
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
