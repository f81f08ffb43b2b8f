"""Draw the pictures of docs/guides/laws.md: one step, its true law against what models draw.

python docs/laws_figures.py              # minutes on one core
python docs/laws_figures.py covariance   # one of them
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from laws import LIKELIHOOD, ornstein_uhlenbeck, trained
from laws_mixture import LAWS, SYSTEMS, train

import neuralsde as nsde

ASSETS = Path(__file__).parent / "assets"
NUM_DRAWS = 200_000
PANELS = {"coin": ("a coin: +1 or -1", np.linspace(-3, 3, 121)), "t3": ("Student-t noise", np.linspace(-6, 6, 81))}


def outline(axis: plt.Axes, drawn: np.ndarray, bins: np.ndarray, **look: str) -> None:
    """The density of draws, of which some may lie outside the bins."""
    axis.stairs(np.histogram(drawn, bins)[0] / NUM_DRAWS / np.diff(bins), bins, lw=1.5, **look)


def mixture() -> None:
    """Histograms of one step from 0: truth, Euler and Mixture."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axis, (name, (title, bins)) in zip(axes, PANELS.items()):
        middle = (bins[1:] + bins[:-1]) / 2
        axis.fill_between(middle, np.exp(SYSTEMS[name].log_prob(middle)), 1e-9, color="0.8", label="truth")
        for (label, law), color in zip(LAWS.items(), ("tab:orange", "tab:blue")):
            drawn = train(name, law).sample([[0.0]], [0.0, 1.0], num_paths=NUM_DRAWS, rng=0)[0, :, 1, 0]
            outline(axis, drawn, bins, color=color, label=label)
        axis.set(title=title, xlabel="one step from 0", ylabel="density")
    axes[0].set(xlim=(-3, 3), ylim=(0, None))
    axes[1].set(xlim=(-6, 6), ylim=(2e-5, 3), yscale="log")
    axes[1].legend(frameon=False)
    figure.savefig(ASSETS / "law_mixture.png", dpi=110)
    plt.close(figure)


def moments() -> None:
    """Ornstein-Uhlenbeck seen once per time unit: mean and 80 % band of what two laws draw from 1.5."""
    rng = np.random.default_rng(0)
    paths = ornstein_uhlenbeck(np.full((400, 200), 1.0), rng)
    times = np.linspace(0, 3, 13)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
    decay = np.exp(-times)
    for axis, (name, law) in zip(axes, {"Euler": nsde.Euler(), "Moments": nsde.Moments()}.items()):
        model = trained(paths, 0, law=law, **LIKELIHOOD)
        drawn = model.sample([[1.5]], times, num_paths=20_000, rng=0)[0, :, :, 0].numpy()
        low, high = np.quantile(drawn, [0.1, 0.9], axis=0)
        width = 1.2816 * np.sqrt(1 - decay**2)
        axis.fill_between(times, 1.5 * decay - width, 1.5 * decay + width, color="0.85", label="truth, 80 %")
        axis.plot(times, 1.5 * decay, color="0.5", lw=1)
        axis.plot(times, drawn.mean(0), color="tab:blue", label="drawn: mean, 80 %")
        axis.plot(times, low, color="tab:blue", ls="--", lw=1)
        axis.plot(times, high, color="tab:blue", ls="--", lw=1)
        axis.set(title=f"law {name}, four outputs per gap", xlabel="time")
    axes[0].set(ylabel="x")
    axes[1].legend(frameon=False)
    figure.savefig(ASSETS / "law_moments.png", dpi=110)
    plt.close(figure)


def covariance() -> None:
    """Noise correlated 0.9: states after a while, by independent and by full noise."""
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(np.array([[1.0, 0.9], [0.9, 1.0]]))
    paths = ornstein_uhlenbeck(np.full((400, 200), 0.05), rng, root)
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained", sharex=True, sharey=True)
    panels = [("data", paths[0][:, -1])]
    for name, kind in (("covariance=Diagonal()", nsde.Diagonal()), ("covariance=Full()", nsde.Full())):
        model = trained(paths, 0, covariance=kind)
        drawn = model.sample(paths[0][:, 0], 0.05 * np.arange(81), rng=0)[:, 0, -1].numpy()
        panels.append((name, drawn))
    for axis, (title, points) in zip(axes, panels):
        axis.scatter(*points.T, s=5, color="0.5" if title == "data" else "tab:blue")
        axis.set(title=title, xlabel="$x_1$", xlim=(-3.5, 3.5), ylim=(-3.5, 3.5))
    axes[0].set(ylabel="$x_2$")
    figure.savefig(ASSETS / "law_covariance.png", dpi=110)
    plt.close(figure)


def transform() -> None:
    """A Cox-Ingersoll-Ross process near zero: paths with and without the logarithm."""
    rng = np.random.default_rng(0)
    x, paths = np.full((300, 1), 0.3), []
    for k in range(60 * 20):
        if k % 20 == 0:
            paths.append(x)
        x = np.abs(x + (0.3 - x) * 0.005 + 0.7 * np.sqrt(x * 0.005) * rng.normal(size=x.shape))
    states = np.maximum(np.stack(paths, 1), 1e-6)
    times = np.broadcast_to(0.1 * np.arange(60), states.shape[:2])
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
    for axis, kind in zip(axes, ("none", "log")):
        model = trained((states, times), 0, transform=kind, **LIKELIHOOD)
        drawn = model.sample([[0.3]], 0.1 * np.arange(60), num_paths=40, rng=0)[0, :, :, 0].numpy()
        axis.plot(times[0], drawn.T, color="tab:blue", lw=0.6)
        axis.axhline(0, color="black", lw=0.8)
        share = (drawn < 0).any(1).mean()
        axis.set(title=f"transform={kind!r}: {share:.0%} of paths go below 0", xlabel="time")
    axes[0].set(ylabel="x")
    figure.savefig(ASSETS / "law_transform.png", dpi=110)
    plt.close(figure)


def transport() -> None:
    """One step from 0 by the passes of its flow: a coin, and a skewed step."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    bins = np.linspace(-3, 3, 121)
    for axis, (name, title) in zip(axes, {"coin": "a coin: +1 or -1", "skewed": "a skewed step"}.items()):
        model = train(name, nsde.Transport(), steps=1_500)
        truth = SYSTEMS[name].draw(np.random.default_rng(1), (NUM_DRAWS,))
        axis.hist(truth, bins, density=True, color="0.8", label="truth")
        for passes, color in ((0, "tab:orange"), (4, "tab:green"), (32, "tab:blue")):
            sampler = nsde.Sampler(passes=passes)
            drawn = model.sample([[0.0]], [0.0, 1.0], num_paths=NUM_DRAWS, rng=0, sampler=sampler)[0, :, 1, 0]
            outline(axis, drawn, bins, color=color, label=f"{passes} passes")
        axis.set(title=title, xlabel="one step from 0", xlim=(-3, 3))
    axes[0].set(ylabel="density")
    axes[1].legend(frameon=False)
    figure.savefig(ASSETS / "law_transport.png", dpi=110)
    plt.close(figure)


FIGURES = {
    "mixture": mixture,
    "moments": moments,
    "covariance": covariance,
    "transform": transform,
    "transport": transport,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]()
