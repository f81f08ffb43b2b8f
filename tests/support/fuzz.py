"""Hostile inputs at every door: each attempt replaces one argument of a call that works. It must work too, or end in an error
that `neuralsde` itself raises, in one line, soon and in little memory.

Run as a script, in a process of its own: `python tests/support/fuzz.py [--every K] [--examples N] [--only DOOR]` prints what
was found as JSON. Scripted values come from pools, those of `--examples` from hypothesis.
"""

from __future__ import annotations

import argparse
import contextlib
import dis
import itertools
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, scalar_dtypes
from hypothesis.extra.numpy import arrays as st_arrays

import neuralsde as nsde
from neuralsde import cli
from neuralsde.core.records import RunError
from neuralsde.metrics import forecast

SECONDS, BYTES = 10, 2 * 2**30
CLEAN = (ValueError, TypeError, OSError, RunError)
BINDING = ("missing", "unexpected keyword", "positional argument", "multiple values")


class TooSlow(BaseException):
    """An attempt took longer than it may."""


# What a call may meet in place of an argument


def numbers() -> list[Any]:
    return [
        0,
        -1,
        1.5,
        10**9,
        10**30,
        -(10**30),
        1e300,
        1e-300,
        float("nan"),
        float("inf"),
        -float("inf"),
        True,
        1 + 2j,
    ]


def kinds() -> list[Any]:
    return [
        None, "ten", "", "a\0b", "../../x", b"x", [], (), {}, {"a": 1}, set(), object(), int, print, ..., range(3), Decimal("1.5"),
        iter([1.0, 2.0]), (k for k in [1.0, 2.0]), [None], ["a", "b"], [1.0, None], [[1.0], [1.0, 2.0]], [[]], [1, [2, [3]]],
        pd.Timestamp("2024-01-01"), np.datetime64("2024-01-01"), np.float64("nan"), np.int64(3), np.str_("3"), np.bool_(True),
    ]  # fmt: skip


def arrays() -> list[Any]:
    x = np.linspace(0.0, 1.0, 12).reshape(1, 6, 2)
    holes = np.ma.array(x, mask=x > 0.5)
    ragged = np.empty(2, object)
    ragged[:] = [np.zeros((3, 2)), np.zeros((4, 2))]
    t = torch.from_numpy(x).float()
    return [
        x, x[0], x[0, :, 0], x * 1e300, x + 1e12, x * np.nan, x.astype(complex), x.astype(str), x.astype(object), ragged,
        x.astype(bool), x.astype(np.float16), x.astype("datetime64[s]"), x[..., :0], x[:, :0], x[:0], np.zeros(()), np.array(None),
        holes, holes[0], holes[0, :, 0], [holes[0]], [list(holes[0])], np.ma.masked, np.matrix(x[0]), np.zeros(3, [("a", float)]),
        t, t.bfloat16(), t.half(), t.to(torch.complex64), t.to_sparse(), t.clone().requires_grad_(), t[0], t.bool(), t.long(),
        torch.zeros(()), torch.zeros(0), torch.zeros(2, 3, device="meta"), [t[0], None], [t[0].bfloat16()], torch.float32,
        torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), pd.Series([1.0, 2.0]), pd.Series(["a", "b"], dtype="category"),
        pd.DataFrame({"a": [1.0, 2.0]}), pd.DataFrame({"a": pd.Categorical([1, 2])}), pd.Series([1, None], dtype="Int64"),
        [x[0].tolist()], [*x.tolist(), [1.0]], np.broadcast_to(np.float32(1), (2, 3, 2)), memoryview(b"abc"), np.array([10**30]),
    ]  # fmt: skip


def things() -> list[Any]:
    """Values of this library, in places that are not theirs."""
    return [
        nsde.Sampler(), nsde.Euler(), nsde.NeuralSDEConfig(), nsde.TrainConfig(), nsde.MLPConfig, nsde.Trajectories, "heun",
        torch.Generator(), np.random.default_rng(0), torch.nn.Linear(2, 2), {"flow": torch.nn.Linear(2, 2)}, Path("nowhere"),
    ]  # fmt: skip


POOLS = (numbers, kinds, arrays, things)


