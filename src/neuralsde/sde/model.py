"""Neural SDE: dx = f(x) dt + g(x) dw (Ito, diagonal g), learned from pairs of consecutive states.

Shen & Cheng, "Neural SDEs as a Unified Approach to Continuous-Domain Sequence Modeling". This file, `fields` and `losses` are
the paper; equation names are those of its LaTeX source. Everything in here is in units of the data's scale and of the
reference step (`Scale`). Symbols here, words in the API:

    x_k, x_{k+1}  history[:, -1], next     two consecutive observations          Δt  dt
    τ             tau                      place between them, 0 to 1            σ   noise
    x_τ           (1-τ) x_k + τ x_{k+1}    interpolated state                    ε   unit Gaussian
    x̃             x_τ + σε                 what the nets see                     r   f(x̃) - Δx/Δt
    f  flow       g  diffusion             d  denoiser, d(x̃) ≈ -ε                s   score, d/σ

Linear interpolation does not learn the drift: x_τ already holds part of the noise of Δx, and
E[Δx/Δt | x_τ] = drift - E[τ] ∂(g²p)/p. The drift of the SDE that has the data's law is therefore

    drift = f + balance (½g² s + g∂g) + pull σ² s,        balance = 2 E[τ]

and only with τ = 0 ("start") is it the flow itself.

How a step is distributed, and with it the losses of f and g, is the *law of a step*: one file each in `laws`.

# Differs from the paper: balance and g∂g (absent there); the denoiser's target is -ε (the sign of eq:dsm_objective is
# wrong); g is fitted by likelihood, since E log r² is not the profile likelihood; the flow loss is the squared error
# unless asked; f, g and d train in one step, by gradients that do not mix; older slots of the state move by known
# differences *divided by Δt*; laws other than Euler's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.core.doors import Positive, Seed, door
from neuralsde.core.records import built_by, check, with_settings
from neuralsde.data.arrays import as_tensor
from neuralsde.data.streams.stream import Stream
from neuralsde.data.trajectories import Lag, Paths, Trajectories, Transitions
from neuralsde.data.transition import Transition
from neuralsde.models.build import build
from neuralsde.models.config import Drawing
from neuralsde.models.evaluation import evaluated
from neuralsde.models.scale import Scale
from neuralsde.models.sequence import Advance, Condition, SequenceModel, Starts, observed_mean
from neuralsde.nets.backbone import Backbone, Form, backbone_of
from neuralsde.nets.polynomial import PolynomialNet
from neuralsde.nets.target import read_target, target_form
from neuralsde.sde import solving
from neuralsde.sde.config import Full, Moments, NeuralSDEConfig, Sampler
from neuralsde.sde.equations import equations
from neuralsde.sde.fields import Fields
from neuralsde.sde.filter import MAX_SIZE, GaussianFilter, Posterior
from neuralsde.sde.findings import findings
from neuralsde.sde.laws.law import StepLaw
from neuralsde.sde.losses import denoiser_dsm, flow_log, flow_nll
from neuralsde.sde.measurement import MeasurementNoise
from neuralsde.sde.pairs import INTERPOLATIONS, Conditions, Gap, Pair, draw_tau
from neuralsde.sde.sizes import StepSizes
from neuralsde.sde.torchsde import TorchSDE
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import LOSS_PROBES, Noise
from neuralsde.solvers.schemes import Coefficients

Noises = Positive | Sequence[Positive] | None
"""Standard deviations: one, or one per feature."""
WINDOW = 8  # observations that the last part of a training learns from
MANY_MISSING = 0.2  # share of the entries from which on windows tell more than pairs do
MAX_TAUGHT = 8  # numbers in a state up to which missing entries are learned from by windows: beyond, they take long
MAX_GAP = 16  # training steps in a gap up to which they are, where it is taken in parts
LOOK_BACK = 128  # observations before a forecast that its start is known from
MAX_FULL = 32  # entries of a state with a full covariance
SMOOTH = 0.5  # correlation of a step with the one before, from which on paths are smooth


class NeuralSDE(SequenceModel):
    """Flow, and diffusion, denoiser and more as the config asks."""

    config: NeuralSDEConfig
    sampler: Sampler
    sigma: Tensor

    def __init__(self, nets: Mapping[str, nn.Module], scale: Scale, config: NeuralSDEConfig) -> None:
        super().__init__(nets, scale, config)
        start = config.start_probability == 1.0
        self.law: StepLaw = built_by(config.law)(
            config.law, scale.shape, start=start, correlated=bool(config.covariance.further)
        )
        size = math.prod(seen_shape(config, scale.shape))
        if isinstance(config.covariance, Full) and size > MAX_FULL:
            raise ValueError(f"covariance=Full() takes up to {MAX_FULL} entries. Got {size}. Use LowRank().")
        measured = isinstance(config.law, Moments) and config.law.measurement
        self.measurement = MeasurementNoise(scale.shape) if measured else None
        self.sizes = StepSizes(scale.shape, config.directions)
        sigma = torch.as_tensor(config.noise, dtype=torch.float32)
        if sigma.ndim and len(sigma) != scale.shape[0]:
            raise ValueError(f"`noise` must be one number or one per feature ({scale.shape[0]}). Got {len(sigma)}.")
        self.register_buffer("sigma", sigma.reshape(-1, *[1] * (len(scale.shape) - 1)) if sigma.ndim else sigma)

    @classmethod
    @door
    def for_data(
        cls, data: Paths | Stream, *, lag: Lag = None, nets: Any = None, seed: Seed = 0, **settings: Any
    ) -> NeuralSDE:
        """A model with sensible nets and units for `data`; `settings` are fields of `NeuralSDEConfig`."""
        config = with_settings(NeuralSDEConfig(), settings)
        pairs = data.transitions(lag=lag, history=config.history, pad=config.pad_history)
        return build(config, pairs, nets=nets, seed=seed)

    @classmethod
    def net_names(cls, config: NeuralSDEConfig) -> list[str]:
        return (["trunk"] if config.shared else list(config.parts)) + ["transport"] * config.law.transports

    @classmethod
    def default_nets(cls, config: NeuralSDEConfig, shape: tuple[int, ...], context_size: int) -> dict[str, nn.Module]:
        shape = seen_shape(config, shape)
        net, parts = backbone_of(config.net, of_sde=True), config.num_fields(math.prod(shape))
        beside = backbone_of(config.net.beside, of_sde=True)
        form = Form(shape, config.history, context_size + config.num_late, late=config.num_late)
        if config.shared:
            every = [name for name, num in parts.items() for _ in range(num)]
            readers = tuple(k for k, name in enumerate(every) if name in ("diffusion", "correlation"))
            nets: dict[str, nn.Module] = {
                "trunk": net(config.net, replace(form, num_fields=len(every), readers=readers))
            }
        else:
            forms = {name: replace(form, num_fields=num) for name, num in parts.items()}
            nets = {"flow": net(config.net, forms.pop("flow"))}
            nets |= {name: beside(config.net.beside, own) for name, own in forms.items()}
        carries = {"transport": beside(config.net.beside, target_form(beside, form))} if config.law.transports else {}
        return nets | carries

    def measure(self, data: Transitions) -> Transition:
        pairs = super().measure(data)
        for place in self.config.net.pixels(self.scale.context_size):  # [-1, 1], whatever the data: colours may be rare
            self.scale.context_mean[place] = self.scale.context_std[place] = 127.5
        gaps = self.scale.steps(pairs.dt)
        self.law.check_data(gaps)
        self._check_interpolation(pairs)
        self.sizes.measure(self.scale, pairs)
        if self.measurement is not None:
            step = self.scale.states(pairs.next) - self.scale.states(pairs.history[:, -1])
            self.measurement.measure(step, gaps, pairs.mask)
        if (flow := self._solved_flow) is not None:
            first = solving.num_rows(self.law, self.scale.shape, first=True) if flow.refines else len(pairs.dt)
            self._solve(flow, data.spread(first))
        return pairs

    @property
    def _solved_flow(self) -> Backbone | None:
        """The flow, where a part of it is found by least squares."""
        flow = dict(self.nets.items()).get("flow")
        return flow if isinstance(flow, Backbone) and flow.solves else None

    @torch.no_grad()
    def _solve(self, flow: Backbone, pairs: Transition) -> None:
        fields = evaluated(self)._fields()
        raw = self.scale.states(torch.zeros_like(pairs.next[:1]))[0]
        zero = self.what_nets_see(raw) if bool(raw.isfinite().all()) else None
        gap = self._gap(pairs, fields)
        if self.config.noisy and flow.refines:  # what nets see in training
            noise = Noise(torch.arange(len(pairs), device=gap.state.device))
            gap = replace(gap, state=gap.state + fields.sigma * noise.normal(0, tuple(gap.state.shape[1:])))
        solving.solve(flow, gap, self.law, fields, self._coefficients(fields), zero)

    @torch.no_grad()
    def begin_noise(self, data: Transitions) -> None:
        """Let the training of g begin at the size of what the flow leaves, where a flow was found by least squares."""
        pairs = data.spread(solving.FIRST)
        fields = evaluated(self)._fields()
        gap = self._gap(pairs, fields)
        left = gap.step - self._coefficients(fields)(gap.state, gap.conditions(0.0)).drift * gap.dt
        left = left if gap.mask is None else left.where(gap.mask, math.nan)
        self.sizes.begin(left / gap.dt.sqrt())

    def what_nets_see(self, state: Tensor) -> Tensor:
        return self.sizes.leading(state)

    def _check_interpolation(self, pairs: Transition) -> None:
        """Slots of an interpolated state hold part of the step that is to be learned; only smooth paths bear that."""
        config, vectors = self.config, len(self.scale.shape) == 1
        if config.history == 1 or config.start_probability == 1 or config.sampler.balance is not None or not vectors:
            return
        before, step = (self.scale.states(x) for x in (pairs.history, pairs.next))
        first, second = before[:, -1] - before[:, -2], step - before[:, -1]
        both = torch.ones_like(first) if pairs.mask is None else pairs.mask.to(first)
        agree = float((both * first * second).sum() / (both * first**2).sum().sqrt() / (both * second**2).sum().sqrt())
        if agree < SMOOTH:
            found = f"Got steps that follow each other with correlation {agree:.2f} (smooth: above {SMOOTH})"
            remedy = "Use tau='start', or history=1."
            raise ValueError(f"`history` and interpolated states go together only for smooth paths. {found}. {remedy}")

    @property
    def input_noise(self) -> Tensor:
        """σ; in whitened coordinates in proportion to their steps, or it would hide the slow among them."""
        return self.sigma * self.scale.pace if self.scale.turns else self.sigma

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups = {name: list(net.parameters()) for name, net in self.nets.items()}
        return groups | ({} if self.measurement is None else {"measurement": list(self.measurement.parameters())})

    def _fields(self) -> Fields:
        """The nets, for one call."""
        return Fields(self.config, self.nets, self.sizes, self.input_noise, self.scale.step)

    # Training (alg:neural_sde)

    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        """The losses of flow, diffusion and denoiser at one noisy interpolated state; their gradients do not mix."""
        fields, denoiser = self._fields(), self.config.denoiser
        pair = self._pair(fields, batch, noise)
        x, eps = pair.state, pair.eps

        # Flow and diffusion, by the law of a step; what it reads at x̃ comes from one pass with the denoiser
        names = self.law.reads and (*self.law.reads, *(["denoiser"] if denoiser else []))
        read = fields.read(x, pair.condition, *names) if names else {}
        measured = self.measurement is not None
        losses = {"likelihood": self._pair_loss(batch)} if measured else self.law.losses(fields, read, pair, noise)
        # Denoiser
        if denoiser:
            d = read["denoiser"] if read else fields.denoiser(x, pair.condition)
            error = denoiser_dsm(d, eps[:, -1])
            if denoiser.antithetic:  # what is linear in ε cancels
                other = fields.denoiser(x - 2 * fields.sigma * eps, pair.condition)
                error = 0.5 * (error + denoiser_dsm(other, -eps[:, -1]))
            losses["denoiser"] = denoiser.weight * error * (pair.dt if self.law.weighs_gaps else 1.0)
        # α, by the likelihood of the clean pair
        if denoiser and denoiser.alpha:
            losses["alpha"] = self._alpha_loss(fields, pair, noise)
        return {k: observed_mean(v, batch.mask) for k, v in losses.items()}

    def _pair(self, fields: Fields, batch: Transition, noise: Noise) -> Pair:
        """Interpolate between two observations, and add noise."""
        now, after, dt = self.scale.states(batch.history), self.scale.states(batch.next), self.scale.steps(batch.dt)
        tau, eps = draw_tau(self.config.start_probability, noise), noise.normal(0, tuple(now.shape[1:]))
        condition = self._condition(batch.context, (batch.time + tau * batch.dt) / self.scale.step)
        tau = tau.reshape(-1, *[1] * (after.ndim - 1))
        x = INTERPOLATIONS[self.config.interpolation](fields, now, after, tau, dt, condition, noise)
        x = x + fields.sigma * eps
        target = (after - now[:, -1]) / dt
        return Pair(now, after, dt, x, eps, condition, target, self._conditions(batch), batch.mask)

    @torch.no_grad()
    def reduced_loss(self, batch: Transition, noise: Noise, delta: float = 1e-3) -> float:
        """The paper's loss for scaling laws, mean log((r² + δ) / δ), whatever the flow was trained by."""
        fields = evaluated(self)._fields()
        pair = self._pair(fields, batch, noise)
        r = fields.flow(pair.state, pair.condition) - pair.target
        return 2 * float(observed_mean(flow_log(r, delta), batch.mask)) - math.log(delta)

    def _conditions(self, batch: Transition) -> Conditions:
        """The condition when a share of the gap has passed."""
        return lambda share: self._condition(batch.context, (batch.time + share * batch.dt) / self.scale.step)

    def _alpha_loss(self, fields: Fields, pair: Pair, noise: Noise) -> Tensor:
        flow_only = Sampler(balance=0.0, correction=self.sampler.correction)
        signs = partial(noise.signs, 0, self.scale.shape, stream=LOSS_PROBES)
        condition, quiet = pair.conditions(0.0), fields.evaluated
        with torch.no_grad():
            c = quiet.coefficients(pair.now, condition, flow_only, signs, correction=True)
            score = quiet.score(pair.now, condition)
        alpha = fields.alpha(pair.now, condition)
        r = c.drift + alpha * score + fields.balance * c.correction - pair.target
        return flow_nll(r, pair.dt, c.diffusion.log())

    # Likelihood

    def transition_log_prob(self, batch: Transition) -> Float[Tensor, " B"]:
        """In raw units; the drift is the sampler's, with the model's own balance and no pull."""
        self.check_sampler(Sampler(correction=self.sampler.correction), torch.zeros(1))
        if self.measurement is not None:
            log_prob = self._filter_with(self._noise_variance(None)).pair_log_prob(batch)
            return (log_prob - self.scale.log_unit(batch.next, batch.mask)).to(batch.next.dtype)
        fields = self._fields()
        log_prob = self.law.log_prob(self._gap(batch, fields), self._coefficients(fields))
        return log_prob - self.scale.log_volume(batch)

    def _gap(self, batch: Transition, fields: Fields) -> Gap:
        now = self.scale.states(batch.history)
        step, dt = self.scale.states(batch.next) - now[:, -1], self.scale.steps(batch.dt)
        return Gap(now, step, dt, self._conditions(batch), batch.mask, fields)

    def _coefficients(self, fields: Fields) -> Any:
        """Those of the SDE that was learned."""
        sampler = Sampler(correction=self.sampler.correction)

        def at(state: Tensor, condition: Tensor | None, rows: Any = None) -> Coefficients:
            return fields.coefficients(state, condition, sampler, self._fixed_signs(state), correction=False)

        return at

    # Filter

    def _pair_loss(self, batch: Transition) -> Float[Tensor, " B"]:
        """Negative log density of the second measurement given the first, per observed entry."""
        entries = batch.next[0].numel() if batch.mask is None else batch.mask.float().sum() / len(batch)
        return -self._filter_with(self._noise_variance(None)).pair_log_prob(batch).float() / entries

    def path_log_prob(self, data: Trajectories, batch_size: int) -> Float[Tensor, " P"]:
        """By the filter where entries are missing or noise was learned, and the law is one that it takes."""
        whole = data.observed is None and self.measurement is None
        if whole or self._no_filter():
            return super().path_log_prob(data, batch_size)
        return self.filter(data).log_likelihood.float()

    def window_for(self, data: Transitions | None) -> int:
        wanted = self.measurement is not None or (data is not None and self._is_taught_by_gaps(data))
        return WINDOW if wanted and not self._no_filter() else 0

    def _is_taught_by_gaps(self, data: Transitions) -> bool:
        """Whether so much is missing that pairs leave out a lot or start from filled entries, and the filter can tell more."""
        config, observed = self.config, data.data.observed
        learned = (
            config.law.likely and config.start_probability == 1 and not (config.denoiser and config.denoiser.alpha)
        )
        small = len(self.scale.shape) == 1 and self.scale.shape[0] * config.history <= MAX_TAUGHT
        if observed is None or not learned or not small or self._solved_flow is not None:
            return False
        if float((~observed).float().mean()) < MANY_MISSING:
            return False
        whole = self.law.spans_gaps and config.history == 1
        return whole or data.data.longest_gap <= MAX_GAP * self.scale.step

    def window_losses(self, losses: dict[str, Tensor], windows: Trajectories) -> dict[str, Tensor]:
        """Flow, diffusion and measurement noise by the filter's likelihood, per observed entry; the rest by pairs."""
        own = self._filter_with(self._noise_variance(None))
        total = own.log_likelihood(own.run(windows), windows).sum()
        kept = {k: v for k, v in losses.items() if k not in ("flow", "diffusion", "likelihood")}
        return {"likelihood": -(total / own.num_counted(windows)).float(), **kept}

    @door
    @torch.no_grad()
    def filter(self, data: Paths, *, measurement_std: Noises = None) -> Posterior:
        """What is known of the true state at each observation from it and those before; entries may be missing.

        Args:
            data: paths, with `missing=True` where entries are.
            measurement_std: of independent noise on each observation in raw units, of transformed states where they are; one,
                or one per feature. None: what the model learned, or no noise.
        """
        own, data = self._filter(data, measurement_std)
        track = own.run(data)
        return own.posterior(track.after, own.log_likelihood(track, data), data)

    @door
    @torch.no_grad()
    def smooth(self, data: Paths, *, measurement_std: Noises = None) -> Posterior:
        """What is known of the true state at each observation from the whole path; arguments as for `filter`."""
        own, data = self._filter(data, measurement_std)
        track = own.run(data)
        return own.posterior(own.smooth(track, data.lengths), own.log_likelihood(track, data), data)

    @torch.no_grad()
    def starts(self, data: Trajectories, rows: Tensor, sampler: Sampler) -> Starts | None:
        """By the filter of the last observations before each, where entries are missing or the start is a measurement."""
        whole = data.observed is None and not sampler.measured
        if whole or self._no_filter():
            return None
        ends = data.lengths.cumsum(0)
        path = torch.searchsorted(ends, rows, right=True)
        first = torch.maximum((ends - data.lengths)[path], rows - LOOK_BACK)
        own, windows = self._filter(data.cut(first, rows - first + 1, data.begin[path]), None)
        known = own.run(windows).after.rows(windows.lengths.cumsum(0) - 1)
        return Starts(known.mean, known.root)

    def _no_filter(self) -> str:
        """Why there is no filter of this model; empty if there is."""
        size, slots = math.prod(self.scale.shape), self.config.history
        if not self.config.law.gaussian:
            return f"The filter takes laws whose steps are Gaussian. Got {self.config.law!r}. Train with Moments() or Euler()."
        if size * slots > MAX_SIZE:
            remedy = "Use a shorter `history` or fewer features."
            return f"The filter takes up to {MAX_SIZE} numbers in a state. Got {slots} slot(s) of {size}. {remedy}"
        return ""

    def _filter(self, data: Trajectories, measurement_std: Any) -> tuple[GaussianFilter, Trajectories]:
        """The filter for these paths, and the paths where the model is."""
        why = self._no_filter()
        check(not why, why)
        self.check_sampler(Sampler(correction=self.sampler.correction), torch.zeros(1))
        self.check_data(data, self.config.history)
        model = evaluated(self)
        return model._filter_with(model._noise_variance(measurement_std)), data.to(self.scale.mean.device)

    def _filter_with(self, variance: Tensor) -> GaussianFilter:
        fields = self._fields()
        return GaussianFilter(
            law=self.law,
            coefficients=self._coefficients(fields),
            condition=self._condition,
            scale=self.scale,
            walk=torch.exp(self.sizes.typical).flatten(),
            slots=self.config.history,
            padded=self.config.pad_history,
            variance=variance,
            blurred=self.measurement is not None,
        )

    def _noise_variance(self, measurement_std: Any) -> Float[Tensor, " d"]:
        """Of the measurement noise, in units of the features."""
        scale = self.scale
        if self.measurement is not None:
            learned = "The model learned its measurement noise (`measurement_std`). Leave the argument out."
            check(measurement_std is None, learned)
            return torch.exp(2 * self.measurement.log_std).flatten()
        if measurement_std is None:
            return torch.zeros_like(scale.std).flatten()
        std, num = torch.as_tensor(measurement_std, dtype=scale.std.dtype), scale.shape[scale.axis]
        wrong = f"`measurement_std` must be one number or one per feature ({num}). Got {std.numel()}."
        check(std.ndim == 0 or len(std) == num, wrong)
        std = std.reshape(-1, *[1] * (-scale.axis - 1)).to(scale.std.device)
        return (std / scale.std).square().flatten()

    @torch.no_grad()
    def settle(self, pairs: Transition) -> None:
        fields = evaluated(self)._fields()
        self.law.settle(self._gap(pairs, fields), self._coefficients(fields))

    def refine(self, data: Transitions) -> None:
        if (flow := self._solved_flow) is not None and flow.refines:
            self._solve(flow, data.spread(solving.num_rows(self.law, self.scale.shape)))

    @torch.no_grad()
    def findings(self, pairs: Transition) -> list[str]:
        fields = evaluated(self)._fields()
        if (
            not self.config.law.stochastic
            or self.measurement is not None
            or (fields.balance > 0 and not fields.has_score)
        ):
            return []
        gap, coefficients = self._gap(pairs, fields), self._coefficients(fields)
        found = findings(self.law, gap, coefficients, self.scale.step)
        return [*found, *self.law.findings(gap, fields, coefficients)]

    @property
    def same_kernels(self) -> bool:
        return self.law.same_kernels and self.measurement is None

    def _fixed_signs(self, state: Tensor) -> Any:
        """One probe for all: fields and densities are functions of the data."""
        one = torch.zeros(len(state), dtype=torch.int64, device=state.device)
        return partial(Noise(one).signs, 0, self.scale.shape)

    # Sampling

    def advance(self, step: Step, condition: Condition, noise: Noise, sampler: Sampler) -> Advance:
        fields = self._fields()
        return Advance(self.law.advance(fields, step, condition, noise, sampler), fields.passes)

    def max_step(self, sampler: Sampler) -> float:
        return 1.0 / sampler.substeps

    def same_steps(self, sampler: Sampler) -> bool:
        balance = self.balance if sampler.balance is None else sampler.balance
        sloped = sampler.solver in ("heun", "milstein") or balance > 0
        return not sloped and self.law.repeats

    def fix_length(self, length: float) -> None:
        self.law.fix_length(length)

    @property
    def knows_between(self) -> bool:
        return self.balance > 0

    @property
    def balance(self) -> float:
        """2 E[τ]: what the drift owes to the interpolation in training."""
        return 1.0 - self.config.start_probability

    def check_sampler(self, sampler: Sampler, gaps: Tensor) -> None:
        has_score = self.config.denoiser is not None and self.config.noisy
        if sampler.measured and self.measurement is None:
            raise ValueError("`measured=True` needs a model trained with Moments(measurement=True).")
        self.law.check_sampler(sampler, gaps, self.max_step(sampler), self.scale.step)
        if self.config.covariance.further and sampler.solver in ("heun", "milstein"):
            raise ValueError(f"solver={sampler.solver!r} needs independent noise. Use the solver of the law ('law').")
        balance = self.balance if sampler.balance is None else sampler.balance
        if balance > 0 and self.config.law.stochastic and sampler.diffusion > 0 and not has_score:
            remedy = "Train with tau='start', or a `denoiser` and `noise` > 0. The ablation: balance=0."
            raise ValueError(f"{balance=:g} needs a score. {remedy}")
        if sampler.pull > 0 and not has_score:
            raise ValueError(f"`pull` needs a denoiser trained with noise. Got {sampler.pull=}. Set it to 0.")
        pull, step = sampler.pull * self.scale.step, min(float(gaps.max()), self.max_step(sampler))
        if pull * step > 1 + 1e-6:
            raise ValueError(
                f"`pull` * step must be <= 1. Got {sampler.pull:g} * {step * self.scale.step:g}. Use {math.ceil(pull)} `substeps`."
            )

    @door
    @torch.no_grad()
    def fields(
        self, x: Any, *, context: Any = None, time: float = 0.0, sampler: Drawing = None
    ) -> tuple[Tensor, Tensor]:
        """Drift and diffusion at states x (B, *S) or histories (B, H, *S), in raw units (Ito).

        `time` is that since the start of the path. With normalise="whiten" or "principal" the diffusion is the standard deviation
        per feature: in raw units the noise is correlated.
        """
        how: Sampler = self.own_sampler(sampler)
        self.check_sampler(how, torch.zeros(1))
        x, condition = self._at(x, context, time)
        state = self.scale.states(x)
        fields = evaluated(self)._fields()
        c = fields.coefficients(state, condition, how, self._fixed_signs(state), correction=False)
        return self.scale.fields(x[:, -1], c.drift, c.diffusion, c.correlation)

    @door
    @torch.no_grad()
    def noise_covariance(self, x: Any, *, context: Any = None, time: float = 0.0) -> Float[Tensor, "B d d"]:
        """Covariance of the noise per unit of time at states x, as `fields` takes them, in raw units and flattened."""
        x, condition = self._at(x, context, time)
        c = self._coefficients(evaluated(self)._fields())(self.scale.states(x), condition)
        return self.scale.covariance(x[:, -1], c.diffusion, c.correlation)

    def _at(self, x: Any, context: Any, time: float) -> tuple[Tensor, Tensor | None]:
        """Raw states (B, H, *S) and the condition of nets there."""
        device = self.scale.mean.device
        found, _, context = self.check_inputs(x, [0.0, 1.0], context)
        times = torch.full((len(found),), time / self.scale.step, device=device)
        return found.to(device), self._condition(None if context is None else context.to(device), times)

    @door
    def as_torchsde(self, *, context: Any = None, sampler: Drawing = None) -> TorchSDE:
        """The SDE with `f`, `g`, `noise_type` and `sde_type`, as `torchsde.sdeint` takes it; states are (B, d), raw.

        `context` (C,) or (B, C) is held. Its Euler scheme takes the steps of solver="euler_maruyama"; with a `transform`
        the two agree only as steps become short, since one takes them in raw units and the other in those of the transform.
        """
        how: Sampler = self.own_sampler(sampler)
        self.check_sampler(how, torch.zeros(1))
        check(
            self.config.history == 1,
            f"`as_torchsde` takes models whose state is one observation. Got history={self.config.history}.",
        )
        law = type(self.config.law).__name__
        check(self.law.is_sde, f"The law `{law}` draws steps that are no SDE's. Use a model with Euler() or Moments().")
        size, given = self.scale.context_size, None
        check(size > 0 or context is None, "`context` must be None: the model was trained without it. Got a value.")
        if size:
            check(context is not None, f"`context` must hold {size} value(s): the model was trained with it. Got None.")
            given = as_tensor(context, "context", torch.float32, self.scale.mean.device)
            wrong = given.ndim not in (1, 2) or given.shape[-1] != size
            check(not wrong, f"`context` must have shape ({size},) or (B, {size}). Got {tuple(given.shape)}.")
        fields = evaluated(self)._fields()

        def at(state: Tensor, time: Tensor) -> Coefficients:
            held = None if given is None else given.expand(state.shape[0], -1)
            condition = self._condition(held, time)
            return fields.coefficients(state, condition, how, self._fixed_signs(state), correction=False)

        return TorchSDE(self.scale, at, self.nets, correlated=bool(self.config.covariance.further))

    def equations(self, names: Sequence[str] | None = None) -> list[str]:
        """The drift as formulas in the units of the data, one per feature, where its net is a polynomial.

        Older slots are written x[-1], and contexts and time u0, u1, … in units of their spread.
        """
        flow = dict(self.nets.items()).get("flow")
        if not isinstance(flow, PolynomialNet) or self.config.directions is not None:
            raise ValueError("The drift is a net, which has no formula. Train with net=PolynomialConfig().")
        num = math.prod(self.scale.shape)
        given = names or (["x"] if num == 1 else [f"x{k}" for k in range(num)])
        check(len(given) == num, f"`names` must have one name per feature ({num}). Got {len(given)}.")
        return equations(flow, self.scale, self.sizes.rate, given)

    # Measurement noise

    @property
    def measurement_std(self) -> Float[Tensor, "*S"]:
        """Learned standard deviation of the measurement noise, in raw units; of transformed states where they are."""
        if self.measurement is None:
            raise ValueError("This model was trained without measurement noise. Use law=Moments(measurement=True).")
        return self.scale.spread(torch.exp(self.measurement.log_std.detach()))

    @property
    def forecast_sampler(self) -> Sampler:
        return with_settings(self.sampler, {"measured": self.measurement is not None})

    def begin(self, state: Tensor, condition: Tensor | None, noise: Noise, sampler: Sampler) -> Tensor:
        if self.measurement is None or not sampler.measured:
            return state
        known = self._filter_with(self._noise_variance(None)).known_from(state[:, -1].double().flatten(1), None)
        return Starts(known.mean, known.root).draw(noise, 1, self.scale.shape).to(state)

    def observe(self, states: Tensor, noise: Noise, sampler: Sampler) -> Tensor:
        if self.measurement is None or not sampler.measured:
            return states
        return self.measurement.measurements(states, noise)

    # Nets of the caller's own

    def check_nets(self) -> None:
        """They must give one value per feature: other shapes would broadcast, and train something else."""
        shape = seen_shape(self.config, self.scale.shape)
        state = torch.zeros(2, self.config.history, *shape)
        size = self.scale.context_size + self.config.num_late
        condition = torch.zeros(2, size) if size else None
        if len(set(self.nets.values())) < len(self.nets):
            raise ValueError(
                "`nets` must hold a net of its own for each name: what they learn must not mix. Got one twice."
            )
        parts = self.config.num_fields(math.prod(shape))
        for name, net in self.nets.items():
            carries = name == "transport"
            given = target_form(Backbone, Form(shape, condition_size=size)).condition_size if carries else size
            what = f"a state {tuple(state.shape)} and a condition {(2, given) if given else None}"
            try:
                with torch.no_grad():
                    own, here = evaluated(net), state.to(next(net.parameters(), state).device)
                    made = (
                        read_target(own, here[:, -1], here.new_zeros(1), here, condition)
                        if carries
                        else own(here, condition)
                    )
                    got = tuple(made.shape)
            except (TypeError, RuntimeError) as error:
                raise ValueError(f"The net {name!r} must take {what}. It says: {error}") from error
            num = 1 if carries else sum(parts.values()) if self.config.shared else parts[name]
            wanted = (2, *([num] if num > 1 or (self.config.shared and not carries) else []), *shape)
            if got != wanted:
                raise ValueError(f"The net {name!r} must map a state {tuple(state.shape)} to {wanted}. Got {got}.")


def seen_shape(config: NeuralSDEConfig, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of what the nets see of a state: all of it, or its leading directions."""
    if config.directions is None:
        return shape
    most = math.prod(shape)
    check(config.directions <= most, f"`directions` must be at most {most}, the features. Got {config.directions}.")
    return (config.directions,)
