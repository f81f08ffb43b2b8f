"""Push-T to look at: episodes as videos, and their paths on the plane."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neuralsde.experiments.pusht.rollout import Conditions, Episode
from neuralsde.experiments.pusht.sim import GOAL, PushT, coverage, outline
from neuralsde.plots.pusht import PushPanel, push_grid
from neuralsde.video.files import write_video

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FPS = 10  # frames per second, at true speed whatever the control rate


def frames(episode: Episode, conditions: Conditions | None = None, *, size: int = 256) -> np.ndarray:
    """(F, size, size, 3) uint8: the recorded states, with a cross at the target that acts, the time and the coverage.

    Below 192 px there is room for the coverage only.
    """
    import cv2  # comes with gym-pusht

    setting, scale = conditions or Conditions(), size / 512
    place = (int(14 * scale) + 1, int(34 * scale) + 1)
    covered = coverage(episode.states)
    num = int(np.floor(episode.steps / setting.control_hz * FPS + 1e-9)) + 1
    steps = np.floor(np.arange(num) / FPS * setting.control_hz + 1e-9).astype(int).tolist()
    if steps[-1] < episode.steps:
        steps.append(episode.steps)
    env = PushT()
    images = np.empty((len(steps), size, size, 3), np.uint8)
    for image, step in zip(images, steps):
        acting = step - setting.delay
        env.set_state(episode.states[step])
        image[:] = env.image(size, episode.actions[acting] if 0 <= acting < episode.steps else None)
        long = f"{step / setting.control_hz:4.1f} s  coverage "
        text = f"{long if size >= 192 else ''}{covered[step]:.2f}"
        cv2.putText(image, text, place, cv2.FONT_HERSHEY_SIMPLEX, max(0.9 * scale, 0.3), (30, 30, 30), 1, cv2.LINE_AA)
    return images


def save_episode(
    episode: Episode, path: str | os.PathLike[str], conditions: Conditions | None = None, *, size: int = 256
) -> Path:
    """Write an episode as .gif or .mp4; its last frame stays for a second."""
    images = frames(episode, conditions, size=size)
    return write_video(np.concatenate([images, np.repeat(images[-1:], FPS, axis=0)]), path, fps=float(FPS))


def panel(episode: Episode, conditions: Conditions | None = None) -> PushPanel:
    """What is drawn of an episode."""
    goal, first, last = outline(np.stack([[0.0, 0.0, *GOAL], episode.states[0], episode.states[-1]]))
    return PushPanel(
        goal=goal,
        first=first,
        last=last,
        agent=episode.states[:, :2],
        times=np.arange(len(episode.states)) / (conditions or Conditions()).control_hz,
        plans=[plan for _, plan in episode.plans],
        caption=f"best coverage {episode.best:.2f}",
    )


def trajectory_picture(methods: Mapping[str, Sequence[Episode]], conditions: Conditions | None = None) -> Figure:
    """Methods side by side, one row per seed: {method: its episodes}, of the same seeds."""
    seeds = [[episode.seed for episode in episodes] for episodes in methods.values()]
    if not seeds or not seeds[0] or any(row != seeds[0] for row in seeds):
        raise ValueError(f"`methods` must hold episodes of the same seeds, at least one. Got seeds {seeds}.")
    rows = {}
    for k, seed in enumerate(seeds[0]):
        rows[f"seed {seed}"] = {name: panel(episodes[k], conditions) for name, episodes in methods.items()}
    return push_grid(rows)
