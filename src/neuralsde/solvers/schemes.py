"""Schemes for dx = a(x, t) dt + g(x, t) dw (Ito, diagonal g): each maps a state over one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from neuralsde.solvers.correlation import Correlation

EXACT_UP_TO = 32
"""Dimensions up to which "auto" computes g dg exactly."""


@dataclass(frozen=True)
class Coefficients:
    """Values of the SDE at one point: a, g, and the diagonal of g dg/dx, which may be 0 where it was not asked for."""

    drift: Float[Tensor, "P *S"]
    diffusion: Float[Tensor, "P *S"]
    correction: Float[Tensor, "P *S"] | float = 0.0
    correlation: Correlation | None = None  # None: independent noise
    further: Float[Tensor, "P k"] | None = None  # increments of the noise that dimensions share

    def noise(self, dw: Float[Tensor, "P *S"]) -> Float[Tensor, "P *S"]:
        """Of a step with these increments of the Wiener process."""
        if self.correlation is None:
            return self.diffusion * dw
        return self.diffusion * self.correlation.mix(dw.flatten(1), self.further).reshape(dw.shape)


@runtime_checkable
class SDE(Protocol):
    """An Ito SDE as the schemes see it."""

    def __call__(self, x: Tensor, t: Tensor, *, correction: bool) -> Coefficients: ...


def diagonal_slope(y: Tensor, x: Tensor, how: str, signs: Callable[[], Tensor] | None) -> tuple[Tensor, int]:
    """The diagonal dy_i/dx_i of y(x), both (P, *S), and the backward passes it took.

    Exact, with one pass per dimension, or by one Hutchinson probe of random signs; "auto" is exact in few dimensions.
    """
    _refuse_to_trace()
    y = y + 0 * x  # y may be constant
    size = y[0].numel()
    if how == "probe" or (how == "auto" and size > EXACT_UP_TO):
        assert signs is not None
        v = signs()
        return torch.autograd.grad((y * v).sum(), x)[0] * v, 1
    flat = y.flatten(1)
    slopes = [torch.autograd.grad(flat[:, i].sum(), x, retain_graph=True)[0].flatten(1)[:, i] for i in range(size)]
    return torch.stack(slopes, dim=1).reshape(x.shape), size


def _refuse_to_trace() -> None:
    if torch.compiler.is_exporting():
        remedy = "Use solver='euler_maruyama' and tau='start', or leave the slope out: Sampler(correction='off', measured=False)."
        raise ValueError(f"A slope of the fields is taken in every step, which no exported graph can hold. {remedy}")


def newest_divergence(
    field: Callable[[Tensor], Float[Tensor, "P d d"]],
    state: Float[Tensor, "P H *S"],
    how: str,
    signs: Callable[[], Tensor] | None,
) -> tuple[Tensor, int]:
    """Row divergence Σ_j ∂_j Σ_ij of a matrix field by the newest slot (P, *S), and the derivatives that took.

    Exact, by one directional derivative per dimension, or by that of Σ v along one probe v of random signs.
    """
    _refuse_to_trace()
    with torch.enable_grad():
        x = state[:, -1].detach().requires_grad_()
        matrix = field(torch.cat([state[:, :-1].detach(), x[:, None]], dim=1)) + 0 * x.flatten(1)[:, :, None]
        size = matrix.shape[-1]
        if how == "probe" or (how == "auto" and size > EXACT_UP_TO):
            assert signs is not None
            v = signs()
            return _along((matrix @ v.flatten(1)[..., None])[..., 0], x, v).reshape(x.shape), 1
        total = torch.zeros_like(x).flatten(1)
        for j in range(size):
            unit = torch.zeros_like(total)
            unit[:, j] = 1.0
            total = total + _along(matrix[:, :, j], x, unit.reshape(x.shape))
    return total.detach().reshape(x.shape), size


def _along(y: Float[Tensor, "P d"], x: Tensor, v: Tensor) -> Float[Tensor, "P d"]:
    """The derivative of y(x) along v: that by u of the one along u backwards."""
    u = torch.zeros_like(y, requires_grad=True)
    (back,) = torch.autograd.grad(y, x, u, create_graph=True)
    return torch.autograd.grad(back, u, v, retain_graph=True)[0].detach()


def newest_slope(
    field: Callable[[Tensor], Tensor], state: Float[Tensor, "P H *S"], how: str, signs: Callable[[], Tensor] | None
) -> tuple[Tensor, Tensor, int]:
    """A field at a state, its diagonal slope by the newest slot, and the backward passes that took."""
    with torch.enable_grad():
        x = state[:, -1].detach().requires_grad_()
        y = field(torch.cat([state[:, :-1].detach(), x[:, None]], dim=1))
        slope, passes = diagonal_slope(y, x, how, signs)
    return y.detach(), slope, passes


def euler(sde: SDE, x: Tensor, t: Tensor, dt: Tensor, dw: Tensor) -> Tensor:
    """Euler-Maruyama: strong order 1/2, weak order 1."""
    c = sde(x, t, correction=False)
    return x + c.drift * dt + c.noise(dw)


def milstein(sde: SDE, x: Tensor, t: Tensor, dt: Tensor, dw: Tensor) -> Tensor:
    """Milstein for diagonal noise: strong order 1 where g_i depends on x_i alone, else 1/2. The law of paths is of weak order 1."""
    c = sde(x, t, correction=True)
    return x + c.drift * dt + c.diffusion * dw + 0.5 * c.correction * (dw**2 - dt)


def heun(sde: SDE, x: Tensor, t: Tensor, dt: Tensor, dw: Tensor) -> Tensor:
    """Stochastic Heun: strong order as `milstein`, order 2 in the deterministic part.

    The trapezoidal rule converges to the Stratonovich solution, so it is given the drift in that form, a - g dg / 2.
    """
    c0 = sde(x, t, correction=True)
    a0 = c0.drift - 0.5 * c0.correction
    c1 = sde(x + a0 * dt + c0.diffusion * dw, t + dt.reshape(t.shape), correction=True)
    a1 = c1.drift - 0.5 * c1.correction
    return x + 0.5 * (a0 + a1) * dt + 0.5 * (c0.diffusion + c1.diffusion) * dw


SCHEMES = {"law": euler, "euler_maruyama": euler, "heun": heun, "milstein": milstein}
"""By the name of the solver; a law that does not say otherwise draws as Euler does."""
