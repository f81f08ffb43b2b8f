"""Neural SDE: dx = f(x) dt + g(x) dw (Ito, diagonal g), learned from pairs of consecutive states.

Shen & Cheng, "Neural SDEs as a Unified Approach to Continuous-Domain Sequence Modeling". This file is the paper;
equation names are those of its LaTeX source. Symbols here, words in the API:

    x_k, x_{k+1}  history[:, -1], next     two consecutive observations          Δt  dt
    τ             tau                      place between them, 0 to 1            σ   noise
    x_τ           (1-τ) x_k + τ x_{k+1}    interpolated state                    ε   unit Gaussian
    x̃             x_τ + σε                 what the nets see                     r   f(x̃) - Δx/Δt
    f  flow       g  diffusion             d  denoiser, d(x̃) ≈ -ε                s   score, d/σ

Everything in here is in units of the data's scale and of the reference step (`Scale`).

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
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.config import NeuralSDEConfig, Sampler
from neuralsde.noise import Noise
from neuralsde.sequence import Condition, Scale, SequenceModel, Transition
from neuralsde.solvers import SCHEMES, Coefficients, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neuralsde.trajectories import Trajectories

EXACT_UP_TO = 32
"""Dimensions up to which g∂g is computed exactly."""


# Losses. Each maps tensors (B, *S) to values of the same shape; `NeuralSDE.loss` averages them over what was observed.


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
    """Flow, diffusion and denoiser over one state.

    Args:
        nets: modules `flow`, `diffusion`, `denoiser` (and `alpha`) as far as the config asks for them, each mapping
            (state (B, H, *S), condition (B, K) or None) to (B, *S).
        scale: the data's units.
        config: what is learned.
    """

    kind: ClassVar[str] = "NeuralSDE"
    config: NeuralSDEConfig
    log_g_low: Tensor
    log_g_high: Tensor
    log_g_typical: Tensor
    rate: Tensor
    sigma: Tensor

    def __init__(self, nets: dict[str, nn.Module], scale: Scale, config: NeuralSDEConfig) -> None:
        super().__init__(scale, config)
        wanted = ["flow"] + [n for n in ("diffusion", "denoiser", "alpha") if getattr(config, n)]
        if sorted(nets) != sorted(wanted):
            raise ValueError(f"`nets` must hold {wanted} for this config. Got {sorted(nets)}.")
        self.nets = nn.ModuleDict(nets)
        # Bounds of log g and the size of velocities: fixed from the data before training, saved with the weights.
        for name in ("log_g_low", "log_g_high", "log_g_typical"):
            self.register_buffer(name, torch.zeros(scale.shape))
        self.register_buffer("rate", torch.ones(scale.shape))
        sigma = torch.as_tensor(config.noise, dtype=torch.float32)
        if sigma.ndim and len(sigma) != scale.shape[0]:
            raise ValueError(f"`noise` must be one number or one per feature ({scale.shape[0]}). Got {len(sigma)}.")
        self.register_buffer("sigma", sigma.reshape(-1, *[1] * (len(scale.shape) - 1)) if sigma.ndim else sigma)

    @classmethod
    def for_data(
        cls,
        data: Trajectories,
        *,
        lag: float | None = None,
        nets: dict[str, nn.Module] | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> NeuralSDE:
        """A model with sensible nets and units for `data`; `settings` are fields of `NeuralSDEConfig`."""
        from neuralsde.models import build

        config = NeuralSDEConfig(**settings)
        model = build(config, data.transitions(lag=lag, history=config.history), nets=nets, seed=seed)
        assert isinstance(model, cls)
        return model

    def fit_bounds(self, pairs: Transition) -> None:
        """Bound log g by what the data shows: up to twice the 99.9 % quantile of |Δx|/√Δt, and down to 1e-4 of that."""
        dt = self._dt(pairs)
        step = self.scale.states(pairs.next) - self.scale.states(pairs.history[:, -1])
        size = (step / dt.sqrt()).abs()
        high = 2 * torch.quantile(size, 0.999, dim=0).clamp(min=1e-3)  # the floor is for constant dimensions
        self.log_g_high.copy_(high.log())
        self.log_g_low.copy_((1e-4 * high).log())
        typical = torch.maximum(size.square().mean(0).sqrt(), 1e-2 * high)
        self.log_g_typical.copy_(torch.minimum(typical, 0.5 * high).log())
        self.rate.copy_((step / dt).square().mean(0).sqrt().clamp(min=1e-6))

    # The fields

    def _dt(self, batch: Transition) -> Tensor:
        return (batch.dt / self.scale.step).reshape(-1, *[1] * len(self.scale.shape))

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
        return torch.exp(2 * self.log_g_typical) * nn.functional.softplus(
            self.nets["alpha"](state, condition).float() - 2
        )

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {name: list(net.parameters()) for name, net in self.nets.items()}

    @contextmanager
    def _without_dropout(self) -> Iterator[None]:
        training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(training)

    # Training (alg:neural_sde)

    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        """The losses of flow, diffusion and denoiser at one noisy interpolated state; their gradients do not mix."""
        config = self.config
        now = self.scale.states(batch.history)
        after = torch.cat([now[:, 1:], self.scale.states(batch.next)[:, None]], dim=1)
        dt = self._dt(batch)

        # Interpolate, all slots alike
        start, tau = noise.uniform(0, (2,), stream=1).float().unbind(1)
        tau = torch.where(start < config.start_probability, 0.0, tau).reshape(-1, *[1] * (now.ndim - 1))
        # Add noise
        eps = noise.normal(0, tuple(now.shape[1:]))
        x = torch.lerp(now, after, tau) + self.sigma * eps
        condition = self._condition(batch.context, (batch.time + tau.flatten() * batch.dt) / self.scale.step)

        # Flow. Δx is that of the clean states: a noisy one would add σ²/Δt to g²
        target = (after[:, -1] - now[:, -1]) / dt
        log_g = self.log_diffusion(x, condition) if config.diffusion else None
        r = self.flow(x, condition) - target
        losses = {"flow": self._flow_loss(r, dt, log_g)}
        # Diffusion, on residuals without dropout
        if log_g is not None:
            if self.training and any(isinstance(m, nn.Dropout) and m.p > 0 for m in self.nets["flow"].modules()):
                with torch.no_grad(), self._without_dropout():
                    r = self.flow(x, condition) - target
            losses["diffusion"] = {"nll": diffusion_nll, "match": diffusion_match}[config.diffusion_loss](r, dt, log_g)
        # Denoiser
        if config.denoiser:
            losses["denoiser"] = denoiser_dsm(self.denoiser(x, condition), eps[:, -1])
        # α, by the likelihood of the clean pair
        if config.alpha:
            clean = self._condition(batch.context, batch.time / self.scale.step)
            losses["alpha"] = self._alpha_loss(now, target, dt, clean)

        seen = torch.ones(()) if batch.mask is None else batch.mask.float()
        return {k: (v * seen).sum() / (seen.sum() if seen.ndim else v.numel()) for k, v in losses.items()}

    def _flow_loss(self, r: Tensor, dt: Tensor, log_g: Tensor | None) -> Tensor:
        if self.config.flow_loss == "mse":
            return flow_mse(r, dt)
        if self.config.flow_loss == "log":
            return flow_log(r, self.config.delta)
        if log_g is None:
            raise ValueError("flow_loss='nll' needs the diffusion. Set `diffusion=True`, or use 'mse'.")
        return flow_nll(r, dt, log_g)

    def _alpha_loss(self, now: Tensor, target: Tensor, dt: Tensor, condition: Tensor | None) -> Tensor:
        with torch.no_grad(), self._without_dropout():
            f, log_g = self.flow(now, condition), self.log_diffusion(now, condition)
            score = self.denoiser(now, condition) / self.sigma
        r = f + self.alpha(now, condition) * score - target
        return flow_nll(r, dt, log_g)

    # Sampling

    @torch.no_grad()
    def fields(
        self, x: Tensor, *, context: Tensor | None = None, sampler: Sampler | None = None
    ) -> tuple[Tensor, Tensor]:
        """Drift and diffusion at states x (B, *S) or histories (B, H, *S), in raw units and at time 0."""
        x, _, ctx = self._check_inputs(x, [0.0, 1.0], context, 1)
        with self._without_dropout():
            keys = Noise(torch.arange(len(x), device=x.device))
            condition = self._condition(ctx, torch.zeros(len(x), device=x.device))
            c = self.coefficients(
                self.scale.states(x),
                condition,
                sampler or self.sampler,
                lambda: keys.signs(0, self.scale.shape),
                correction=False,
            )
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
        on = self.config.diffusion and sampler.diffusion > 0
        if balance > 0 and on and not self.has_score:
            raise ValueError(
                f"{balance=:g} needs a score, and this model has no denoiser or no noise. Train with tau='start', "
                "or with `denoiser=True` and `noise` > 0; Sampler(balance=0) is the ablation."
            )
        if sampler.pull > 0 and not self.has_score:
            raise ValueError(f"`pull` needs a denoiser trained with noise. Got {sampler.pull=}. Set it to 0.")
        step = min(float(gaps.max()), self.max_step(sampler)) * self.scale.step
        if sampler.pull * step > 1 + 1e-6:
            raise ValueError(
                f"`pull` times the step must be at most 1, or it overshoots the data. Got pull={sampler.pull:g} with steps of "
                f"{step:g}. Use `substeps` of at least {math.ceil(sampler.pull * self.scale.step)} or a smaller pull."
            )

    def coefficients(
        self,
        state: Float[Tensor, "P H *S"],
        condition: Tensor | None,
        sampler: Sampler,
        signs: Any,
        *,
        correction: bool,
    ) -> Coefficients:
        """Drift, diffusion and, if asked or owed, g∂g at a state; `signs()` gives the Hutchinson probe."""
        balance = self.balance if sampler.balance is None else sampler.balance
        pull = sampler.pull * self.scale.step
        drift = self.flow(state, condition)
        if not (self.config.diffusion and sampler.diffusion > 0):
            g, g_dg = torch.zeros_like(drift), torch.zeros_like(drift)
            balance = 0.0
        elif (balance > 0 or correction) and sampler.correction != "off":
            g, g_dg = self._diffusion_with_slope(state, condition, sampler, signs)
        else:
            g = sampler.diffusion * torch.exp(self.log_diffusion(state, condition))
            g_dg = torch.zeros_like(g)
        if self.has_score and (balance > 0 or pull > 0):
            score = self.denoiser(state, condition) / self.sigma
            weight = self.alpha(state, condition) if self.config.alpha and balance > 0 else balance * 0.5 * g**2
            drift = drift + (weight + pull * self.sigma**2) * score
        drift = drift + balance * g_dg
        if sampler.pull_noise:
            g = torch.sqrt(g**2 + 2 * pull * self.sigma**2)
        return Coefficients(drift, g, g_dg)

    def _diffusion_with_slope(
        self, state: Tensor, condition: Tensor | None, sampler: Sampler, signs: Any
    ) -> tuple[Tensor, Tensor]:
        """g and the diagonal of g∂g = g² ∂log g by the newest slot."""
        with torch.enable_grad():
            x = state[:, -1].detach().requires_grad_()
            log_g = self.log_diffusion(torch.cat([state[:, :-1], x[:, None]], dim=1), condition)
            size = math.prod(self.scale.shape)
            if sampler.correction == "exact" or (sampler.correction == "auto" and size <= EXACT_UP_TO):
                flat = log_g.flatten(1)
                slopes = [
                    torch.autograd.grad(flat[:, i].sum(), x, retain_graph=i < size - 1)[0].flatten(1)[:, i]
                    for i in range(size)
                ]
                self.count(diffusion=size)
                slope = torch.stack(slopes, dim=1).reshape(x.shape)
            else:
                v = signs()
                (slope,) = torch.autograd.grad((log_g * v).sum(), x)
                self.count(diffusion=1)
                slope = slope * v
        g = sampler.diffusion * torch.exp(log_g.detach())
        return g, g**2 * slope

    def advance(self, step: Step, condition: Condition, noise: Noise) -> Tensor:
        """eq:euler_maruyama_discretization, or a scheme of higher order."""

        def signs() -> Tensor:
            return noise.signs(step.index, self.scale.shape, stream=1)

        def sde(x: Tensor, t: Tensor, *, correction: bool) -> Coefficients:
            state = torch.cat([step.older(t), x[:, None]], dim=1)
            return self.coefficients(state, condition(t), self.sampler, signs, correction=correction)

        return SCHEMES[self.sampler.solver](sde, step.x, step.time, step.dt, step.dt.sqrt() * step.z)

    def transition_log_prob(self, batch: Transition) -> Float[Tensor, " B"]:
        """log N(x_{k+1}; x_k + aΔt, g²Δt) in raw units; a is the drift with the model's own balance and no pull."""
        if not self.config.diffusion:
            raise ValueError("A model without diffusion has no likelihood. Train with `diffusion=True`.")
        sampler = Sampler(correction=self.sampler.correction)
        self.check_sampler(sampler, torch.zeros(1))
        state, dt = self.scale.states(batch.history), self._dt(batch)
        keys = Noise(torch.arange(len(batch), device=dt.device))  # a fixed probe: the density is a function of the data
        condition = self._condition(batch.context, batch.time / self.scale.step)
        c = self.coefficients(state, condition, sampler, lambda: keys.signs(0, self.scale.shape), correction=False)
        mean = state[:, -1] + c.drift * dt
        terms = (
            gaussian_log_prob(self.scale.states(batch.next), mean, torch.log(c.diffusion * dt.sqrt()))
            - self.scale.std.log()
        )
        return (terms if batch.mask is None else terms * batch.mask).flatten(1).sum(1)
