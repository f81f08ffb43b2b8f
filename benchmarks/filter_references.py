"""References for the filter, independent of it: the exact Kalman filter and smoother, a bootstrap particle filter, made data,
and models whose nets are true fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import linalg
from scipy.special import logsumexp
from torch import Tensor

import neuralsde as nsde

A = np.array([[-1.0, 0.4], [-0.3, -0.7]])
NOISE = np.array([[1.2, 0.5], [0.5, 0.8]])
"""dx = A x dt + dW, Cov dW = NOISE dt: Ornstein-Uhlenbeck in two features."""
Moments = tuple[np.ndarray, np.ndarray]


def linear_gap(a: np.ndarray, noise: np.ndarray, dt: float) -> Moments:
    """Decay and covariance over dt of dx = a x dt + dW, Cov dW = noise dt, by one matrix exponential (Van Loan, 1978)."""
    d = len(a)
    block = linalg.expm(np.block([[-a, noise], [np.zeros((d, d)), a.T]]) * dt)
    decay = block[d:, d:].T
    return decay, decay @ block[:d, d:]


def exact_filter(
    y: np.ndarray,
    gaps: np.ndarray,
    mean: np.ndarray,
    cov: np.ndarray,
    variance: Sequence[float],
    decay_of: Callable[[float], Moments],
    reads: np.ndarray | None = None,
) -> tuple[list[Moments], list[Moments], np.ndarray]:
    """Exact filter and smoother of y (T, d) with NaN where nothing was observed.

    `decay_of(dt)` gives decay and covariance of a gap. Returns filtered and smoothed means and covariances, and the log density
    of each observation given those before.
    """
    reads = np.eye(len(mean)) if reads is None else reads
    before, after, decays, density = [], [], [], []
    for k, row in enumerate(y):
        if k:
            decay, grown = decay_of(gaps[k - 1])
            mean, cov = decay @ mean, decay @ cov @ decay.T + grown
            decays.append(decay)
        before.append((mean, cov))
        seen = ~np.isnan(row)
        h, error = reads[seen], row[seen] - reads[seen] @ mean
        total = h @ cov @ h.T + np.diag(np.asarray(variance)[seen])
        density.append(-0.5 * (error @ linalg.solve(total, error) + np.linalg.slogdet(2 * np.pi * total)[1]))
        gain = cov @ h.T @ linalg.inv(total)
        mean, cov = mean + gain @ error, cov - gain @ h @ cov
        after.append((mean, cov))
    smooth = [after[-1]]
    for k in range(len(y) - 2, -1, -1):
        gain = after[k][1] @ decays[k].T @ linalg.inv(before[k + 1][1])
        m = after[k][0] + gain @ (smooth[0][0] - before[k + 1][0])
        c = after[k][1] + gain @ (smooth[0][1] - before[k + 1][1]) @ gain.T
        smooth.insert(0, (m, c))
    return after, smooth, np.array(density)


def linear_paths(
    rng: np.random.Generator, num: int, length: int, *, missing: float, noise: float, cov: np.ndarray = NOISE
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Noisy, partly observed paths of the linear system at irregular times, and these; NaN is missing."""
    states, stamps, root = [], [], np.linalg.cholesky(linalg.solve_continuous_lyapunov(A, -cov))
    for _ in range(num):
        times = np.concatenate([[0.0], rng.uniform(0.05, 0.6, length - 1)]).cumsum()
        x = [root @ rng.normal(size=2)]
        for gap in np.diff(times):
            decay, grown = linear_gap(A, cov, gap)
            x.append(decay @ x[-1] + np.linalg.cholesky(grown) @ rng.normal(size=2))
        y = np.array(x) + noise * rng.normal(size=(length, 2))
        y[rng.uniform(size=y.shape) < missing] = np.nan
        kept = ~np.isnan(y).all(1)
        states.append(y[kept].astype(np.float32).astype(np.float64))
        stamps.append(times[kept])
    return states, stamps


WELL = 0.5  # noise of the double well


def well_drift(x: Any) -> Any:
    return x - x**3


def first_in_well(rng: np.random.Generator, num: int) -> np.ndarray:
    """States of the stationary law of the double well."""
    grid = np.linspace(-2.5, 2.5, 5001)
    density = np.exp(2 / WELL**2 * (grid**2 / 2 - grid**4 / 4))
    return np.interp(rng.random(num), np.cumsum(density) / density.sum(), grid)


