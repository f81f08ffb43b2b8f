"""Noise that goes together: its algebra against numpy and scipy, what is learned against the truth."""

import numpy as np
import pytest
import torch
from scipy import stats

from neuralsde.solvers.correlation import FullCorrelation, LowRankCorrelation


def correlations(seed=0, batch=3, d=5, k=2):
    rng = torch.Generator().manual_seed(seed)
    full = torch.randn(batch, d, d, generator=rng, dtype=torch.float64)
    low = torch.randn(batch, k, d, generator=rng, dtype=torch.float64)
    return {"full": FullCorrelation.of(full), "low rank": LowRankCorrelation.of(low)}


@pytest.fixture(params=["full", "low rank"])
def correlation(request):
    return correlations()[request.param]


def test_it_is_a_correlation(correlation):
    matrix = correlation.matrix
    torch.testing.assert_close(torch.diagonal(matrix, dim1=1, dim2=2), torch.ones(3, 5, dtype=torch.float64))
    assert float(torch.linalg.eigvalsh(matrix).min()) > 0
    v = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(correlation.times(v), (matrix @ v[..., None])[..., 0])


def test_it_begins_at_nothing_or_little():
    torch.testing.assert_close(FullCorrelation.of(torch.zeros(2, 4, 4)).matrix, torch.eye(4).expand(2, 4, 4))
    columns = torch.zeros(2, 3, 4, requires_grad=True)
    matrix = LowRankCorrelation.of(columns).matrix
    assert float((matrix - torch.eye(4)).abs().max()) < 0.2
    matrix.tril(-1).sum().backward()
    assert float(columns.grad.abs().min()) > 0  # at 0 there would be no gradient


@pytest.mark.parametrize("masked", [False, True])
def test_its_density_is_that_of_scipy(correlation, masked, np_rng):
    error = torch.from_numpy(np_rng.normal(size=(3, 5)))
    seen = torch.from_numpy(np_rng.random((3, 5)) < 0.6) if masked else None
    got = correlation.log_density(error, seen)
    for k in range(3):
        rows = np.arange(5) if seen is None else np.flatnonzero(seen[k])
        matrix = correlation.matrix[k].numpy()[np.ix_(rows, rows)]
        expected = stats.multivariate_normal(np.zeros(len(rows)), matrix).logpdf(error[k].numpy()[rows])
        assert float(got[k]) == pytest.approx(expected)


def test_its_draws_have_it(correlation):
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(200_000, 5, generator=rng, dtype=torch.float64)
    further = torch.randn(200_000, 2, generator=rng, dtype=torch.float64)
    one = type(correlation)(*(v[:1].expand(len(z), *v.shape[1:]) for v in vars(correlation).values()))
    found = torch.corrcoef(one.mix(z, further).T)
    torch.testing.assert_close(found, correlation.matrix[0], atol=0.01, rtol=0)
