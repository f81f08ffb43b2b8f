"""The commands of experiments: `nsde list`, `train`, `compare` and `plot`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
import yaml
from tyro.conf import OmitArgPrefixes, Positional

from neuralsde.cli.forecast import refuse_videos
from neuralsde.cli.options import PARTS, flags_of, refuse
from neuralsde.core.records import check, load_yaml, to_dict
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
class Bench:
    """Time the library beside its rivals, all in one run; those that are not installed are named."""

    name: Positional[Literal["sampling", "training", "plans", "video", "loading", "import"]]
    """What is timed."""
    output: Path | None = None
    """Results file, with a picture beside it; default runs/bench_NAME.json."""
    repeats: int = 7
    """Interleaved turns of each method."""
    cpu: bool = False
    """Stay on the CPU though there is a GPU."""

    def run(self) -> None:
        from neuralsde.experiments.bench import bench, table

        output = self.output or Path("runs") / f"bench_{self.name}.json"
        print(table(bench(self.name, output, repeats=self.repeats, cpu=self.cpu)))
        print(f"Results: {output}, {output.with_suffix('.png')}")


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


def train(arguments: list[str]) -> None:
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
    from neuralsde.training.run_folder import first_process

    results = run(args.experiment, args.output, resume=args.resume, options=args.options).results
    if first_process():
        print(json.dumps(results, indent=1))
        print(f"Wrote {args.output}: config.yaml, metrics.jsonl, model/, results.json")
