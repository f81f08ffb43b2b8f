"""Packages that come with an extra: a missing one is named, with the command that installs it, before any work begins."""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

EXTRAS = {
    "matplotlib": ("matplotlib", "plots"),
    "pandas": ("pandas", "data"),
    "pyarrow": ("pyarrow", "data"),
    "zarr": ("zarr", "data"),
    "diffusers": ("diffusers", "baselines"),
    "gym_pusht": ("gym-pusht", "pusht"),
    "av": ("PyAV", "video"),
    "h5py": ("h5py", "video"),
    "PIL": ("Pillow", "video"),
    "pymunk": ("pymunk", "video"),
    "starlette": ("starlette", "studio"),
    "uvicorn": ("uvicorn", "studio"),
    "websockets": ("websockets", "studio"),
    "tensorboardX": ("tensorboardX", "trackers"),
    "wandb": ("wandb", "trackers"),
    "onnx": ("onnx", "export"),
    "onnxscript": ("onnxscript", "export"),
    "onnxruntime": ("onnxruntime", "export"),
    "torchsde": ("torchsde", "baselines"),
}
"""By the name of the module: the package, and the extra it comes with."""


def need(what: str, *modules: str) -> None:
    """Refuse `what` where a module that it takes is not installed."""
    for module in modules:
        if find_spec(module) is None:
            package, extra = EXTRAS[module]
            raise ValueError(f"{what} needs {package}: pip install 'neuralsde[{extra}]'.")


@cache
def kernels(module: str) -> Any:
    """A module of ours with kernels in Triton, which comes with torch for GPUs; None where it is not installed, which is said."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == "triton":
            _say_without_triton()
        return None


@cache
def _say_without_triton() -> None:
    warnings.warn(
        "Triton is not installed: small nets take longer on a GPU. Install it with pip install triton.", stacklevel=2
    )
