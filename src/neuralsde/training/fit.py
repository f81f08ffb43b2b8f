"""The one training loop. It knows no task and no method: a model is anything with `loss(batch, noise)`.

Each step draws its batch and its noise from counters (seed, step, row), so the data order needs no state, several
processes share a batch row by row, and a resumed run repeats the numbers of an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neuralsde.core.doors import door
from neuralsde.core.extras import need
from neuralsde.core.files import read_text, replacing
from neuralsde.core.formats import current
from neuralsde.core.processes import Interrupted, stop_signals
from neuralsde.core.records import RunError, each_with_settings, to_dict
from neuralsde.data.streams.stream import Batches, Stream, StreamTransitions
from neuralsde.data.trajectories import Paths, Trajectories, Transitions
from neuralsde.models.sequence import SequenceModel
from neuralsde.solvers.noise import Noise
from neuralsde.training.average import Average
from neuralsde.training.checkpoints import Checkpoint, Checkpoints, damaged
from neuralsde.training.config import RunOptions, TrainConfig
from neuralsde.training.distributed import in_processes, num_launched
from neuralsde.training.graphs import (
    PAYS,
    CapturedStep,
    can_capture,
    compiled_layers,
    operations,
    repeated_layers,
    set_rate,
)
from neuralsde.training.run_folder import RunFolder, check_run, open_run

if TYPE_CHECKING:
    from accelerate import Accelerator

FREE_TO_CHANGE = {"sampler"}  # settings of the model that a resumed run may change: they do not touch the numbers
WARMUP = 0.05  # share of the steps in which the learning rate rises linearly; then it falls as a cosine
FINAL_RATE = 0.01  # last learning rate as a share of the peak
CLIP = 1.0  # largest norm of the gradient of each trained part
VALIDATION_SIZE = 8_192
SET_POINTS = (
    0.05,
    0.15,
    0.4,
)  # shares of a training after which the model settles what follows from what it has learned
LAST = 0.2  # share of the steps that learn from windows, where a model asks for them
PER_WINDOW = 8  # pairs of a batch for one of its windows
FINGERPRINT_SIZE = 4_096
FEW_ROWS = 8  # of a batch, on which the operations of a step are counted
MAX_METRICS = 2**30  # bytes of metrics.jsonl


class NonFiniteLoss(RunError):
    """Training broke down."""


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up, then a cosine."""
    position = step / config.steps
    if position < WARMUP:
        return config.lr * (position * config.steps + 1) / (WARMUP * config.steps + 1)
    share = (position - WARMUP) / (1 - WARMUP)
    return config.lr * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * share)))


def fingerprint(data: Transitions) -> str:
    """Of evenly spread transitions: enough to notice that a run is resumed on other data."""
    some = data.spread(FINGERPRINT_SIZE)
    parts = (
        t.cpu().numpy().tobytes() for t in (some.history, some.next, some.dt, some.context, some.mask) if t is not None
    )
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


@door
def fit(
    model: SequenceModel,
    data: Paths | Transitions | Stream | StreamTransitions,
    *,
    val: Paths | Transitions | None = None,
    config: TrainConfig | None = None,
    options: RunOptions | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    **settings: Any,
) -> SequenceModel:
    """Train `model` in place and return it with the averaged weights.

    Args:
        model: learns from transitions with its own lag and history.
        data: paths, in memory or a stream of them, or transitions made from them, which are then taken as they are
            (`to_learn_from`).
        val: for the validation loss; `val_fraction` splits paths off `data` instead.
        config: what is computed.
        options: how it runs.
        settings: fields of either, e.g. `steps=5_000, progress=False`.
        run_dir: folder for metrics.jsonl and checkpoints; None keeps nothing.
        resume: go on from the newest checkpoint in `run_dir`, if there is one.
    """
    config, options = each_with_settings(settings, config or TrainConfig(), options or RunOptions())
    if not isinstance(run_dir, RunFolder):
        check_run(run_dir, resume=resume)
    if options.trackers and run_dir is None:
        raise ValueError(f"`trackers` need a `run_dir` to write to. Got {options.trackers=}.")
    if "wandb" in options.trackers:
        need("This tracker", "wandb")
    if "tensorboard" in options.trackers and find_spec("tensorboard") is None:
        need("This tracker", "tensorboardX")
    if config.context_noise and not model.scale.context_size:
        raise ValueError(
            f"`context_noise` is for models with a context; this one has none. Got {config.context_noise=}."
        )
    if val is None and config.val_fraction > 0:
        if not isinstance(data, Trajectories):
            raise ValueError("`val_fraction` splits by path, and needs Trajectories. Pass `val` instead.")
        data, val = data.split(config.val_fraction, seed=config.seed)
    if options.processes > 1 and num_launched() > 1:
        raise ValueError(
            f"`processes` starts processes; {num_launched()} were started already, by torchrun or accelerate. Got "
            f"{options.processes=}. Leave it out."
        )
    pairs, others = _pairs(model, data), None if val is None else _pairs(model, val)
    with open_run(run_dir, resume=resume) as run:
        work = (model, pairs, others, config, options, None if run is None else run.path, resume)
        if options.processes == 1:
            return _run_loop(*work)
        model.load_state_dict(in_processes(_run_worker, work, options.processes, None if run is None else run.path))
        model.precision = config.precision
        return model.eval()


