"""The paper's objectives, one function each: tensors (B, *S) to values of the same shape.

`NeuralSDE.loss` averages them over what was observed. Symbols are those of `model`.
"""

from __future__ import annotations

import torch
from torch import Tensor

FAR = 6.0  # standard deviations


def flow_mse(r: Tensor, dt: Tensor) -> Tensor:
    """r² Δt: the likelihood at constant g. Without Δt, short gaps would dominate irregular data."""
    return r**2 * dt


def flow_log(r: Tensor, delta: float) -> Tensor:
    """½ log(r² + δ): eq:simplified_f_objective, desingularised. Mode-seeking; tends to r²/2δ as δ grows."""
    return 0.5 * torch.log(r**2 + delta)


def flow_nll(r: Tensor, dt: Tensor, log_g: Tensor) -> Tensor:
    """½ r² Δt / g²: the first term of eq:per_step_objective, with g held fixed."""
    return 0.5 * r**2 * dt * torch.exp(-2 * log_g.detach())


def flow_loss(name: str, r: Tensor, dt: Tensor, log_g: Tensor, delta: float = 1e-3) -> Tensor:
    """The loss of the flow that goes by this name."""
    if name == "nll":
        return flow_nll(r, dt, log_g)
    return flow_mse(r, dt) if name == "mse" else flow_log(r, delta)


def diffusion_nll(r: Tensor, dt: Tensor, log_g: Tensor) -> Tensor:
    """½ r² Δt / g² + log g: eq:per_step_objective as a function of g. Its minimum is g² = E[r² Δt | x]."""
    return 0.5 * r.detach() ** 2 * dt * torch.exp(-2 * log_g) + log_g


def diffusion_match(r: Tensor, dt: Tensor, log_g: Tensor) -> Tensor:
    """½ (g² - r² Δt)²: eq:simplified_g_objective. The same minimum, dominated by large residuals."""
    return 0.5 * (torch.exp(2 * log_g) - r.detach() ** 2 * dt) ** 2


def diffusion_log(r: Tensor, dt: Tensor, log_g: Tensor) -> Tensor:
    """½ (log g - log |r√Δt|)²: the authors' code. Its minimum is e^E[log|r√Δt|], 0.53 of the std of Gaussian residuals."""
    return 0.5 * (log_g - 0.5 * torch.log(r.detach() ** 2 * dt + 1e-12)) ** 2


def denoiser_dsm(d: Tensor, eps: Tensor) -> Tensor:
    """(d + ε)²: eq:dsm_objective with the right sign, in units of σ."""
    return (d + eps) ** 2


DIFFUSION_LOSSES = {"nll": diffusion_nll, "match": diffusion_match, "log": diffusion_log}
