"""The commands of `nsde`. torch is imported inside them, so that help and dry runs are instant."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
import yaml
from tyro.conf import OmitArgPrefixes, Positional

from neuralsde.cli.data import Data
from neuralsde.cli.demo import Demo
from neuralsde.cli.evaluate import Evaluate
from neuralsde.cli.fit import Fit
from neuralsde.cli.forecast import Forecast, refuse_videos
from neuralsde.cli.options import PARTS, flags_of, in_flags, refuse, short_help
from neuralsde.cli.sample import Sample
from neuralsde.core.records import RunError, check, load_yaml, to_dict
from neuralsde.experiments.config import Experiment
from neuralsde.experiments.recipes.registry import COMPARISONS, RECIPES, summaries
from neuralsde.training.config import RunOptions


@dataclass(frozen=True)
class List:
    """List the recipes."""

    def run(self) -> None:
        for name, summary in summaries().items():
            print(f"{name:26} {summary}")


if TYPE_CHECKING:
    Comparison = str
else:
    Comparison = Literal[tuple(COMPARISONS)]


@dataclass(frozen=True)
class Compare:
    """Run every method of a task with several seeds; runs already in the file are kept."""

    task: Positional[Comparison]
    """The task."""
    output: Path | None = None
    """Results file; default results/TASK.json."""
    num_seeds: int = 5
    """Training seeds 0, 1, …"""
    num_workers: int = 2
    """Runs side by side, one thread each."""
    only: tuple[str, ...] = ()
    """Only rows whose name contains one of these texts."""
    cpu: bool = False
    """Stay on the CPU though there is a GPU."""
    fresh: bool = False
    """Run also what the file already holds."""
    data: Path | None = None
    """Push-T: file of the demonstrations (that of the recipes if not given)."""
    num_episodes: int | None = None
    """Push-T: number of episodes (that of the recipes if not given)."""

    def run(self) -> None:
        if self.task != "pusht":
            refuse(flags_of(self, {"data", "num_episodes"}), "this is for `nsde compare pusht`.")
        from neuralsde.experiments.compare import compare_methods

        options = {name: getattr(self, name) for name in ("only", "num_seeds", "num_workers", "cpu", "fresh")}
        settings = {} if self.num_episodes is None else {"num_episodes": self.num_episodes}
        local = {} if self.data is None else {"data": str(self.data)}
        print(compare_methods(self.task, self.output, settings=settings, local=local, **options))


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
        from neuralsde.experiments.run import plot_run

        check(self.num_paths >= 1, f"`--num-paths` must be at least 1. Got {self.num_paths}.")
        refuse_videos(self.run_dir)
        output = self.output or self.run_dir / "paths.png"
        plot_run(self.run_dir, num_paths=self.num_paths, seed=self.seed).savefig(output)
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
    options: OmitArgPrefixes[RunOptions] = field(default_factory=RunOptions)


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
        print("usage: nsde train RECIPE [options]   or   nsde train --config run/config.yaml [options]\n")
        print(f"recipes: {names}\n")
        print("`nsde train RECIPE --help` lists the options; `nsde list` says what the recipes are.")
        return
    else:
        given = arguments[0] if arguments else "nothing"
        raise ValueError(f"`nsde train` takes a recipe or --config FILE. Got {given}. Recipes: {names}.")

    usual = Train(experiment, Path("runs") / experiment.name)
    more: dict[str, Any] = {"config": (tyro.conf.AvoidSubcommands,), "registry": PARTS}
    args = tyro.cli(Train, default=usual, args=rest, prog="nsde train", **more)
    if args.dry_run:
        print(yaml.safe_dump(to_dict(args.experiment), sort_keys=False), end="")
        return
    import json

    from neuralsde.experiments.run import run

    results = run(args.experiment, args.output, resume=args.resume, options=args.options).results
    print(json.dumps(results, indent=1))
    print(f"Wrote {args.output}: config.yaml, metrics.jsonl, model/, results.json")


_CLASSES = (Demo, List, Fit, Sample, Forecast, Evaluate, Compare, Plot, Data)
COMMANDS: dict[str, type] = {command.__name__.lower(): command for command in _CLASSES}


def dispatch(arguments: list[str]) -> None:
    """Run a command; what a user can mend is raised in the words of its flags."""
    name, *rest = arguments
    check(
        name in COMMANDS or name == "train",
        f"There is no command {name!r}. Commands: {', '.join([*COMMANDS, 'train'])}.",
    )
    try:
        _train(rest) if name == "train" else _call(name, rest)
    except BrokenPipeError:
        raise
    except (ValueError, OSError, RunError) as error:
        raise RunError(in_flags(str(error), COMMANDS.get(name, Train))) from None


def _call(name: str, rest: list[str]) -> None:
    command = COMMANDS[name]
    if command is Fit and {"-h", "--help"} & set(rest):
        command = short_help(command, Fit.SHORT)
    rest = ["--help" if argument == "--help-all" else argument for argument in rest]
    tyro.cli(command, args=rest, prog=f"nsde {name}", registry=PARTS).run()
