"""The learned SDE in torchsde's hands: the same path as by our solver, on the same increments of the Wiener process."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import neuralsde as nsde
from neuralsde.export.draws import GivenNoise

torchsde = pytest.importorskip("torchsde", reason="needs torchsde: pip install 'neuralsde[baselines]'")
NUM = 12  # steps
CASES = {
    "euler": {},
    "time": {"time_input": True},
    "pull": {"sampler": nsde.Sampler(pull=0.5)},
    "moments": {"law": nsde.Moments()},
    "uniform tau": {"tau": "uniform"},
    "deterministic": {"law": nsde.Deterministic()},
    "full": {"covariance": nsde.Full()},
    "low rank": {"covariance": nsde.LowRank(rank=1)},
    "whiten": {"normalise": "whiten"},
    "directions": {"normalise": "principal", "directions": 1},
    "whiten, full": {"normalise": "whiten", "covariance": nsde.Full()},
}


def model_of(context=False, scale=3.0, **settings):
    """A model with weights that matter, of two features that go together, around 10."""
    rng, times = np.random.default_rng(0), np.arange(60) * 0.5
    walks = 10 + scale * (rng.normal(0, 0.1, (6, 60, 2)) @ [[1.0, 0.5], [0.0, 1.0]]).cumsum(1)
    held = [np.cos(times)[:, None]] * 6 if context else None
    data = nsde.Trajectories.from_arrays(list(walks), [times] * 6, context=held)
    model = nsde.NeuralSDE.for_data(data, net=nsde.MLPConfig(width=16, depth=1), **settings)
    own = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.nets.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=own)
    return model.eval()


def both(model, context=None, steps_of=1.0):
    """Paths (B, T, d) by torchsde and by ours; the increments are torchsde's."""
    sde, batch, dt = model.as_torchsde(context=context), 5, model.scale.step * steps_of
    start = model.scale.raw(torch.zeros(batch, 2)) + torch.linspace(-0.2, 0.2, batch)[:, None]
    times = torch.arange(NUM + 1, dtype=torch.float64) * dt
    size = 2 if sde.noise_type == "diagonal" else sde.g(0.0, start).shape[-1]
    bm = torchsde.BrownianInterval(0.0, float(times[-1]), size=(batch, size), entropy=7, dtype=torch.float32)
    with torch.no_grad():
        theirs = torchsde.sdeint(sde, start, times.float(), bm=bm, method="euler", dt=dt).movedim(0, 1)
    grid = times.float().tolist()
    dw = torch.stack([bm(a, b) for a, b in pairwise(grid)], dim=1)  # (B, T, m)
    z = dw / dt**0.5
    noise = {("normal", 0, (2,)): z[..., :2]} | ({("normal", 2, (size - 2,)): z[..., 2:]} if size > 2 else {})
    how = nsde.Sampler(solver="euler_maruyama", pull=model.sampler.pull, substeps=round(1 / steps_of))
    ours = model.sample(start, times, context=context, rng=GivenNoise(noise), sampler=how)[:, 0]
    return theirs, ours


@pytest.mark.parametrize("name", CASES)
def test_the_same_increments_give_the_same_path(name):
    model = model_of(**CASES[name])
    theirs, ours = both(model)
    assert float((ours[:, -1] - ours[:, 0]).abs().min()) > 1e-3  # it moves
    error = (theirs - ours).abs() / model.scale.std
    assert float(error.max()) <= 1e-5


def test_a_context_is_held():
    model = model_of(context=True)
    context = torch.linspace(-1, 1, 5)[:, None]
    theirs, ours = both(model, context)
    assert float(((theirs - ours).abs() / model.scale.std).max()) <= 1e-5
    other, _ = both(model, torch.zeros(5, 1))
    assert float((other - theirs).abs().max()) > 1e-3


def test_a_transform_agrees_as_steps_become_short():
    """Ito's formula: in raw units Euler takes other steps, and both come to the same path."""
    model = model_of(transform="log", scale=1.0)
    errors = []
    for steps_of in (1.0, 1 / 16):
        theirs, ours = both(model, steps_of=steps_of)
        errors.append(float((theirs / ours - 1).abs().max()))
    assert errors[1] < 0.2 * errors[0] and errors[1] < 2e-3


def test_gradients_reach_the_nets():
    model = model_of()
    sde = model.as_torchsde()
    sde.f(0.0, torch.full((3, 2), 10.0)).sum().backward()
    assert float(next(model.nets["flow"].parameters()).grad.abs().sum()) > 0
    assert {id(p) for p in sde.parameters()} == {id(p) for p in model.nets.parameters()}


def test_doors():
    with pytest.raises(ValueError, match=r"takes models whose state is one observation\. Got history=2"):
        model_of(history=2).as_torchsde()
    for law in (nsde.Mixture(), nsde.Transport()):
        with pytest.raises(ValueError, match=f"The law `{type(law).__name__}` draws steps that are no SDE's"):
            model_of(law=law).as_torchsde()
    with pytest.raises(ValueError, match="`context` must be None"):
        model_of().as_torchsde(context=[1.0])
    with pytest.raises(ValueError, match=r"`context` must hold 1 value\(s\)"):
        model_of(context=True).as_torchsde()
