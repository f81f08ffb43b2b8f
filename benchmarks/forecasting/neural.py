"""DeepAR and NHITS of neuralforecast, each tuned by as many trials as `nsde.fit_series` makes, or more.

The rules were fixed before any test score was seen:

- Rivals. DeepAR is the usual neural forecaster that draws samples. NHITS is the second. In published comparisons on ETT,
  exchange rates and M4 it is among the strongest of the library, it is fast on one core, and its loss can be the score
  itself: the pinball loss of the same quantiles.
- Data. All that comes before the first origin, as for ours. Each column is a series of its own. No method is given columns of
  the calendar; inputs are long enough to show a season. A series shorter than a window begins with its first value, repeated.
- Trials. All settings of the grid below, 12; `nsde.fit_series` tries 4 to 10 models on these sets. Lengths of the input
  are multiples of the season (of 24 steps without one), cut to what a trial can see. Lengths that come out the same are tried
  once: that leaves 8 settings for the short panels, where ours tries 7 at most. Ours also tries four factors of its noise.
- Choice. A trial does not see the last part of the training data, and is scored there by the CRPS of this benchmark, from the
  origins of the test counted from the end of the training part. The least CRPS is chosen, once, with the first seed.
- Test. The choice is trained anew on the whole training part, twice as long as a trial, as ours is; once for each seed.
- Time. Steps are few: a set takes minutes of one core, on average longer than ours (`seconds`). DeepAR has one layer of 40
  units, which leaves time for more steps. With a GPU both could learn much longer.

DeepAR is tried in two forms. In the library's, each step of a forecast goes on from the mean of the step before, and the scale
has a floor: far ahead the band is too narrow. In that of its paper, forecasts are paths that are drawn, without a floor.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from neuralforecast import NeuralForecast, __version__
from neuralforecast.losses.pytorch import DistributionLoss, MQLoss, student_scale_decouple
from neuralforecast.models import NHITS, DeepAR
from scores import FEWEST, QUANTILES, known, row, values, windows
from sets import Set

GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "DeepAR": {"form": ("paths", "library"), "seasons": (1, 2, 7), "learning_rate": (2e-3, 6e-3)},
    "NHITS": {"width": (64, 256), "seasons": (1, 4, 14), "learning_rate": (1e-3, 3e-3)},
}
STEPS = {"DeepAR": 200, "NHITS": 200}  # of a trial
LONGER = 2  # steps of the last training, in those of a trial, as for ours
LONGEST = {"DeepAR": 192, "NHITS": 336}  # input
BATCH = {"DeepAR": 32, "NHITS": 64}  # windows of a step
PIECES, STARTS = 16, 128  # of long series: so many at a step, with so many windows each
PATHS = 100  # of DeepAR
WITHOUT_SEASON = 24  # steps


class Drawn(DeepAR):
    """DeepAR whose forecasts are paths: each step goes on from a draw of the step before."""

    def _predict_step_recurrent_batch(self, insample_y: torch.Tensor, *, y_idx: int, **unused: Any) -> torch.Tensor:
        loc, scale = (v.repeat_interleave(PATHS, 0) for v in self._get_loc_scale(y_idx))
        hidden, state = self.hist_encoder(insample_y[:, : self.input_size])
        hidden = hidden[:, -1:].repeat_interleave(PATHS, 0)
        state = tuple(s.repeat_interleave(PATHS, 1) for s in state)
        drawn: list[torch.Tensor] = []
        while True:
            output = self.loss.domain_map(self.decoder(hidden))
            drawn.append(self.loss.get_distribution(self.loss.scale_decouple(output, loc, scale)).sample())
            if len(drawn) == self.predict_horizon:
                break
            hidden, state = self.hist_encoder((drawn[-1] - loc) / scale, state)
        paths = torch.cat(drawn, 1).reshape(-1, PATHS, self.predict_horizon)
        quantiles = torch.quantile(paths, self.loss.quantiles, dim=1).movedim(0, -1)
        return torch.cat([paths.mean(1)[..., None], quantiles], -1)


def model_of(method: str, horizon: int, length: int, settings: dict[str, Any], steps: int, seed: int) -> Any:
    """An untrained model."""
    common = {
        "h": horizon,
        "input_size": length,
        "learning_rate": settings["learning_rate"],
        "max_steps": steps,
        "scaler_type": "robust",
        "batch_size": PIECES,
        "windows_batch_size": BATCH[method],
        "training_data_availability_threshold": 1.0,
        "random_seed": seed,
        "alias": method,
        "accelerator": "cpu",
        "gradient_clip_val": 10.0,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "logger": False,
    }
    if method == "NHITS":
        return NHITS(loss=MQLoss(quantiles=list(QUANTILES)), mlp_units=3 * [2 * [settings["width"]]], **common)
    loss = DistributionLoss("StudentT", quantiles=list(QUANTILES))
    if settings["form"] == "paths":
        loss.scale_decouple = partial(student_scale_decouple, eps=1e-3)
    kind = Drawn if settings["form"] == "paths" else DeepAR
    return kind(loss=loss, h_train=horizon, lstm_hidden_size=40, lstm_n_layers=1, trajectory_samples=PATHS, **common)


def _filled(y: np.ndarray, length: int) -> np.ndarray:
    """Begun with its first value, repeated, where it is shorter."""
    return np.concatenate([np.full(max(length - len(y), 0), y[0]), y])


def _pieces(y: np.ndarray, length: int) -> list[np.ndarray]:
    """Parts of a long series that hold all of its windows: the library copies each window of a series at each step."""
    size = length + STARTS - 1
    starts = range(0, max(len(y) - size, 0), STARTS)
    return [*(y[s : s + size] for s in starts), y[-size:]]


def _long(parts: list[np.ndarray]) -> pd.DataFrame:
    names = np.repeat([f"{k:06d}" for k in range(len(parts))], [len(y) for y in parts])
    return pd.DataFrame(
        {"unique_id": names, "ds": np.concatenate([np.arange(len(y)) for y in parts]), "y": np.concatenate(parts)}
    )


def forecasts(method: str, own: Set, length: int, settings: dict[str, Any], steps: int, seed: int) -> np.ndarray:
    """Quantiles (Q, B, horizon, d) of a model that is trained on what comes before the first origin."""
    series, past = own.series(), length + 1  # recurrent models read one row more
    window = past + own.horizon
    learned = [
        piece
        for _, g in known(own).groupby("unique_id", sort=False)
        if len(g) >= FEWEST
        for c in own.columns
        for piece in _pieces(_filled(values(g[c]), window), window)
    ]
    pasts = [_filled(values(series[k][c].iloc[:n])[-past:], past) for k, n in windows(own) for c in own.columns]
    trained = NeuralForecast(models=[model_of(method, own.horizon, length, settings, steps, seed)], freq=1)
    trained.fit(df=_long(learned))
    made = trained.predict(df=_long(pasts)).sort_values(["unique_id", "ds"])
    names = [c for c in made.columns if c.startswith(f"{method}-")]
    assert len(names) == len(QUANTILES), list(made.columns)
    found = np.sort(made[names].to_numpy(float).T, axis=0)
    return found.reshape(len(QUANTILES), len(windows(own)), len(own.columns), own.horizon).swapaxes(2, 3)


def lengths(method: str, own: Set) -> dict[int, int]:
    """Length of the input by the number of seasons, those that differ."""
    season = own.season if own.season > 1 else WITHOUT_SEASON
    most = min(LONGEST[method], int(known(own).groupby("unique_id").size().max()) - own.horizon - 1)
    found: dict[int, int] = {}
    for k in GRIDS[method]["seasons"]:
        if min(k * season, most) not in found.values():
            found[k] = min(k * season, most)
    return found


def by_neural(method: str, own: Set, seeds: list[int]) -> Iterator[tuple[int, np.ndarray, dict[str, Any]]]:
    """Quantiles for each seed, and what is to be recorded; the trials come first."""
    torch.set_num_threads(1)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    inner = replace(own, frame=known(own))
    sizes = lengths(method, inner)
    grid = [dict(zip(GRIDS[method], each)) for each in itertools.product(*GRIDS[method].values())]
    began, tried = time.perf_counter(), []
    for settings in [s for s in grid if s["seasons"] in sizes]:
        length = sizes[settings["seasons"]]
        quantiles = forecasts(method, inner, length, settings, STEPS[method], seeds[0])
        score = row("", method, 0, inner, quantiles)["crps"]
        words = ", ".join(f"{k} {v}" for k, v in {**settings, "input": length}.items() if k != "seasons")
        tried.append((score, words.replace("_", " "), length, settings))
        print(f"  {words}: {score:.4f}, {time.perf_counter() - began:.0f} s", flush=True)
    searched = time.perf_counter() - began
    _, choice, length, settings = min(tried, key=lambda each: each[0])
    for seed in seeds:
        began = time.perf_counter()
        quantiles = forecasts(method, own, length, settings, LONGER * STEPS[method], seed)
        yield (
            seed,
            quantiles,
            {
                "seconds": searched + time.perf_counter() - began,
                "choice": choice,
                "tried": {words: score for score, words, _, _ in tried},
                "library": f"neuralforecast {__version__}",
            },
        )
