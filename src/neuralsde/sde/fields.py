"""The learned fields f, g, d at a state, in units of the scale: what the nets say, and how many passes that took.

`Fields` lives for one call. It holds the nets in the mode of that call and counts their passes, so that the model itself
is never written to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuralsde.models.evaluation import evaluated, has_dropout
from neuralsde.nets.fused import read_all
from neuralsde.nets.target import EMBEDDING, read_target
from neuralsde.sde.config import NeuralSDEConfig, Sampler
from neuralsde.sde.sizes import StepSizes
from neuralsde.solvers.correlation import Correlation, FullCorrelation, LowRankCorrelation
from neuralsde.solvers.schemes import Coefficients, newest_divergence, newest_slope


@dataclass(frozen=True)
class Terms:
    """What a sampler makes of the fields."""

    pull: float  # per reference step
    balance: float
    noisy: bool
    sloped: bool  # g∂g is needed
    learned: bool  # α(x) weighs the score
    scored: bool
    correlated: bool


@dataclass(frozen=True)
class Fields:
    """Flow, diffusion, denoiser and more; nets map (state (B, H, *S), condition (B, K) | None) to (B, *S), or (B, F, *S)."""

    config: NeuralSDEConfig
    nets: nn.ModuleDict
    sizes: StepSizes
    sigma: Tensor  # noise of the training inputs
    step: float  # the reference step in raw time
    passes: Counter[str] = field(default_factory=Counter)

    def read(self, state: Tensor, condition: Tensor | None, *names: str) -> dict[str, Tensor]:
        """The named fields: one pass of each net, or one of the trunk that they share."""
        sizes, raw = self.sizes, self.outputs(state, condition, *names)
        raw = {name: sizes.whole(value) for name, value in raw.items()}
        units: dict[str, Any] = {"flow": partial(sizes.velocity, state=state), "diffusion": sizes.log_g}
        return {name: units[name](raw[name]) if name in units else raw[name] for name in names}

    def outputs(self, state: Tensor, condition: Tensor | None, *names: str) -> dict[str, Tensor]:
        """What the nets give for the named fields, in their own units and for the directions that they see."""
        config, sizes = self.config, self.sizes
        self.passes.update(["trunk"] if config.shared else names)
        seen = sizes.leading(state)
        if config.shared:
            (trunk,) = read_all([self.nets["trunk"]], seen, condition)
            every = _plain(trunk).split(self._num_fields, 1)
            return {name: v.select(1, 0) if v.shape[1] == 1 else v for name, v in zip(config.parts, every)}
        given = read_all([self.nets[name] for name in names], seen, condition)
        return {name: _plain(value) for name, value in zip(names, given)}

    @property
    def _num_fields(self) -> list[int]:
        return list(self.config.num_fields(self.config.directions or self.sizes.low.numel()).values())

    def correlation(self, read: Mapping[str, Tensor]) -> Correlation | None:
        """How the noise goes together, of fields that were read; None where it is independent."""
        if "correlation" not in read:
            return None
        raw, size = read["correlation"], self.sizes.low.numel()
        columns = raw.reshape(raw.shape[0], -1, size)
        if self.config.parts["correlation"] is not None:
            return LowRankCorrelation.of(columns)
        return FullCorrelation.of(functional.pad(columns, (0, 0, 0, size - columns.shape[1])))

    def flow(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """f, in units of std / dt_ref."""
        return self.read(state, condition, "flow")["flow"]

    def log_diffusion(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """log g, within the bounds of the data."""
        return self.read(state, condition, "diffusion")["diffusion"]

    def denoiser(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """d ≈ -ε, of the newest slot."""
        return self.read(state, condition, "denoiser")["denoiser"]

    def score(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """Gradient of the log density of the data by the newest slot."""
        return self.denoiser(state, condition) / self.sigma

    def alpha(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """α(x) ≥ 0, the learned weight of the score, in units of std² / dt_ref."""
        share = nn.functional.softplus(self.read(state, condition, "alpha")["alpha"] - 2)
        return share * torch.exp(2 * self.sizes.typical)

    def transport(self, state: Tensor, condition: Tensor | None, u: Tensor, s: Tensor) -> Tensor:
        """v of a step that is being made: u, at generation times s."""
        self.passes["transport"] += 1
        # As loud as the sines of s, or a net hears those alone
        gain = max(1.0, math.sqrt(EMBEDDING / 2 / u[0].numel()))
        return read_target(self.nets["transport"], gain * u, s, state, condition)

    @property
    def evaluated(self) -> Fields:
        """The same fields without dropout."""
        return replace(self, nets=evaluated(self.nets))

    @property
    def has_dropout(self) -> bool:
        """Whether the fields are others than they would be without dropout."""
        return self.nets.training and has_dropout(self.nets)

    # The SDE that has the data's law

    @property
    def balance(self) -> float:
        """2 E[τ]: what the drift owes to the interpolation in training."""
        return 1.0 - self.config.start_probability

    @property
    def has_score(self) -> bool:
        """Whether there is a denoiser trained with noise."""
        return self.config.denoiser is not None and self.config.noisy

    def terms(self, sampler: Sampler, *, correction: bool = False) -> Terms:
        """Those that `sampler` needs, and g∂g where a `correction` is asked for."""
        denoiser, pull = self.config.denoiser, sampler.pull * self.step
        noisy = self.config.law.stochastic and sampler.diffusion > 0
        balance = 0.0 if not noisy else self.balance if sampler.balance is None else sampler.balance
        learned = denoiser is not None and denoiser.alpha and sampler.balance is None and sampler.diffusion > 0
        return Terms(
            pull=pull,
            balance=balance,
            noisy=noisy,
            sloped=noisy and (balance > 0 or correction) and sampler.correction != "off",
            learned=learned,
            scored=self.has_score and (balance > 0 or pull > 0 or learned),
            correlated=noisy and bool(self.config.covariance.further),
        )

    def coefficients(
        self,
        state: Tensor,
        condition: Tensor | None,
        sampler: Sampler,
        signs: Any,
        *,
        correction: bool,
        read: Mapping[str, Tensor] | None = None,
    ) -> Coefficients:
        """drift = f + balance (½g² s + g∂g) + pull σ² s, the diffusion and, if asked or owed, g∂g.

        `signs()` gives the Hutchinson probe of g∂g; `read` holds fields at this state that are known already.
        """
        terms = self.terms(sampler, correction=correction)
        balance, alone = terms.balance, terms.sloped and not terms.correlated  # g is then read with its slope
        wanted = {
            "flow": True,
            "diffusion": terms.noisy and not alone,
            "correlation": terms.correlated,
            "denoiser": terms.scored,
        }
        fields = dict(read or {})
        unread = [name for name, used in wanted.items() if used and name not in fields]
        fields |= self.read(state, condition, *unread) if unread else {}
        drift = fields["flow"]
        g_dg: Tensor | float = 0.0
        correlation = self.correlation(fields) if terms.correlated else None
        if alone:
            g, g_dg = self._g_and_dg(state, condition, sampler, signs)
        else:
            g = sampler.diffusion * torch.exp(fields["diffusion"]) if terms.noisy else torch.zeros_like(drift)
        if terms.scored:
            push = terms.pull * self.sigma
            if correlation is not None and balance > 0:
                drift = drift + balance * 0.5 * _times(correlation, g, fields["denoiser"] / self.sigma)
            elif terms.learned or balance > 0:
                learned = terms.learned
                weight = sampler.diffusion**2 * self.alpha(state, condition) if learned else balance * 0.5 * g**2
                push = push + weight / self.sigma
            drift = drift + push * fields["denoiser"]
        if correlation is not None and terms.sloped:
            g_dg = 0.5 * self._divergence(state, condition, sampler, signs)
        drift = drift + balance * g_dg if balance > 0 else drift
        return Coefficients(drift, g, g_dg, correlation)

    def _divergence(self, state: Tensor, condition: Tensor | None, sampler: Sampler, signs: Any) -> Tensor:
        """∇·Σ by the newest slot: 2 g∂g where noise is independent."""

        def covariance(x: Tensor) -> Tensor:
            read = self.read(x, condition, "diffusion", "correlation")
            correlation = self.correlation(read)
            assert correlation is not None
            return sampler.diffusion**2 * correlation.covariance(torch.exp(read["diffusion"]).flatten(1))

        divergence, passes = newest_divergence(covariance, state, sampler.correction, signs)
        self.passes["diffusion"] += passes
        return divergence

    def _g_and_dg(self, state: Tensor, condition: Tensor | None, sampler: Sampler, signs: Any) -> tuple[Tensor, Tensor]:
        """g and the diagonal of g∂g = g² ∂log g by the newest slot."""
        log_g, slope, passes = newest_slope(
            partial(self.log_diffusion, condition=condition), state, sampler.correction, signs
        )
        self.passes["diffusion"] += passes
        g = sampler.diffusion * torch.exp(log_g)
        return g, g**2 * slope


def _plain(values: Tensor) -> Tensor:
    """In float32, whatever the precision of the nets, and in one piece; nets in float64 keep it."""
    return values if values.dtype == torch.float64 else values.to(torch.float32, memory_format=torch.contiguous_format)


def _times(correlation: Correlation, g: Tensor, v: Tensor) -> Tensor:
    """Σ v."""
    return g * correlation.times((g * v).flatten(1)).reshape(v.shape)
