import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from neuralsde.baselines.config import GaussianConfig
from neuralsde.data.robots.demonstrations import Demonstrations
from neuralsde.experiments.config import PushTConfig
from neuralsde.models.build import build
from neuralsde.models.evaluation import has_dropout
from neuralsde.nets.config import ImageConfig
from neuralsde.nets.images import ImageEncoder, Points, RandomShift
from neuralsde.policy.config import PolicyConfig
from neuralsde.policy.controller import SDEPolicy, action_paths
from neuralsde.sde.config import NeuralSDEConfig, Sampler
from neuralsde.solvers.noise import Noise
from neuralsde.training.fit import fit

SMALL = ImageConfig(size=16, width=32, depth=1, memory=16, step_width=32, step_depth=1)
TINY = ImageConfig(width=16, depth=1, memory=8, step_width=16, step_depth=1)
SDE = NeuralSDEConfig(net=SMALL, shared=True, normalise="min_max", time_input=True, noise=0.1)
POLICY = PolicyConfig(history=2, horizon=4, chunk=2, first_action=(0, 1))


@pytest.fixture(autouse=True)
def small_shifts(monkeypatch):
    """Of small images."""
    monkeypatch.setattr("neuralsde.nets.images.SHIFT", 1)


def squares(rng, num, size=16):
    """Numbers x, y of no meaning and a picture with a bright square; the action is the place of the square, in [0, 1]."""
    place = rng.uniform(0, 1, (num, 2))
    edge = np.arange(size)
    low = place[:, :, None] * (size - 4)
    inside = np.clip(np.minimum(edge - low + 1, low + 4 - edge), 0, 1)  # edges between pixels are grey
    bright = 255 * inside[:, 1, :, None] * inside[:, 0, None, :]
    images = np.stack([bright, 0 * bright, 255 - bright], axis=-1).astype(np.uint8)
    seen = np.concatenate([rng.uniform(-300, 300, (num, 2)), images.reshape(num, -1)], axis=1)
    return seen.astype(np.float16), place.astype(np.float32)


def recorded(rng, num_episodes=40, length=5):
    """Episodes in which the square stands still."""
    seen, place = squares(rng, num_episodes)
    seen, place = (np.repeat(values, length, axis=0) for values in (seen, place))
    lengths = np.full(num_episodes, length)
    return Demonstrations.from_arrays({"seen": seen}, place, lengths, dt=0.1), seen


def made(rng, config=SDE, **settings):
    demos, seen = recorded(rng)
    data = action_paths(demos, seen, replace(POLICY, first_action=()))
    return build(replace(config, **settings), data.transitions(), seed=0), data, demos


# The data


@pytest.mark.parametrize("dtype", [np.uint8, np.float16])
def test_images_are_kept_once_and_small(np_rng, dtype):
    demos, seen = recorded(np_rng)
    seen = np.abs(seen).clip(0, 255).astype(dtype)
    data = action_paths(demos, seen, replace(POLICY, horizon=16))
    assert data.context.nbytes == seen.nbytes == 200 * (2 + 3 * 16**2) * np.dtype(dtype).itemsize
    assert len(data.states) == 200 * 17 and data.context_rows.shape == (200 * 17, 2)
    half = data.select([3, 4])
    assert half.context.data_ptr() == data.context.data_ptr()
    batch = half.transitions()[torch.tensor([17])]  # the second instant of the path: its own row and the one before
    assert batch.context.dtype == torch.float32
    np.testing.assert_array_equal(batch.context[0].numpy(), seen[[3, 4]].flatten())


def test_statistics_of_wide_contexts_are_bounded(np_rng, monkeypatch):
    """States from all transitions, contexts from as many as there is room for."""
    monkeypatch.setattr("neuralsde.data.trajectories.MAX_CONTEXT_ELEMENTS", 10 * 2 * 770)
    demos, seen = recorded(np_rng)
    pairs = action_paths(demos, seen, POLICY).transitions()
    assert len(pairs.spread(500)) == 10 and len(pairs.spread(3)) == 3
    assert len(pairs.spread(500, context=False)) == 500 and pairs.spread(500, context=False).context is None
    model = build(SDE, pairs)
    torch.testing.assert_close(model.scale.high, pairs.data.states.amax(0))


