"""Neural SDEs for continuous sequences: learn dx = f(x) dt + g(x) dw from pairs of consecutive states."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from neuralsde.config import MLPConfig, Sampler, TrainConfig
    from neuralsde.data.tables import read_table
    from neuralsde.forecast.futures import forecasts, futures
    from neuralsde.forecast.skill import evaluate_forecasts
    from neuralsde.method import NeuralSDE
    from neuralsde.models import load
    from neuralsde.sequence import SequenceModel, Transition
    from neuralsde.train import fit
    from neuralsde.trajectories import Trajectories

_HOME = {
    "MLPConfig": "config",
    "NeuralSDE": "method",
    "Sampler": "config",
    "SequenceModel": "sequence",
    "TrainConfig": "config",
    "Trajectories": "trajectories",
    "Transition": "sequence",
    "evaluate_forecasts": "forecast.skill",
    "fit": "train",
    "forecasts": "forecast.futures",
    "futures": "forecast.futures",
    "load": "models",
    "read_table": "data.tables",
}
__all__ = [
    "MLPConfig",
    "NeuralSDE",
    "Sampler",
    "SequenceModel",
    "TrainConfig",
    "Trajectories",
    "Transition",
    "__version__",
    "evaluate_forecasts",
    "fit",
    "forecasts",
    "futures",
    "load",
    "read_table",
]


def __getattr__(name: str) -> Any:
    """Import public names when they are first used: the command line's help needs no torch."""
    if name in _HOME:
        return getattr(import_module(f"neuralsde.{_HOME[name]}"), name)
    raise AttributeError(f"module 'neuralsde' has no attribute {name!r}")
