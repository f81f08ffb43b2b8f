"""Neural SDEs for continuous sequences: learn dx = f(x) dt + g(x) dw from pairs of consecutive states."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neuralsde.core.version import __version__

if TYPE_CHECKING:
    from neuralsde.data.describe import describe
    from neuralsde.data.robots.demonstrations import Demonstrations
    from neuralsde.data.robots.read import read_demonstrations
    from neuralsde.data.streams.stream import Stream
    from neuralsde.data.tables.read import read_table
    from neuralsde.data.trajectories import Trajectories
    from neuralsde.data.transition import Transition
    from neuralsde.export.series import series_inputs
    from neuralsde.export.write import export_model
    from neuralsde.forecast.fit import fit_table
    from neuralsde.forecast.futures import forecasts, futures
    from neuralsde.forecast.series import SeriesModel, fit_series
    from neuralsde.forecast.skill import evaluate_forecasts
    from neuralsde.forecast.tables import TableModel, evaluate_table, forecast_table, sample_state, sample_table
    from neuralsde.models.build import load
    from neuralsde.models.sequence import SequenceModel
    from neuralsde.nets.config import MLPConfig, PolynomialConfig, StepsConfig
    from neuralsde.policy.config import PolicyConfig
    from neuralsde.policy.controller import SDEPolicy, action_paths
    from neuralsde.sde.config import (
        Denoiser,
        Deterministic,
        Diagonal,
        Euler,
        Full,
        LowRank,
        Mixture,
        Moments,
        NeuralSDEConfig,
        Sampler,
        Transport,
    )
    from neuralsde.sde.model import NeuralSDE
    from neuralsde.selection.fit import fit
    from neuralsde.training.config import RunOptions, TrainConfig
    from neuralsde.video.clips import Clip
    from neuralsde.video.config import VideoFit
    from neuralsde.video.fit import fit_videos
    from neuralsde.video.model import VideoModel, load_video_model

_HOME = {
    "Clip": "video.clips",
    "Demonstrations": "data.robots.demonstrations",
    "Denoiser": "sde.config",
    "Deterministic": "sde.config",
    "Diagonal": "sde.config",
    "Euler": "sde.config",
    "Full": "sde.config",
    "LowRank": "sde.config",
    "MLPConfig": "nets.config",
    "Mixture": "sde.config",
    "Moments": "sde.config",
    "NeuralSDE": "sde.model",
    "NeuralSDEConfig": "sde.config",
    "PolicyConfig": "policy.config",
    "PolynomialConfig": "nets.config",
    "RunOptions": "training.config",
    "SDEPolicy": "policy.controller",
    "Sampler": "sde.config",
    "SequenceModel": "models.sequence",
    "SeriesModel": "forecast.series",
    "StepsConfig": "nets.config",
    "Stream": "data.streams.stream",
    "TableModel": "forecast.tables",
    "TrainConfig": "training.config",
    "Trajectories": "data.trajectories",
    "Transition": "data.transition",
    "Transport": "sde.config",
    "VideoFit": "video.config",
    "VideoModel": "video.model",
    "action_paths": "policy.controller",
    "describe": "data.describe",
    "evaluate_forecasts": "forecast.skill",
    "evaluate_table": "forecast.tables",
    "export_model": "export.write",
    "fit": "selection.fit",
    "fit_series": "forecast.series",
    "fit_table": "forecast.fit",
    "fit_videos": "video.fit",
    "forecast_table": "forecast.tables",
    "forecasts": "forecast.futures",
    "futures": "forecast.futures",
    "load": "models.build",
    "load_video_model": "video.model",
    "read_demonstrations": "data.robots.read",
    "read_table": "data.tables.read",
    "sample_state": "forecast.tables",
    "sample_table": "forecast.tables",
    "series_inputs": "export.series",
}
__all__ = ["__version__", *_HOME]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import public names when they are first used: the command line's help needs no torch."""
    if name in _HOME:
        return getattr(import_module(f"neuralsde.{_HOME[name]}"), name)
    raise AttributeError(f"module 'neuralsde' has no attribute {name!r}")
