"""The paper's claims: what the benchmark calls joint training is the gradient of one likelihood, and α can be a constant."""

import sys
from pathlib import Path

import pytest
import torch

import neuralsde as nsde
from neuralsde.experiments.config import KnownSDEConfig
from neuralsde.experiments.tasks.known_sdes import KnownSDETask
from neuralsde.sde.losses import diffusion_nll, flow_nll

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import paper_claims


def test_both_losses_have_the_gradients_of_the_joint_likelihood():
    rng = torch.Generator().manual_seed(0)
    r, log_g, dt = (torch.rand(50, generator=rng, dtype=torch.float64) + 0.1 for _ in range(3))
    r.requires_grad_()
    log_g.requires_grad_()
    apart = torch.autograd.grad((flow_nll(r, dt, log_g) + diffusion_nll(r, dt, log_g)).sum(), [r, log_g])
    joint = torch.autograd.grad((0.5 * r**2 * dt * torch.exp(-2 * log_g) + log_g).sum(), [r, log_g])
    for one, other in zip(apart, joint):
        assert torch.allclose(one, other, rtol=1e-12)


def test_every_training_is_asked_for_once():
    found = [(claim, case, way) for claim, case, way, _ in paper_claims.experiments()]
    assert len(found) == len(set(found))
    assert {claim for claim, _, _ in found} == {"alpha", "delta", "joint", "ablation"}
    assert {case for _, case, _ in found} == {*paper_claims.SYSTEMS, "fork, density 1", "fork, density 10"}


def test_a_constant_stands_in_place_of_the_net_of_alpha():
    data = KnownSDETask(KnownSDEConfig(num_transitions=2_000)).data()
    model = nsde.NeuralSDE.for_data(
        data, tau="uniform", denoiser=nsde.Denoiser(alpha=True), net=nsde.MLPConfig(width=16)
    )
    nsde.fit(model, data, steps=30, batch_size=256, lr=1e-2, progress=False, cpu=True)
    x = torch.randn(7, 1, generator=torch.Generator().manual_seed(0))
    none, half, one = (paper_claims.with_constant(model, share).fields(x)[0] for share in (0.0, 0.5, 1.0))
    bare = model.fields(x, sampler=nsde.Sampler(balance=0.0))[0]
    assert torch.allclose(
        none, bare + model.fields(x, sampler=nsde.Sampler(balance=1.0))[0] - _balance(model, x), atol=1e-4
    )
    assert torch.allclose(half - none, (one - none) / 2, atol=1e-4)
    assert bool((one != none).any())


def _balance(model, x):
    """f + ½g² s: what is left of the balance without g∂g."""
    return model.fields(x, sampler=nsde.Sampler(balance=1.0, correction="off"))[0]


@pytest.mark.parametrize("share", [1e-3, 0.5, 3.0])
def test_the_constant_is_the_share_that_was_asked_for(share):
    raw = paper_claims.ConstantShare(share)(torch.zeros(3, 1, 2), None)
    assert raw.shape == (3, 2) and torch.allclose(torch.nn.functional.softplus(raw - 2), torch.tensor(share), rtol=1e-4)
