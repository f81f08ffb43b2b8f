"""The command `nsde`. torch is imported inside the commands, so that help and dry runs are instant."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml
from tyro.conf import Positional

from neuralsde import __version__
from neuralsde.cli_forecast import Evaluate, Forecast, load_model
from neuralsde.config import Experiment
from neuralsde.recipes import RECIPES
from neuralsde.recipes import branching as branching_recipes
from neuralsde.records import RunError, load_yaml, to_dict

OVERVIEW = """\
usage: nsde COMMAND [options]        (nsde COMMAND --help for its options)

  demo                train the branching experiment on the spot, draw it, write a report
  list                the recipes that `train` knows
  train RECIPE        run one experiment into a folder; --config FILE repeats a run
  sample MODEL        draw paths from a trained model into a file
  forecast MODEL      forecast the paths of a table from their last observations
  evaluate MODEL      how good forecasts of a table are; without --data, the scores of a finished run
  compare TASK        all methods and seeds of a task into one results file
  plot RUN            a figure of a finished run

  --version           print the version
"""


@dataclass(frozen=True)
class Demo:
    """Train NSDE, DDIM and Rectified Flow on forking paths at two densities; draw and score them."""

    task: Positional[Literal["branching"]] = "branching"
    """The demonstration."""
    output: Path = Path("runs/demo")
    """Folder for figures, models, results.json and report.html."""
    num_paths: int = 200
    """Paths drawn from each model."""
    seed: int = 0
    """Seed of training and sampling."""
    num_workers: int = 2
    """Trainings side by side."""
    steps: int | None = None
    """Training steps of each model, if not the recipe's."""

    def run(self) -> None:
        """Train, draw, print."""
        from neuralsde.compare import table
        from neuralsde.demo import run_demo

        values = run_demo(
            self.output, num_paths=self.num_paths, seed=self.seed, num_workers=self.num_workers, steps=self.steps
        )
        print(f"\n{table(values)}\n")
        print(f"Figures: {self.output / 'density.png'}, {self.output / 'ablation.png'}")
        print(f"Report:  {self.output / 'report.html'}")


@dataclass(frozen=True)
class List:
    """List the recipes."""

    def run(self) -> None:
        """Print one line per recipe."""
        for name, recipe in RECIPES.items():
            print(f"{name:26} {(recipe.__doc__ or '').strip().splitlines()[0]}")


@dataclass(frozen=True)
class Sample:
    """Draw paths from a trained model."""

    model: Positional[Path]
    """Folder written by save_pretrained, or a run folder."""
    start: tuple[float, ...]
    """The first state, one number per feature."""
    stop: float
    """Last output time."""
    num_times: int = 101
    """Output times from 0 to `stop`."""
    num_paths: int = 100
    """Paths to draw."""
    seed: int = 0
    """Seed of the paths."""
    substeps: int | None = None
    """Solver steps per training step, if not the model's."""
    pull: float | None = None
    """Contraction towards the data, if not the model's."""
    output: Path = Path("paths.npz")
    """Where to write: .npz (arrays times and paths) or .csv (path, time, features)."""

    def run(self) -> None:
        """Sample and write."""
        if self.output.suffix not in (".npz", ".csv"):
            raise ValueError(f"`--output` must end in .npz or .csv. Got {self.output}.")
        import numpy as np
        import torch

        model = load_model(self.model)
        changes: dict[str, Any] = {k: v for k, v in (("substeps", self.substeps), ("pull", self.pull)) if v is not None}
        sampler = dataclasses.replace(model.sampler, **changes)
        times = np.linspace(0.0, self.stop, self.num_times)
        rng = torch.Generator().manual_seed(self.seed)
        paths = model.sample(list(self.start), times, num_paths=self.num_paths, sampler=sampler, rng=rng)[0].numpy()
        if self.output.suffix == ".npz":
            np.savez_compressed(self.output, times=times, paths=paths)
        else:
            flat = paths.reshape(*paths.shape[:2], -1)
            index = np.repeat(np.arange(len(flat)), len(times))
            rows = np.column_stack([index, np.tile(times, len(flat)), flat.reshape(-1, flat.shape[-1])])
            names = ",".join(["path", "time", *(f"x{k}" for k in range(flat.shape[-1]))])
            np.savetxt(
                self.output, rows, delimiter=",", header=names, comments="", fmt=["%d"] + ["%.8g"] * (rows.shape[1] - 1)
            )
        passes = ", ".join(f"{name} {n}" for name, n in model.nfe.items())
        print(
            f"Wrote {self.num_paths} paths at {self.num_times} times to {self.output} (network passes per path: {passes})."
        )