def test_pixels_have_the_units_of_bytes_and_others_those_of_the_data(np_rng):
    model, data, _ = made(np_rng)
    all_seen = data.transitions().spread(10**6).context
    mean, std = (v.reshape(2, -1) for v in (model.scale.context_mean, model.scale.context_std))
    assert (mean[:, 2:] == 127.5).all() and (std[:, 2:] == 127.5).all()
    torch.testing.assert_close(mean[:, :2], all_seen.reshape(-1, 2, 770).mean(0)[:, :2])
    torch.testing.assert_close(std[:, :2], all_seen.reshape(-1, 2, 770).std(0, correction=0)[:, :2])
    scaled = model.scale.condition(all_seen, None).reshape(-1, 2, 770)[:, :, 2:]
    assert scaled.min() == -1 and scaled.max() == 1


# The net


def test_the_sizes_follow_from_the_context():
    config = ImageConfig()
    for num, others in itertools.product((1, 2, 4), (0, 2, 7)):
        assert config.layout(num * (others + 3 * 96**2)) == (num, others)
    for wrong in (36, 3 * 96**2 - 1, 2 * 3 * 96**2 + 1):
        with pytest.raises(ValueError, match=r"end in 3 \* 96\^2 = 27648 pixels. Got a context of"):
            config.layout(wrong)
    assert 1e6 < sum(p.numel() for p in ImageEncoder(config, 2 * 27650).parameters()) < 2e6  # and a third for the steps
    for settings, match in (({"size": 90}, "multiple of 8"),):
        with pytest.raises(ValueError, match=match):
            ImageConfig(**settings)


def test_other_models_are_told_that_they_cannot(np_rng):
    with pytest.raises(ValueError, match=r"is for nets of a NeuralSDE\. Got it in another model"):
        made(np_rng, GaussianConfig(net=SMALL))


def test_all_observations_go_through_the_same_convolutions(rng):
    """The features of an image do not depend on its place in the context, and the numbers go past them."""
    encoder = ImageEncoder(SMALL, 3 * 770).eval()
    joined = []
    encoder.join.register_forward_pre_hook(lambda _, args: joined.append(args[0].reshape(len(args[0]), 3, -1)))
    context = torch.randn(4, 3, 770, generator=rng)
    encoder(context.flatten(1))
    encoder(context[:, [2, 0, 1]].flatten(1))
    torch.testing.assert_close(joined[1], joined[0][:, [2, 0, 1]])
    torch.testing.assert_close(joined[0][:, :, :2], context[:, :, :2])
    one = ImageEncoder(SMALL, 770)
    assert sum(p.numel() for p in one.image.parameters()) == sum(p.numel() for p in encoder.image.parameters())


def test_pixels_are_read_row_by_row(rng):
    """Against the same convolutions on an image in torch's order."""
    encoder = ImageEncoder(SMALL, 768).eval()
    image = torch.randn(2, 3, 16, 16, generator=rng)
    expected = encoder.join(encoder.image(image))
    torch.testing.assert_close(encoder(image.permute(0, 2, 3, 1).flatten(1)), expected)


def test_points_are_where_maps_are_large():
    """By hand: a peak, two equal peaks, no peak."""
    maps = torch.zeros(1, 3, 5, 9)
    maps[0, 0, 1, 8] = 50.0
    maps[0, 1, 0, 2] = maps[0, 1, 4, 2] = 50.0
    torch.testing.assert_close(Points()(maps), torch.tensor([[1.0, -0.5, 0.0, -0.5, 0.0, 0.0]]))


def test_shifts_move_all_images_of_a_row_alike():
    """By hand: each image is the padded one, cut out at an offset; in evaluation nothing moves."""
    shift, images = RandomShift(2), torch.arange(64 * 2 * 5 * 6 * 3.0).reshape(64, 2, 5, 6, 3)
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2), (0, 0)), mode="edge")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        moved = shift(images).numpy()
        assert not np.array_equal(shift(images).numpy(), moved)
        torch.manual_seed(0)
        np.testing.assert_array_equal(shift(images).numpy(), moved)
    found = set()
    for b in range(64):
        offsets = [
            (y, x)
            for y, x in itertools.product(range(5), repeat=2)
            if np.array_equal(padded[b, :, y : y + 5, x : x + 6], moved[b])
        ]
        assert len(offsets) == 1
        found.add(offsets[0])
    assert {y for y, _ in found} == {x for _, x in found} == set(range(5))
    assert torch.equal(shift.eval()(images), images)


