"""Neural SDEs for continuous sequences: learn dx = f(x) dt + g(x) dw from pairs of consecutive states."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from neuralsde.config import MLPConfig, PolicyConfig, Sampler, TrainConfig
    from neuralsde.data.demonstrations import Demonstrations
    from neuralsde.data.imitation import read_demonstrations
    from neuralsde.data.tables import read_table
    from neuralsde.forecast.futures import forecasts, futures
    from neuralsde.forecast.skill import evaluate_forecasts
    from neuralsde.method import NeuralSDE
    from neuralsde.models import load
    from neuralsde.policy import SDEPolicy, action_paths
    from neuralsde.sequence import SequenceModel, Transition
    from neuralsde.train import fit
    from neuralsde.trajectories import Trajectories

_HOME = {
    "Demonstrations": "data.demonstrations",
    "MLPConfig": "config",
    "NeuralSDE": "method",
    "PolicyConfig": "config",
    "SDEPolicy": "policy",
    "Sampler": "config",
    "SequenceModel": "sequence",
    "TrainConfig": "config",
    "Trajectories": "trajectories",
    "Transition": "sequence",
    "action_paths": "policy",
    "evaluate_forecasts": "forecast.skill",
    "fit": "train",
    "forecasts": "forecast.futures",
    "futures": "forecast.futures",
    "load": "models",
    "read_demonstrations": "data.imitation",
    "read_table": "data.tables",
}
__all__ = [
    "Demonstrations",
    "MLPConfig",
    "NeuralSDE",
    "PolicyConfig",
    "SDEPolicy",
    "Sampler",
    "SequenceModel",
    "TrainConfig",
    "Trajectories",
    "Transition",
    "__version__",
    "action_paths",
    "evaluate_forecasts",
    "fit",
    "forecasts",
    "futures",
    "load",
    "read_demonstrations",
    "read_table",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import public names when they are first used: the command line's help needs no torch."""
    if name in _HOME:
        return getattr(import_module(f"neuralsde.{_HOME[name]}"), name)
    raise AttributeError(f"module 'neuralsde' has no attribute {name!r}")
