"""The benchmarks of other papers: their distances and systems, by hand."""

import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from peers import fim, lorenz


def paths(num, length, dim=2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(num, length, dim, generator=rng, dtype=torch.float64).cumsum(1)


def test_levels_of_the_signature_kernel_are_sums_over_ordered_indices():
    x, y = paths(1, 5), paths(1, 4, seed=1)
    cells = torch.exp(-0.5 * torch.cdist(x, y) ** 2)[0].diff(dim=0).diff(dim=1)
    levels = fim.signature_levels(x, y)[:, 0]
    assert levels[0] == 1
    for m in (1, 2, 3):
        pairs = itertools.product(itertools.combinations(range(4), m), itertools.combinations(range(3), m))
        wanted = sum(math.prod(float(cells[a, b]) for a, b in zip(i, j)) for i, j in pairs)
        assert float(levels[m]) == pytest.approx(wanted, rel=1e-9)


def test_half_of_a_gram_is_the_whole():
    x = paths(5, 9)
    assert torch.allclose(fim.own_gram(x), fim.gram(x, x), atol=1e-12)


def test_mmd_tells_laws_apart_and_not_samples():
    same, other = fim.mmd(paths(60, 12), paths(60, 12, seed=1)), fim.mmd(paths(60, 12), 0.2 * paths(60, 12, seed=1))
    assert abs(same) < 0.1 * other


@pytest.mark.parametrize("name", fim.SYSTEMS)
def test_systems_are_the_same_for_numbers_and_tensors(name):
    system = fim.SYSTEMS[name]
    x = torch.tensor([system.start, [0.3] * len(system.start)], dtype=torch.float64)
    for field in (system.drift, system.diffusion):
        many = torch.stack(field(*x.T), 1)
        for row, got in zip(x.tolist(), many.tolist()):
            assert got == pytest.approx([float(v) for v in field(*row)])
    assert np.isfinite(fim.simulate(system, 2_000, np.random.default_rng(0))).all()


def test_kl_of_two_gaussians():
    rng = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 4_000, 2, generator=rng, dtype=torch.float64)
    assert lorenz.kl_divergence(p, 2 * q) == pytest.approx(2 * math.log(2) + 0.25 - 1, abs=0.1)
    assert abs(lorenz.kl_divergence(p, q)) < 0.05