def test_what_shifts_counts_as_random(np_rng):
    """The diffusion is then fitted to residuals without shifts."""
    assert has_dropout(ImageEncoder(SMALL, 770)) and not has_dropout(Points())
    model, data, _ = made(np_rng)
    batch, noise = data.transitions().spread(8), Noise.for_seeds(range(8))
    with torch.no_grad(), torch.random.fork_rng():
        torch.nn.init.normal_(model.nets["trunk"].outward.weight, std=0.02, generator=torch.Generator().manual_seed(0))
        torch.manual_seed(0)
        losses = [model.train().loss(batch, noise)["flow"] for _ in range(2)]
        assert losses[0] != losses[1]
        model.eval()
        assert model.loss(batch, noise)["flow"] == model.loss(batch, noise)["flow"]


def test_flow_and_denoiser_train_the_convolutions_and_the_diffusion_reads_them(np_rng):
    model, data, _ = made(np_rng)
    first = model.nets["trunk"].encoder.image[0][0].weight
    torch.nn.init.normal_(model.nets["trunk"].outward.weight, std=0.02, generator=torch.Generator().manual_seed(0))
    for part in ("flow", "diffusion", "denoiser"):
        model.train().zero_grad()
        losses = model.loss(data.transitions().spread(16), Noise.for_seeds(range(16)))
        losses[part].backward()
        assert (first.grad is not None and bool(first.grad.abs().sum() > 0)) == (part != "diffusion"), part


# The policy


@pytest.mark.slow
def test_a_square_is_found(np_rng):
    """The place of a bright square is the action; x and y say nothing. Guessing would be 0.29 off."""
    demos, seen = recorded(np_rng, num_episodes=600, length=2)
    config = replace(POLICY, horizon=1, chunk=1, history=1, first_action=())
    data = action_paths(demos, seen, config)
    model = build(replace(SDE, sampler=Sampler(diffusion=0.0)), data.transitions(), seed=0)
    fit(model, data, steps=500, batch_size=64, lr=3e-3, ema=0.99, progress=False)
    policy = SDEPolicy.for_demonstrations(model, config, demos)
    new, place = squares(np.random.default_rng(1), 100)
    policy.reset(range(100))
    error = policy.select_action(new) - place
    assert np.sqrt((error**2).mean()) < 0.05


def test_a_policy_of_images_is_saved_and_loaded(np_rng, tmp_path):
    model, _, demos = made(np_rng)
    torch.nn.init.normal_(model.nets["trunk"].outward.weight, std=0.02, generator=torch.Generator().manual_seed(0))
    one = SDEPolicy.for_demonstrations(model, replace(POLICY, first_action=()), demos, observation="image")
    one.save_pretrained(tmp_path)
    other = SDEPolicy.from_pretrained(tmp_path)
    assert other.observation == "image" and other.model.config.net == SMALL and other.num_features == 770
    seen, _ = squares(np_rng, 3)
    for policy in (one, other):
        policy.reset([1, 2, 3])
    for _ in range(3):
        np.testing.assert_array_equal(one.select_action(seen), other.select_action(seen))
    with pytest.raises(ValueError, match=r"shape \(3, 770\): 3 episode\(s\).*Got \(3, 18\)"):
        one.select_action(np.zeros((3, 18)))


# Push-T


@pytest.fixture
def sim():
    pytest.importorskip("gym_pusht", reason="needs gym-pusht: pip install 'neuralsde[pusht]'")
    from neuralsde.experiments.pusht import sim as pusht_sim

    return pusht_sim


def test_the_image_that_is_seen_is_that_of_the_environment(sim):
    """Bit for bit, in contact with the block too, and whatever its controller did before."""
    theirs = sim.gym_pusht().PushTEnv(obs_type="pixels_agent_pos", render_mode="rgb_array")
    expected, _ = theirs.reset(seed=3)
    states, images, agents = [], [], []
    for _ in range(15):
        states.append([*theirs.agent.position, *theirs.block.position, theirs.block.angle % (2 * np.pi)])
        images.append(expected["pixels"].reshape(-1))
        agents.append(expected["agent_pos"])
        expected, *_ = theirs.step(np.array(theirs.block.position))
    seen = sim.observe(np.array(states), "image")
    assert seen.shape == (15, sim.OBSERVATION_SIZE["image"]) == (15, 27650) and seen.dtype == np.float32
    np.testing.assert_array_equal(seen[:, 2:], images)
    np.testing.assert_allclose(seen[:, :2], agents, rtol=1e-6)
    assert np.abs(np.diff(states, axis=0)[:, 2:]).max() > 1  # it did touch the block


