import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import plain_figures
import pytest
import shape_checks
import torch

torch.set_num_threads(1)
shape_checks.install()
plain_figures.install()


@pytest.fixture
def fitted_labels(monkeypatch):
    """The layout of figures as users get it."""
    plain_figures.restore(monkeypatch)


@pytest.fixture(autouse=True)
def onednn():
    """torch turns oneDNN off for the whole process when a bf16 product fails: on CPUs without bf16."""
    before = torch.backends.mkldnn.enabled
    yield
    torch._C._set_mkldnn_enabled(before)


@pytest.fixture
def short_search(monkeypatch):
    """Searches for a model take as few steps as they can, whatever their budget."""
    from machines import on_a_machine

    from neuralsde.forecast import series
    from neuralsde.selection import fit

    monkeypatch.setattr(series, "STEPS", (4, 4))
    monkeypatch.setattr(series, "MOST_TRIALS", 1)
    monkeypatch.setattr(fit, "FEWEST", 4)
    monkeypatch.setattr(fit, "DRAWS", (fit.DRAWS[0], (2, 4)))
    on_a_machine(monkeypatch, step=1.0, draw=10.0)  # seconds: there is no time for more


@pytest.fixture
def rng():
    """A torch generator with a fixed seed."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def np_rng():
    """A numpy generator with a fixed seed."""
    return np.random.default_rng(0)