@dataclass(frozen=True)
class Door:
    """A function and a call of it that works; each of the arguments is tried."""

    call: Callable[..., Any]
    good: Callable[[], dict[str, Any]]
    """Anew for every attempt: some calls change what they are given."""
    more: tuple[str, ...] = ()
    """Arguments that the good call leaves at their defaults."""


LONG = {("fit", "steps"), ("fit_table", "steps"), ("fit", "batch_size"), ("fit_table", "say")}
"""Where a large number is a long training, and a function is called: what was asked for."""


def attempts(title: str, door: Door) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    for name in [*door.good(), *door.more]:
        if (title, name) in LONG:
            continue
        for pool in POOLS:
            for k in range(len(pool())):
                yield (
                    name,
                    f"{pool.__name__}[{k}]",
                    lambda name=name, pool=pool, k=k: door.call(**{**door.good(), name: pool()[k]}),
                )


WORDS = [
    "nan", "inf", "-inf", "-1", "0", "ten", "", " ", "1e300", "9" * 40, "1.5", "None", "[1,2]", "../../x", "ü", "-", "--", "true",
    "{}", "1_000", "0x10", "1,5", "\U0001f600", "a" * 5000, "*", "/dev/null", ".", "--help=1",
]  # fmt: skip


def command_lines(folder: Path) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Commands with one word of a command that works replaced, and options that get such a word."""
    model, table = str(folder / "model"), str(folder / "table.csv")
    columns = ["--id", "i", "--time", "t", "--columns", "a", "b"]
    good = [
        [
            "sample",
            model,
            "--start",
            "0",
            "0",
            "--stop",
            "1",
            "--num-times",
            "3",
            "--num-paths",
            "2",
            "--output",
            "s.csv",
        ],
        ["forecast", model, "--data", table, *columns, "--horizon", "1", "--num-times", "2", "--num-paths", "40"],
        ["evaluate", model, "--data", table, *columns, "--horizon", "1", "--num-times", "2", "--num-paths", "40"],
    ]
    more = {
        "sample": ["--seed", "--substeps", "--pull", "--start-time", "--start-context"],
        "forecast": ["--seed", "--quantiles", "--future", "--output", "--date-format", "--ids"],
        "evaluate": ["--seed", "--origins-per-path", "--output", "--num-workers"],
    }

    def run(words: list[str]) -> None:
        try:
            cli.main(words)
        except SystemExit as end:
            if end.code not in (0, 2):
                raise AssertionError(f"exit code {end.code}") from None

    for words in good:
        name = words[0]
        yield name, "good", lambda words=words: run(words)
        for k in range(1, len(words)):
            for word in WORDS:
                yield (
                    name,
                    f"{words[:k]}+{word[:20]!r}",
                    lambda words=words, k=k, word=word: run([*words[:k], word, *words[k + 1 :]]),
                )
        for option in more[name]:
            for word in WORDS:
                yield name, f"{option} {word[:20]!r}", lambda words=words, o=option, word=word: run([*words, o, word])
    for word in WORDS:
        yield "fit", f"{word[:20]!r}", lambda word=word: run(["fit", word, "--output", "f"])
        yield "any", f"{word[:20]!r}", lambda word=word: run([word])


def by_hypothesis(known: dict[str, Door], num: int) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Values that hypothesis makes up, always the same ones."""
    short = st.text(max_size=5) | st.binary(max_size=5)
    single = st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | short
    deep = st.recursive(single, lambda s: st.lists(s, max_size=4) | st.dictionaries(short, s, max_size=3), max_leaves=8)
    shapes = array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    dtypes = scalar_dtypes() | st.just(np.dtype(object))
    made: list[tuple[str, str, Any]] = []
    places = [
        (door, name) for door, each in known.items() for name in [*each.good(), *each.more] if (door, name) not in LONG
    ]

    @settings(max_examples=num, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(places), deep | st_arrays(dtypes, shapes) | st.lists(st_arrays(float, shapes), max_size=3))
    def make(place: tuple[str, str], value: Any) -> None:
        made.append((*place, value))

    make()
    for door, name, value in made:
        yield (
            door,
            f"{name}={repr(value)[:60]}",
            lambda d=door, n=name, v=value: known[d].call(**{**known[d].good(), n: v}),
        )


# The doors


