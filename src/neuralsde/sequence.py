"""The seam: what a model of continuous sequences takes and gives.

A *sequence model* learns from transitions and samples paths. The Neural SDE is one and every baseline is one; training,
evaluation, plots and the command line know nothing else. S is the shape of one observation; a state is the history of
the last H observations, oldest first, of which the newest moves and is predicted.

Everything a user passes or gets is in raw units. Inside, states are in units of the data's scale and times in units of
the reference step `dt_ref`; `Scale` holds both and travels with the weights.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor, nn

from neuralsde.config import ModelSettings, NeuralSDEConfig, Sampler
from neuralsde.data.transition import Transition
from neuralsde.files import writable_folder
from neuralsde.noise import Noise
from neuralsde.records import to_dict
from neuralsde.scale import Scale, joined
from neuralsde.solvers import Grid, Step, Times, grid_between, integrate, output_times

if TYPE_CHECKING:
    from neuralsde.data.trajectories import Lag, Trajectories

FORMAT = 1
MAX_CHUNK_ELEMENTS = 2**25
"""Numbers in the record of one chunk of paths: bounds the memory of sampling (128 MiB in float32)."""


Condition = Callable[[Tensor], "Tensor | None"]
"""The condition vector (P, K) of the nets at times (P,)."""


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode (no dropout), for a while."""
    training = module.training
    if training:  # to walk through all modules takes as long as a pass of a small net
        module.eval()
    try:
        yield
    finally:
        if training:
            module.train()


def has_dropout(module: nn.Module) -> bool:
    """Whether the module gives other values in training than in evaluation."""
    return any(
        (isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0) or getattr(m, "random_in_training", False)
        for m in module.modules()
    )


def finite(values: Tensor) -> bool:
    """Whether all values are: x - x is 0 then, or else NaN (`torch.isfinite` is five operations)."""
    return not bool((values - values).any())


