"""The seam: what a model of continuous sequences takes and gives.

A *sequence model* learns from transitions and samples paths. The Neural SDE is one and every baseline is one; training,
evaluation, plots and the command line know nothing else. S is the shape of one observation; a state is the history of
the last H observations, oldest first, of which the newest moves and is predicted.

Everything a user passes or gets is in raw units. Inside, states are in units of the data's scale and times in units of
the reference step `dt_ref`; `Scale` holds both and travels with the weights. No call writes to the model: what is passed
is an argument and what is counted is a result, so several threads may draw from one model.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.core.doors import Count, door, show
from neuralsde.core.memo import hold
from neuralsde.core.records import built_by, check
from neuralsde.data.arrays import as_tensor
from neuralsde.data.trajectories import Lag, Paths, Trajectories, Transitions
from neuralsde.data.transition import Transition
from neuralsde.models.card import model_card
from neuralsde.models.config import Drawing, ModelConfig, Sampling
from neuralsde.models.evaluation import evaluated, with_children, with_weights
from neuralsde.models.hub import local_folder, push
from neuralsde.models.replaying import replayer
from neuralsde.models.saving import read_model, write_model
from neuralsde.models.scale import Scale, join_condition
from neuralsde.nets.backbone import Backbone
from neuralsde.solvers.grid import MAX_KNOWN, Grid, Times, grid_between, output_times
from neuralsde.solvers.integrate import (
    ENOUGH,
    LONG_STRETCH,
    STRETCH,
    Check,
    Step,
    Stretches,
    at_outputs,
    check_inside,
    inside,
    walk,
)
from neuralsde.solvers.noise import Noise
from neuralsde.solvers.replay import Recorded, Recordings, Replayed

MAX_CHUNK_ELEMENTS = 2**25
"""Numbers in the record of one chunk of paths: bounds the memory of sampling (128 MiB in float32)."""
MAX_NUMBERS = 2**30
"""Numbers in the paths of one call (4 GiB in float32)."""
SHORT = 256  # steps of a roll-out up to which all of it is recorded, if it comes again
FEW_PASSES = 2_048  # and network passes of all its steps
BRIEF = 128  # the same on a CPU, where a trace of more would take seconds
FEW_NUMBERS = 2**14  # in the paths of a roll-out, up to which Python takes most of its time there
MOST_TIMES = 2**20  # of the steps of all paths that nets are told, up to which they are worked out beforehand
STATISTICS_FROM = 200_000  # transitions from which units and bounds are computed

Condition = Callable[[Tensor], "Tensor | None"]
"""The condition vector (P, K) of the nets at times (P,)."""


@dataclass(frozen=True)
class Advance:
    """What a step leads to."""

    x: Float[Tensor, "P *S"]  # the new states, in scaled units
    passes: Mapping[str, int]  # network passes that it took, by net


@dataclass(frozen=True)
class Draw:
    """Paths, and what they cost."""

    paths: Float[Tensor, "B N T *S"]
    nfe: dict[str, int]  # network passes per net, for one path
    fetched: Float[Tensor, "B N T *S"] | None = None  # the paths on the host, if they are there already

    def numpy(self) -> Float[np.ndarray, "B N T *S"]:
        """The paths as an array."""
        return (self.paths.cpu() if self.fetched is None else self.fetched).numpy()


@dataclass(frozen=True)
class Starts:
    """States (H slots) from which paths start where they are known up to a Gaussian, flattened and in scaled units."""

    mean: Float[Tensor, "B D"]
    root: Float[Tensor, "B D D"]

    def __getitem__(self, rows: Tensor) -> Starts:
        return Starts(self.mean[rows], self.root[rows])

    def draw(self, noise: Noise, num_paths: int, shape: tuple[int, ...]) -> Float[Tensor, "P H *S"]:
        """`num_paths` states each; `noise` holds a key for each of them."""
        mean, root = (v.repeat_interleave(num_paths, 0) for v in (self.mean, self.root))
        z = noise.child(2).normal(0, (mean.shape[1],)).to(mean)  # no number that a step takes too
        return (mean + (root @ z[..., None])[..., 0]).reshape(len(mean), -1, *shape)


def finite(values: Tensor) -> bool:
    """Whether all values are: so is their sum then, but where it is too large for a number."""
    return math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all())


def observed_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the entries (B, *S) that were observed, or over rows (B,)."""
    if mask is None or values.ndim == 1:
        return values.mean()
    observed = mask.float()
    return (values * observed).sum() / observed.sum().clamp(min=1.0)


