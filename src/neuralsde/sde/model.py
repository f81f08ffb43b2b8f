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
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.data.trajectories import Lag, Paths, Transitions
from neuralsde.data.transition import Transition
from neuralsde.doors import Seed, door
from neuralsde.models.build import build
from neuralsde.models.config import Drawing
from neuralsde.models.evaluation import evaluated
from neuralsde.models.scale import Scale
from neuralsde.models.sequence import Advance, Condition, SequenceModel, observed_mean
from neuralsde.nets.backbone import Form, backbone_of
from neuralsde.records import built_by, with_settings
from neuralsde.sde.config import Moments, NeuralSDEConfig, Sampler
from neuralsde.sde.fields import Fields
from neuralsde.sde.laws.law import StepLaw
from neuralsde.sde.losses import denoiser_dsm, flow_log, flow_nll
from neuralsde.sde.measurement import MeasurementNoise
from neuralsde.sde.pairs import INTERPOLATIONS, Conditions, Gap, Pair, draw_tau
from neuralsde.sde.sizes import StepSizes
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import Noise


class NeuralSDE(SequenceModel):
    """Flow, and diffusion, denoiser and more as the config asks."""

    config: NeuralSDEConfig
    sampler: Sampler
    sigma: Tensor

    def __init__(self, nets: Mapping[str, nn.Module], scale: Scale, config: NeuralSDEConfig) -> None:
        super().__init__(nets, scale, config)
        start = config.start_probability == 1.0
        self.law: StepLaw = built_by(config.law)(config.law, scale.shape, start=start)
        measured = isinstance(config.law, Moments) and config.law.measurement
        self.measurement = MeasurementNoise(scale.shape) if measured else None
        self.sizes = StepSizes(scale.shape)
        sigma = torch.as_tensor(config.noise, dtype=torch.float32)
        if sigma.ndim and len(sigma) != scale.shape[0]:
            raise ValueError(f"`noise` must be one number or one per feature ({scale.shape[0]}). Got {len(sigma)}.")
        self.register_buffer("sigma", sigma.reshape(-1, *[1] * (len(scale.shape) - 1)) if sigma.ndim else sigma)

    @classmethod
    @door
    def for_data(cls, data: Paths, *, lag: Lag = None, nets: Any = None, seed: Seed = 0, **settings: Any) -> NeuralSDE:
        """A model with sensible nets and units for `data`; `settings` are fields of `NeuralSDEConfig`."""
        config = with_settings(NeuralSDEConfig(), settings)
        return build(config, data.transitions(lag=lag, history=config.history), nets=nets, seed=seed)

    @classmethod
    def net_names(cls, config: NeuralSDEConfig) -> list[str]:
        return ["trunk"] if config.shared else config.parts

    @classmethod
    def default_nets(cls, config: NeuralSDEConfig, shape: tuple[int, ...], context_size: int) -> dict[str, nn.Module]:
        net, parts = backbone_of(config.net, images=True), config.parts
        form = Form(shape, config.history, context_size + config.num_late, late=config.num_late)
        if config.shared:
            reader = parts.index("diffusion") if config.law.stochastic else None
            form = replace(form, num_fields=len(parts), reader=reader)
        return {name: net(config.net, form) for name in cls.net_names(config)}

    def measure(self, data: Transitions) -> Transition:
        pairs = super().measure(data)
        for place in self.config.net.pixels(self.scale.context_size):  # [-1, 1], whatever the data: colours may be rare
            self.scale.context_mean[place] = self.scale.context_std[place] = 127.5
        gaps = self.scale.steps(pairs.dt)
        self.law.check_data(gaps)
        self.sizes.measure(self.scale, pairs)
        if self.measurement is not None:
            self.measurement.measure(self.sizes.typical, float(gaps.min()))
        return pairs

    @property
    def input_noise(self) -> Tensor:
        return self.sigma

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups = {name: list(net.parameters()) for name, net in self.nets.items()}
        return groups | ({} if self.measurement is None else {"measurement": list(self.measurement.parameters())})

    def _fields(self) -> Fields:
        """The nets, for one call."""
        return Fields(self.config, self.nets, self.sizes, self.sigma, self.scale.step, self.measurement)

    # Training (alg:neural_sde)

    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        """The losses of flow, diffusion and denoiser at one noisy interpolated state; their gradients do not mix."""
        fields, denoiser = self._fields(), self.config.denoiser
        pair = self._pair(fields, batch, noise)
        x, eps = pair.state, pair.eps

        # Flow and diffusion, by the law of a step; what it reads at x̃ comes from one pass with the denoiser
        names = self.law.reads and (*self.law.reads, *(["denoiser"] if denoiser else []))
        read = fields.read(x, pair.condition, *names) if names else {}
        losses = self.law.losses(fields, read, pair, noise)
        # Denoiser
        if denoiser:
            d = read["denoiser"] if read else fields.denoiser(x, pair.condition)
            error = denoiser_dsm(d, eps[:, -1])
            if denoiser.antithetic:  # what is linear in ε cancels
                other = fields.denoiser(x - 2 * self.sigma * eps, pair.condition)
                error = 0.5 * (error + denoiser_dsm(other, -eps[:, -1]))
            losses["denoiser"] = denoiser.weight * error
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
        x = INTERPOLATIONS[self.config.interpolation](fields, now, after, tau, dt, condition, noise) + self.sigma * eps
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
        signs = partial(noise.signs, 0, self.scale.shape, stream=2)
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
        sampler = Sampler(correction=self.sampler.correction)
        self.check_sampler(sampler, torch.zeros(1))
        fields, now = self._fields(), self.scale.states(batch.history)
        step, dt = self.scale.states(batch.next) - now[:, -1], self.scale.steps(batch.dt)
        gap = Gap(now, step, dt, self._conditions(batch), batch.mask)

        def coefficients(state: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor]:
            c = fields.coefficients(state, condition, sampler, self._fixed_signs(state), correction=False)
            return c.drift, c.diffusion

        measured = None if self.measurement is None else fields.measured(now, gap.conditions(0.0))
        log_prob = self.law.log_prob(gap, coefficients, measured)
        return log_prob - self.scale.log_volume(batch.mask, len(batch))

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

    @property
    def knows_between(self) -> bool:
        return self.balance > 0

    @property
    def balance(self) -> float:
        """2 E[τ]: what the drift owes to the interpolation in training."""
        return self._fields().balance

    def check_sampler(self, sampler: Sampler, gaps: Tensor) -> None:
        fields = self._fields()
        if sampler.measured and self.measurement is None:
            raise ValueError("`measured=True` needs a model trained with Moments(measurement=True).")
        self.law.check_sampler(sampler, gaps, self.max_step(sampler), self.scale.step)
        balance = fields.balance if sampler.balance is None else sampler.balance
        if balance > 0 and self.config.law.stochastic and sampler.diffusion > 0 and not fields.has_score:
            remedy = "Train with tau='start', or a `denoiser` and `noise` > 0. The ablation: balance=0."
            raise ValueError(f"{balance=:g} needs a score. {remedy}")
        if sampler.pull > 0 and not fields.has_score:
            raise ValueError(f"`pull` needs a denoiser trained with noise. Got {sampler.pull=}. Set it to 0.")
        pull, step = sampler.pull * self.scale.step, min(float(gaps.max()), self.max_step(sampler))
        if pull * step > 1 + 1e-6:
            raise ValueError(
                f"`pull` * step must be <= 1. Got {sampler.pull:g} * {step * self.scale.step:g}. Use {math.ceil(pull)} `substeps`."
            )

    @door
    @torch.no_grad()
    def fields(self, x: Any, *, context: Any = None, sampler: Drawing = None) -> tuple[Tensor, Tensor]:
        """Drift and diffusion at states x (B, *S) or histories (B, H, *S), in raw units and at time 0."""
        x, _, context = self._check_inputs(x, [0.0, 1.0], context)
        how: Sampler = self.own_sampler(sampler)
        self.check_sampler(how, torch.zeros(1))
        state, condition = self.scale.states(x), self._condition(context, torch.zeros(len(x), device=x.device))
        fields = evaluated(self)._fields()
        c = fields.coefficients(state, condition, how, self._fixed_signs(state), correction=False)
        return c.drift * self.scale.std / self.scale.step, c.diffusion * self.scale.std / self.scale.step**0.5

    # Measurement noise

    @property
    def measurement_std(self) -> Float[Tensor, "*S"]:
        """Learned standard deviation of the measurement noise, in raw units."""
        if self.measurement is None:
            raise ValueError("This model was trained without measurement noise. Use law=Moments(measurement=True).")
        return torch.exp(self.measurement.log_std.detach()) * self.scale.std

    @property
    def forecast_sampler(self) -> Sampler:
        return with_settings(self.sampler, {"measured": self.measurement is not None})

    def begin(self, state: Tensor, condition: Tensor | None, noise: Noise, sampler: Sampler) -> Tensor:
        if self.measurement is None or not sampler.measured:
            return state
        return self.measurement.true_states(state, self._fields().measured(state, condition), noise)

    def observe(self, states: Tensor, noise: Noise, sampler: Sampler) -> Tensor:
        if self.measurement is None or not sampler.measured:
            return states
        return self.measurement.measurements(states, noise)

    # Nets of the caller's own

    def check_nets(self) -> None:
        """They must give one value per feature: other shapes would broadcast, and train something else."""
        state = torch.zeros(2, self.config.history, *self.scale.shape)
        size = self.scale.context_size + self.config.num_late
        condition = torch.zeros(2, size) if size else None
        if len(set(self.nets.values())) < len(self.nets):
            raise ValueError(
                "`nets` must hold a net of its own for each name: what they learn must not mix. Got one twice."
            )
        for name, net in self.nets.items():
            what = f"a state {tuple(state.shape)} and a condition {None if condition is None else (2, size)}"
            try:
                with torch.no_grad():
                    got = tuple(evaluated(net)(state.to(next(net.parameters(), state).device), condition).shape)
            except (TypeError, RuntimeError) as error:
                raise ValueError(f"The net {name!r} must take {what}. It says: {error}") from error
            wanted = (2, *([len(self.config.parts)] if self.config.shared else []), *self.scale.shape)
            if got != wanted:
                raise ValueError(f"The net {name!r} must map a state {tuple(state.shape)} to {wanted}. Got {got}.")
