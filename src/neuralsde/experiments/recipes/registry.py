"""Experiments by name."""

from __future__ import annotations

from collections.abc import Callable, Collection

from neuralsde.core.records import check
from neuralsde.experiments.config import Experiment
from neuralsde.experiments.recipes import branching, known_sdes, pusht, video

RECIPES: dict[str, Callable[[], Experiment]] = {
    "branching": branching.neural_sde,
    "branching-dense": branching.neural_sde_dense,
    "branching-three": branching.three_branches,
    "branching-wide": branching.wide_fork,
    "branching-paper": branching.paper,
    "branching-ddim": branching.ddim,
    "branching-rectified-flow": branching.rectified_flow,
    "ou-start": known_sdes.start,
    "ou-interpolated": known_sdes.interpolated,
    "ou-paper": known_sdes.paper,
    "ou-authors-code": known_sdes.authors_code,
    "pusht": pusht.neural_sde,
    "pusht-cpu": pusht.on_cpu,
    "pusht-diffusion-policy": pusht.diffusion_policy,
    "pusht-diffusion-transformer": pusht.diffusion_transformer,
    "pusht-rectified-flow": pusht.rectified_flow,
    "pusht-behaviour-cloning": pusht.behaviour_cloning,
    "pusht-lstm-gmm": pusht.lstm_gmm,
    "pusht-ibc": pusht.ibc,
    "pusht-bet": pusht.bet,
    "pusht-image": pusht.image,
    "pusht-paper": pusht.paper,
    "collisions-autoencoder": video.autoencoder,
    "collisions": video.neural_sde,
    "collisions-transport": video.transport,
    "collisions-flow-matching": video.flow_matching,
    "collisions-pfi": video.pfi,
    "collisions-regression": video.regression,
    "collisions-128-autoencoder": video.large_autoencoder,
    "collisions-128": video.large,
    "people-autoencoder": video.people_autoencoder,
    "people": video.people,
}
COMPARISONS: dict[str, Callable[[], dict[str, Experiment]]] = {
    "branching": branching.comparison,
    "known-sdes": known_sdes.comparison,
    "pusht": pusht.comparison,
    "pusht-trials": pusht.trials,
    "video-collisions": video.comparison,
    "video-fronts": video.fronts,
    "video-fronts-128": video.large_fronts,
    "video-parts": video.parts,
    "video-scaling": video.scaling,
    "video-people": video.people_comparison,
    "video-fronts-people": video.people_fronts,
}
"""All rows of a results table, by the task's name."""


def summaries() -> dict[str, str]:
    """What each recipe is, in a line."""
    return {name: (recipe.__doc__ or "").strip().splitlines()[0] for name, recipe in RECIPES.items()}


def rows_of(comparison: str, only: Collection[str] = ()) -> dict[str, Experiment]:
    """The rows of a comparison, or those whose name contains one of these texts."""
    rows = COMPARISONS[comparison]()
    chosen = {k: v for k, v in rows.items() if not only or any(text in k for text in only)}
    check(bool(chosen), f"No row contains {' or '.join(only)!r}. Rows: {'; '.join(rows)}.")
    return chosen
