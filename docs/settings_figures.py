"""Draw the pictures of docs/guides/settings.md: the forking paths with one setting changed at a time.

python docs/settings_figures.py    # minutes on one core
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import neuralsde as nsde

ASSETS = Path(__file__).parent / "assets"
TIMES = np.arange(0.0, 100.0, 3.0)
USUAL = nsde.Sampler(pull=0.3, substeps=12)


def fork() -> nsde.Trajectories:
    """Fifty paths up and fifty down, 100 steps of 0.1 each, without noise."""
    t = np.arange(101.0)
    after = 0.1 * np.clip(t - 45, 0, None)
    paths = [
        np.stack([0.1 * np.minimum(t, 45) + after * np.cos(a), after * np.sin(a)], -1) for a in np.radians([30, -30])
    ]
    return nsde.Trajectories.from_arrays(paths * 50, [t] * 100)


def trained(noise: float = 0.02) -> nsde.NeuralSDE:
    """A model of the fork, with the settings of the recipe `branching`."""
    data = fork()
    model = nsde.NeuralSDE.for_data(data, lag=3.0, tau=0.5, noise=noise, normalise="isotropic")
    nsde.fit(model, data, steps=2_000, lr=2e-3, progress=False)
    return model


def draw(name: str, panels: dict[str, tuple[nsde.NeuralSDE, nsde.Sampler]]) -> None:
    """One panel for each value of the setting `name`, and the share of paths that turn up."""
    figure, axes = plt.subplots(1, len(panels), figsize=(9, 2.6), sharex=True, sharey=True, layout="constrained")
    for axis, (value, (model, sampler)) in zip(axes, panels.items()):
        paths = model.sample([0.0, 0.0], TIMES, num_paths=200, sampler=sampler, rng=0)[0].numpy()
        for end in (1, -1):
            axis.plot([0, 4.5, 4.5 + 5.5 * np.cos(np.pi / 6)], [0, 0, end * 2.75], color="0.75", lw=5, zorder=0)
        for path in paths:
            axis.plot(*path.T, lw=0.6, alpha=0.35, color="tab:blue" if path[-1, 1] > 0 else "tab:orange")
        up = (paths[:, -1, 1] > 0).mean()
        axis.set_title(f"{value}\n{100 * up:.0f} % turn up", fontsize=9)
        axis.set(xlim=(-0.3, 10), ylim=(-3.6, 3.6), xticks=[], yticks=[])
    figure.savefig(ASSETS / f"setting_{name}.png", dpi=110)
    plt.close(figure)


def main() -> None:
    """All pictures."""
    usual = trained()
    for name, values in {"pull": (0.0, 0.1, 0.3), "substeps": (1, 4, 12), "diffusion": (0.0, 1.0, 5.0)}.items():
        draw(name, {f"{name}={v:g}": (usual, replace(USUAL, **{name: v})) for v in values})
    nets = {0.002: trained(0.002), 0.02: usual, 0.2: trained(0.2)}
    draw("noise", {f"noise={v:g}": (model, USUAL) for v, model in nets.items()})


if __name__ == "__main__":
    main()
