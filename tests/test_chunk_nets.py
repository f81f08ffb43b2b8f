"""Nets of chunks, and diffusion over chunks: what they look at, and the law that is generated."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import neuralsde as nsde
from neuralsde.baselines.config import DDIMConfig, DiffusionSteps
from neuralsde.data.trajectories import Trajectories
from neuralsde.models.build import build
from neuralsde.nets.attention import Attention
from neuralsde.nets.backbone import Backbone, Form
from neuralsde.nets.chunk_transformer import ChunkTransformer
from neuralsde.nets.config import ChunkTransformerConfig, MLPConfig, UNet1DConfig
from neuralsde.nets.unet1d import UNet1D
from neuralsde.sde.config import NeuralSDEConfig
from neuralsde.solvers.noise import Noise

UNET = UNet1DConfig(widths=(8, 16))
TRANSFORMER = ChunkTransformerConfig(layers=2, heads=2, width=16, dropout=0.0)
CONFIGS = {"unet": (UNET, UNet1D), "transformer": (TRANSFORMER, ChunkTransformer)}


@pytest.fixture(params=CONFIGS)
def kind(request):
    return request.param


def make(kind, shape=(8, 3), condition_size=5, **settings):
    """A net whose weights are not 0."""
    config, net = CONFIGS[kind]
    changes = {k: settings.pop(k) for k in ("dropout",) if k in settings}
    torch.manual_seed(0)
    made = net(type(config)(**(vars(config) | changes)), Form(shape, condition_size=condition_size, **settings))
    nn.init.normal_(made.outward.weight)
    return made


def inputs(batch=4, slots=2, shape=(8, 3), size=5, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(batch, slots, *shape, generator=rng), torch.randn(batch, size, generator=rng)


def test_fields_have_the_shape_of_the_state(kind):
    state, condition = inputs()
    assert make(kind, history=2)(state, condition).shape == (4, 8, 3)
    assert make(kind, history=2, num_fields=2)(state, condition).shape == (4, 2, 8, 3)
    assert make(kind, condition_size=0)(state).shape == (4, 8, 3)
    config, net = CONFIGS[kind]
    assert not net(config, Form((8, 3), condition_size=5))(state, condition).any()  # 0 at the start of training


def test_every_weight_is_used(kind):
    net, (state, condition) = make(kind, history=2), inputs()
    net(state, condition).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())


def test_older_slots_are_not_seen(kind):
    state, condition = inputs(slots=3)
    other = state.clone()
    other[:, :-1] += 1
    net = make(kind, history=3)
    assert torch.equal(net(state, condition), net(other, condition))


def test_every_step_depends_on_the_condition(kind):
    net, (state, condition) = make(kind), inputs(slots=1)
    changed = (net(state, condition) - net(state, condition + 1)).abs()
    assert (changed > 1e-5).all()


def test_rows_do_not_depend_on_their_neighbours(kind):
    net, (state, condition) = make(kind).eval(), inputs(batch=7, slots=1)
    torch.testing.assert_close(net(state, condition)[2:3], net(state[2:3], condition[2:3]), atol=1e-5, rtol=1e-5)


def test_a_transformer_does_not_look_ahead():
    state, condition = inputs(slots=1)
    other = state.clone()
    other[:, :, 5:] += 1
    net = make("transformer")
    same = torch.isclose(net(state, condition), net(other, condition), atol=1e-6).flatten(2)
    assert not same[:, 5:].any() and same[:, :5].all()


def test_a_reader_does_not_train_the_features(kind):
    net, (state, condition) = make(kind, num_fields=2, readers=(1,)), inputs(slots=1)
    net(state, condition)[:, 1].sum().backward()
    assert net.outward.weight.grad.any()
    assert all(p.grad is None or not p.grad.any() for n, p in net.named_parameters() if "outward" not in n)
    with torch.no_grad():
        assert torch.equal(net(state, condition), net.eval()(state, condition))


def test_a_chunk_that_no_level_can_halve_is_refused():
    with pytest.raises(ValueError, match=r"multiple of 4: 3 `widths` halve it 2 time\(s\). Got a horizon of 10"):
        UNet1D(UNet1DConfig(widths=(8, 8, 8)), Form((10, 2)))
    assert UNet1D(UNet1DConfig(widths=(8,)), Form((5, 2)))(torch.zeros(1, 1, 5, 2)).shape == (1, 5, 2)


def test_states_that_are_no_chunks_are_refused(kind):
    for shape in ((2,), (1, 4, 4)):
        with pytest.raises(ValueError, match=r"takes states of shape \(horizon, features\)"):
            make(kind, shape=shape)


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (UNet1DConfig, {"widths": ()}, "at least one level"),
        (UNet1DConfig, {"widths": (12,)}, "`widths` must be multiples of 8"),
        (ChunkTransformerConfig, {"width": 10}, "`width` must be a multiple of `heads`"),
        (ChunkTransformerConfig, {"layers": 0}, "`layers` and `heads` must be at least 1"),
        (ChunkTransformerConfig, {"dropout": 1.0}, r"`dropout` must be in \[0, 1\)"),
        (DiffusionSteps, {"variant": "ddpm"}, r"takes every noise level. Got num_steps=10. Set num_steps=100"),
        (DiffusionSteps, {"num_steps": 101}, "must not exceed the 100 noise levels of training. Got 101"),
    ],
)
def test_settings_out_of_range_are_refused(config, values, message):
    with pytest.raises(ValueError, match=message):
        config(**values)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_that_of_torch(causal):
    torch.manual_seed(0)
    own, ref = Attention(8, 2, 0.0, causal=causal), nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        ref.in_proj_weight.copy_(torch.cat([own.query.weight, own.key_value.weight]))
        ref.in_proj_bias.copy_(torch.cat([own.query.bias, own.key_value.bias]))
        ref.out_proj.load_state_dict(own.back.state_dict())
    x = torch.randn(3, 5, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5) if causal else None
    torch.testing.assert_close(own(x, x), ref(x, x, x, attn_mask=mask)[0])
    if not causal:
        memory = torch.randn(3, 2, 8)
        torch.testing.assert_close(own(x, memory), ref(x, memory, memory)[0])


# Diffusion over chunks


class ExactDenoiser(Backbone):
    """The best prediction of the noise for a Gaussian target; the time is read from the first of its features."""

    takes_target = True

    def __init__(self, scheduler, mean, std):
        super().__init__(None, Form((4, 2)))
        self.kept = [scheduler.alphas_cumprod], mean, std

    def forward(self, state, condition):
        (alphas,), mean, std = self.kept
        level = (torch.asin(condition[:, 0]) / 1.5 * len(alphas)).round().long() - 1
        a = alphas[level].reshape(-1, 1, 1)
        return (1 - a).sqrt() * (state[:, -1] - a.sqrt() * mean) / (a * std**2 + 1 - a)


def chunks(num=400, horizon=4, size=2, context=None):
    """One transition per path: the action before, repeated, and the chunk."""
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (num, 2, horizon, size))
    states[:, 0] = states[:, :1, 0]
    if context is not None:
        context = np.repeat(rng.standard_normal((num, 1, context)), 2, axis=1)
    return Trajectories.from_arrays(states, dt=1.0, context=context)


def exact_model(mean=0.4, std=0.3, **settings):
    config = DDIMConfig(net=MLPConfig(width=8, depth=1), normalise="none", **settings)
    model = build(config, chunks().transitions())
    model.nets["net"] = ExactDenoiser(model.levels, mean, std)
    model.limit.fill_(100.0)
    return model


def test_ddpm_generates_the_law_of_its_closed_form():
    mean, std = 0.4, 0.3
    model = exact_model(mean, std, sampler=DiffusionSteps(variant="ddpm", num_steps=100))
    # A step is affine in y when the target is Gaussian: mean and variance in closed form
    a = model.levels.alphas_cumprod.double().tolist()
    m, v = 0.0, 1.0
    for k in range(99, -1, -1):
        before = a[k - 1] if k else 1.0
        beta = 1 - a[k] / before
        gain = math.sqrt(a[k]) * std**2 / (a[k] * std**2 + 1 - a[k])  # of the estimate of the target in y
        base = mean * (1 - gain * math.sqrt(a[k]))
        of_target = math.sqrt(before) * beta / (1 - a[k])
        of_y = math.sqrt(a[k] / before) * (1 - before) / (1 - a[k])
        slope = of_target * gain + of_y
        m = slope * m + of_target * base
        v = slope**2 * v + (1 - before) / (1 - a[k]) * beta
    assert m == pytest.approx(mean, rel=0.01) and math.sqrt(v) == pytest.approx(std, rel=0.06)  # of 100 levels
    done = model.draw(torch.zeros(4, 2), [0, 1], num_paths=3_000, rng=torch.Generator().manual_seed(0))
    drawn = done.paths[0, :, 1]
    assert float(drawn.mean()) == pytest.approx(m, abs=4 * std / math.sqrt(24_000))
    assert float(drawn.std()) == pytest.approx(math.sqrt(v), rel=4 / math.sqrt(48_000))
    correlation = torch.corrcoef(drawn.flatten(1).T) - torch.eye(8)
    assert float(correlation.abs().max()) < 5 / math.sqrt(3_000)  # every entry has noise of its own
    assert done.nfe == {"net": 100}


def test_a_step_is_that_of_the_ddpm_scheduler():
    from diffusers import DDPMScheduler

    model = exact_model(sampler=DiffusionSteps(variant="ddpm", num_steps=100))
    model.limit.fill_(0.5)  # so that much is clipped
    reference = DDPMScheduler(
        num_train_timesteps=100, beta_schedule="squaredcos_cap_v2", clip_sample=True, clip_sample_range=0.5
    )
    rng, z = torch.Generator().manual_seed(0), torch.randn(5, 4, 2, generator=torch.Generator().manual_seed(1))
    noise = [torch.randn(5, 4, 2, generator=rng) for _ in range(100)]
    with torch.no_grad():
        ours = model.generate(z, lambda y, t: model.net(y, t, z[:, None], None), lambda k: noise[k], model.sampler)
    y, rng = z, torch.Generator().manual_seed(0)
    for level in range(99, -1, -1):
        with torch.no_grad():
            out = model.net(y, torch.full((1,), (level + 1) / 100), z[:, None], None)
        y = reference.step(out, level, y, generator=rng).prev_sample
    torch.testing.assert_close(ours, y, atol=2e-4, rtol=1e-3)


def test_ddim_is_a_function_of_its_first_noise():
    mean, std = 0.4, 0.3
    model = exact_model(mean, std, sampler=DiffusionSteps(num_steps=100))
    z = torch.linspace(-2, 2, 9).reshape(9, 1, 1).expand(9, 4, 2)

    def nothing(k):
        raise AssertionError("DDIM draws nothing")

    with torch.no_grad():
        y = model.generate(z, lambda y, t: model.net(y, t, z[:, None], None), nothing, model.sampler)
    torch.testing.assert_close(y, mean + std * z, atol=0.02, rtol=0.03)  # the exact transport of a Gaussian


def test_the_range_of_the_data_limits_what_is_generated():
    for normalise, limit in (("min_max", 1.0), ("none", 1.1)):
        pairs = chunks().transitions()
        model = build(
            DDIMConfig(net=MLPConfig(width=8, depth=1), normalise=normalise, sampler=DiffusionSteps(num_steps=5)), pairs
        )
        assert float(model.limit.max()) == pytest.approx(limit, rel=0.01)
        nn.init.normal_(model.nets["net"].outward.weight, std=5.0)
        drawn = model.scale.states(model.sample(pairs[torch.arange(50)].history, [0, 1])[:, 0, 1])
        assert float(drawn.abs().max()) <= limit * 1.01


@pytest.mark.parametrize(("variant", "num_steps", "times"), [("ddim", 10, [0, 1, 2]), ("ddpm", 100, [0, 1])])
def test_a_path_keeps_its_own_randomness(kind, variant, num_steps, times):
    pairs = chunks(horizon=8, context=3).transitions()
    config = DDIMConfig(
        net=CONFIGS[kind][0],
        normalise="min_max",
        sampler=DiffusionSteps(variant=variant, num_steps=num_steps),
    )
    model, batch = build(config, pairs), pairs[torch.arange(5)]
    nn.init.normal_(model.nets["net"].outward.weight, std=0.1)
    keys = Noise.draw(torch.Generator().manual_seed(0), 10)
    done = model.draw(batch.history, times, context=batch.context, num_paths=2, rng=keys)
    paths = done.paths
    alone = model.sample(batch.history[1:2], times, context=batch.context[1:2], num_paths=2, rng=keys[2:4])
    torch.testing.assert_close(alone, paths[1:2], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(paths[:, 0, 1], paths[:, 1, 1], atol=0.01)
    assert done.nfe == {"net": (len(times) - 1) * num_steps}


def test_chunks_are_scaled_feature_by_feature():
    states = np.random.default_rng(0).uniform(0, 1, (200, 2, 4, 2)) * np.array([1.0, 100.0])
    model = build(
        DDIMConfig(net=UNet1DConfig(widths=(8,)), normalise="min_max"), Trajectories.from_arrays(states).transitions()
    )
    torch.testing.assert_close(model.scale.std, torch.tensor([0.5, 50.0]).expand(4, 2), atol=0, rtol=0.02)


def test_a_chunk_net_serves_a_neural_sde(kind):
    pairs = chunks(horizon=8, context=3).transitions()
    config = NeuralSDEConfig(net=CONFIGS[kind][0], shared=True)
    model, batch = build(config, pairs), pairs[torch.arange(3)]
    nsde.fit(model, pairs, steps=2, batch_size=8, progress=False)
    assert model.sample(batch.history, [0.0, 0.5, 1.0], context=batch.context).shape == (3, 1, 3, 8, 2)
