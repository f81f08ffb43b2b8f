"""Fit a small problem in a process of its own, for tests that kill it or run it twice side by side.

usage: python distributed_fit.py SETTINGS, a JSON object: `run_dir`, `output` (folder for the trained model), `resume`,
`delay` (seconds per step), and `train` settings.
"""

import json
import os
import sys
import time

import numpy as np
import torch

from neuralsde import NeuralSDE, Trajectories, fit
from neuralsde.nets.config import MLPConfig


def problem(dropout=0.0, **settings):
    """Ragged random walks in two dimensions, and a small model for them."""
    rng = np.random.default_rng(1)
    paths = [rng.standard_normal((10 + i % 7, 2)).cumsum(0) for i in range(12)]
    data = Trajectories.from_arrays(paths, dt=0.1)
    return NeuralSDE.for_data(data, net=MLPConfig(width=16, depth=1, dropout=dropout), **settings), data


def main():
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    model, data = problem(settings.get("dropout", 0.0))
    model.register_forward_pre_hook(lambda *_: time.sleep(settings.get("delay", 0.0)))
    fit(model, data, run_dir=settings.get("run_dir"), resume=settings.get("resume", False), **settings["train"])
    if "output" in settings and os.environ.get("RANK", "0") == "0":
        model.save_pretrained(settings["output"])


if __name__ == "__main__":
    main()
