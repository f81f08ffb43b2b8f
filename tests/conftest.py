import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import shape_checks
import torch

torch.set_num_threads(1)
shape_checks.install()


@pytest.fixture(autouse=True)
def onednn():
    """torch turns oneDNN off for the whole process when a bf16 product fails: on CPUs without bf16."""
    before = torch.backends.mkldnn.enabled
    yield
    torch._C._set_mkldnn_enabled(before)


@pytest.fixture
def rng():
    """A torch generator with a fixed seed."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def np_rng():
    """A numpy generator with a fixed seed."""
    return np.random.default_rng(0)
