"""Neural SDEs for continuous sequences: learn dx = f(x) dt + g(x) dw from pairs of consecutive states."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from neuralsde.data.demonstrations import Demonstrations
    from neuralsde.data.imitation import read_demonstrations
    from neuralsde.data.tables import read_table
    from neuralsde.data.transition import Transition
    from neuralsde.forecast.futures import forecasts, futures
    from neuralsde.forecast.skill import evaluate_forecasts
    from neuralsde.models.build import load
    from neuralsde.models.sequence import SequenceModel
    from neuralsde.nets.config import MLPConfig
    from neuralsde.policy.config import PolicyConfig
    from neuralsde.policy.controller import SDEPolicy, action_paths
    from neuralsde.sde.config import Sampler
    from neuralsde.sde.model import NeuralSDE
    from neuralsde.training.config import TrainConfig
    from neuralsde.training.fit import fit
    from neuralsde.trajectories import Trajectories

_HOME = {
    "Refined": "sde.config",
    "NeuralSDEConfig": "sde.config",
    "Moments": "sde.config",
    "Euler": "sde.config",
    "Deterministic": "sde.config",
    "Denoiser": "sde.config",
    "Demonstrations": "data.demonstrations",
    "MLPConfig": "nets.config",
    "NeuralSDE": "sde.model",
    "PolicyConfig": "policy.config",
    "SDEPolicy": "policy.controller",
    "Sampler": "sde.config",
    "SequenceModel": "models.sequence",
    "TrainConfig": "training.config",
    "Trajectories": "trajectories",
    "Transition": "data.transition",
    "action_paths": "policy.controller",
    "evaluate_forecasts": "forecast.skill",
    "fit": "training.fit",
    "forecasts": "forecast.futures",
    "futures": "forecast.futures",
    "load": "models.build",
    "read_demonstrations": "data.imitation",
    "read_table": "data.tables",
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
