"""Neural SDEs for continuous sequences: learn dx = f(x) dt + g(x) dw from pairs of consecutive states."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from neuralsde.data.demonstrations import Demonstrations
    from neuralsde.data.imitation import read_demonstrations
    from neuralsde.data.tables import read_table
    from neuralsde.data.transition import Transition
    from neuralsde.config import MLPConfig, PolicyConfig, Sampler, TrainConfig
    from neuralsde.data.describe import describe
    from neuralsde.data.robots.demonstrations import Demonstrations
    from neuralsde.data.robots.read import read_demonstrations
    from neuralsde.data.tables.read import read_table
    from neuralsde.data.trajectories import Trajectories
    from neuralsde.data.transition import Transition
    from neuralsde.forecast.fit import fit_table
    from neuralsde.forecast.futures import forecasts, futures
    from neuralsde.forecast.sample import sample_state, sample_table
    from neuralsde.forecast.skill import evaluate_forecasts
    from neuralsde.forecast.table_model import TableModel
    from neuralsde.forecast.tables import evaluate_table, forecast_table
    from neuralsde.method import NeuralSDE
    from neuralsde.models import load
    from neuralsde.policy import SDEPolicy, action_paths
    from neuralsde.sequence import SequenceModel
    from neuralsde.train import fit

_HOME = {
    "Demonstrations": "data.robots.demonstrations",
    "MLPConfig": "config",
    "NeuralSDE": "method",
    "PolicyConfig": "config",
    "SDEPolicy": "policy",
    "Sampler": "config",
    "SequenceModel": "sequence",
    "TableModel": "forecast.table_model",
    "TrainConfig": "config",
    "Trajectories": "data.trajectories",
    "Transition": "data.transition",
    "action_paths": "policy",
    "describe": "data.describe",
    "evaluate_forecasts": "forecast.skill",
    "evaluate_table": "forecast.tables",
    "fit": "train",
    "fit_table": "forecast.fit",
    "forecast_table": "forecast.tables",
    "forecasts": "forecast.futures",
    "futures": "forecast.futures",
    "load": "models",
    "read_demonstrations": "data.robots.read",
    "read_table": "data.tables.read",
    "sample_state": "forecast.sample",
    "sample_table": "forecast.sample",
}
__all__ = [
    "Demonstrations",
    "Denoiser",
    "Deterministic",
    "Euler",
    "MLPConfig",
    "Moments",
    "NeuralSDE",
    "NeuralSDEConfig",
    "PolicyConfig",
    "Refined",
    "SDEPolicy",
    "Sampler",
    "SequenceModel",
    "TableModel",
    "TrainConfig",
    "Trajectories",
    "Transition",
    "__version__",
    "action_paths",
    "describe",
    "evaluate_forecasts",
    "evaluate_table",
    "fit",
    "fit_table",
    "forecast_table",
    "forecasts",
    "futures",
    "load",
    "read_demonstrations",
    "read_table",
    "sample_state",
    "sample_table",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import public names when they are first used: the command line's help needs no torch."""
    if name in _HOME:
        return getattr(import_module(f"neuralsde.{_HOME[name]}"), name)
    raise AttributeError(f"module 'neuralsde' has no attribute {name!r}")