def doors(folder: Path) -> dict[str, Door]:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(4, 12, 2)).cumsum(1)
    data = nsde.Trajectories.from_arrays(states, dt=0.5)
    with_context = nsde.Trajectories.from_arrays(states, dt=0.5, context=rng.normal(size=(4, 3)))
    small = nsde.MLPConfig(width=8, depth=1)
    model = nsde.NeuralSDE.for_data(data, net=small)
    held = nsde.NeuralSDE.for_data(with_context, net=small, history=2)
    quick = {"steps": 2, "batch_size": 8, "progress": False, "cpu": True}
    start, times = np.zeros((2, 2)), [0.0, 0.5, 1.0]
    frame = pd.DataFrame(
        {"i": np.repeat([0, 1], 8), "t": np.tile(np.arange(8.0), 2), "a": rng.normal(size=16), "b": 1.0 * np.arange(16)}
    )
    table = folder / "table.csv"
    frame.to_csv(table, index=False)
    saved = model.save_pretrained(folder / "model")
    read = nsde.read_table(table, id="i", time="t", columns=["a", "b"])
    tiny = nsde.NeuralSDEConfig(net=small)
    of_table = nsde.NeuralSDE.for_data(read.data, net=small)
    demos = nsde.Demonstrations.from_arrays(
        {"state": rng.normal(size=(40, 3))}, rng.normal(size=(40, 2)), [20, 20], dt=0.1
    )
    npz = folder / "demos.npz"
    np.savez(npz, state=demos.observations["state"], action=demos.actions, episode_ends=[20, 40])
    plan = nsde.PolicyConfig(history=2, horizon=4, chunk=2)
    acts = nsde.NeuralSDE.for_data(
        nsde.action_paths(demos, demos.observations["state"], plan), net=small, time_input=True
    )
    policy = nsde.SDEPolicy.for_demonstrations(acts, plan, demos)

    def act(**given: Any) -> Any:
        policy.reset(0)
        return policy.select_action(**given)

    found = {
        "from_arrays": Door(
            nsde.Trajectories.from_arrays,
            lambda: {"states": states, "times": np.arange(12.0)},
            ("dt", "context", "missing"),
        ),
        "from_dataframe": Door(
            nsde.Trajectories.from_dataframe,
            lambda: {"frame": frame, "columns": ["a"]},
            ("id", "time", "context", "missing"),
        ),
        "select": Door(data.select, lambda: {"paths": [0, 1]}),
        "split": Door(data.split, lambda: {"fraction": 0.5, "seed": 0}),
        "split_in_time": Door(data.split_in_time, lambda: {"fraction": 0.5}),
        "transitions": Door(data.transitions, dict, ("lag", "history", "spacing")),
        "describe": Door(nsde.describe, lambda: {"data": data}),
        "Trajectories.to": Door(data.to, lambda: {"device": "cpu"}),
        "for_data": Door(
            nsde.NeuralSDE.for_data,
            lambda: {"data": data, "net": small},
            (
                "lag",
                "nets",
                "seed",
                "history",
                "tau",
                "noise",
                "law",
                "denoiser",
                "sampler",
                "normalise",
                "shared",
                "nothing",
            ),
        ),
        "sample": Door(
            model.sample,
            lambda: {"history": start, "times": times, "rng": 0},
            ("context", "num_paths", "sampler", "rng", "chunk", "nothing"),
        ),
        "sample with context": Door(
            held.sample, lambda: {"history": np.zeros((2, 2, 2)), "times": times, "context": np.zeros((2, 3)), "rng": 0}
        ),
        "fields": Door(model.fields, lambda: {"x": start}, ("context", "sampler")),
        "log_prob": Door(model.log_prob, lambda: {"data": data}, ("batch_size",)),
        "save_pretrained": Door(model.save_pretrained, lambda: {"path": folder / "other", "half": False}),
        "from_pretrained": Door(nsde.NeuralSDE.from_pretrained, lambda: {"path": saved}, ("nets",)),
        "load": Door(nsde.load, lambda: {"path": saved}, ("nets",)),
        "fit": Door(
            nsde.fit,
            lambda: {"model": nsde.NeuralSDE.for_data(data, net=small), "data": data, **quick},
            (
                "val",
                "config",
                "options",
                "run_dir",
                "resume",
                "lr",
                "seed",
                "ema",
                "val_fraction",
                "precision",
                "trackers",
                "keep",
            ),
        ),
        "forecasts": Door(
            nsde.forecasts,
            lambda: {"model": model, "data": data, "horizon": 1.0, "num_times": 2, "num_paths": 3},
            ("origins_per_path", "sampler", "seed", "batch_size", "hold_context"),
        ),
        "futures": Door(
            nsde.futures,
            lambda: {"model": model, "data": data, "horizon": 1.0, "num_times": 2, "num_paths": 3},
            ("sampler", "seed", "batch_size", "plan"),
        ),
        "evaluate_forecasts": Door(
            nsde.evaluate_forecasts,
            lambda: {"model": model, "data": data, "horizon": 1.0, "num_times": 2, "num_paths": 40},
            ("reference", "seed"),
        ),
        "sample_state": Door(
            nsde.sample_state,
            lambda: {"model": model, "start": [0.0, 0.0], "stop": 1.0, "num_times": 3, "num_paths": 2},
            ("start_context", "start_time", "substeps", "pull", "seed", "output"),
        ),
        "fit_table": Door(
            nsde.fit_table,
            lambda: {
                "table": read,
                "model": tiny,
                "steps": 2,
                "options": nsde.RunOptions(progress=False, cpu=True),
                "holdout": 0,
            },
            ("train", "lag", "encoder", "output", "resume", "say", "id", "time", "columns"),
        ),
        "forecast_table": Door(
            nsde.forecast_table,
            lambda: {"model": of_table, "table": read, "num_times": 2, "num_paths": 40},
            ("future", "horizon", "quantiles", "seed", "output"),
        ),
        "evaluate_table": Door(
            nsde.evaluate_table,
            lambda: {"model": of_table, "table": read, "num_times": 2, "num_paths": 40, "horizon": 2.0},
            ("origins_per_path", "seed"),
        ),
        "sample_table": Door(
            nsde.sample_table,
            lambda: {"model": of_table, "table": read, "stop": 1.0, "num_times": 3, "num_paths": 2},
            ("substeps", "pull", "seed", "output"),
        ),
        "crps": Door(forecast.crps, lambda: {"samples": torch.zeros(5, 3), "truth": torch.zeros(3)}, ("fair", "mask")),
        "energy_score": Door(
            forecast.energy_score, lambda: {"samples": torch.zeros(5, 3), "truth": torch.zeros(3)}, ("fair", "mask")
        ),
        "quantiles": Door(forecast.quantiles, lambda: {"samples": torch.zeros(9, 3), "probabilities": [0.5]}),
        "interval_coverage": Door(
            forecast.interval_coverage,
            lambda: {"samples": torch.zeros(9, 3), "truth": torch.zeros(3), "level": 0.5},
            ("mask",),
        ),
        "wasserstein_1d": Door(forecast.wasserstein_1d, lambda: {"a": torch.zeros(5, 3), "b": torch.zeros(4, 3)}),
        "energy_distance": Door(
            forecast.energy_distance, lambda: {"a": torch.zeros(5, 3), "b": torch.zeros(4, 3)}, ("unbiased",)
        ),
        "fit_videos": Door(
            lambda **given: nsde.fit_videos(**{"output": folder / "films", **given}) if given else None,
            dict,
            ("source", "output", "settings", "steps", "holdout", "train", "options", "resume"),
        ),
        "load_video_model": Door(lambda **given: nsde.load_video_model(**given) if given else None, dict, ("folder",)),
        "action_paths": Door(
            nsde.action_paths,
            lambda: {"demonstrations": demos, "observations": demos.observations["state"], "config": plan},
        ),
        "select_action": Door(act, lambda: {"observations": np.zeros(3)}),
        "reset": Door(policy.reset, lambda: {"seeds": 0}),
        "SDEPolicy": Door(
            nsde.SDEPolicy,
            lambda: {"model": acts, "config": plan, "limits": ([-1.0, -1.0], [1.0, 1.0]), "default_action": [0.0, 0.0]},
            ("levels", "observation", "control_dt", "sampler"),
        ),
        "for_demonstrations": Door(
            nsde.SDEPolicy.for_demonstrations,
            lambda: {"model": acts, "config": plan, "demonstrations": demos},
            ("limits", "observation"),
        ),
        "Demonstrations": Door(
            nsde.Demonstrations.from_arrays,
            lambda: {"observations": {"s": np.zeros((4, 2))}, "actions": np.zeros((4, 1)), "lengths": [2, 2]},
            ("times", "dt"),
        ),
        "an observation": Door(
            lambda seen: nsde.Demonstrations.from_arrays({"s": seen}, np.zeros((4, 1)), [2, 2]),
            lambda: {"seen": np.zeros((4, 2))},
        ),
        "take": Door(demos.take, lambda: {"episodes": [0]}),
        "read_demonstrations": Door(
            nsde.read_demonstrations, lambda: {"path": npz}, ("observations", "action", "dt", "episodes")
        ),
    }
    for kind in (
        nsde.Sampler, nsde.Euler, nsde.Moments, nsde.Transport, nsde.Denoiser, nsde.NeuralSDEConfig, nsde.TrainConfig,
        nsde.RunOptions, nsde.PolicyConfig, nsde.MLPConfig, nsde.VideoFit,
    ):  # fmt: skip
        found[kind.__name__] = Door(kind, dict, tuple(f.name for f in fields(kind)))
    return found


