"""The command `nsde`. torch is imported inside the commands, so that help and dry runs are instant."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
import yaml
from tyro.conf import Positional

from neuralsde import __version__
from neuralsde.cli.data import Data
from neuralsde.cli.fit import Fit
from neuralsde.cli.forecast import Evaluate, Forecast
from neuralsde.cli.sample import Sample
from neuralsde.config import Experiment
from neuralsde.recipes import COMPARISONS, RECIPES
from neuralsde.records import RunError, load_yaml, to_dict

OVERVIEW = """\
usage: nsde COMMAND [options]        (nsde COMMAND --help for its options)

  demo                train the branching experiment on the spot, draw it, write a report
  list                the recipes that `train` knows
  train RECIPE        run one experiment into a folder; --config FILE repeats a run
  fit TABLE           learn from a table of yours (.csv, .parquet): model and report
  sample MODEL        draw paths from a trained model into a file, from a state or from the end of a table's paths
  forecast MODEL      forecast the paths of a table from their last observations
  evaluate MODEL      how good forecasts of a table are; without --data, the scores of a finished run
  compare TASK        all methods and seeds of a task into one results file
  plot RUN            a figure of a finished run
  data pusht          demonstrations of a task, downloaded or from files of yours, into one file

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
        from neuralsde.demo import run_demo
        from neuralsde.result_tables import branching

        values = run_demo(
            self.output, num_paths=self.num_paths, seed=self.seed, num_workers=self.num_workers, steps=self.steps
        )
        print(f"\n{branching(values)}\n")
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
class Compare:
    """Run every method of a task with several seeds; runs already in the file are kept."""

    task: Positional[Literal["branching", "known-sdes"]]
    """The task."""
    output: Path | None = None
    """Results file; default results/TASK.json."""
    num_seeds: int = 5
    """Training seeds 0, 1, …"""
    num_workers: int = 2
    """Runs side by side, one thread each."""
    only: tuple[str, ...] = ()
    """Only rows whose name contains one of these texts."""
    fresh: bool = False
    """Run also what the file already holds."""

    def run(self) -> None:
        """Run what is missing and print the table."""
        from neuralsde.compare import compare
        from neuralsde.result_tables import TABLES

        all_rows = COMPARISONS[self.task]()
        rows = {k: v for k, v in all_rows.items() if not self.only or any(text in k for text in self.only)}
        if not rows:
            raise ValueError(f"No row contains {' or '.join(self.only)!r}. Rows: {'; '.join(all_rows)}.")
        output = self.output or Path("results") / f"{self.task.replace('-', '_')}.json"
        values = compare(rows, output, num_seeds=self.num_seeds, num_workers=self.num_workers, fresh=self.fresh)
        print(TABLES[self.task](values))


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
        if not hasattr(experiment.task, "density"):
            raise ValueError(f"`nsde plot` draws runs of the branching task. {self.run_dir} holds {experiment.name}.")
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
    "fit": Fit,
    "sample": Sample,
    "forecast": Forecast,
    "evaluate": Evaluate,
    "compare": Compare,
    "plot": Plot,
    "data": Data,
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