class SequenceModel(nn.Module, ABC):
    """Learns from transitions, samples paths."""

    config: ModelConfig
    nets: nn.ModuleDict

    def __init__(self, nets: Mapping[str, nn.Module], scale: Scale, config: ModelConfig) -> None:
        super().__init__()
        if sorted(map(str, nets)) != sorted(self.net_names(config)):
            raise ValueError(
                f"`nets` must hold {self.net_names(config)} for this config. Got {sorted(map(str, nets))}."
            )
        for name, net in nets.items():
            if not isinstance(net, nn.Module):
                raise ValueError(f"`nets` must hold torch modules. Got {show(net)} as {name!r}.")
        self.nets = nn.ModuleDict(dict(nets))
        self.scale = scale
        self.config = config
        self.sampler = config.sampler
        """How paths are drawn where a call does not say otherwise."""
        self.lag: Lag = None
        """Physical time between the states of the transitions it was built for; None: consecutive observations."""
        self.precision = "no"
        """Of the training; where it was "bf16", a GPU also draws with nets in bf16, and states in float32."""
        self.recordings = Recordings()
        """Kernels of roll-outs that came more than once, on a GPU."""
        self.report: dict[str, Any] | None = None
        """How it was chosen, where `neuralsde.fit` chose it."""
        self.learned_from: dict[str, int] | None = None
        """How many paths and transitions it was built for."""
        self.own_nets = False
        """Whether the nets are the caller's own: they are then needed again to load the model."""

    # What a model defines

    @abstractmethod
    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        """One scalar per trained part; `noise` holds one key per row of the batch."""

    @abstractmethod
    def advance(self, step: Step, condition: Condition, noise: Noise, sampler: Any) -> Advance:
        """The next states of all paths; `noise` gives further randomness than `step.z`."""

    @classmethod
    @abstractmethod
    def default_nets(cls, config: Any, shape: tuple[int, ...], context_size: int) -> dict[str, nn.Module]:
        """The nets for data of this form, by name."""

    @classmethod
    def net_names(cls, config: Any) -> list[str]:
        """Names of the nets that settings ask for."""
        return ["net"]

    def measure(self, data: Transitions) -> Transition:
        """Set units and bounds from the data; the transitions that they were measured on, without their contexts."""
        num = min(STATISTICS_FROM, max(1_000, 20_000_000 // math.prod(data.data.shape)))
        pairs = data.spread(num, context=False)
        self.scale.check_states(data.data.states, data.data.observed)
        self.scale.measure(pairs)
        context = data.spread(num).context
        if context is not None:
            self.scale.measure_context(context)
        if data.step is not None:
            self.scale.dt_ref.fill_(data.step)
        self.scale.measure_time(pairs.time)
        self.lag = data.lag
        self.learned_from = {"paths": len(data.data), "transitions": len(data)}
        states, noise = self.what_nets_see(self.scale.states(pairs.history)), self.input_noise
        for net in self.nets.values():
            if isinstance(net, Backbone):
                net.measure(states, self.what_nets_see(noise) if noise.ndim else noise)
        return pairs

    def what_nets_see(self, state: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """What nets see of states in scaled units."""
        return state

    @property
    def input_noise(self) -> Tensor:
        """Standard deviation of the noise that training adds to states, in scaled units."""
        return torch.zeros(())

    def settle(self, pairs: Transition) -> None:
        """Fix what follows from what was learned so far; called at set points of a training."""

    def refine(self, data: Transitions) -> None:
        """Find again from all of the data what is not trained; called after `settle`."""

    def findings(self, pairs: Transition) -> list[str]:
        """What is to be said of a model that was just trained, by transitions of its data: one sentence each."""
        return []

    def window_for(self, data: Transitions | None) -> int:
        """Observations in a row that a training on these ends with, for `window_losses`; 0: it learns from pairs alone.

        Of a stream, None: its windows are not at hand.
        """
        return 0

    def window_losses(self, losses: dict[str, Tensor], windows: Trajectories) -> dict[str, Tensor]:
        """The losses of pairs, but for the parts that short paths teach better."""
        return losses

    @property
    def same_kernels(self) -> bool:
        """Whether a training step is the same kernels for every batch: a CUDA graph can then repeat it."""
        return True

    def transition_log_prob(self, batch: Transition) -> Float[Tensor, " B"]:
        """Log density of each transition, in raw units."""
        raise ValueError(f"{type(self).__name__} has no likelihood. Use a NeuralSDE whose law has noise.")

    def check_nets(self) -> None:
        """Refuse nets of the caller's own that cannot serve."""

    def check_sampler(self, sampler: Any, gaps: Tensor) -> None:
        """Refuse what this model cannot serve; `gaps` are the times between outputs in reference steps."""

    @property
    def knows_between(self) -> bool:
        """Whether it learned states between observations, and not only at them."""
        return False

    @property
    def forecast_sampler(self) -> Any:
        """How observations are forecast from observations."""
        return self.sampler

    def begin(self, state: Tensor, condition: Tensor | None, noise: Noise, sampler: Any) -> Tensor:
        """The states (P, H, *S) from which paths start, where those are others than the given ones."""
        return state

    def starts(self, data: Trajectories, rows: Tensor, sampler: Any) -> Starts | None:
        """What is known of the states at these observations from them and those before; None: what `data` holds."""
        return None

    def observe(self, states: Tensor, noise: Noise, sampler: Any) -> Tensor:
        """What is seen of the states (P, T, *S) of paths."""
        return states

    def repeats(self, sampler: Any, context: Tensor | None) -> bool:
        """Whether every step of a roll-out is the same kernels, whatever its number: a CUDA graph can then repeat it."""
        held = context is None or context.ndim < 3
        return held and not self.own_nets and self.same_steps(sampler)

    def same_steps(self, sampler: Any) -> bool:
        """The same of its own nets, with a context that is held."""
        return False

    def prepared(self, context: Tensor) -> SequenceModel:
        """The model for paths along which these contexts hold: what nets make of them is worked out beforehand."""
        nets = {name: net.prepared(context) for name, net in self.nets.items() if isinstance(net, Backbone)}
        if all(net is self.nets[name] for name, net in nets.items()):
            return self
        return with_children(self, nets=nn.ModuleDict({**self.nets, **nets}))

    def passes_in_step(self, sampler: Any) -> int:
        """Network passes, one after the other, that a step takes; about."""
        return 1

    def max_step(self, sampler: Any) -> float:
        """Longest step of the time grid, in reference steps."""
        return 1.0

    def fix_length(self, length: float) -> None:
        """Keep only what steps of this length need, in reference steps: a copy that is exported takes no others."""

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Trained parts by name; gradients are clipped part by part."""
        return {"model": list(self.parameters())}

    # What every model shares

    def forward(self, batch: Transition, noise: Noise, windows: Trajectories | None = None) -> dict[str, Tensor]:
        """The loss: distributed wrappers hook into `forward`."""
        losses = self.loss(batch, noise)
        return losses if windows is None else self.window_losses(losses, windows)

    def sample(self, history: Any, times: Any, **settings: Any) -> Float[Tensor, "B N T *S"]:
        """Draw futures of each state: `draw(…).paths`."""
        return self.draw(history, times, **settings).paths

    @door
    @torch.no_grad()
    def draw(
        self,
        history: Any,
        times: Any,
        *,
        context: Any = None,
        num_paths: Count = 1,
        sampler: Drawing = None,
        rng: torch.Generator | Noise | SupportsIndex | None = None,
        chunk: Count | None = None,
        starts: Starts | None = None,
    ) -> Draw:
        """Draw `num_paths` futures of each state, and count the network passes.

        Args:
            history: one state (*S), a batch (B, *S), histories (B, H, *S) with slots one reference step apart, or `Trajectories`:
                paths go on from the last observation of each, by what is known of its state (the filter's posterior).
            times: (T,) or (B, T), strictly increasing; the first is the time of the newest history state, which is
                also the first state of every path.
            context: (B, C), or (B, T, C) for a context that holds from each output time to the next.
            num_paths: paths per state.
            sampler: replaces `model.sampler` for this call.
            rng: a seed, the source of the path keys, or the keys themselves, one per path; None draws new ones. torch's
                own seed has no part in it.
            chunk: paths integrated at once; None bounds the memory. With 1 a path has the same bits in any batch.
            starts: what is known of the states from which paths start, in place of the newest ones of `history`.
        """
        sampler = self.own_sampler(sampler)
        model = evaluated(self)
        if isinstance(history, Trajectories):
            history, starts = self._last_states(history, sampler)
        x, t, ctx = self.check_inputs(history, times, context)
        batch, num_times = len(x), t.since.shape[1]
        self.check_sampler(sampler, t.gaps)
        size = batch * num_paths * num_times * math.prod(self.scale.shape)
        if size > MAX_NUMBERS:
            raise ValueError(
                f"`sample` gives at most {MAX_NUMBERS:,} numbers at once. Got {size:,}: {batch} state(s), {num_paths=}, "
                f"{num_times} times, states of shape {self.scale.shape}. Sample in parts."
            )
        keys = rng if isinstance(rng, Noise) else Noise.draw(rng, batch * num_paths)
        if len(keys) != batch * num_paths:
            raise ValueError(f"`rng` must hold one key per path, {batch * num_paths}. Got {len(keys)}.")
        device = self.scale.mean.device
        grid = grid_between(t.since, self.max_step(sampler), device)
        if len(grid.time) > 1 and num_paths * grid.time.numel() > MAX_NUMBERS:
            raise ValueError(
                f"`num_paths` must be less for {len(t.since)} rows of times. Got {num_paths}. Sample in parts."
            )
        box = None if sampler.box is None else self.scale.box(sampler.box)
        if chunk is None:
            chunk = max(1, MAX_CHUNK_ELEMENTS // (math.prod(self.scale.shape) * grid.time.shape[1]))
        given = (x, t.start.expand(batch, 1)[:, 0], *(() if ctx is None else (ctx,)))
        if starts is None and len(keys) <= chunk:
            done = model._replay(given, keys, grid, sampler, box, num_paths)
            if done is not None:
                return done

        keys, given = keys.to(device), tuple(v.to(device) for v in given)
        if len(grid.time) > 1 and num_paths > 1:
            grid = Grid(*(v.repeat_interleave(num_paths, 0) for v in (grid.time, grid.interval, grid.output)))
        begun = model._begin(given, keys, sampler, num_paths, starts)
        out, nfe = [], Counter[str]()
        for first in range(0, len(keys), chunk):
            rows = slice(first, first + chunk)
            own = grid if len(grid.time) == 1 else Grid(grid.time[rows], grid.interval[rows], grid.output[rows])
            nfe = Counter[str]()
            check = partial(check_inside, box=box, first_path=first)
            out.append(model._roll_out(tuple(v[rows] for v in begun), keys[rows], own, sampler, nfe, check))
        paths = self._finished(torch.cat(out), given[0] if starts is None else None, keys, sampler)
        return Draw(paths.reshape(batch, num_paths, num_times, *self.scale.shape), dict(nfe))

    @contextmanager
    def _lower(self) -> Iterator[SequenceModel]:
        """The model in the precision in which its nets draw: by lower weights where all nets take them, else by autocast."""
        if not (self.scale.mean.is_cuda and self.precision == "bf16"):
            yield self
        elif all(isinstance(net, Backbone) and net.takes_lower for net in self.nets.values()):
            weights = {id(weight): weight.bfloat16() for weight in self.nets.parameters()}
            yield with_children(self, nets=with_weights(self.nets, weights))
        else:
            with torch.autocast("cuda", torch.bfloat16):
                yield self

    def _begin(
        self, given: tuple[Tensor, ...], keys: Noise, sampler: Any, num_paths: int, starts: Starts | None = None
    ) -> tuple[Tensor, ...]:
        """Starts, times and contexts of all paths, from the raw ones of each history."""
        x, start, *context = given
        begun = (self.scale.states(x), start, *context)
        if num_paths > 1:
            begun = tuple(v.repeat_interleave(num_paths, 0) for v in begun)
        u, start, *context = begun
        held = context[0] if context else None
        held = held[:, 0] if held is not None and held.ndim == 3 else held
        if starts is not None:
            return (starts.draw(keys, num_paths, self.scale.shape).to(u), *begun[1:])
        return (self.begin(u, self._condition(held, start), keys, sampler), *begun[1:])

    def _finished(self, states: Tensor, x: Tensor | None, keys: Noise, sampler: Any) -> Tensor:
        """Raw paths (P, T, *S); they begin exactly at the newest of raw states, whatever the rounding of the scale."""
        paths = self.scale.raw(self.observe(states, keys, sampler))
        if x is not None:
            paths.unflatten(0, (len(x), -1))[:, :, 0] = x[:, -1:]
        return paths

    def _last_states(self, data: Trajectories, sampler: Any) -> tuple[Tensor, Starts | None]:
        """The histories (P, H, *S) at the ends of paths, and what is known of them."""
        self.check_data(data, self.config.history)
        rows = data.lengths.cumsum(0) - 1
        slots = data.slots(rows, history=self.config.history, spacing=self.lag)
        return data.states[slots], self.starts(data, rows, sampler)

    def own_sampler(self, sampler: Sampling | None) -> Any:
        """What is given, or the model's own; one of another kind is refused."""
        sampler, wanted = sampler or self.sampler, type(self.config.sampler)
        if not isinstance(sampler, wanted):
            name = wanted.__name__
            raise ValueError(f"`sampler` must be a {name} for this model. Got {sampler!r}. Write {name}(…).")
        return sampler

    def _roll_out(
        self, given: tuple[Tensor, ...], noise: Noise, grid: Grid, sampler: Sampling, passes: Counter[str], check: Check
    ) -> Tensor:
        """The states (P, T, *S) at the output times; by recordings where all steps have the same kernels."""
        num, context = len(grid.waits), given[2] if len(given) > 2 else None
        on_gpu = given[0].is_cuda
        few = given[0].numel() * STRETCH <= FEW_NUMBERS and STRETCH * self.passes_in_step(sampler) <= BRIEF
        stretches: Stretches | None = None
        if num >= ENOUGH and (on_gpu or few) and self._all_alike(grid, sampler, context):
            alone = self.config.history == 1 and context is None and self.config.time_input is False
            if alone and noise.kind is not None:
                record = partial(self._replay_stretch, given, noise, grid, sampler, passes)
                small = given[0].numel() <= FEW_NUMBERS  # where a step takes the host longer than the device
                long = on_gpu and small and len(self.scale.shape) == 1
                stretches = Stretches(record, LONG_STRETCH if long else STRETCH, after=0, padded=small)
            elif on_gpu:

                def anew(several: Callable[..., Tensor]) -> Callable[..., Tensor]:
                    recorded = Recorded(several, passes)
                    return lambda num, *own: recorded(*own)

                stretches = Stretches(anew)
        with self._lower() as drawn:
            walked = drawn._walk(given, noise, grid, sampler, passes, check=check, stretches=stretches)
        return at_outputs(walked, grid)

    def _all_alike(self, grid: Grid, sampler: Sampling, context: Tensor | None) -> bool:
        """Whether all steps on a grid have the same kernels."""
        return not any(grid.waits) and self.repeats(sampler, context)

    def _replay(
        self,
        given: tuple[Tensor, ...],
        keys: Noise,
        grid: Grid,
        sampler: Sampling,
        box: tuple[Tensor, Tensor] | None,
        num_paths: int,
    ) -> Draw | None:
        """Raw paths from raw states, if a brief call like this has come before; None where it is to be walked.

        So it is where a path has left the box: the walk says which.
        """
        num, on_gpu = len(grid.waits), self.scale.mean.is_cuda
        most_passes, most_numbers = (FEW_PASSES, MAX_CHUNK_ELEMENTS) if on_gpu else (BRIEF, FEW_NUMBERS)
        brief = num <= SHORT and num * self.passes_in_step(sampler) <= most_passes
        known = len(grid.output) == 1 and grid.output.shape[1] <= MAX_KNOWN  # the grid is then the one of last time
        small = given[0].numel() * num_paths * num <= most_numbers
        context = given[2] if len(given) > 2 else None
        if not (brief and known and small and keys.kind is not None and self._all_alike(grid, sampler, context)):
            return None

        def whole(model: SequenceModel, counted: Counter[str]) -> Callable[..., Tensor]:
            def call(numbers: Tensor, *own: Tensor) -> Tensor:
                noise = keys.with_keys(numbers)
                begun = model._begin(own, noise, sampler, num_paths)
                with model._lower() as drawn:
                    # The place of the grid in memory is a part of the key: it must not become another's
                    states = drawn._walk(begun, noise, hold(grid), sampler, counted)
                good = inside(states[:, 1:], hold(box)).all()
                paths = model._finished(at_outputs(states, grid), own[0], noise, sampler)
                return torch.cat([paths.flatten(), good.to(paths.dtype)[None]])

            return call

        numbers = (keys.keys, *given)
        if not on_gpu:  # a graph has places of its own
            numbers = tuple(v.to(self.scale.mean.device) for v in numbers)
        done = self._replayer(given, grid, (sampler, num_paths, keys.kind), whole)(*numbers)
        if done is None:
            return None
        few = done.result.numel() <= FEW_NUMBERS
        fetched = done.result.cpu() if few else done.result[-1:].cpu()  # a device is to be waited for once
        if not bool(fetched[-1]):
            return None
        form = (len(given[0]), num_paths, -1, *self.scale.shape)
        return Draw(done.result[:-1].reshape(form), dict(done.passes), fetched[:-1].reshape(form) if few else None)

    def _replay_stretch(
        self,
        given: tuple[Tensor, ...],
        noise: Noise,
        grid: Grid,
        sampler: Sampling,
        passes: Counter[str],
        several: Callable[..., Tensor],
    ) -> Callable[..., Tensor]:
        """Steps that depend on the newest state alone, by a recording that outlives the roll-out."""

        def call(model: SequenceModel, counted: Counter[str]) -> Callable[..., Tensor]:
            def stretch(keys: Tensor, *own: Tensor) -> Tensor:
                with model._lower() as drawn:
                    advance = drawn._advance_in(noise.with_keys(keys), given[1], None, grid, sampler, counted)
                    return several(*own, advance=advance)

            return stretch

        replayed = self._replayer(given, None, (sampler, noise.kind), call)

        def stretch(num: int, *own: Tensor) -> Tensor:
            done = replayed(noise.keys, *own)
            if done is None:
                state, *each, numbers = own
                return several(state, *(v[:, :num] for v in each), numbers[:num])
            passes.update({name: total * num // len(own[-1]) for name, total in done.passes.items()})
            return done.result

        return stretch

    def _replayer(
        self,
        given: tuple[Tensor, ...],
        grid: Grid | None,
        settings: Hashable,
        make: Callable[[SequenceModel, Counter[str]], Callable[..., Tensor]],
    ) -> Callable[..., Replayed | None]:
        """A roll-out on a grid, or a stretch of any, that may have come before."""
        units = (self.scale.transforms, self.scale.normalise)
        what = (id(grid), settings, tuple(v.shape for v in given), self.precision, units)
        return replayer(self, self.recordings, what, make, self.scale.mean.device)

    def _walk(
        self,
        given: tuple[Tensor, ...],
        noise: Noise,
        grid: Grid,
        sampler: Sampling,
        passes: Counter[str],
        **settings: Any,
    ) -> Tensor:
        """The states at all times of the grid, for histories, starts and contexts that are `given`."""
        history, start, *context = given
        advance = self._advance_in(noise, start, context[0] if context else None, grid, sampler, passes)
        return walk(advance, history, grid, noise, **settings)

    def _advance_in(
        self,
        keys: Noise,
        start: Tensor,
        context: Tensor | None,
        grid: Grid,
        sampler: Sampling,
        passes: Counter[str],
    ) -> Callable[[Step], Tensor]:
        """`advance` for these paths, with the context that holds in each step; its passes are added up."""
        scaled = None if context is None else self.scale.contexts(context)
        # Where steps differ, a law may look at some of the paths, or at each more than once
        model = self.prepared(scaled) if scaled is not None and self.repeats(sampler, context) else self

        how = self.config.time_input
        few = len(start) * grid.time.shape[1] <= MOST_TIMES
        known = self.scale.times((start[:, None] + grid.time).flatten(), how) if few else None
        at_steps = None if known is None else known.float().unflatten(0, (len(start), -1))

        def advance(step: Step) -> Tensor:
            held = scaled
            if held is not None and held.ndim == 3:
                interval = grid.interval[:, step.index].expand(len(step.x))
                held = held[torch.arange(len(step.x), device=step.x.device), interval]

            def condition(t: Tensor) -> Tensor | None:
                if at_steps is None or t is not step.time:
                    return held if how is False else join_condition(held, self.scale.times(start + t, how))
                one = isinstance(step.index, int)
                late = at_steps.select(1, step.index) if one else at_steps.index_select(1, step.index).select(1, 0)
                return join_condition(held, late)

            done = model.advance(step, condition, keys, sampler)
            passes.update(done.passes)
            return done.x

        return advance

    def _condition(self, context: Tensor | None, time: Tensor) -> Tensor | None:
        return self.scale.condition(context, self.scale.times(time, self.config.time_input))

    def check_inputs(self, history: Any, times: Any, context: Any) -> tuple[Tensor, Times, Tensor | None]:
        """The door of `sample`: shapes, finiteness, order. Returns (B, H, *S), times, and (B, [T,] C) or None, where they are."""
        shape, slots = self.scale.shape, self.config.history
        x = as_tensor(history, "history", torch.float32)  # checked where it is: a device would have to be waited for
        if x.shape == shape and slots == 1:
            x = x[None, None]
        elif x.shape[1:] == shape and slots == 1:
            x = x[:, None]
        elif x.shape == (slots, *shape) and slots > 1:
            both = f"Got {tuple(x.shape)}: one history, or {slots} paths that begin? Write (1, {slots}, …) or (B, {slots}, …)."
            check(not self.config.pad_history, f"`history` must say what it is. {both}")
            x = x[None]
        elif (
            self.config.pad_history and x.shape[-len(shape) :] == shape and x.ndim <= len(shape) + 1
        ):  # paths that begin
            x = x.reshape(-1, 1, *shape).expand(-1, slots, *shape)
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
        self.scale.check_states(x)
        t = as_tensor(times, "times", torch.float64, "cpu")
        t = t[None] if t.ndim == 1 else t
        if t.ndim != 2 or t.shape[1] < 2 or len(t) not in (1, len(x)):
            raise ValueError(
                f"`times` must have shape (T,) or (B, T) with T >= 2 and B={len(x)}. Got {tuple(t.shape)}."
            )
        checked = output_times(t, self.scale.step)
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
        ctx = as_tensor(context, "context", torch.float32)
        if not finite(ctx):
            raise ValueError("`context` must be finite. Fill or drop missing values first.")
        if ctx.shape not in ((len(x), size), (len(x), t.shape[1], size)):
            raise ValueError(
                f"`context` must have shape {(len(x), size)} or {(len(x), t.shape[1], size)}. Got {tuple(ctx.shape)}."
            )
        return x, checked, ctx

    @door
    @torch.no_grad()
    def log_prob(self, data: Transition | Paths, *, batch_size: Count = 8192) -> Float[Tensor, " B"]:
        """Log density of each transition of a batch, or the sum over consecutive observations for each path."""
        model = evaluated(self)
        if isinstance(data, Transition):
            for states in (data.history, data.next):
                self.scale.check_states(states, data.mask)
            return model.transition_log_prob(data)
        return model.path_log_prob(data, batch_size)

    def path_log_prob(self, data: Trajectories, batch_size: int) -> Float[Tensor, " P"]:
        """Log density of each path: the sum over its consecutive observations."""
        pairs = data.transitions(history=self.config.history, spacing=self.lag).to(self.scale.mean.device)
        self.check_data(pairs.data, pairs.history)
        total = torch.zeros(len(data), dtype=torch.float64, device=self.scale.mean.device)
        for first in range(0, len(pairs), batch_size):
            rows = torch.arange(first, min(first + batch_size, len(pairs)), device=total.device)
            total.index_add_(0, pairs.path[rows], self.transition_log_prob(pairs[rows]).double())
        return total.float()

    def check_data(self, data: Trajectories, history: int) -> None:
        """Refuse data of another form than the model was built for."""
        shape, context_size = data.shape, data.context_size
        wanted = (self.scale.shape, self.config.history, self.scale.context_size)
        if (shape, history, context_size) != wanted:
            raise ValueError(
                f"The model takes states of shape {wanted[0]}, history {wanted[1]} and {wanted[2]} context value(s). Got data "
                f"with {shape}, {history} and {context_size}. Build the model with for_data on this data."
            )
        self.scale.check_states(data.states, data.observed)

    # Building and files

    @classmethod
    def assemble(
        cls, config: Any, shape: tuple[int, ...], context_size: int, *, nets: Any = None, seed: int = 0
    ) -> SequenceModel:
        """A model of this class with nets of the config or the caller's own; weights depend on `seed` alone."""
        own = nets is not None
        if own and not isinstance(nets, Mapping):
            raise ValueError(
                f"`nets` must hold your nets by name: {{'flow': …, 'diffusion': …}}. Got a {type(nets).__name__}."
            )
        if not own:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                nets = cls.default_nets(config, shape, context_size)
        scale = Scale(shape, context_size, normalise=config.normalise, transform=config.transform)
        model = cls(nets, scale, config)
        model.own_nets = own
        return model

    @door
    def save_pretrained(
        self, path: str | os.PathLike[str], *, half: bool = False, beside: Mapping[str, Any] | None = None
    ) -> Path:
        """Write `model.safetensors` and `config.json` into the folder `path`; a failed or killed save leaves the old model.

        Args:
            path: of the folder.
            half: keep weights in 16 bits, half the size (they are 32 again once loaded); units and bounds stay as they are.
            beside: records that belong to the model, by the names of the JSON files that they go to.
        """
        record = {
            "config": replace(self.config, sampler=self.sampler),
            "state_shape": list(self.scale.shape),
            "context_size": self.scale.context_size,
            "dt_ref": self.scale.step,
            "lag": self.lag,
            "precision": self.precision,
            "own_nets": self.own_nets,
            "nets": sorted(self.nets) if self.own_nets else [],
            **({} if self.report is None else {"report": self.report}),
            **({} if self.learned_from is None else {"learned_from": self.learned_from}),
        }
        weights = {name for name, _ in self.named_parameters()} if half else set()
        return write_model(path, record, self.state_dict(), half=weights, beside=beside)

    @classmethod
    @door
    def from_pretrained(cls, path: str | os.PathLike[str], *, nets: Mapping[str, nn.Module] | None = None) -> Any:
        """Load a folder written by `save_pretrained`, or the run folder around it. Nothing in it is executed.

        A name such as "user/model" that is no folder here is one on the Hugging Face Hub. `nets` gives the nets of a model
        that was built with your own.
        """
        saved = read_model(local_folder(path))
        kind = built_by(saved.config)
        if not issubclass(kind, cls):
            raise ValueError(
                f"{path} holds a {kind.__name__}, not a {cls.__name__}. Use {kind.__name__}.from_pretrained."
            )
        if saved.own_nets and nets is None:
            names = ", ".join(f"{n!r}: …" for n in saved.own_nets)
            raise ValueError(
                f"{path} was saved with nets of your own. Load it with {kind.__name__}.from_pretrained(path, nets={{{names}}})."
            )
        if nets is None:
            saved.check_sizes(lambda: kind.assemble(saved.config, saved.shape, saved.context_size))
        model = kind.assemble(saved.config, saved.shape, saved.context_size, nets=nets)
        model.load_state_dict(saved.tensors_for(model.state_dict()))
        model.lag, model.precision, model.report = saved.lag, saved.precision, saved.report
        model.learned_from = saved.learned_from
        return model.eval()

    @door
    def push_to_hub(
        self,
        name: str,
        *,
        private: bool = False,
        data: str = "",
        scores: Mapping[str, Any] | None = None,
    ) -> str:
        """Upload the model to the Hugging Face Hub as "user/model", with a card; returns its address.

        Args:
            name: on the Hub.
            private: whether only you see it.
            data: what it was trained on, in a sentence for the card.
            scores: numbers by name, for the card.
        """
        card = self.card(name, data=data, scores=scores)
        return push(name, self.save_pretrained, card, private=private)

    def card(
        self,
        name: str,
        *,
        data: str = "",
        scores: Mapping[str, Any] | None = None,
        loader: str = "nsde.load",
        features: Sequence[str] = (),
    ) -> str:
        """The text of the model's card; `loader` is the call that loads it, `features` are names of the state's entries."""
        return model_card(
            name,
            self.config,
            self.scale,
            num_parameters=sum(p.numel() for p in self.parameters()),
            loader=loader,
            learned_from=self.learned_from,
            report=self.report,
            scores=scores,
            data=data,
            features=features,
        )
