"""The command `nsde`. What it can do is imported when it is asked for, so that `nsde --help` is instant."""

import io
import os
import sys

OVERVIEW = """\
usage: nsde COMMAND [options]        (nsde COMMAND --help for its options)

  demo                train the branching experiment on the spot, draw it, write a report; `demo pusht`: watch a policy;
                      `demo video`: futures of a scene
  list                the recipes that `train` knows
  train RECIPE        run one experiment into a folder; --config FILE repeats a run
  fit DATA            learn from a table (.csv, .parquet) or a folder of videos of yours: model and report
  sample MODEL        draw paths from a trained model into a file, from a state or from the end of a table's series;
                      `sample MODEL CLIP.mp4`: futures of a clip as a film
  forecast MODEL      forecast the series of a table from their last observations
  evaluate MODEL      score forecasts of a table, a policy in simulation, or a finished run
  compare TASK        all methods and seeds of a task into one results file
  plot RUN            a figure of a finished run
  bench NAME          time the library beside its rivals, all in one run
  export MODEL        files that run without torch (ONNX) or with torch alone (pt2): a model's step and its plan
  data NAME           demonstrations or videos, downloaded or from files of yours, checked and ready to use
  studio              a page in the browser: draw paths, let a model learn them, and watch

  --version           print the version
"""


def main(arguments: list[str] | None = None) -> None:
    """Entry point: one line for what went wrong, no traceback for what a user can mend."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a letter that a terminal does not know is shown as a question mark
            stream.reconfigure(errors="replace")
    try:
        try:
            _run(sys.argv[1:] if arguments is None else arguments)
        finally:  # here and not at exit, where Python shows a traceback of what cannot be written
            sys.stdout.flush()
            sys.stderr.flush()
    except OSError as error:  # of the output itself: whoever reads it has seen enough (`| head`), or its disk is full
        broken = isinstance(error, BrokenPipeError)
        if not broken:
            print(f"nsde: Cannot write the output: {error.strerror}.", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise SystemExit(141 if broken else 2) from None


def _run(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help", "help"):
        print(OVERVIEW)
        return
    if words[0] == "--version":
        from neuralsde.core.version import __version__

        print(f"neuralsde {__version__}")
        return
    from neuralsde.cli.commands import dispatch
    from neuralsde.core.processes import plain_warnings, terminable
    from neuralsde.core.records import RunError

    try:
        with plain_warnings(), terminable():
            dispatch(words)
    except BrokenPipeError:
        raise
    except (ValueError, OSError, RunError) as error:
        print(f"nsde: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt as stop:
        print(f"\nnsde: {str(stop) or 'Stopped.'}", file=sys.stderr)
        raise SystemExit(128 + getattr(stop, "number", 2)) from None
