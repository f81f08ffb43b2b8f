"""Draw the pictures of docs/guides/laws.md: one step, its true law against what models draw.

python docs/laws_figures.py    # minutes on one core
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from laws_mixture import LAWS, SYSTEMS, train

ASSETS = Path(__file__).parent / "assets"
NUM_DRAWS = 200_000
PANELS = {"coin": ("a coin: +1 or -1", np.linspace(-3, 3, 121)), "t3": ("Student-t noise", np.linspace(-6, 6, 81))}


def mixture() -> None:
    """Histograms of one step from 0: truth, Euler and Mixture."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axis, (name, (title, bins)) in zip(axes, PANELS.items()):
        middle = (bins[1:] + bins[:-1]) / 2
        axis.fill_between(middle, np.exp(SYSTEMS[name].log_prob(middle)), 1e-9, color="0.8", label="truth")
        for (label, law), color in zip(LAWS.items(), ("tab:orange", "tab:blue")):
            drawn = train(name, law).sample([[0.0]], [0.0, 1.0], num_paths=NUM_DRAWS, rng=0)[0, :, 1, 0]
            height = np.histogram(drawn, bins)[0] / NUM_DRAWS / np.diff(bins)
            axis.stairs(height, bins, color=color, lw=1.5, label=label)
        axis.set(title=title, xlabel="one step from 0", ylabel="density")
    axes[0].set(xlim=(-3, 3), ylim=(0, None))
    axes[1].set(xlim=(-6, 6), ylim=(2e-5, 3), yscale="log")
    axes[1].legend(frameon=False)
    figure.savefig(ASSETS / "law_mixture.png", dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    mixture()
