"""Hostile inputs at every door: each attempt replaces one argument of a call that works. It must work too, or end in an error
that `neuralsde` itself raises, in one line, soon and in little memory.

Run as a script, in a process of its own: `python tests/support/fuzz.py [--every K] [--only DOOR]` prints what was found as JSON.
"""

from __future__ import annotations

import argparse
import dis
import json
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import neuralsde as nsde
from neuralsde.records import RunError

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


def attempts(door: Door) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    for name in [*door.good(), *door.more]:
        for pool in POOLS:
            for k in range(len(pool())):
                yield (
                    name,
                    f"{pool.__name__}[{k}]",
                    lambda name=name, pool=pool, k=k: door.call(**{**door.good(), name: pool()[k]}),
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
            lambda: {"model": model, "data": data, "horizon": 1.0, "num_times": 2, "num_paths": 3},
            ("reference", "seed"),
        ),
        "sample_state": Door(
            nsde.sample_state,
            lambda: {"model": model, "start": [0.0, 0.0], "stop": 1.0, "num_times": 3, "num_paths": 2},
            ("start_context", "start_time", "substeps", "pull", "seed", "output"),
        ),
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
        nsde.Sampler, nsde.Euler, nsde.Moments, nsde.Refined, nsde.Denoiser, nsde.NeuralSDEConfig, nsde.TrainConfig,
        nsde.RunOptions, nsde.PolicyConfig, nsde.MLPConfig, nsde.VideoFit,
    ):  # fmt: skip
        found[kind.__name__] = Door(kind, dict, tuple(kind.__dataclass_fields__))
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
    parser.add_argument("--only", default="")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _slow)
    counts, bad, slowest, number = {}, [], (0.0, ""), 0
    with tempfile.TemporaryDirectory() as place:
        import os

        os.chdir(place)
        known = doors(Path(place))
        limit_memory()
        for door, each in known.items():
            if options.only and options.only != door:
                continue
            result, words = attempt(lambda each=each: each.call(**each.good()))
            assert result == "fine", f"The good call of {door} fails: {words}"
            for name, value, call in attempts(each):
                number += 1
                if number % options.every:
                    continue
                began = time.perf_counter()
                result, words = attempt(call)
                slowest = max(slowest, (time.perf_counter() - began, f"{door}({name}={value})"))
                counts[result] = counts.get(result, 0) + 1
                if options.show and result == "clean":
                    print(f"{door}({name}={value}): {words}", file=sys.stderr)
                if result not in ("fine", "clean"):
                    bad.append(f"{door}({name}={value}): {result}: {words}")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"counts": counts, "bad": bad, "slowest": slowest, "memory": memory}, indent=1))


if __name__ == "__main__":
    main()
