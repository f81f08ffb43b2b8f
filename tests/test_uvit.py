"""The U-ViT, and the baselines of video on it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from neuralsde import fit
from neuralsde.baselines.config import Generation, PFIConfig, RectifiedFlowConfig
from neuralsde.baselines.pfi import EPSILON
from neuralsde.data.trajectories import Trajectories
from neuralsde.models.build import build, load
from neuralsde.nets.backbone import Form
from neuralsde.nets.config import MLPConfig, UViTConfig
from neuralsde.nets.uvit import UViT
from neuralsde.sde.config import Deterministic, NeuralSDEConfig

SMALL = UViTConfig(width=32)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def awake(net):
    """With a last layer that is not 0."""
    with torch.no_grad():
        net.outward.weight.normal_(generator=rng())
    return net.eval()


def waves(num=24, length=10, size=4):
    """Brightness that swings everywhere with one phase and speed per path: two frames tell the next one."""
    draw = np.random.default_rng(0)
    phase, speed = draw.uniform(0, 6.3, (num, 1)), draw.uniform(0.3, 0.9, (num, 1))
    light = np.sin(phase + speed * np.arange(length))[..., None, None, None]
    return (light * draw.uniform(0.5, 1.0, (size, size))).astype(np.float32)


@pytest.mark.parametrize("patch", [1, 2])
def test_tokens_and_back(patch):
    net = UViT(replace(SMALL, patch=patch), Form((3, 4, 6), num_fields=2))
    fields = torch.randn(5, 2, 3, 4, 6, generator=rng())
    both = torch.cat([net.tokens(fields[:, k : k + 1]) for k in range(2)], dim=2)
    torch.testing.assert_close(net.image(both), fields)
    one = net.tokens(fields)[0, 0]  # the first patch: slots, channels, its places
    torch.testing.assert_close(one, fields[0, :, :, :patch, :patch].flatten())


def test_it_is_zero_at_first_and_sees_every_slot_place_and_condition():
    net = UViT(SMALL, Form((2, 4, 4), history=3, condition_size=5, num_fields=3, readers=(1,)))
    state, condition = torch.randn(2, 3, 2, 4, 4, generator=rng()), torch.randn(2, 5, generator=rng(1))
    assert net(state, condition).shape == (2, 3, 2, 4, 4) and not bool(net(state, condition).any())
    before = awake(net)(state, condition)
    for change in ("slot", "place", "condition"):
        other, given = state.clone(), condition.clone()
        if change == "condition":
            given += 1
        else:
            other[:, 0 if change == "slot" else -1, 0, 3, 3] += 1
        assert float((net(other, given) - before).detach().abs()[:, :, :, 0, 0].max()) > 1e-4


def test_the_long_skips_are_used_in_reverse():
    net, seen = awake(UViT(UViTConfig(width=192), Form((1, 4, 4)))), []
    for k, layer in enumerate(net.down):
        layer.register_forward_hook(lambda _m, _i, out, k=k: seen.append((f"down{k}", out)))
    for k, join in enumerate(net.joins):
        join.register_forward_pre_hook(lambda _m, i, k=k: seen.append((f"join{k}", i[0][..., 192:])))
    net(torch.randn(1, 1, 1, 4, 4, generator=rng()))
    parts = dict(seen)
    torch.testing.assert_close(parts["join0"], parts["down1"])
    torch.testing.assert_close(parts["join1"], parts["down0"])


def test_the_reader_does_not_train_the_features():
    net = UViT(SMALL, Form((1, 4, 4), num_fields=3, readers=(1,))).train()
    with torch.no_grad():
        net.outward.weight.normal_(generator=rng())
    y = net(torch.randn(2, 1, 1, 4, 4, generator=rng()))
    grads = [
        torch.autograd.grad(y[:, k].sum(), net.inward.weight, retain_graph=True, allow_unused=True)[0] for k in range(3)
    ]
    assert grads[1] is None or not bool(grads[1].any())
    assert bool(grads[0].any()) and bool(grads[2].any())


@pytest.mark.parametrize(("width", "low", "high"), [(64, 0.12, 0.3), (256, 5, 8), (512, 30, 45), (768, 95, 130)])
def test_one_number_sets_the_size(width, low, high):
    with torch.device("meta"):
        net = UViT(UViTConfig(width=width), Form((4, 8, 8), history=4, num_fields=3))
    assert low < sum(p.numel() for p in net.parameters()) / 1e6 < high


def test_bad_shapes():
    with pytest.raises(ValueError, match=r"takes states of shape \(channels, height, width\)\. Got \(3,\)"):
        UViT(SMALL, Form((3,)))
    with pytest.raises(ValueError, match="`patch` must divide"):
        UViT(replace(SMALL, patch=3), Form((1, 4, 4)))
    with pytest.raises(ValueError, match="multiple of 32"):
        UViTConfig(width=40)


@pytest.mark.parametrize(
    "config",
    [
        NeuralSDEConfig(net=SMALL, history=2, shared=True, noise=0.05),
        NeuralSDEConfig(net=SMALL, history=2, law=Deterministic(), denoiser=None, noise=0.0),
        pytest.param(
            RectifiedFlowConfig(net=SMALL, history=2, target="increment", sampler=Generation(num_steps=2)),
            marks=pytest.mark.slow,
        ),
        pytest.param(PFIConfig(net=SMALL, history=2, sampler=Generation(num_steps=2)), marks=pytest.mark.slow),
    ],
    ids=["NSDE", "regression", "flow matching", "PFI"],
)
def test_models_of_video_learn_motion(config, tmp_path):
    """One further frame is nearer to the truth than a copy of the last one."""
    frames = waves()
    data = Trajectories.from_arrays(list(frames))
    model = build(config, data.transitions(history=2), seed=0)
    fit(model, data, steps=70, batch_size=32, lr=3e-3, ema=0.95, progress=False)
    history = torch.from_numpy(frames[:, :2])
    drawn = model.sample(history, [0.0, 1.0], num_paths=4, rng=rng())[:, :, 1].mean(1)
    error = float((drawn - torch.from_numpy(frames[:, 2])).square().mean())
    copy = float(np.square(frames[:, 2] - frames[:, 1]).mean())
    assert error < 0.5 * copy
    again = load(model.save_pretrained(tmp_path / "m"))
    torch.testing.assert_close(again.sample(history, [0.0, 1.0], num_paths=4, rng=rng())[:, :, 1].mean(1), drawn)


# The Föllmer process


def test_pfi_has_the_law_of_the_increment():
    """y ~ N(m, v) given: the exact drift is linear, and the process ends with that mean and variance."""
    states = np.random.default_rng(0).normal(size=(4, 300, 1)).cumsum(1)
    model = build(
        PFIConfig(net=MLPConfig(width=8, depth=1), sampler=Generation(num_steps=400)),
        Trajectories.from_arrays(states).transitions(),
    )
    mean, var, eps = 0.7, 0.5, EPSILON

    def drift(x, s, *_):
        share, noise = s.reshape(-1, 1), eps * (1 - s.reshape(-1, 1))
        spread = share**2 * var + noise**2 * share
        gain = (share * var - eps * noise * share) / spread.clamp(min=1e-12)
        return mean + gain * (x - share * mean)

    keys = torch.randn(400, 20_000, 1, generator=rng())
    end = model.generate(keys[0], drift, lambda k: keys[k], model.sampler)
    assert abs(float(end.mean()) - mean) < 0.02 and abs(float(end.var()) - var) < 0.03


def test_pfi_interpolates_from_here_to_there():
    states = np.random.default_rng(0).normal(size=(4, 50, 1)).cumsum(1)
    config = PFIConfig(net=MLPConfig(width=8, depth=1))
    model = build(config, Trajectories.from_arrays(states).transitions())
    y, z = torch.randn(2, 50, 1, generator=rng(), dtype=torch.float64).unbind(0)
    at = lambda s: model.interpolate(y, torch.full((50, 1), s, dtype=torch.float64), z)  # noqa: E731
    torch.testing.assert_close(at(0.0)[0], torch.zeros_like(y))
    torch.testing.assert_close(at(1.0)[0], y)
    # The rate is the derivative of the smooth factors, W held fixed
    s = 0.3
    by_hand = y - 0.3 * np.sqrt(s) * z
    torch.testing.assert_close(at(s)[1], by_hand, atol=1e-6, rtol=1e-6)