def _run_worker(*work: Any) -> dict[str, Tensor]:
    """The loop in one of several processes; what it has learned."""
    return _run_loop(*work).state_dict()


def _run_loop(
    model: SequenceModel,
    pairs: Transitions | StreamTransitions,
    val: Any,
    config: TrainConfig,
    options: RunOptions,
    folder: Path | None,
    resume: bool,
) -> SequenceModel:
    try:
        return _Loop(model, pairs, val, config, options, folder, resume).run()
    finally:
        for mark in ("forward", "_original_forward", "_is_accelerate_prepared"):  # or a second fit would inherit them
            model.__dict__.pop(mark, None)


def _pairs(model: SequenceModel, data: Any) -> Any:
    """The transitions that the model learns from."""
    if isinstance(data, (Trajectories, Stream)):
        config = model.config
        data = data.transitions(lag=model.lag, history=config.history, pad=config.pad_history).to_learn_from()
    model.check_data(data.in_memory.data, data.history)
    return data


class _Loop:
    """One call of `fit`: set up, step, log, save."""

    def __init__(
        self,
        model: SequenceModel,
        data: Transitions | StreamTransitions,
        val: Transitions | None,
        config: TrainConfig,
        options: RunOptions,
        folder: Path | None,
        resume: bool,
    ) -> None:
        self.config, self.options, self.folder, self.model = config, options, folder, model
        self.accelerator = _accelerator(config.precision, options, folder)
        device, shares = self.accelerator.device, self.accelerator.num_processes
        if config.batch_size % shares:
            raise ValueError(f"`batch_size` must be a multiple of the {shares} processes. Got {config.batch_size=}.")
        if config.batch_size // shares % options.accumulate:
            raise ValueError(
                f"`accumulate` must divide the {config.batch_size // shares} rows of a process. Got {options.accumulate=}."
            )
        self.stream = data if isinstance(data, StreamTransitions) else None
        self.window = model.window_for(None if self.stream is not None else data.in_memory)
        if self.stream is not None and self.window:
            raise ValueError(
                "Measurement noise is learned from paths in memory. Got a Stream. Pass Trajectories of a part of it."
            )
        self.data = data.in_memory.to(device)
        self.val = None if val is None else val.to(device).spread(VALIDATION_SIZE)
        model.to(device).train()
        self.groups = model.parameter_groups()
        graph = can_capture(model, options, device, shares) and self.stream is None
        # Not prepared by accelerate, which looks for packages in every step and adds what fp16 alone needs
        self.optimiser = torch.optim.AdamW(
            model.parameters(),
            lr=torch.tensor(config.lr, device=device) if graph else config.lr,  # type: ignore[arg-type]
            weight_decay=config.weight_decay,
            fused=device.type in ("cpu", "cuda"),
            capturable=graph,
        )
        self.wrapped = self.accelerator.prepare(model)
        self.average = Average(model, config.ema)
        self.checkpoints = None if folder is None else Checkpoints(folder / "checkpoints", options.keep)
        self.record = {
            "train": to_dict(config),
            "model": to_dict(model.config),
            "data": {"num_transitions": len(data), "fingerprint": fingerprint(data.in_memory), **data.record()},
            "num_processes": self.accelerator.num_processes,
        }
        self.rows = torch.arange(
            self.accelerator.process_index, config.batch_size, self.accelerator.num_processes, device=device
        )
        self.batches: Batches | None = None  # of a stream, while it runs
        self.parts: list[str] = []
        self.sums: Tensor | None = None  # of the losses since the last line of metrics.jsonl
        self.num_summed = 0
        self.captured = CapturedStep(self._optimise) if graph else None
        self.late = config.steps - round(LAST * config.steps) if self.window else config.steps
        self.set_points = {math.ceil(share * config.steps) for share in SET_POINTS}
        self.start = self._restore() if resume else 0
        self.main = self.accelerator.is_main_process
        self.metrics = None if folder is None else folder / "metrics.jsonl"
        if self.main and self.metrics is not None:
            _truncate(self.metrics, self.start)
        if options.trackers:
            self.accelerator.init_trackers("neuralsde", config={k: str(v) for k, v in asdict(config).items()})

    def run(self) -> SequenceModel:
        rows = self.config.batch_size // self.accelerator.num_processes // self.options.accumulate
        with compiled_layers(self.model, partial(self._rehearse, rows) if self._compiles() else None):
            return self._run_from_data()

    def _compiles(self) -> bool:
        """Whether layers are compiled: as asked, or where the training is long enough."""
        if self.options.compile is not None:
            return self.options.compile
        if self.accelerator.device.type != "cuda" or not repeated_layers(self.model):
            return False
        forward = operations(partial(self._rehearse, FEW_ROWS)) / FEW_ROWS * self.config.batch_size
        return 3 * forward * self.config.steps > PAYS

    def _rehearse(self, num: int) -> None:
        """The losses of so many rows."""
        device = self.accelerator.device
        noise = Noise.for_step(self.config.seed, 0, torch.arange(num, device=device))
        with torch.random.fork_rng([device] if device.type == "cuda" else []), self.accelerator.autocast():
            self.model.loss(self.data.batch(noise), noise)

    def _run_from_data(self) -> SequenceModel:
        if self.stream is None:
            return self._run()
        share = {"process": self.accelerator.process_index, "num_processes": self.accelerator.num_processes}
        size, device = self.config.batch_size, self.accelerator.device
        with closing(self.stream.batches(self.config.seed, self.start, size, device=device, **share)) as self.batches:
            return self._run()

    def _run(self) -> SequenceModel:
        config, options = self.config, self.options
        began, timed = time.perf_counter(), 0
        devices = [self.accelerator.device] if self.accelerator.device.type == "cuda" else []
        with self._bar() as bar, stop_signals() as stop, torch.random.fork_rng(devices), _matmul(config.precision):
            for step in range(self.start, config.steps):
                parts, values = self._step(step)
                if step == self.late:  # the parts are others from here on
                    self.sums, self.num_summed = None, 0
                self.sums = values if self.sums is None else self.sums.to(values) + values
                self.num_summed, timed, done = self.num_summed + 1, timed + 1, step + 1
                if done in self.set_points:
                    self._settle()
                if done % options.log_every == 0 or done == config.steps:
                    sums = self._over_processes(self.sums)
                    self._require_finite(sums, parts, step)
                    means = dict(zip(parts, (sums / self.num_summed).tolist()))
                    seconds = time.perf_counter() - began
                    self._log(done, means, {"steps_per_second": round(timed / seconds, 2), **self._waiting(seconds)})
                    bar.set_postfix({k: f"{v:.4g}" for k, v in means.items()}, refresh=False)
                    self.sums, self.num_summed = None, 0
                    began, timed = time.perf_counter(), 0
                bar.update()
                stops = bool(stop) and self.main  # of several processes the first one saves, and the others end with it
                if self.checkpoints is not None and (
                    done % options.checkpoint_every == 0 or done == config.steps or stops
                ):
                    self._require_finite(values, parts, step)
                    self._save(done)
                if stops and done < config.steps:
                    raise Interrupted(self._farewell(done), stop[0])
        if options.trackers:
            self.accelerator.end_training()
        self.average.apply()
        model = self.model.eval()
        model.precision = config.precision
        if self.main:
            for finding in model.findings(self.data.some()):
                warnings.warn(finding, stacklevel=6)
        return model

    def _over_processes(self, values: Tensor) -> Tensor:
        """The mean over all processes, each of which has seen a part of the batch."""
        return (
            values if self.accelerator.num_processes == 1 else self.accelerator.reduce(values.clone(), reduction="mean")
        )

    def _waiting(self, seconds: float) -> dict[str, float]:
        """The share of some time in which the next batch of a stream was not ready."""
        if self.batches is None:
            return {}
        waited, self.batches.waited = self.batches.waited, 0.0
        return {"waiting": round(waited / seconds, 4)}

    def _settle(self) -> None:
        """Let the model fix what follows from what it has learned; another step than the one recorded may follow."""
        with self.average.applied():
            self.model.settle(self.data.some())
            self.model.refine(self.data)
        if self.captured is not None:
            self.captured = CapturedStep(self._optimise) if self.model.same_kernels else None

    def _step(self, step: int) -> tuple[list[str], Tensor]:
        """One optimiser step; the names and the losses of the parts."""
        # For dropout and nets of the caller's own, which know no other generator
        seed = (self.config.seed * 1_000_003 + step) * 1_009 + self.accelerator.process_index
        torch.default_generator.manual_seed(seed)
        if self.accelerator.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        for group in self.optimiser.param_groups:
            set_rate(group, learning_rate(self.config, step))
        noise = Noise.for_step(self.config.seed, step, self.rows)
        alone = self.captured is None or step >= self.late
        values = self._optimise(noise, step) if alone else self.captured(noise)
        self.average.update(step)
        return self.parts, values

    def _optimise(self, noise: Noise, step: int = 0) -> Tensor:
        """Draw a batch, take the losses, step; on a GPU this is what a CUDA graph repeats."""
        whole = None if self.batches is None else next(self.batches)
        num, sums = self.options.accumulate, []
        size = len(noise) // num
        for first in range(0, len(noise), size):
            part, last = noise[first : first + size], first + size == len(noise)
            batch = self.data.batch(part) if whole is None else whole.rows(slice(first, first + size))
            if self.config.context_noise:
                batch = batch.with_context_noise(self.config.context_noise * self.model.scale.context_std, part)
            windows = self.data.windows(part[::PER_WINDOW], self.window) if step >= self.late else None
            with nullcontext() if last else self.accelerator.no_sync(self.wrapped):  # gradients are shared once
                losses = self.wrapped(batch, part, windows)
                self.parts = list(losses)
                sums.append(torch.stack([v.detach() for v in losses.values()]))
                if self.accelerator.device.type == "cpu":  # on an accelerator the check waits until the next log line
                    self._require_finite(sums[-1], self.parts, step)
                if first == 0:
                    self.optimiser.zero_grad(set_to_none=True)
                total = sum(losses.values())
                self.accelerator.backward(total if num == 1 else total / num)
        values = sums[0] if num == 1 else torch.stack(sums).mean(0)
        for parameters in self.groups.values():
            self.accelerator.clip_grad_norm_(parameters, CLIP)
        self.optimiser.step()
        return values

    @torch.no_grad()
    def _validate(self) -> dict[str, float]:
        assert self.val is not None
        noise = Noise.for_step(self.config.seed + 1, 0, torch.arange(len(self.val), device=self.accelerator.device))
        self.model.eval()
        with self.average.applied():
            losses = self.model.loss(self.val, noise)
        self.model.train()
        return {f"val_{k}": float(v) for k, v in losses.items()}

    def _log(self, done: int, means: dict[str, float], measured: dict[str, float]) -> None:
        line: dict[str, float] = {"step": done, **means, "lr": learning_rate(self.config, done - 1)}
        options = self.options
        if self.val is not None and (done % options.val_every < options.log_every or done == self.config.steps):
            line |= self._validate()
        if options.trackers:
            self.accelerator.log({k: v for k, v in line.items() if k != "step"}, step=done)
        if self.main and self.metrics is not None:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**line, **measured}) + "\n")

    def _require_finite(self, values: Tensor, names: list[str], step: int, what: str = "loss") -> None:
        if bool(torch.isfinite(values).all()):
            return
        part = names[int((~torch.isfinite(values)).nonzero()[0])]
        last = [] if self.checkpoints is None else self.checkpoints.list()
        kept = f"The last good checkpoint is {last[-1]}" if last else "There is no checkpoint yet"
        exact = what == "loss" and self.accelerator.device.type == "cpu"
        raise NonFiniteLoss(
            f"The {what} of `{part}` is not finite {'at' if exact else 'by'} step {step + 1}. {kept}. "
            f"Try a lower `lr`, and look for outliers in the data."
        )

    def _save(self, done: int) -> None:
        zero = torch.zeros((), device=self.accelerator.device)
        sizes = [sum((p.detach().abs().sum() for p in ps), zero) for ps in self.groups.values()]
        self._require_finite(torch.stack(sizes), list(self.groups), done - 1, what="gradient")
        if not self.main:
            return
        assert self.checkpoints is not None
        names = self.average.names
        moments = {
            f"{name}/{key}": torch.as_tensor(value)
            for name, p in zip(names, self.average.parameters)
            for key, value in self.optimiser.state.get(p, {}).items()
        }
        average = dict(zip(names, self.average.values))
        sums = None if self.sums is None else self.sums.tolist()
        record = self.record | {"losses": {"sums": sums, "num": self.num_summed}}
        self.checkpoints.save(Checkpoint(done, self.model.state_dict(), average, moments, record))

    def _restore(self) -> int:
        assert self.checkpoints is not None
        found = self.checkpoints.list()
        if not found:
            return 0
        checkpoint = self.checkpoints.load(found[-1])
        for section, kind in (("train", "TrainConfig"), ("model", "NeuralSDEConfig")):
            before, now = current(checkpoint.record[section], kind), self.record[section]
            for key in now:
                if key not in FREE_TO_CHANGE and before.get(key) != now[key]:
                    was = f"it ran with {before.get(key)!r}"
                    raise ValueError(f"Cannot resume {found[-1]} with another `{key}`: {was}. Got {now[key]!r}.")
        before, now = checkpoint.record["data"], self.record["data"]
        if before != now:
            raise ValueError(f"Cannot resume {found[-1]} on other data: it had {before}. Got {now}.")
        try:
            self.model.load_state_dict(checkpoint.weights)
            with torch.no_grad():
                for name, value in zip(self.average.names, self.average.values):
                    value.copy_(checkpoint.average[name])
            losses = checkpoint.record.get("losses", {"sums": None, "num": 0})  # not in those of earlier versions
            self.sums = None if losses["sums"] is None else torch.tensor(losses["sums"], dtype=torch.float64)
            self.num_summed = losses["num"]
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            raise damaged(found[-1], " ".join(str(error).split())) from None
        for name, p in zip(self.average.names, self.average.parameters):
            state = {k.split("/")[-1]: v for k, v in checkpoint.optimiser.items() if k.startswith(f"{name}/")}
            if state:
                self.optimiser.state[p] = {k: v.to(p.device) for k, v in state.items()}
        return checkpoint.step

    def _farewell(self, done: int) -> str:
        if self.folder is None:
            return f"Stopped at step {done} of {self.config.steps}. Without a run folder nothing was saved."
        again = f"fit(…, run_dir={str(self.folder)!r}, resume=True)"
        return f"Stopped at step {done} of {self.config.steps} and saved. Go on with the same command and --resume, or {again}."

    def _bar(self) -> Any:
        from tqdm import tqdm

        hidden = not (self.options.progress and self.accelerator.is_main_process)
        return tqdm(
            total=self.config.steps,
            initial=self.start,
            disable=hidden,
            unit="step",
            dynamic_ncols=True,
            mininterval=0.5,
        )


def _accelerator(precision: str, options: RunOptions, folder: Path | None) -> Accelerator:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import AutocastKwargs

    AcceleratorState._reset_state()  # settings of an earlier fit in this process must not bind this one
    return Accelerator(
        mixed_precision="bf16" if precision == "bf16" else "no",
        cpu=options.cpu,
        log_with=list(options.trackers) or None,
        project_dir=None if folder is None else str(folder),
        kwargs_handlers=[
            AutocastKwargs(cache_enabled=False),  # what is cached in a step must not be read by its CUDA graph later
        ],
    )


def _truncate(metrics: Path, step: int) -> None:
    """Keep the lines of metrics.jsonl up to `step`: what followed is computed again."""
    if not metrics.exists():
        return
    lines = [line for line in read_text(metrics, MAX_METRICS).splitlines() if line.endswith("}")]
    try:
        kept = [line for line in lines if json.loads(line)["step"] <= step]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{metrics} is damaged ({error}). Move it away to go on without its lines.") from None
    with replacing(metrics) as new:
        new.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


@contextmanager
def _matmul(precision: str) -> Iterator[None]:
    """Matrix products of a GPU with ten bits of mantissa, if asked."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
