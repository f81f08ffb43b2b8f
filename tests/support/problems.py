"""SDEs whose truth is known: fields, paths drawn from the exact law (or finely simulated), transition densities.

All are one-dimensional. `paths` gives states (P, T, 1), `dt` apart; `log_prob(x, y)` is the density of one step of `dt`.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats
from scipy.interpolate import RegularGridInterpolator


@dataclass(frozen=True)
class OrnsteinUhlenbeck:
    """dx = -x dt + sqrt(2) dw, stationary N(0, 1)."""

    dt: float = 0.1

    def drift(self, x):
        return -x

    def diffusion(self, x):
        return np.full_like(x, np.sqrt(2.0))

    def paths(self, rng, num_paths, num_times):
        decay, x = np.exp(-self.dt), rng.standard_normal(num_paths)
        out = [x]
        for _ in range(num_times - 1):
            x = decay * x + np.sqrt(1 - decay**2) * rng.standard_normal(num_paths)
            out.append(x)
        return np.stack(out, 1)[..., None]

    def log_prob(self, x, y):
        decay = np.exp(-self.dt)
        return stats.norm.logpdf(y, decay * x, np.sqrt(1 - decay**2))


@dataclass(frozen=True)
class DoubleWell:
    """dx = (x - x^3) dt + 0.5 dw, stationary density exp((2 x^2 - x^4) / (4 * 0.125)) up to a factor."""

    dt: float = 0.1
    fine: int = 32
    """Euler steps per dt: the reference is exact to well below what the tests ask for."""

    def drift(self, x):
        return x - x**3

    def diffusion(self, x):
        return np.full_like(x, 0.5)

    def stationary(self, rng, num):
        grid = np.linspace(-2.5, 2.5, 5001)
        p = np.exp(8 * (grid**2 / 2 - grid**4 / 4))
        return np.interp(rng.random(num), np.cumsum(p) / p.sum(), grid)

    def paths(self, rng, num_paths, num_times):
        h, x = self.dt / self.fine, self.stationary(rng, num_paths)
        out = [x]
        for _ in range(num_times - 1):
            for z in rng.standard_normal((self.fine, num_paths)):
                x = x + self.drift(x) * h + 0.5 * np.sqrt(h) * z
            out.append(x)
        return np.stack(out, 1)[..., None]

    def log_prob(self, x, y):
        """By Chapman-Kolmogorov on a grid."""
        return _double_well_kernel(self)(np.stack([x, y], -1))


@lru_cache
def _double_well_kernel(problem):
    grid, h = np.linspace(-2.6, 2.6, 651), problem.dt / problem.fine
    kernel = stats.norm.pdf(grid, (grid + problem.drift(grid) * h)[:, None], 0.5 * np.sqrt(h))
    for _ in range(int(np.log2(problem.fine))):
        kernel = kernel @ kernel * (grid[1] - grid[0])
    return RegularGridInterpolator((grid, grid), np.log(kernel + 1e-300))


@dataclass(frozen=True)
class CoxIngersollRoss:
    """dx = (1 - x) dt + 0.5 sqrt(x) dw: g dg = 1/8 everywhere; stationary Gamma(8, 1/8)."""

    dt: float = 0.1
    df: float = 16.0

    def drift(self, x):
        return 1 - x

    def diffusion(self, x):
        return 0.5 * np.sqrt(x)

    def _scale(self):
        return 0.25 * (1 - np.exp(-self.dt)) / 4

    def paths(self, rng, num_paths, num_times):
        c, x = self._scale(), rng.gamma(8.0, 1 / 8, num_paths)
        out = [x]
        for _ in range(num_times - 1):
            x = c * rng.noncentral_chisquare(self.df, x * np.exp(-self.dt) / c)
            out.append(x)
        return np.stack(out, 1)[..., None]

    def log_prob(self, x, y):
        c = self._scale()
        return stats.ncx2.logpdf(y / c, self.df, x * np.exp(-self.dt) / c) - np.log(c)


@dataclass(frozen=True)
class GeometricBrownianMotion:
    """dx = mu x dt + s x dw, started from a lognormal."""

    mu: float = 0.2
    s: float = 0.4
    dt: float = 0.05

    def drift(self, x):
        return self.mu * x

    def diffusion(self, x):
        return self.s * x

    def exact(self, x, t, w):
        """The solution at time t for the Brownian motion w(t)."""
        return x * np.exp((self.mu - self.s**2 / 2) * t + self.s * w)

    def paths(self, rng, num_paths, num_times):
        x = np.exp(0.3 * rng.standard_normal(num_paths))
        w = np.sqrt(self.dt) * rng.standard_normal((num_paths, num_times - 1)).cumsum(1)
        w = np.concatenate([np.zeros((num_paths, 1)), w], 1)
        return self.exact(x[:, None], self.dt * np.arange(num_times), w)[..., None]

    def log_prob(self, x, y):
        return stats.norm.logpdf(
            np.log(y / x), (self.mu - self.s**2 / 2) * self.dt, self.s * np.sqrt(self.dt)
        ) - np.log(y)