def well_step(x: np.ndarray, gap: float, rng: np.random.Generator, fine: float = 0.02) -> np.ndarray:
    """Paths of the double well over a gap, by Heun's steps: its noise is additive."""
    steps = max(1, int(np.ceil(gap / fine)))
    h = gap / steps
    for _ in range(steps):
        noise = WELL * np.sqrt(h) * rng.standard_normal(len(x))
        f = well_drift(x)
        x = x + 0.5 * h * (f + well_drift(x + h * f + noise)) + noise
    return x


def well_paths(
    rng: np.random.Generator, num: int, length: int, *, noise: float, gaps: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Noisy paths (P, T, 1) of the double well, and their times (T,), which are irregular."""
    times = np.concatenate([[0.0], rng.uniform(*gaps, length - 1)]).cumsum()
    x = [first_in_well(rng, num)]
    for gap in np.diff(times):
        x.append(well_step(x[-1], gap, rng))
    return np.stack(x, 1)[..., None] + noise * rng.normal(size=(num, length, 1)), times


def particle_filter(
    y: np.ndarray, gaps: np.ndarray, variance: float, rng: np.random.Generator, *, num: int = 10_000
) -> np.ndarray:
    """Log density of each observation (T,) of the double well given those before, by a bootstrap particle filter."""
    x, density = first_in_well(rng, num), []
    for k, value in enumerate(y):
        x = well_step(x, gaps[k - 1], rng) if k else x
        log_weight = -0.5 * ((value - x) ** 2 / variance + np.log(2 * np.pi * variance))
        density.append(float(logsumexp(log_weight) - np.log(num)))
        weight = np.exp(log_weight - log_weight.max())
        places = (rng.random() + np.arange(num)) / num
        x = x[np.searchsorted(np.cumsum(weight) / weight.sum(), places).clip(max=num - 1)]
    return np.array(density)


# True fields as nets


class Flow(torch.nn.Module):
    """A true drift, as the net of a model whose scale has mean 0 and spread 1."""

    def __init__(self, drift: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.drift = drift

    def forward(self, state: Tensor, condition: Tensor | None) -> Tensor:
        return self.drift(state.double())


class Diffusion(torch.nn.Module):
    """A constant noise, undone by the bounds of log g."""

    def __init__(self, g: Any) -> None:
        super().__init__()
        self.g = torch.as_tensor(g, dtype=torch.float64)
        self.sizes: list[Any] = []

    def forward(self, state: Tensor, condition: Tensor | None) -> Tensor:
        if not self.sizes:
            return torch.zeros_like(state[:, -1])
        width, middle, slope = self.sizes[0]._bounds()
        raw = (torch.logit((self.g.log() - self.sizes[0].low) / width) - middle) / slope
        return raw.expand_as(state[:, -1])


class Correlation(torch.nn.Module):
    """A constant correlation, by a Cholesky root with rows of unit length."""

    def __init__(self, cov: np.ndarray) -> None:
        super().__init__()
        root = torch.linalg.cholesky(torch.as_tensor(cov, dtype=torch.float64))
        self.columns = (root / torch.diagonal(root)[:, None]).mT.contiguous()

    def forward(self, state: Tensor, condition: Tensor | None) -> Tensor:
        return self.columns.expand(len(state), -1, -1)


def true_model(
    data: Any,
    drift: Callable[[Tensor], Tensor],
    g: Any,
    *,
    step: float = 1.0,
    correlation: np.ndarray | None = None,
    **settings: Any,
) -> nsde.NeuralSDE:
    """A model in float64 with these fields per reference step: drift(state (B, H, d)) and noise g."""
    nets: dict[str, torch.nn.Module] = {"flow": Flow(drift), "diffusion": Diffusion(g)}
    if correlation is not None:
        nets["correlation"] = Correlation(correlation)
    model = nsde.NeuralSDE.for_data(data, nets=nets, **{"noise": 0.0, "denoiser": None, **settings}).double().eval()
    model.scale.mean.zero_()
    model.scale.std.fill_(1.0)
    model.scale.dt_ref.fill_(step)
    model.sizes.rate.fill_(1.0)
    model.sizes.low.fill_(-8.0)
    model.sizes.high.fill_(4.0)
    model.sizes.typical.copy_(torch.as_tensor(g, dtype=torch.float64).log())
    nets["diffusion"].sizes = [model.sizes]  # type: ignore[assignment]
    return model