# One attempt


def raised_here(error: BaseException) -> bool:
    """Whether `neuralsde` itself raised it: by a `raise`, or as the call of a door that does not take such arguments."""
    frames = list(traceback.walk_tb(error.__traceback__))
    frame, _ = frames[-1]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if "neuralsde" not in Path(frame.f_code.co_filename).parts:
        return isinstance(error, TypeError) and frame.f_code.co_name == "decorate_context" and _binds(error)
    code = frame.f_code.co_code[trace.tb_lasti] if trace is not None else 0
    return code == dis.opmap["RAISE_VARARGS"] or (frame.f_code.co_name == "checked" and _binds(error))


def _binds(error: BaseException) -> bool:
    """Whether Python says that a function takes other arguments."""
    return isinstance(error, TypeError) and any(word in str(error) for word in BINDING)


def attempt(call: Callable[[], Any]) -> tuple[str, str]:
    """What came of a call: "fine", "clean", or what was wrong with its end."""
    began = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        call()
        result = "fine", ""
    except TooSlow:
        return "slow", f"over {SECONDS} s"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        words = f"{type(error).__name__}: {error}"
        good = isinstance(error, CLEAN) and str(error) and "\n" not in str(error) and raised_here(error)
        frame = list(traceback.walk_tb(error.__traceback__))[-1]
        where = f"{Path(frame[0].f_code.co_filename).name}:{frame[1]}"
        result = ("clean", words) if good else ("raw", f"{words[:200]} [{where}]")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    took = time.perf_counter() - began
    return result if took < SECONDS else ("slow", f"{took:.1f} s")


