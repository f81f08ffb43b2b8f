"""SDEs whose truth is known: drift, diffusion, paths and transition densities, in float64.

Paths come from the exact transition where there is one (Ornstein-Uhlenbeck, geometric Brownian motion, Cox-Ingersoll-Ross)
and from fine stochastic Heun steps otherwise: those systems have additive noise, where the scheme is weakly of order two.
Transition densities are exact, or estimated without bias in the density of fine Euler steps by sampling bridges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

FINE = 1 / 256
"""Longest step of the reference simulation, in units of a system's time scale; eight times as much on the way to its start."""

Field = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class System:
    """dx = drift(x) dt + diffusion(x) dw with diagonal diffusion; both map (N, d) to (N, d)."""

    dim: int
    dt: float  # the usual time between observations
    diffusion: Field
    start: Callable[[int, np.random.Generator], np.ndarray]  # draws first states (n, d)
    basis: Field
    """Terms (N, d, K) of the drift: the parametric family is linear in its K coefficients, the truth is `coefficients`."""
    coefficients: tuple[float, ...]
    burn_in: float = 0.0
    """Time from the start to the stationary law; 0 where the start is of that law, or there is none."""
    stationary: bool = True
    time_scale: float = 1.0
    path_steps: int = 200  # usual transitions of one path
    transition: Callable[[Tensor, Tensor, np.random.Generator], Tensor] | None = None  # exact step of lengths dt (N, 1)
    exact_log_prob: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None

    def drift(self, x: Tensor) -> Tensor:
        return self.basis(x) @ torch.tensor(self.coefficients, dtype=x.dtype, device=x.device)

    def simulate(
        self, x: Float[Tensor, "P d"], times: Float[Tensor, "P T"], rng: np.random.Generator, *, fine: float = FINE
    ) -> Float[Tensor, "P T d"]:
        """States at the given times; x is the state at the first of them."""
        out, x = [x], x.double()
        for gap in times.double().diff(dim=1).unbind(1):
            x = self._advance(x, gap[:, None], rng, fine)
            out.append(x)
        return torch.stack(out, dim=1)

    def _advance(self, x: Tensor, dt: Tensor, rng: np.random.Generator, fine: float) -> Tensor:
        if self.transition is not None:
            return self.transition(x, dt, rng)
        num = max(1, math.ceil(float(dt.max()) / (fine * self.time_scale) - 1e-9))
        h, g = dt / num, self.diffusion(x)  # the noise is additive
        for _ in range(num):
            noise = g * h.sqrt() * _normal(rng, x)
            f = self.drift(x)
            x = x + 0.5 * h * (f + self.drift(x + h * f + noise)) + noise
        return x

    def first_states(self, num: int, rng: np.random.Generator) -> Float[Tensor, "N d"]:
        """States from which paths start: of the stationary law where there is one."""
        x = torch.from_numpy(self.start(num, rng))
        if self.burn_in == 0:
            return x
        times = torch.tensor([[0.0, self.burn_in]]).expand(num, 2)
        out = self.simulate(x, times, rng, fine=8 * FINE)[:, 1]
        lost = ~out.isfinite().all(1)
        if lost.any():  # a rare path went so far out that long steps are unstable there
            out[lost] = self.simulate(x[lost], times[lost], rng)[:, 1]
        return out

    def log_prob(
        self, x: Float[Tensor, "N d"], y: Float[Tensor, "N d"], dt: Float[Tensor, " N"], *, seed: int = 0
    ) -> Float[Tensor, " N"]:
        x, y, dt = x.double(), y.double(), dt.double()[:, None]
        if self.exact_log_prob is not None:
            return self.exact_log_prob(x, y, dt)
        return bridge_log_prob(self.drift, self.diffusion, x, y, dt, rng=np.random.default_rng(seed))


def _normal(rng: np.random.Generator, like: Tensor) -> Tensor:
    return torch.from_numpy(rng.standard_normal(tuple(like.shape)))