@dataclass(frozen=True)
class Compare:
    """Run every method of a task with several seeds; runs already in the file are kept."""

    task: Positional[Literal["branching"]]
    """The task."""
    output: Path = Path("results/branching.json")
    """Results file."""
    num_seeds: int = 5
    """Training seeds 0, 1, …"""
    num_workers: int = 2
    """Runs side by side, one thread each."""
    only: str | None = None
    """Only rows whose name contains this text."""
    fresh: bool = False
    """Run also what the file already holds."""

    def run(self) -> None:
        """Run what is missing and print the table."""
        from neuralsde.compare import compare, table

        rows = {k: v for k, v in branching_recipes.comparison().items() if self.only is None or self.only in k}
        if not rows:
            raise ValueError(f"No row contains {self.only!r}. Rows: {', '.join(branching_recipes.comparison())}.")
        values = compare(rows, self.output, num_seeds=self.num_seeds, num_workers=self.num_workers, fresh=self.fresh)
        print(table(values))


@dataclass(frozen=True)
class Plot:
    """Draw the paths of a finished run."""

    run_dir: Positional[Path]
    """Run folder."""
    num_paths: int = 200
    """Paths to draw."""
    seed: int = 0
    """Seed of the paths."""
    output: Path | None = None
    """Image file; default paths.png in the run folder."""

    def run(self) -> None:
        """Draw and save."""
        from neuralsde import plots
        from neuralsde.demo import panel
        from neuralsde.experiment import load_run
        from neuralsde.tasks import branching

        model, experiment = load_run(self.run_dir)
        paths = branching.draw(model, experiment.task, num_paths=self.num_paths, seed=self.seed)
        output = self.output or self.run_dir / "paths.png"
        row = f"density {experiment.task.density}"
        plots.path_grid({row: {experiment.name: panel(paths, experiment.task)}}).savefig(output)
        print(f"Wrote {output}")


@dataclass(frozen=True)
class Train:
    """Run one experiment."""

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    output: Path
    """Run folder."""
    resume: bool = False
    """Go on with the run in the folder."""
    dry_run: bool = False
    """Print the settings and stop."""


def _train(arguments: list[str]) -> None:
    """`nsde train RECIPE [options]` or `nsde train --config FILE [options]`: every field of the experiment is an option."""
    names = ", ".join(RECIPES)
    arguments = [part for a in arguments for part in (a.split("=", 1) if a.startswith("--config=") else [a])]
    if "--config" in arguments[:-1]:
        k = arguments.index("--config")
        experiment, rest = load_yaml(Experiment, Path(arguments[k + 1])), arguments[:k] + arguments[k + 2 :]
    elif arguments and arguments[0] in RECIPES:
        experiment, rest = RECIPES[arguments[0]](), arguments[1:]
    elif arguments and arguments[0] in ("-h", "--help"):
        print(
            f"usage: nsde train RECIPE [options]   or   nsde train --config run/config.yaml [options]\n\nrecipes: {names}\n"
        )
        print("`nsde train RECIPE --help` lists the options; `nsde list` says what the recipes are.")
        return
    else:
        given = arguments[0] if arguments else "nothing"
        raise ValueError(f"`nsde train` takes a recipe or --config FILE. Got {given}. Recipes: {names}.")

    args = tyro.cli(
        Train,
        default=Train(experiment, Path("runs") / experiment.name),
        args=rest,
        prog="nsde train",
        config=(tyro.conf.AvoidSubcommands,),
    )
    if args.dry_run:
        print(yaml.safe_dump(to_dict(args.experiment), sort_keys=False), end="")
        return
    import json

    from neuralsde.experiment import run

    results = run(args.experiment, args.output, resume=args.resume).results
    print(json.dumps(results, indent=1))
    print(f"Wrote {args.output}: config.yaml, metrics.jsonl, model/, results.json")


COMMANDS: dict[str, type] = {
    "demo": Demo,
    "list": List,
    "sample": Sample,
    "forecast": Forecast,
    "evaluate": Evaluate,
    "compare": Compare,
    "plot": Plot,
}


def _dispatch(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(OVERVIEW)
        return
    if arguments[0] == "--version":
        print(f"neuralsde {__version__}")
        return
    name, rest = arguments[0], arguments[1:]
    if name == "train":
        _train(rest)
        return
    if name not in COMMANDS:
        raise ValueError(f"There is no command {name!r}. Commands: {', '.join([*COMMANDS, 'train'])}.")
    tyro.cli(COMMANDS[name], args=rest, prog=f"nsde {name}").run()


def main(arguments: list[str] | None = None) -> None:
    """Entry point: one line for what went wrong, no traceback for what a user can mend."""
    try:
        _dispatch(sys.argv[1:] if arguments is None else arguments)
    except (ValueError, OSError, RunError) as error:
        print(f"nsde: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt as stop:
        print(f"\nnsde: {str(stop) or 'Stopped.'}", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
