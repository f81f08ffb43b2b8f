"""Many features that move in few directions: nets see these, the rest reverts by itself."""

import numpy as np
import pytest
import torch

import neuralsde as nsde
from neuralsde import Trajectories
from neuralsde.data.diagnosis import diagnose
from neuralsde.nets.config import HistoryConfig, MLPConfig, StepsConfig
from neuralsde.sde.config import Full, LowRank, Mixture, NeuralSDEConfig, Transport
from neuralsde.sde.model import NeuralSDE
from neuralsde.selection.candidates import plan

TINY = MLPConfig(width=8, depth=1)
SIZE, LEADING, KEPT, NOISE = 12, 2, 0.5, 0.05


def turned(num=40, length=200, seed=0):
    """A noisy rotation in a plane, and ten directions of little variance that revert by half in a step, all of it turned."""
    rng = np.random.default_rng(seed)
    z, r = rng.standard_normal((num, LEADING)), np.zeros((num, SIZE - LEADING))
    spin, states = np.array([[0.97, -0.2], [0.2, 0.97]]), []
    axes = np.linalg.qr(np.random.default_rng(9).standard_normal((SIZE, SIZE)))[0]
    for _ in range(length):
        states.append(np.concatenate([z, r], 1) @ axes.T + 3.0)
        z = z @ spin.T + 0.1 * rng.standard_normal(z.shape)
        r = KEPT * r + NOISE * rng.standard_normal(r.shape)
    return np.stack(states, 1), axes


def model_of(states, **settings):
    data = Trajectories.from_arrays(list(states))
    given = {"net": TINY, "normalise": "principal", "directions": LEADING, "noise": 0.02, **settings}
    return NeuralSDE.for_data(data, **given), data


def test_principal_coordinates_are_uncorrelated_in_one_unit_and_widest_first():
    states, _ = turned()
    scale = model_of(states)[0].scale
    x = torch.as_tensor(states, dtype=torch.float32).flatten(0, 1)
    cov = np.cov(scale.states(x).numpy().T)
    np.testing.assert_allclose(cov - np.diag(np.diag(cov)), 0, atol=2e-3)
    assert (np.diff(np.diag(cov)) <= 1e-4).all()
    np.testing.assert_allclose(scale.turn @ scale.turn.T, np.eye(SIZE), atol=1e-12)
    torch.testing.assert_close(scale.raw(scale.states(x)), x, atol=1e-5, rtol=0)


def test_what_the_nets_do_not_see_reverts_as_it_does_in_the_data():
    states, axes = turned()
    model, _ = model_of(states)
    np.testing.assert_allclose(model.sizes.reverts[LEADING:], 1 - KEPT, atol=0.03)
    assert (model.sizes.reverts[:LEADING] == 0).all()
    drawn = model.sample(states[0, 0], np.arange(30.0), num_paths=4_000, rng=0)[0, :, -1].double().numpy()
    rest = (drawn - 3.0) @ axes[:, LEADING:]
    np.testing.assert_allclose(rest.std(0), NOISE / np.sqrt(1 - KEPT**2), rtol=0.08)
    np.testing.assert_allclose(rest.mean(0), 0, atol=5e-3)


@pytest.mark.parametrize("net", [StepsConfig(width=8, depth=1, level=True), HistoryConfig(width=8, depth=1, memory=4)])
def test_nets_with_units_of_their_own_measure_what_they_see(net):
    states, _ = turned()
    model, _ = model_of(states, net=net, history=2)
    seen = model.scale.states(torch.as_tensor(states, dtype=torch.float32))[..., :LEADING]
    steps = seen.diff(dim=1).square().mean((0, 1))
    noise = model.input_noise[:LEADING]
    torch.testing.assert_close(model.nets["flow"].step_unit, (steps + 2 * noise**2).sqrt(), rtol=0.02, atol=0)


def test_the_density_is_that_of_the_leading_directions_times_that_of_the_rest():
    """What is left of the log density when the nets' part is taken away is the linear Gaussian of the rest, in raw units."""
    states, _ = turned()
    model, data = model_of(states)
    batch = data.transitions()[torch.arange(64)]
    own = model.transition_log_prob(batch).detach().double()
    scale, sizes = model.scale, model.sizes
    u, v = scale.states(batch.history[:, -1]).double(), scale.states(batch.next).double()
    f, log_g = (
        t.detach().double() for t in model._fields().read(u.float()[:, None], None, "flow", "diffusion").values()
    )
    every = torch.distributions.Normal(u + f, log_g.exp()).log_prob(v)
    expected = every.sum(1) - scale.std.double().log().sum()
    torch.testing.assert_close(own, expected, atol=1e-3, rtol=1e-4)
    rest = torch.distributions.Normal(u * (1 - sizes.reverts), sizes.typical.exp()).log_prob(v)[:, LEADING:]
    torch.testing.assert_close(every[:, LEADING:], rest.double(), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    "settings", [{}, {"covariance": Full()}, {"history": 2, "pad_history": True}, {"shared": True}]
)
def test_it_learns_saves_and_loads(settings, tmp_path):
    states, _ = turned(num=8, length=40)
    model, data = model_of(states, **settings)
    before = float(model.log_prob(data).sum())
    nsde.fit(model, data, steps=60, batch_size=64, lr=1e-2, progress=False)
    assert float(model.log_prob(data).sum()) > before
    paths = model.sample(states[:3, 0], [0.0, 1.0, 2.0], rng=0)
    again = nsde.load(model.save_pretrained(tmp_path)).sample(states[:3, 0], [0.0, 1.0, 2.0], rng=0)
    assert torch.equal(paths, again)
    seen = {net.inward.weight.shape[1] for net in model.nets.values()}
    assert seen == {LEADING * model.config.history}


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"`directions` are principal ones. Got normalise='mean_std'"):
        NeuralSDEConfig(directions=2)
    for wrong in ({"law": Mixture()}, {"law": Transport()}, {"covariance": LowRank()}):
        with pytest.raises(ValueError, match="`directions` go with"):
            NeuralSDEConfig(normalise="principal", directions=2, **wrong)
    with pytest.raises(ValueError, match=r"`directions` must be at most 12, the features. Got 13"):
        model_of(turned(num=4, length=20)[0], directions=13)


def test_the_diagnosis_finds_them_and_the_plan_tries_them():
    states, _ = turned()
    found = diagnose(Trajectories.from_arrays(list(states)))
    assert found.value("few directions") == LEADING
    tried = [c for c in plan(found).first if c.name == "few directions"]
    assert len(tried) == 1
    assert tried[0].config.directions == LEADING
    independent = np.random.default_rng(0).standard_normal((20, 100, SIZE)).cumsum(1)
    assert "few directions" not in diagnose(Trajectories.from_arrays(list(independent)))


def test_one_large_feature_is_not_called_a_direction():
    rng = np.random.default_rng(0)
    states = rng.standard_normal((20, 100, SIZE)).cumsum(1) * np.array([1e4, *np.ones(SIZE - 1)])
    assert "few directions" not in diagnose(Trajectories.from_arrays(list(states)))