@pytest.fixture
def recording(tmp_path, sim):
    """Two short episodes on file, as `nsde data pusht` leaves them."""
    env, states, actions = sim.PushT(), [], []
    for seed in (1, 2):
        state = env.reset(seed)
        for _ in range(4):
            actions.append(state[2:4])
            states.append(state)
            state = env.advance(actions[-1])
    file = tmp_path / "pusht.npz"
    np.savez(file, state=np.array(states, np.float32), action=np.array(actions, np.float32), episode_ends=[4, 8])
    return file


def test_demonstrations_are_rendered_once(recording, sim, monkeypatch):
    from neuralsde.experiments.tasks import pusht

    calls, render = [], sim.render_states

    def counted(*args, progress=None):
        calls.extend([1] if progress else [])  # observations are rendered without
        return render(*args)

    monkeypatch.setattr(sim, "render_states", counted)
    config = PushTConfig(data=str(recording), observation="image")
    states = np.load(recording)["state"]
    data = pusht.PushTTask(config).data()
    assert data.context.dtype == torch.float16 and data.context.shape == (8, 27650)
    np.testing.assert_array_equal(data.context[:, 2:].numpy(), sim.observe(states, "image")[:, 2:])
    np.testing.assert_allclose(data.context[:, :2].numpy(), states[:, :2], atol=0.13)
    kept = recording.with_name("pusht_images.npz")
    assert len(calls) == 1 and sorted(p.name for p in recording.parent.iterdir()) == ["pusht.npz", kept.name]
    few = pusht.PushTTask(replace(config, num_demonstrations=1)).data()
    assert len(calls) == 1 and torch.equal(few.context, data.context[:4])
    # Other states, or half a file: rendered anew
    sim.demonstration_images(recording, states + 1)
    assert len(calls) == 2
    kept.write_bytes(kept.read_bytes()[:1000])
    assert torch.equal(pusht.PushTTask(config).data().context, data.context) and len(calls) == 3


def test_without_a_place_to_keep_images_they_are_rendered_anyway(recording, sim, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    states = np.load(recording)["state"]
    with pytest.warns(UserWarning, match="cannot be kept beside the data.*No space left"):
        images = sim.demonstration_images(recording, states)
    np.testing.assert_array_equal(images, sim.render_states(states))


def test_an_image_is_no_state_to_move_on():
    with pytest.raises(ValueError, match="Use form='path'"):
        PushTConfig(observation="image", policy=PolicyConfig(form="state", history=1))


def test_episodes_of_an_untrained_policy_are_the_same_in_any_process(recording, sim, tmp_path):
    from neuralsde.experiments.config import Variant
    from neuralsde.experiments.pusht.rollout import Conditions, roll_out
    from neuralsde.experiments.tasks import pusht

    config = PushTConfig(data=str(recording), observation="image")
    model = build(replace(SDE, net=TINY), pusht.PushTTask(config).data().transitions(), seed=0)
    torch.nn.init.normal_(model.nets["trunk"].outward.weight, std=0.02, generator=torch.Generator().manual_seed(0))
    pusht.PushTTask(config).policy(model).save_pretrained(tmp_path / "policy")
    make = functools.partial(pusht.act_as, str(tmp_path / "policy"), Variant(name=""))
    hard = Conditions(seconds=1.0, noise=0.01)
    call = {"observe_kind": "image", "conditions": hard, "batch_size": 2}  # one batch: in this process, and in a worker
    one, two = (roll_out(make, [5, 6], num_workers=num, **call).episodes for num in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert a.seed == b.seed and a.steps == 10 and len(a.plans) == 2
        np.testing.assert_array_equal(a.actions, b.actions)
    assert np.abs(one[0].actions - one[1].actions).max() > 1