def observed_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the entries (B, *S) that were observed, or over rows (B,)."""
    if mask is None or values.ndim == 1:
        return values.mean()
    seen = mask.float()
    return (values * seen).sum() / seen.sum().clamp(min=1.0)


class SequenceModel(nn.Module, ABC):
    """Learns from transitions, samples paths."""

    kind: ClassVar[str]
    config: ModelSettings
    sampler: Sampler
    nets: nn.ModuleDict

    def __init__(self, scale: Scale, config: ModelSettings) -> None:
        super().__init__()
        self.scale = scale
        self.config = config
        self.sampler = getattr(config, "sampler", Sampler())
        self.lag: Lag = None
        """Physical time between the states of the transitions it was built for; None: consecutive observations."""
        self.own_nets = False
        """Whether the nets are the caller's own: they are then needed again to load the model."""
        self.nfe: dict[str, int] = {}
        """Network passes per net of the last call of `sample` or `log_prob`, for one path."""

    # What a model defines

    @abstractmethod
    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        """One scalar per trained part; `noise` holds one key per row of the batch."""

    @abstractmethod
    def advance(self, step: Step, condition: Condition, noise: Noise) -> Tensor:
        """The next states of all paths, in scaled units; `noise` gives further randomness than `step.z`."""

    def transition_log_prob(self, batch: Transition) -> Float[Tensor, " B"]:
        """Log density of each transition, in raw units."""
        raise ValueError(f"{type(self).__name__} has no likelihood. Use a NeuralSDE with `diffusion=True`.")

    def check_sampler(self, sampler: Sampler, gaps: Tensor) -> None:
        """Refuse what this model cannot serve; `gaps` are the times between outputs in reference steps."""

    @property
    def forecast_sampler(self) -> Sampler:
        """How observations are forecast from observations."""
        return self.sampler

    def true_states(self, state: Tensor, condition: Tensor | None, noise: Noise) -> Tensor:
        """Draw the states (P, H, *S) behind measured ones."""
        raise ValueError("`measured=True` needs a model trained with `measurement=True`.")

    def measurements(self, states: Tensor, noise: Noise) -> Tensor:
        """Measurements of states (P, T, *S)."""
        raise ValueError("`measured=True` needs a model trained with `measurement=True`.")

    def max_step(self, sampler: Sampler) -> float:
        """Longest step of the time grid, in reference steps."""
        return 1.0 / sampler.substeps

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Trained parts by name; gradients are clipped part by part."""
        return {"model": list(self.parameters())}

    # What every model shares

    def forward(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        """The loss: distributed wrappers hook into `forward`."""
        return self.loss(batch, noise)

    def count(self, **passes: int) -> None:
        """Add network passes to `nfe`; those of training are not counted."""
        if self.training:
            return
        for name, number in passes.items():
            self.nfe[name] = self.nfe.get(name, 0) + number

    @torch.no_grad()
    def sample(
        self,
        history: Any,
        times: Any,
        *,
        context: Any = None,
        num_paths: int = 1,
        sampler: Sampler | None = None,
        rng: torch.Generator | Noise | SupportsIndex | None = None,
        chunk: int | None = None,
    ) -> Float[Tensor, "B N T *S"]:
        """Draw `num_paths` futures of each state.

        Args:
            history: one state (*S), a batch (B, *S), or histories (B, H, *S) with slots one reference step apart.
            times: (T,) or (B, T), strictly increasing; the first is the time of the newest history state, which is
                also the first state of every path.
            context: (B, C), or (B, T, C) for a context that holds from each output time to the next.
            num_paths: paths per state.
            sampler: replaces `model.sampler` for this call.
            rng: a seed, the source of the path keys, or the keys themselves, one per path; None draws new ones. torch's
                own seed has no part in it.
            chunk: paths integrated at once; None bounds the memory.
        """
        sampler = sampler or self.sampler
        x, t, ctx = self._check_inputs(history, times, context, num_paths)
        batch, num_times = len(x), t.since.shape[1]
        self.check_sampler(sampler, t.gaps)
        keys = rng if isinstance(rng, Noise) else Noise.draw(rng, batch * num_paths, x.device)
        if len(keys) != batch * num_paths:
            raise ValueError(f"`rng` must hold one key per path, {batch * num_paths}. Got {len(keys)}.")

        u = self.scale.states(x)
        grid = grid_between(t.since, self.max_step(sampler), x.device)
        start = t.start.to(x.device).expand(batch, 1)
        if num_paths > 1:
            u, start = u.repeat_interleave(num_paths, 0), start.repeat_interleave(num_paths, 0)
            if len(grid.time) > 1:
                grid = Grid(*(v.repeat_interleave(num_paths, 0) for v in (grid.time, grid.interval, grid.output)))
            if ctx is not None:
                ctx = ctx.repeat_interleave(num_paths, 0)
        if sampler.measured:
            held = ctx[:, 0] if ctx is not None and ctx.ndim == 3 else ctx
            u = self.true_states(u, self._condition(held, start[:, 0]), keys)
        box = None if sampler.box is None else self.scale.box(sampler.box)
        if chunk is None:
            chunk = max(1, MAX_CHUNK_ELEMENTS // (math.prod(self.scale.shape) * grid.time.shape[1]))

        saved, self.sampler = self.sampler, sampler
        out = []
        try:
            for first in range(0, len(u), chunk):
                rows = slice(first, first + chunk)
                own = grid if len(grid.time) == 1 else Grid(grid.time[rows], grid.interval[rows], grid.output[rows])
                self.nfe = {}
                advance = self._advance_in(keys[rows], start[rows, 0], None if ctx is None else ctx[rows], own)
                with evaluating(self):
                    out.append(integrate(advance, u[rows], own, keys[rows], box=box, first_path=first))
        finally:
            self.sampler = saved
        drawn = torch.cat(out) if not sampler.measured else self.measurements(torch.cat(out), keys)
        paths = self.scale.raw(drawn).reshape(batch, num_paths, num_times, *self.scale.shape)
        paths[:, :, 0] = x[:, -1:]  # exactly, whatever the rounding of the scale
        return paths

    def _advance_in(self, keys: Noise, start: Tensor, context: Tensor | None, grid: Grid) -> Callable[[Step], Tensor]:
        """`advance` for these paths, with the context that holds in each step."""
        scaled = None if context is None else self.scale.contexts(context)

        def advance(step: Step) -> Tensor:
            held = scaled
            if held is not None and held.ndim == 3:
                interval = grid.interval[:, step.index].expand(len(step.x))
                held = held[torch.arange(len(step.x), device=step.x.device), interval]
            return self.advance(step, lambda t: joined(held, start + t if self.config.time_input else None), keys)

        return advance

    def _condition(self, context: Tensor | None, time: Tensor) -> Tensor | None:
        return self.scale.condition(context, time if self.config.time_input else None)

    def _check_inputs(
        self, history: Any, times: Any, context: Any, num_paths: int
    ) -> tuple[Tensor, Times, Tensor | None]:
        """The door of `sample`: shapes, finiteness, order. Returns (B, H, *S), times, and (B, [T,] C) or None."""
        shape, slots, device = self.scale.shape, self.config.history, self.scale.mean.device
        x = torch.as_tensor(history, dtype=torch.float32, device=device)
        if x.shape == shape and slots == 1:
            x = x[None, None]
        elif x.shape[1:] == shape and slots == 1:
            x = x[:, None]
        elif x.shape == (slots, *shape) and slots > 1:
            x = x[None]
        if x.ndim != len(shape) + 2 or x.shape[1:] != (slots, *shape):
            wanted = f"(B, {slots}, {', '.join(map(str, shape))})"
            raise ValueError(
                f"`history` must have shape {wanted}. Got {tuple(x.shape)}. The model keeps {slots} slot(s) of shape {shape}."
            )
        if not finite(x):
            where = tuple(int(i) for i in (~torch.isfinite(x)).nonzero()[0])
            raise ValueError(
                f"`history` must be finite. Got history[{where}]={float(x[where])}. Fill or drop missing values first."
            )
        t = torch.as_tensor(times, dtype=torch.float64, device="cpu")
        t = t[None] if t.ndim == 1 else t
        if t.ndim != 2 or t.shape[1] < 2 or len(t) not in (1, len(x)):
            raise ValueError(
                f"`times` must have shape (T,) or (B, T) with T >= 2 and B={len(x)}. Got {tuple(t.shape)}."
            )
        checked = output_times(t, self.scale.step)
        if num_paths < 1:
            raise ValueError(f"`num_paths` must be at least 1. Got {num_paths=}.")
        size = self.scale.context_size
        if (context is None) != (size == 0):
            wanted = (
                f"must have {size} value(s) per state: the model was trained with it"
                if size
                else "must be None: the model was trained without it"
            )
            raise ValueError(f"`context` {wanted}. Got context={None if context is None else 'a value'}.")
        if context is None:
            return x, checked, None
        ctx = torch.as_tensor(context, dtype=torch.float32, device=device)
        if not finite(ctx):
            raise ValueError("`context` must be finite. Fill or drop missing values first.")
        if ctx.shape not in ((len(x), size), (len(x), t.shape[1], size)):
            raise ValueError(
                f"`context` must have shape {(len(x), size)} or {(len(x), t.shape[1], size)}. Got {tuple(ctx.shape)}."
            )
        return x, checked, ctx

    @torch.no_grad()
    def log_prob(self, data: Transition | Trajectories, *, batch_size: int = 8192) -> Float[Tensor, " B"]:
        """Log density of each transition of a batch, or the sum over consecutive observations for each path."""
        self.nfe = {}
        with evaluating(self):
            if isinstance(data, Transition):
                return self.transition_log_prob(data)
            if not hasattr(data, "transitions"):
                raise ValueError(
                    f"`log_prob` takes Trajectories or a Transition. Got {type(data).__name__}. Use Trajectories.from_arrays."
                )
            pairs = data.transitions(history=self.config.history, spacing=self.lag).to(self.scale.mean.device)
            self.check_data(pairs.data.shape, pairs.history, pairs.data.context_size)
            total = torch.zeros(len(data), dtype=torch.float64, device=self.scale.mean.device)
            for first in range(0, len(pairs), batch_size):
                rows = torch.arange(first, min(first + batch_size, len(pairs)), device=total.device)
                self.nfe = {}
                total.index_add_(0, pairs.path[rows], self.transition_log_prob(pairs[rows]).double())
            return total.float()

    def check_data(self, shape: tuple[int, ...], history: int, context_size: int) -> None:
        """Refuse data of another form than the model was built for."""
        wanted = (self.scale.shape, self.config.history, self.scale.context_size)
        if (shape, history, context_size) != wanted:
            raise ValueError(
                f"The model takes states of shape {wanted[0]}, history {wanted[1]} and {wanted[2]} context value(s). Got data "
                f"with {shape}, {history} and {context_size}. Build the model with for_data on this data."
            )

    # Files

    def settings(self) -> dict[str, Any]:
        """All that is needed, beside the tensors, to build the model again."""
        config = self.config
        if isinstance(config, NeuralSDEConfig):
            config = replace(config, sampler=self.sampler)
        return {
            "format": FORMAT,
            "kind": self.kind,
            "config": to_dict(config),
            "state_shape": list(self.scale.shape),
            "context_size": self.scale.context_size,
            "dt_ref": self.scale.step,
            "lag": self.lag,
            "own_nets": self.own_nets,
            "nets": sorted(self.nets) if self.own_nets else [],
        }

    def save_pretrained(self, path: str | os.PathLike[str], *, half: bool = False) -> Path:
        """Write `model.safetensors` and `config.json` into the folder `path`; a failed write leaves the old files.

        `half` keeps weights in 16 bits, half the size (they are 32 again once loaded); units and bounds stay as they are.
        """
        tensors = {
            k: v.detach().cpu().clone().contiguous() for k, v in self.state_dict().items()
        }  # clone: tied weights
        for name, _ in self.named_parameters() if half else ():
            if float(tensors[name].abs().max()) > torch.finfo(torch.float16).max:
                raise ValueError(f"The weight {name} does not fit into 16 bits. Save with half=False.")
            tensors[name] = tensors[name].half()
        folder = writable_folder(path)
        record = json.dumps(self.settings(), indent=2) + "\n"
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as new:
            save_file(tensors, Path(new) / "model.safetensors")
            (Path(new) / "config.json").write_text(record, encoding="utf-8")
            for name in ("model.safetensors", "config.json"):
                os.replace(Path(new) / name, folder / name)
        return folder

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike[str], *, nets: dict[str, nn.Module] | None = None
    ) -> SequenceModel:
        """Load a folder written by `save_pretrained`; `nets` gives the nets of a model that was built with your own."""
        from neuralsde.models import load

        model = load(path, nets=nets)
        if not isinstance(model, cls):
            raise ValueError(
                f"{path} holds a {type(model).__name__}, not a {cls.__name__}. Use {type(model).__name__}.from_pretrained."
            )
        return model