def _slow(*_: Any) -> None:
    raise TooSlow


def limit_memory() -> None:
    """So much more than there is now: an allocation beyond it fails, as a raw error."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--examples", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _slow)
    counts, bad, slowest = {}, [], (0.0, "")
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(sys.stderr):
        os.chdir(place)
        known = doors(Path(place))
        limit_memory()
        for door, each in known.items():
            if options.only and options.only != door:
                continue
            result, words = attempt(lambda each=each: each.call(**each.good()))
            assert result == "fine", f"The good call of {door} fails: {words}"
        scripted = (
            (door, f"{name}={value}", call)
            for door, each in known.items()
            for name, value, call in attempts(door, each)
        )
        tried = itertools.chain(
            itertools.islice(itertools.chain(scripted, command_lines(Path(place))), 0, None, options.every),
            by_hypothesis(known, options.examples) if options.examples else (),
        )
        for door, value, call in tried:
            if options.only and options.only != door:
                continue
            began = time.perf_counter()
            result, words = attempt(call)
            slowest = max(slowest, (time.perf_counter() - began, f"{door}({value})"))
            counts[result] = counts.get(result, 0) + 1
            if options.show and result in ("clean", "fine"):
                print(f"{result}: {door}({value}): {words}")
            if result not in ("fine", "clean"):
                bad.append(f"{door}({value}): {result}: {words}")
    # Of this program alone: the peak that getrusage knows is also that of the process which was forked for it
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    memory = int(peak.split()[1]) * 1024
    print(json.dumps({"counts": counts, "bad": bad, "slowest": slowest, "memory": memory}, indent=1))


if __name__ == "__main__":
    main()
