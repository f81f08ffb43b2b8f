"""Which command is where. Each is imported when it is asked for, and torch inside it, so that help is instant."""

from __future__ import annotations

from importlib import import_module

import tyro

from neuralsde.cli.options import PARTS, in_flags, short_help
from neuralsde.core.records import RunError, check

COMMANDS = {
    "demo": "demo.Demo",
    "list": "experiments.List",
    "train": "experiments.Train",
    "fit": "fit.Fit",
    "sample": "sample.Sample",
    "forecast": "forecast.Forecast",
    "evaluate": "evaluate.Evaluate",
    "compare": "experiments.Compare",
    "plot": "experiments.Plot",
    "export": "export.Export",
    "bench": "experiments.Bench",
    "data": "data.Data",
    "studio": "studio.Studio",
}


def command(name: str) -> type:
    """The class of a command: its fields are the options."""
    check(name in COMMANDS, f"There is no command {name!r}. Commands: {', '.join(COMMANDS)}.")
    module, kind = COMMANDS[name].split(".")
    return getattr(import_module(f"neuralsde.cli.{module}"), kind)


def dispatch(arguments: list[str]) -> None:
    """Run a command; what a user can mend is raised in the words of its flags."""
    name, *rest = arguments
    options = command(name)
    try:
        if name == "train":
            import_module("neuralsde.cli.experiments").train(rest)
        else:
            _call(name, options, rest)
    except BrokenPipeError:
        raise
    except (ValueError, OSError, RunError) as error:
        raise RunError(in_flags(str(error), options)) from None


def _call(name: str, options: type, rest: list[str]) -> None:
    if name == "fit" and {"-h", "--help"} & set(rest):
        options = short_help(options, options.SHORT)  # type: ignore[attr-defined]
    rest = ["--help" if argument == "--help-all" else argument for argument in rest]
    tyro.cli(options, args=rest, prog=f"nsde {name}", registry=PARTS).run()
