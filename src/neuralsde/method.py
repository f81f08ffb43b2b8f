"""Neural SDE: dx = f(x) dt + g(x) dw (Ito, diagonal g), learned from pairs of consecutive states.

Shen & Cheng, "Neural SDEs as a Unified Approach to Continuous-Domain Sequence Modeling". This file and `losses` are the
paper; equation names are those of its LaTeX source. Everything in here is in units of the data's scale and of the reference
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

A step as long as a gap of the data is m + g√Δt ξ, where ξ has mean 0 and variance 1 and need not be Gaussian: a thing comes
into view or it does not. A refiner h learns the rest of its law from u = ξ + ε:

    E[ξ | u] = u/2 + h/√2,        ξ drawn as (z + h + z')/√2 from u = √2 z        (z, z' unit Gaussians)

which is exact where ξ is Gaussian (h = 0); otherwise h makes one decision of what white noise only hints at.

# Differs from the paper: balance and g∂g (absent there); the denoiser's target is -ε (the sign of eq:dsm_objective is
# wrong); g is fitted by likelihood, since E log r² is not the profile likelihood; the flow loss is the squared error
# unless asked; f, g and d train in one step; older slots of the state move by known differences *divided by Δt*; the refiner.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from neuralsde.config import NeuralSDEConfig, Sampler
from neuralsde.data.trajectories import Lag, Trajectories
from neuralsde.likelihood import GaussianSteps
from neuralsde.losses import DIFFUSION_LOSSES, denoiser_dsm, flow_log, flow_mse, flow_nll, refiner_mse
from neuralsde.moments import moved
from neuralsde.noise import Noise
from neuralsde.records import with_settings
from neuralsde.scale import joined
from neuralsde.sequence import Condition, Scale, Transition, evaluating, has_dropout, observed_mean
from neuralsde.sizes import StepSizes, of_another_length
from neuralsde.solvers import SCHEMES, Coefficients, Step, newest_slope, steps_in


class NeuralSDE(GaussianSteps):
    """Flow, diffusion, denoiser and more, as the config asks; nets map (state (B, H, *S), condition (B, K) | None) to (B, *S)."""

    kind: ClassVar[str] = "NeuralSDE"
    config: NeuralSDEConfig
    sigma: Tensor

    def __init__(self, nets: dict[str, nn.Module], scale: Scale, config: NeuralSDEConfig) -> None:
        super().__init__(scale, config)
        wanted = ["trunk"] if config.shared else config.parts
        if sorted(nets) != sorted(wanted):
            raise ValueError(f"`nets` must hold {wanted} for this config. Got {sorted(nets)}.")
        self.nets = nn.ModuleDict(nets)
        self.sizes = StepSizes(scale.shape)
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
        """Measure the size of steps and velocities in the data."""
        if self.config.refiner and bool(of_another_length(self.scale.steps(pairs.dt)).any()):
            raise ValueError("A refiner learns steps of one length. Got gaps that differ. Set `refiner=False`.")
        self.sizes.fit(self.scale, pairs)
        self.start_measurement(self.sizes.typical, pairs)

    # The fields

    def read(self, state: Tensor, condition: Tensor | None, **wanted: bool) -> dict[str, Tensor]:
        """The wanted fields: one pass of each net, or one of the trunk that they share."""
        names = [name for name, used in wanted.items() if used]
        self.count(**dict.fromkeys(["trunk"] if self.config.shared else names, 1))
        if self.config.marks_pass:  # or it would tell proposals by how clean they are, and take clean states for them
            condition = joined(condition, state.new_full((len(state),), wanted.get("refiner", False)))
        if self.config.shared:
            raw = dict(zip(self.config.parts, self.nets["trunk"](state, condition).float().unbind(1)))
        else:
            raw = {name: self.nets[name](state, condition).float() for name in names}
        units = {"flow": self.sizes.velocity, "diffusion": self.sizes.log_g}
        return {name: units[name](raw[name]) if name in units else raw[name] for name in names}

    def flow(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """f, in units of std / dt_ref."""
        return self.read(state, condition, flow=True)["flow"]

    def log_diffusion(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """log g, within the bounds of the data."""
        return self.read(state, condition, diffusion=True)["diffusion"]

    def denoiser(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """d ≈ -ε, of the newest slot."""
        return self.read(state, condition, denoiser=True)["denoiser"]

    def refiner(self, state: Tensor, condition: Tensor | None, proposed: Tensor) -> Tensor:
        """h: what a step has beyond its Gaussian, from the states before it and a proposal of its end, as the newest slot."""
        return self.read(torch.cat([state[:, 1:], proposed[:, None]], dim=1), condition, refiner=True)["refiner"]

    def alpha(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """α(x) ≥ 0, the learned weight of the score, in units of std² / dt_ref."""
        share = nn.functional.softplus(self.read(state, condition, alpha=True)["alpha"] - 2)
        return share * torch.exp(2 * self.sizes.typical)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups = {name: list(net.parameters()) for name, net in self.nets.items()}
        return groups | ({"measurement": [self.log_error]} if self.config.measurement else {})

    def trained_fields(self, state: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.config.by_likelihood:
            fields = self.read(state, condition, flow=True, diffusion=True)
            return fields["flow"], torch.exp(fields["diffusion"])
        g = torch.exp(self.log_diffusion(state, condition))
        with torch.no_grad(), evaluating(self.nets):  # the drift of f, without g∂g: ripples of g would grow
            return self.coefficients(state, condition, Sampler(correction="off"), None, correction=False).drift, g

    def drift_and_diffusion(self, state: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor]:
        sampler = Sampler(correction=self.sampler.correction)
        c = self.coefficients(state, condition, sampler, self._fixed_signs(state), correction=False)
        return c.drift, c.diffusion

    def score(self, state: Tensor, condition: Tensor | None) -> Tensor:
        return self.denoiser(state, condition) / self.sigma

    # Training (alg:neural_sde)

    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        """The losses of flow, diffusion and denoiser at one noisy interpolated state; their gradients do not mix."""
        config, dt = self.config, self.scale.steps(batch.dt)
        now, after = self.scale.states(batch.history), self.scale.states(batch.next)

        # Interpolate, all slots by the same time, and add noise
        start, tau = noise.uniform(0, (2,), stream=1).float().unbind(1)
        tau = torch.where(start <= config.start_probability, 0.0, tau).reshape(-1, *[1] * (after.ndim - 1))
        eps = noise.normal(0, tuple(now.shape[1:]))
        x = moved(now, torch.lerp(now[:, -1], after, tau), tau * dt)
        condition = self._condition(batch.context, (batch.time + tau.flatten() * batch.dt) / self.scale.step)
        if config.interpolation == "bridge":  # x_τ then has the law of the path, which the straight line narrows
            with torch.no_grad(), evaluating(self.nets):
                spread = torch.exp(self.log_diffusion(x, condition)) * (tau * (1 - tau) * dt).sqrt()
            x[:, -1] += spread * noise.normal(0, self.scale.shape, stream=2)
        x = x + self.sigma * eps

        # Flow. Δx is that of the clean states: a noisy one would add σ²/Δt to g²
        losses: dict[str, Tensor] = {}
        d = None
        target = (after - now[:, -1]) / dt
        if config.by_likelihood:  # flow and diffusion together, by the law of the whole step
            losses["likelihood"] = self.likelihood_loss(batch, now if config.measurement else x, target * dt)
        else:
            fits = config.diffusion and (config.transition == "euler" or config.flow_loss == "nll")
            fields = self.read(x, condition, flow=True, diffusion=fits, denoiser=config.denoiser)
            r, log_g, d = fields["flow"] - target, fields.get("diffusion"), fields.get("denoiser")
            if config.flow_loss == "nll" and log_g is not None:
                losses["flow"] = flow_nll(r, dt, log_g)
            else:
                losses["flow"] = flow_mse(r, dt) if config.flow_loss == "mse" else flow_log(r, config.delta)
            # Diffusion, on residuals without dropout
            if config.transition == "moments":
                losses["diffusion"] = self.likelihood_loss(batch, now, target * dt)
            elif log_g is not None:
                if self.training and has_dropout(self.nets):
                    with torch.no_grad(), evaluating(self.nets):
                        r = self.flow(x, condition) - target
                losses["diffusion"] = DIFFUSION_LOSSES[config.diffusion_loss](r, dt, log_g)
                if config.refiner:
                    spread = torch.exp(log_g.detach()) * dt.sqrt()
                    xi, eps_xi = -r.detach() * dt / spread, noise.normal(0, self.scale.shape, stream=3)
                    h = self.refiner(x, condition, after + spread * eps_xi)
                    losses["refiner"] = config.refiner_weight * refiner_mse(h, xi, eps_xi)
        # Denoiser
        if config.denoiser:
            error = denoiser_dsm(self.denoiser(x, condition) if d is None else d, eps[:, -1])
            if config.antithetic:  # what is linear in ε cancels
                error = 0.5 * (error + denoiser_dsm(self.denoiser(x - 2 * self.sigma * eps, condition), -eps[:, -1]))
            losses["denoiser"] = config.denoiser_weight * error
        # α, by the likelihood of the clean pair
        if config.alpha:
            clean = self._condition(batch.context, batch.time / self.scale.step)
            losses["alpha"] = self._alpha_loss(now, target, dt, clean, noise)

        return {k: observed_mean(v, batch.mask) for k, v in losses.items()}

    def _alpha_loss(self, now: Tensor, target: Tensor, dt: Tensor, condition: Tensor | None, noise: Noise) -> Tensor:
        flow_only = Sampler(balance=0.0, correction=self.sampler.correction)
        signs = partial(noise.signs, 0, self.scale.shape, stream=2)
        with torch.no_grad(), evaluating(self.nets):
            c = self.coefficients(now, condition, flow_only, signs, correction=True)
            score = self.score(now, condition)
        r = c.drift + self.alpha(now, condition) * score + self.balance * c.correction - target
        return flow_nll(r, dt, c.diffusion.log())

    # Sampling

    @property
    def balance(self) -> float:
        """2 E[τ]: what the drift owes to the interpolation in training."""
        return 1.0 - self.config.start_probability

    @property
    def has_score(self) -> bool:
        """Whether there is a denoiser trained with noise."""
        return self.config.denoiser and self.config.noisy

    def refines(self, sampler: Sampler) -> bool:
        """Whether steps take a second pass, of the refiner."""
        return self.config.refiner and sampler.refine and sampler.diffusion > 0

    def check_sampler(self, sampler: Sampler, gaps: Tensor) -> None:
        if self.refines(sampler):
            steps = gaps / steps_in(gaps, self.max_step(sampler))
            off = steps[(gaps > 0) & of_another_length(steps)]
            if len(off) or sampler.solver != "euler":
                took = f"steps of {float(off[0]) * self.scale.step:g}" if len(off) else f"{sampler.solver=}"
                remedy = "Draw at times that far apart, or pass Sampler(refine=False)."
                raise ValueError(f"The refiner knows Euler's steps of {self.scale.step:g}. Got {took}. {remedy}")
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
        pull, noisy = sampler.pull * self.scale.step, self.config.diffusion and sampler.diffusion > 0
        balance = 0.0 if not noisy else self.balance if sampler.balance is None else sampler.balance
        sloped = noisy and (balance > 0 or correction) and sampler.correction != "off"
        learned = self.config.alpha and sampler.balance is None and sampler.diffusion > 0
        scored = self.has_score and (balance > 0 or pull > 0 or learned)
        fields = self.read(state, condition, flow=True, diffusion=noisy and not sloped, denoiser=scored)
        drift = fields["flow"]
        g_dg: Tensor | float = 0.0
        if sloped:
            g, g_dg = self._g_and_dg(state, condition, sampler, signs)
        else:
            g = sampler.diffusion * torch.exp(fields["diffusion"]) if noisy else torch.zeros_like(drift)
        if scored:
            push = pull * self.sigma
            if learned or balance > 0:
                weight = sampler.diffusion**2 * self.alpha(state, condition) if learned else balance * 0.5 * g**2
                push = push + weight / self.sigma
            drift = drift + push * fields["denoiser"]
        drift = drift + balance * g_dg if balance > 0 else drift
        g = torch.sqrt(g**2 + 2 * pull * self.sigma**2) if sampler.pull_noise else g
        return Coefficients(drift, g, g_dg)

    def _g_and_dg(self, state: Tensor, condition: Tensor | None, sampler: Sampler, signs: Any) -> tuple[Tensor, Tensor]:
        """g and the diagonal of g∂g = g² ∂log g by the newest slot."""
        log_g, slope, passes = newest_slope(
            partial(self.log_diffusion, condition=condition), state, sampler.correction, signs
        )
        self.count(diffusion=passes)
        g = sampler.diffusion * torch.exp(log_g)
        return g, g**2 * slope

    def advance(self, step: Step, condition: Condition, noise: Noise) -> Tensor:
        """eq:euler_maruyama_discretization, a scheme of higher order, or a refined step."""
        signs = partial(noise.signs, step.index, self.scale.shape, stream=1)

        def sde(x: Tensor, t: Tensor, *, correction: bool) -> Coefficients:
            return self.coefficients(step.state(x, t), condition(t), self.sampler, signs, correction=correction)

        if not self.refines(self.sampler):
            return SCHEMES[self.sampler.solver](sde, step.x, step.time, step.dt, step.dw)
        state, given = step.state(step.x, step.time), condition(step.time)
        c = self.coefficients(state, given, self.sampler, signs, correction=False)
        mean, spread = step.x + c.drift * step.dt, c.diffusion * step.dt.sqrt()
        proposed = mean + math.sqrt(2) * spread * step.z
        h = self.refiner(state, given, proposed)
        rest = self.sampler.refine_noise * noise.normal(step.index, self.scale.shape, stream=2)
        return mean + spread * (step.z + h + rest) / math.sqrt(2)
