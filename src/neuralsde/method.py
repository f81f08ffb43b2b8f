"""Neural SDE: dx = f(x) dt + g(x) dw (Ito, diagonal g), learned from pairs of consecutive states.

Shen & Cheng, "Neural SDEs as a Unified Approach to Continuous-Domain Sequence Modeling". This file is the paper;
equation names are those of its LaTeX source. Everything in here is in units of the data's scale and of the reference
step (`Scale`). Symbols here, words in the API:

    x_k, x_{k+1}  history[:, -1], next     two consecutive observations          Δt  dt
    τ             tau                      place between them, 0 to 1            σ   noise
    x_τ           (1-τ) x_k + τ x_{k+1}    interpolated state                    ε   unit Gaussian
    x̃             x_τ + σε                 what the nets see                     r   f(x̃) - Δx/Δt
    f  flow       g  diffusion             d  denoiser, d(x̃) ≈ -ε                s   score, d/σ

Linear interpolation does not learn the drift: x_τ already holds part of the noise of Δx, and
E[Δx/Δt | x_τ] = drift - E[τ] ∂(g²p)/p. The drift of the SDE that has the data's law is therefore

    drift = f + balance (½g² s + g∂g) + pull σ² s,        balance = 2 E[τ]

and only with τ = 0 ("start") is it the flow itself.

# Differs from the paper: balance and g∂g (absent there); the denoiser's target is -ε (the sign of eq:dsm_objective is
# wrong); g is fitted by likelihood, since E log r² is not the profile likelihood; the flow loss is the squared error
# unless asked; f, g and d train in one step; older slots of the state move by known differences *divided by Δt*.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.config import NeuralSDEConfig, Sampler
from neuralsde.noise import Noise
from neuralsde.records import with_settings
from neuralsde.sequence import Condition, Scale, SequenceModel, Transition, evaluating
from neuralsde.solvers import SCHEMES, Coefficients, Step, diagonal_slope
from neuralsde.trajectories import Lag, Trajectories

# Losses: tensors (B, *S) to values of the same shape; `NeuralSDE.loss` averages them over what was observed.


def flow_mse(r: Tensor, dt: Tensor) -> Tensor:
    """r² Δt: the likelihood at constant g. Without Δt, short gaps would dominate irregular data."""
    return r**2 * dt


def flow_log(r: Tensor, delta: float) -> Tensor:
    """½ log(r² + δ): eq:simplified_f_objective, desingularised. Mode-seeking; tends to r²/2δ as δ grows."""
    return 0.5 * torch.log(r**2 + delta)


def flow_nll(r: Tensor, dt: Tensor, log_g: Tensor) -> Tensor:
    """½ r² Δt / g²: the first term of eq:per_step_objective, with g held fixed."""
    return 0.5 * r**2 * dt * torch.exp(-2 * log_g.detach())


def diffusion_nll(r: Tensor, dt: Tensor, log_g: Tensor) -> Tensor:
    """½ r² Δt / g² + log g: eq:per_step_objective as a function of g. Its minimum is g² = E[r² Δt | x]."""
    return 0.5 * r.detach() ** 2 * dt * torch.exp(-2 * log_g) + log_g


def diffusion_match(r: Tensor, dt: Tensor, log_g: Tensor) -> Tensor:
    """½ (g² - r² Δt)²: eq:simplified_g_objective. The same minimum, dominated by large residuals."""
    return 0.5 * (torch.exp(2 * log_g) - r.detach() ** 2 * dt) ** 2


def denoiser_dsm(d: Tensor, eps: Tensor) -> Tensor:
    """(d + ε)²: eq:dsm_objective with the right sign, in units of σ."""
    return (d + eps) ** 2


def gaussian_log_prob(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """eq:gaussian_transition, per dimension."""
    return -0.5 * ((x - mean) * torch.exp(-log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)


class NeuralSDE(SequenceModel):
    """Flow, diffusion, denoiser (and α), as the config asks; nets map (state (B, H, *S), condition (B, K) | None) to (B, *S)."""

    kind: ClassVar[str] = "NeuralSDE"
    config: NeuralSDEConfig
    log_g_low: Tensor
    log_g_high: Tensor
    log_g_typical: Tensor
    rate: Tensor
    sigma: Tensor

    def __init__(self, nets: dict[str, nn.Module], scale: Scale, config: NeuralSDEConfig) -> None:
        super().__init__(scale, config)
        if sorted(nets) != sorted(config.parts):
            raise ValueError(f"`nets` must hold {config.parts} for this config. Got {sorted(nets)}.")
        self.nets = nn.ModuleDict(nets)
        # Bounds of log g and the size of velocities: fixed from the data before training, saved with the weights.
        for name, value in (("log_g_low", 0.0), ("log_g_high", 0.0), ("log_g_typical", 0.0), ("rate", 1.0)):
            self.register_buffer(name, torch.full(scale.shape, value))
        sigma = torch.as_tensor(config.noise, dtype=torch.float32)
        if sigma.ndim and len(sigma) != scale.shape[0]:
            raise ValueError(f"`noise` must be one number or one per feature ({scale.shape[0]}). Got {len(sigma)}.")
        self.register_buffer("sigma", sigma.reshape(-1, *[1] * (len(scale.shape) - 1)) if sigma.ndim else sigma)

    @classmethod
    def for_data(
        cls, data: Trajectories, *, lag: Lag = None, nets: Any = None, seed: int = 0, **settings: Any
    ) -> NeuralSDE:
        """A model with sensible nets and units for `data`; `settings` are fields of `NeuralSDEConfig`."""
        from neuralsde.models import build

        config = with_settings(NeuralSDEConfig(), settings)
        return build(config, data.transitions(lag=lag, history=config.history), nets=nets, seed=seed)  # type: ignore[return-value]

    def fit_bounds(self, pairs: Transition) -> None:
        """Bound log g by what the data shows: up to twice the 99.9 % quantile of |Δx|/√Δt, and down to 1e-4 of that."""
        dt = self.scale.steps(pairs.dt)
        dt = dt if pairs.mask is None else dt.where(pairs.mask, math.nan)  # unobserved entries drop out below
        step = self.scale.states(pairs.next) - self.scale.states(pairs.history[:, -1])
        size = (step / dt.sqrt()).abs()
        last = (999 * size.isfinite().sum(0, keepdim=True) + 999) // 1000 - 1
        high = 2 * size.sort(0).values.gather(0, last)[0].clamp(min=1e-3)  # the floor is for constant dimensions
        self.log_g_high.copy_(high.log())
        self.log_g_low.copy_((1e-4 * high).log())
        self.log_g_typical.copy_(size.square().nanmean(0).sqrt().clamp(1e-2 * high, 0.5 * high).log())
        self.rate.copy_((step**2 / dt).nanmean(0).div(dt.nanmean(0)).sqrt().clamp(min=1e-6))  # Δt-weighted, as the loss

    # The fields

    def flow(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """f, in units of std / dt_ref; the net's output is in units of the data's velocities."""
        self.count(flow=1)
        return self.rate * self.nets["flow"](state, condition).float()

    def log_diffusion(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """log g, bounded smoothly: off the data a free log g extrapolates and roll-outs blow up."""
        self.count(diffusion=1)
        low, width = self.log_g_low, self.log_g_high - self.log_g_low
        middle = torch.logit((self.log_g_typical - low) / width)  # a net of 0 gives the typical size of a step
        return low + width * torch.sigmoid(middle + self.nets["diffusion"](state, condition).float() * 4 / width)

    def denoiser(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """d ≈ -ε, of the newest slot."""
        self.count(denoiser=1)
        return self.nets["denoiser"](state, condition).float()

    def alpha(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """α(x) ≥ 0, the learned weight of the score, in units of std² / dt_ref."""
        self.count(alpha=1)
        share = nn.functional.softplus(self.nets["alpha"](state, condition).float() - 2)
        return share * torch.exp(2 * self.log_g_typical)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {name: list(net.parameters()) for name, net in self.nets.items()}

    # Training (alg:neural_sde)

    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        """The losses of flow, diffusion and denoiser at one noisy interpolated state; their gradients do not mix."""
        config, dt = self.config, self.scale.steps(batch.dt)
        now = self.scale.states(batch.history)
        after = torch.cat([now[:, 1:], self.scale.states(batch.next)[:, None]], dim=1)

        # Interpolate, all slots alike, and add noise
        start, tau = noise.uniform(0, (2,), stream=1).float().unbind(1)
        tau = torch.where(start <= config.start_probability, 0.0, tau).reshape(-1, *[1] * (now.ndim - 1))
        eps = noise.normal(0, tuple(now.shape[1:]))
        x = torch.lerp(now, after, tau) + self.sigma * eps
        condition = self._condition(batch.context, (batch.time + tau.flatten() * batch.dt) / self.scale.step)

        # Flow. Δx is that of the clean states: a noisy one would add σ²/Δt to g²
        target = (after[:, -1] - now[:, -1]) / dt
        log_g = self.log_diffusion(x, condition) if config.diffusion else None
        r = self.flow(x, condition) - target
        if config.flow_loss == "nll" and log_g is not None:
            losses = {"flow": flow_nll(r, dt, log_g)}
        else:
            losses = {"flow": flow_mse(r, dt) if config.flow_loss == "mse" else flow_log(r, config.delta)}
        # Diffusion, on residuals without dropout
        if log_g is not None:
            if self.training and any(
                isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in self.nets["flow"].modules()
            ):
                with torch.no_grad(), evaluating(self.nets):
                    r = self.flow(x, condition) - target
            losses["diffusion"] = {"nll": diffusion_nll, "match": diffusion_match}[config.diffusion_loss](r, dt, log_g)
        # Denoiser
        if config.denoiser:
            losses["denoiser"] = denoiser_dsm(self.denoiser(x, condition), eps[:, -1])
        # α, by the likelihood of the clean pair
        if config.alpha:
            clean = self._condition(batch.context, batch.time / self.scale.step)
            losses["alpha"] = self._alpha_loss(now, target, dt, clean, noise)

        seen = torch.ones(()) if batch.mask is None else batch.mask.float()
        return {k: (v * seen).sum() / (seen.sum() if seen.ndim else v.numel()) for k, v in losses.items()}

    def _alpha_loss(self, now: Tensor, target: Tensor, dt: Tensor, condition: Tensor | None, noise: Noise) -> Tensor:
        flow_only = Sampler(balance=0.0, correction=self.sampler.correction)
        signs = partial(noise.signs, 0, self.scale.shape, stream=2)
        with torch.no_grad(), evaluating(self.nets):
            c = self.coefficients(now, condition, flow_only, signs, correction=True)
            score = self.denoiser(now, condition) / self.sigma
        r = c.drift + self.alpha(now, condition) * score + self.balance * c.correction - target
        return flow_nll(r, dt, c.diffusion.log())

    # Sampling

    @torch.no_grad()
    def fields(self, x: Any, *, context: Any = None, sampler: Sampler | None = None) -> tuple[Tensor, Tensor]:
        """Drift and diffusion at states x (B, *S) or histories (B, H, *S), in raw units and at time 0."""
        x, _, context = self._check_inputs(x, [0.0, 1.0], context, 1)
        self.nfe = {}
        with evaluating(self):
            c = self._coefficients_at(x, context, torch.zeros(len(x), device=x.device), sampler or self.sampler)
        return c.drift * self.scale.std / self.scale.step, c.diffusion * self.scale.std / self.scale.step**0.5

    @property
    def balance(self) -> float:
        """2 E[τ]: what the drift owes to the interpolation in training."""
        return 1.0 - self.config.start_probability

    @property
    def has_score(self) -> bool:
        """Whether there is a denoiser trained with noise."""
        return self.config.denoiser and bool((self.sigma > 0).all())

    def check_sampler(self, sampler: Sampler, gaps: Tensor) -> None:
        balance = self.balance if sampler.balance is None else sampler.balance
        if balance > 0 and self.config.diffusion and sampler.diffusion > 0 and not self.has_score:
            remedy = "Train with tau='start', or `denoiser=True` and `noise` > 0. The ablation: balance=0."
            raise ValueError(f"{balance=:g} needs a score. {remedy}")
        if sampler.pull > 0 and not self.has_score:
            raise ValueError(f"`pull` needs a denoiser trained with noise. Got {sampler.pull=}. Set it to 0.")
        pull, step = sampler.pull * self.scale.step, min(float(gaps.max()), self.max_step(sampler))
        if pull * step > 1 + 1e-6:
            raise ValueError(
                f"`pull` * step must be <= 1. Got {sampler.pull:g} * {step * self.scale.step:g}. Use {math.ceil(pull)} `substeps`."
            )

    def coefficients(
        self, state: Tensor, condition: Tensor | None, sampler: Sampler, signs: Any, *, correction: bool
    ) -> Coefficients:
        """Drift, diffusion and, if asked or owed, g∂g at a state; `signs()` gives the Hutchinson probe."""
        balance = self.balance if sampler.balance is None else sampler.balance
        pull = sampler.pull * self.scale.step
        drift = self.flow(state, condition)
        g = g_dg = torch.zeros_like(drift)
        if not (self.config.diffusion and sampler.diffusion > 0):
            balance = 0.0
        elif (balance > 0 or correction) and sampler.correction != "off":
            g, g_dg = self._g_and_dg(state, condition, sampler, signs)
        else:
            g = sampler.diffusion * torch.exp(self.log_diffusion(state, condition))
        learned = self.config.alpha and sampler.balance is None and sampler.diffusion > 0
        if self.has_score and (balance > 0 or pull > 0 or learned):
            score = self.denoiser(state, condition) / self.sigma
            weight = sampler.diffusion**2 * self.alpha(state, condition) if learned else balance * 0.5 * g**2
            drift = drift + (weight + pull * self.sigma**2) * score
        drift = drift + balance * g_dg
        if sampler.pull_noise:
            g = torch.sqrt(g**2 + 2 * pull * self.sigma**2)
        return Coefficients(drift, g, g_dg)

    def _coefficients_at(self, history: Tensor, context: Tensor | None, time: Tensor, sampler: Sampler) -> Coefficients:
        """At raw states and times, with a fixed probe: fields and densities are functions of the data."""
        self.check_sampler(sampler, torch.zeros(1))
        one = torch.zeros(len(history), dtype=torch.int64, device=time.device)
        signs = partial(Noise(one).signs, 0, self.scale.shape)
        condition = self._condition(context, time / self.scale.step)
        return self.coefficients(self.scale.states(history), condition, sampler, signs, correction=False)

    def _g_and_dg(self, state: Tensor, condition: Tensor | None, sampler: Sampler, signs: Any) -> tuple[Tensor, Tensor]:
        """g and the diagonal of g∂g = g² ∂log g by the newest slot."""
        with torch.enable_grad():
            x = state[:, -1].detach().requires_grad_()
            log_g = self.log_diffusion(torch.cat([state[:, :-1], x[:, None]], dim=1), condition)
            slope, passes = diagonal_slope(log_g, x, sampler.correction, signs)
        self.count(diffusion=passes)
        g = sampler.diffusion * torch.exp(log_g.detach())
        return g, g**2 * slope

    def advance(self, step: Step, condition: Condition, noise: Noise) -> Tensor:
        """eq:euler_maruyama_discretization, or a scheme of higher order."""
        signs = partial(noise.signs, step.index, self.scale.shape, stream=1)

        def sde(x: Tensor, t: Tensor, *, correction: bool) -> Coefficients:
            state = torch.cat([step.older(t), x[:, None]], dim=1)
            return self.coefficients(state, condition(t), self.sampler, signs, correction=correction)

        return SCHEMES[self.sampler.solver](sde, step.x, step.time, step.dt, step.dt.sqrt() * step.z)

    def transition_log_prob(self, batch: Transition) -> Float[Tensor, " B"]:
        """log N(x_{k+1}; x_k + aΔt, g²Δt) in raw units; a is the drift with the model's own balance and no pull."""
        if not self.config.diffusion:
            raise ValueError("A model without diffusion has no likelihood. Train with `diffusion=True`.")
        c = self._coefficients_at(batch.history, batch.context, batch.time, Sampler(correction=self.sampler.correction))
        dt, x, after = self.scale.steps(batch.dt), batch.history[:, -1], self.scale.states(batch.next)
        mean, log_std = self.scale.states(x) + c.drift * dt, torch.log(c.diffusion * dt.sqrt())
        terms = gaussian_log_prob(after, mean, log_std) - self.scale.std.log()
        return (terms if batch.mask is None else terms * batch.mask).flatten(1).sum(1)