def _gauss(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return (-0.5 * ((y - mean) ** 2 / variance + torch.log(2 * math.pi * variance))).sum(-1)


def bridge_log_prob(
    drift: Field,
    diffusion: Field,
    x: Float[Tensor, "N d"],
    y: Float[Tensor, "N d"],
    dt: Float[Tensor, "N 1"],
    *,
    rng: np.random.Generator,
    num_steps: int = 16,
    num_samples: int = 256,
    chunk: int = 2_000,
) -> Float[Tensor, " N"]:
    """Log density of `num_steps` Euler steps from x to y, by importance sampling of bridges (Durham and Gallant, 2002)."""
    if len(x) > chunk:
        one = partial(bridge_log_prob, drift, diffusion, rng=rng, num_steps=num_steps, num_samples=num_samples)
        return torch.cat([one(*part) for part in zip(x.split(chunk), y.split(chunk), dt.split(chunk))])
    n = len(x)
    end = y.repeat_interleave(num_samples, 0)
    h = (dt / num_steps).repeat_interleave(num_samples, 0)
    u, weight = x.repeat_interleave(num_samples, 0), torch.zeros(n * num_samples, dtype=torch.float64)
    for k in range(num_steps):
        left = num_steps - k
        mean, variance = u + drift(u) * h, diffusion(u) ** 2 * h
        if left == 1:
            weight += _gauss(end, mean, variance)
            break
        middle, narrow = u + (end - u) / left, variance * (left - 1) / left
        z = _normal(rng, u)
        new = middle + narrow.sqrt() * z
        weight += _gauss(new, mean, variance) - _gauss(new, middle, narrow)
        u = new
    return torch.logsumexp(weight.reshape(n, num_samples), dim=1) - math.log(num_samples)


def _const(*values: float) -> Field:
    row = torch.tensor(values, dtype=torch.float64)
    return lambda x: row.to(x).expand(len(x), -1)


def _terms(*rows: list[Tensor]) -> Float[Tensor, "N d K"]:
    """A basis from the terms of each dimension."""
    return torch.stack([torch.stack(row, -1) for row in rows], dim=1)


def _linear(matrix: Tensor, noise: Tensor) -> System:
    """dx = -A x dt + diag(noise) dw, with exact steps and density (Van Loan's block exponential)."""
    d = len(noise)
    index = [(i, j) for i in range(d) for j in range(d) if matrix[i, j] != 0]

    def law(dt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gaps, place = torch.unique(dt[:, 0], return_inverse=True)
        if len(gaps) > 64:  # irregular stamps: the law is smooth in dt, a fine table is exact to 1e-7
            gaps = torch.linspace(float(gaps[0]), float(gaps[-1]), 4096, dtype=torch.float64)
            place = torch.round((dt[:, 0] - gaps[0]) / (gaps[1] - gaps[0])).long()
        top = torch.cat([matrix, torch.diag(noise**2)], dim=1)
        low = torch.cat([torch.zeros_like(matrix), -matrix.T], dim=1)
        e = torch.linalg.matrix_exp(torch.cat([top, low])[None] * gaps[:, None, None])
        decay = e[:, d:, d:].mT
        return decay, decay @ e[:, :d, d:], place

    def step(x: Tensor, dt: Tensor, rng: np.random.Generator) -> Tensor:
        decay, cov, place = law(dt)
        root = torch.linalg.cholesky(cov)
        z = _normal(rng, x)
        return ((decay[place] @ x[..., None]) + root[place] @ z[..., None])[..., 0]

    def log_prob(x: Tensor, y: Tensor, dt: Tensor) -> Tensor:
        decay, cov, place = law(dt)
        normal = torch.distributions.MultivariateNormal(
            torch.zeros(d, dtype=torch.float64), scale_tril=torch.linalg.cholesky(cov)[place]
        )
        return normal.log_prob(y - (decay[place] @ x[..., None])[..., 0])

    def basis(x: Tensor) -> Tensor:
        out = torch.zeros(len(x), d, len(index), dtype=x.dtype)
        for k, (i, j) in enumerate(index):
            out[:, i, k] = -x[:, j]
        return out

    return System(
        dim=d,
        dt=0.05,
        diffusion=_const(*noise.tolist()),
        start=lambda n, rng: rng.standard_normal((n, d)),
        burn_in=0.0 if d == 1 else 20.0,
        basis=basis,
        coefficients=tuple(float(matrix[i, j]) for i, j in index),
        transition=step,
        exact_log_prob=log_prob,
    )


def ornstein_uhlenbeck() -> System:
    """dx = -x dt + sqrt(2) dw, stationary N(0, 1)."""
    one = torch.ones(1, dtype=torch.float64)
    return _linear(one[:, None], math.sqrt(2) * one)


def coupled_ornstein_uhlenbeck() -> System:
    """Ten dimensions in a ring: each decays, follows its neighbour before it and is driven back by the one after."""
    d = 10
    matrix = torch.eye(d, dtype=torch.float64)
    for i in range(d):
        matrix[i, (i - 1) % d] = -0.8
        matrix[i, (i + 1) % d] = 0.6
    return _linear(matrix, torch.linspace(0.5, 1.5, d, dtype=torch.float64))


def geometric_brownian_motion(mu: float = 0.5, s: float = 0.3) -> System:
    """dx = mu x dt + s x dw, from a lognormal law; it has no stationary one."""

    def step(x: Tensor, dt: Tensor, rng: np.random.Generator) -> Tensor:
        return x * torch.exp((mu - s**2 / 2) * dt + s * dt.sqrt() * _normal(rng, x))

    def log_prob(x: Tensor, y: Tensor, dt: Tensor) -> Tensor:
        return _gauss(torch.log(y / x), (mu - s**2 / 2) * dt, s**2 * dt) - y.log().sum(-1)

    return System(
        dim=1,
        dt=0.05,
        diffusion=lambda x: s * x,
        start=lambda n, rng: np.exp(0.3 * rng.standard_normal((n, 1))),
        basis=lambda x: x[..., None],
        coefficients=(mu,),
        stationary=False,
        transition=step,
        exact_log_prob=log_prob,
        path_steps=20,
    )


def cox_ingersoll_ross(a: float = 1.0, b: float = 1.0, s: float = 0.5) -> System:
    """dx = a (b - x) dt + s sqrt(x) dw: the noise depends on the state, g dg = s²/2; stationary Gamma."""
    df, shape = 4 * a * b / s**2, 2 * a * b / s**2

    def step(x: Tensor, dt: Tensor, rng: np.random.Generator) -> Tensor:
        c = (s**2 * (1 - torch.exp(-a * dt)) / (4 * a)).numpy()
        return torch.from_numpy(c * rng.noncentral_chisquare(df, x.numpy() * np.exp(-a * dt.numpy()) / c))

    return System(
        dim=1,
        dt=0.05,
        diffusion=lambda x: s * x.clamp(min=1e-12).sqrt(),
        start=lambda n, rng: rng.gamma(shape, s**2 / (2 * a), (n, 1)),
        basis=lambda x: torch.stack([torch.ones_like(x), -x], dim=-1),
        coefficients=(a * b, a),
        transition=step,
    )


def double_well(s: float = 0.5) -> System:
    """dx = (x - x³) dt + s dw, with two wells at ±1."""
    grid = np.linspace(-2.5, 2.5, 20_001)
    density = np.exp(2 / s**2 * (grid**2 / 2 - grid**4 / 4))
    law = np.cumsum(density) / density.sum()
    return System(
        dim=1,
        dt=0.05,
        diffusion=_const(s),
        start=lambda n, rng: np.interp(rng.random((n, 1)), law, grid),
        basis=lambda x: torch.stack([x, x**3], dim=-1),
        coefficients=(1.0, -1.0),
    )


def van_der_pol(mu: float = 1.0, s: float = 0.5) -> System:
    """dx = y dt + s dw, dy = (mu (1 - x²) y - x) dt + s dw: a noisy limit cycle."""

    def basis(x: Tensor) -> Tensor:
        u, v, o = x[:, 0], x[:, 1], torch.zeros(len(x), dtype=x.dtype)
        return _terms([v, o, o, o], [o, v, -(u**2) * v, -u])

    return System(
        dim=2,
        dt=0.05,
        diffusion=_const(s, s),
        start=lambda n, rng: rng.standard_normal((n, 2)),
        burn_in=20.0,
        basis=basis,
        coefficients=(1.0, mu, mu, 1.0),
    )


def lorenz(s: float = math.sqrt(6)) -> System:
    """Lorenz' 1963 system (10, 28, 8/3) with additive noise of variance 6 per unit of time."""

    def basis(x: Tensor) -> Tensor:
        u, v, w = x.unbind(1)
        o = torch.zeros_like(u)
        return _terms([v - u, o, o, o, o], [o, u, -u * w, -v, o], [o, o, u * v, o, -w])

    return System(
        dim=3,
        dt=0.01,
        diffusion=_const(s, s, s),
        start=lambda n, rng: rng.standard_normal((n, 3)) + np.array([0.0, 0.0, 25.0]),
        burn_in=15.0,
        basis=basis,
        coefficients=(10.0, 28.0, 1.0, 1.0, 8 / 3),
        time_scale=0.25,
    )


def noise_branching(s: float = 0.2) -> System:
    """dx = dt + s dw, dy = (2 tanh(x) y - y³) dt + s dw: y rests at 0 until x > 0, then noise decides between two branches."""

    def basis(x: Tensor) -> Tensor:
        u, v = x.unbind(1)
        o, one = torch.zeros_like(u), torch.ones_like(u)
        return _terms([one, o, o], [o, torch.tanh(u) * v, v**3])

    return System(
        dim=2,
        dt=0.05,
        diffusion=_const(s, s),
        start=lambda n, rng: np.array([-2.0, 0.0]) + 0.2 * rng.standard_normal((n, 2)),
        basis=basis,
        coefficients=(1.0, 2.0, -1.0),
        stationary=False,
        path_steps=100,
    )


SYSTEMS: dict[str, Callable[[], System]] = {
    "ou": ornstein_uhlenbeck,
    "ou10": coupled_ornstein_uhlenbeck,
    "gbm": geometric_brownian_motion,
    "cir": cox_ingersoll_ross,
    "double_well": double_well,
    "van_der_pol": van_der_pol,
    "lorenz": lorenz,
    "noise_branching": noise_branching,
}
