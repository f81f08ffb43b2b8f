"""Independent references for the filter: exact Kalman filter and smoother in numpy, a bootstrap particle filter, and models
whose nets are true fields."""

import numpy as np
import torch
from scipy import linalg
from scipy.special import logsumexp

import neuralsde as nsde


def linear_gap(a, noise, dt):
    """Decay and covariance over dt of dx = a x dt + dW, Cov dW = noise dt, by one matrix exponential (Van Loan, 1978)."""
    d = len(a)
    block = linalg.expm(np.block([[-a, noise], [np.zeros((d, d)), a.T]]) * dt)
    decay = block[d:, d:].T
    return decay, decay @ block[:d, d:]


def exact_filter(y, gaps, mean, cov, variance, decay_of, reads=None):
    """Exact filter and smoother of y (T, d) with NaN where nothing was observed.

    `decay_of(dt)` gives decay and covariance of a gap. Returns filtered and smoothed means and covariances, and the log density
    of each observation given those before.
    """
    size = len(mean)
    reads = np.eye(size) if reads is None else reads
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
        solved = linalg.solve(total, error)
        density.append(-0.5 * (error @ solved + np.linalg.slogdet(2 * np.pi * total)[1]))
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


def particle_filter(y, gaps, variance, drift, diffusion, first, rng, *, num=10_000, fine=0.01):
    """Log density of each observation (T,) given those before, by a bootstrap particle filter of one feature."""
    x, density = first(num), []
    for k, value in enumerate(y):
        if k:
            steps = max(1, int(np.ceil(gaps[k - 1] / fine)))
            h = gaps[k - 1] / steps
            for _ in range(steps):  # Heun, since the noise is additive
                noise = diffusion * np.sqrt(h) * rng.standard_normal(num)
                f = drift(x)
                x = x + 0.5 * h * (f + drift(x + h * f + noise)) + noise
        log_weight = -0.5 * ((value - x) ** 2 / variance + np.log(2 * np.pi * variance))
        density.append(logsumexp(log_weight) - np.log(num))
        weight = np.exp(log_weight - log_weight.max())
        places = (rng.random() + np.arange(num)) / num
        x = x[np.searchsorted(np.cumsum(weight) / weight.sum(), places).clip(max=num - 1)]
    return np.array(density)


class Flow(torch.nn.Module):
    """A true drift, as the net of a model whose scale has mean 0 and spread 1."""

    def __init__(self, drift):
        super().__init__()
        self.drift = drift

    def forward(self, state, condition):
        return self.drift(state.double())


class Diffusion(torch.nn.Module):
    """A constant noise, undone by the bounds of log g."""

    def __init__(self, g):
        super().__init__()
        self.g = torch.as_tensor(g, dtype=torch.float64)
        self.sizes = None

    def forward(self, state, condition):
        if self.sizes is None:
            return torch.zeros_like(state[:, -1])
        s = self.sizes[0]
        width, middle, slope = s._bounds()
        raw = (torch.logit((self.g.log() - s.low) / width) - middle) / slope
        return raw.expand_as(state[:, -1])


class Correlation(torch.nn.Module):
    """A constant Cholesky root with rows of unit length, as `FullCorrelation` reads it."""

    def __init__(self, cov):
        super().__init__()
        root = torch.linalg.cholesky(torch.as_tensor(cov, dtype=torch.float64))
        self.columns = (root / torch.diagonal(root)[:, None]).mT.contiguous()

    def forward(self, state, condition):
        return self.columns.expand(len(state), -1, -1)


def true_model(data, drift, g, *, step=1.0, correlation=None, **settings):
    """A model in float64 with these fields per reference step: drift(state (B, H, d)) and noise g."""
    nets = {"flow": Flow(drift), "diffusion": Diffusion(g)}
    if correlation is not None:
        nets["correlation"] = Correlation(correlation)
    settings = {"noise": 0.0, "denoiser": None, **settings}
    model = nsde.NeuralSDE.for_data(data, nets=nets, **settings).double().eval()
    model.scale.mean.zero_()
    model.scale.std.fill_(1.0)
    model.scale.dt_ref.fill_(step)
    model.sizes.rate.fill_(1.0)
    model.sizes.low.fill_(-8.0)
    model.sizes.high.fill_(4.0)
    model.sizes.typical.copy_(torch.as_tensor(g, dtype=torch.float64).log())
    nets["diffusion"].sizes = [model.sizes]
    return model
