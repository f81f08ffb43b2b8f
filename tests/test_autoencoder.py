"""Frames to latents and back."""

import math

import numpy as np
import pytest
import torch

from neuralsde import fit
from neuralsde.data.trajectories import Trajectories
from neuralsde.models.build import build, load
from neuralsde.nets.config import ConvConfig
from neuralsde.nets.convolutional import sampled
from neuralsde.video.autoencoder import Autoencoder
from neuralsde.video.config import AutoencoderConfig

SMALL = AutoencoderConfig(net=ConvConfig(down=4, width=8))


def blobs(num=64, length=2, size=16, seed=0):
    """Soft bright spots on a dark ground."""
    rng = np.random.default_rng(seed)
    at, grid = rng.uniform(3, size - 3, (num, length, 2, 1, 1)), np.indices((size, size))[None, None]
    return np.exp(-((grid - at) ** 2).sum(2) / 8)[:, :, None].astype(np.float32)


@pytest.fixture(scope="module")
def trained():
    frames = blobs()
    data = Trajectories.from_arrays(list(frames))
    model = build(SMALL, data.transitions(), seed=0)
    fit(model, data, steps=50, batch_size=16, lr=3e-3, ema=0.95, progress=False)
    model.fit_latents(torch.from_numpy(frames[:, 0]))
    return model


def test_it_draws_frames_that_it_has_not_seen(trained):
    frames = torch.from_numpy(blobs(seed=1)[:, 0])
    drawn = trained.decode(trained.encode(frames))
    error, plain = float((drawn - frames).square().mean()), float((frames - frames.mean(0)).square().mean())
    assert error < 0.2 * plain
    assert float(drawn.min()) >= 0 and float(drawn.max()) <= 1


def test_latents_have_unit_scale(trained):
    z = trained.encode(torch.from_numpy(blobs()[:, 0]))
    assert z.shape == (64, 4, 4, 4) and trained.latent_shape == (4, 4, 4)
    torch.testing.assert_close(z.mean((0, 2, 3)), torch.zeros(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(z.std((0, 2, 3)), torch.ones(4), atol=1e-3, rtol=0)


def test_a_frame_after_a_known_one_keeps_what_the_decoder_cannot_draw(trained):
    """A fine pattern is lost in the latents; added to the change, it stays."""
    frames = torch.from_numpy(blobs(seed=2))
    pattern = 0.1 * (torch.arange(16) % 2).float()
    known, after = (0.8 * frames[:, k] + pattern for k in (0, 1))
    plain = trained.decode(trained.encode(after))
    kept = trained.decode_after(trained.encode(after), known, trained.encode(known))
    assert float((kept - after).square().mean()) < 0.8 * float((plain - after).square().mean())
    torch.testing.assert_close(trained.decode_after(trained.encode(known), known, trained.encode(known)), known)


def test_what_the_decoder_missed_of_a_thing_goes_with_it(trained):
    """A speckled square that leaves: its speckles would stay behind if all of what was missed were kept."""
    speckles = 0.3 * torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (1, 16, 16))).float()
    square = torch.zeros(1, 16, 16)
    square[:, 4:12, 4:12] = 1.0
    empty = torch.zeros(1, 1, 16, 16)
    known = (0.7 * square + square * speckles)[None].clamp(0, 1)
    z, before = trained.encode(empty), trained.encode(known)
    faded, plain = trained.decode_after(z, known, before), trained.decode(z)
    kept = (plain + known - trained.decode(before)).clamp(0, 1)
    assert float((faded - plain).abs().mean()) < 0.5 * float((kept - plain).abs().mean())
    torch.testing.assert_close(trained.decode_after(before, known, before), known)  # nothing changed
    futures = z[:, None, None].expand(1, 3, 2, *z.shape[1:])  # paths and frames
    many = trained.decode_after(futures, known, before)
    torch.testing.assert_close(many[0, 1, 1], faded[0])


def test_it_travels(trained, tmp_path):
    again = load(trained.save_pretrained(tmp_path / "a"))
    frames = torch.from_numpy(blobs(seed=3)[:, 0])
    assert isinstance(again, Autoencoder)
    torch.testing.assert_close(again.encode(frames), trained.encode(frames))


def test_chunks_change_nothing(trained, monkeypatch):
    frames = torch.from_numpy(blobs(seed=3)[:, 0])
    whole = trained.decode(trained.encode(frames))
    monkeypatch.setattr("neuralsde.video.autoencoder.CACHED", 7 * math.prod(trained.scale.shape[1:]))
    assert trained.batch == 7 and len(frames) % 7
    torch.testing.assert_close(trained.decode(trained.encode(frames)), whole, atol=1e-5, rtol=1e-5)


def test_the_divergence_is_that_of_gaussians():
    rng = torch.Generator().manual_seed(0)
    moments = torch.randn(5, 4, 2, 2, generator=rng)
    _, divergence = sampled(moments, torch.zeros(5, 2, 2, 2))
    mean, log_var = moments.chunk(2, dim=1)
    p = torch.distributions.Normal(mean, torch.exp(0.5 * log_var))
    q = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    torch.testing.assert_close(divergence, torch.distributions.kl_divergence(p, q).flatten(1).sum(1))
    z = sampled(moments[:1].expand(20_000, -1, -1, -1), torch.randn(20_000, 2, 2, 2, generator=rng))[0]
    torch.testing.assert_close(z.mean(0), mean[0], atol=0.1, rtol=0)


@pytest.mark.parametrize("down", [2, 4, 8])
def test_sizes(down):
    data = Trajectories.from_arrays(list(blobs(num=3)))
    model = build(AutoencoderConfig(net=ConvConfig(down=down, width=8)), data.transitions())
    z = model.encode(torch.from_numpy(blobs(num=3)[:, 0]))
    assert z.shape == (3, 4, 16 // down, 16 // down) and model.decode(z).shape == (3, 1, 16, 16)


def test_bad_input(trained):
    with pytest.raises(ValueError, match=r"values from 0 to 1\. Got 0 to 255"):
        frames = np.zeros((2, 3, 1, 16, 16), np.float32)
        frames[0, 1] = 255
        build(SMALL, Trajectories.from_arrays(list(frames)).transitions())
    with pytest.raises(ValueError, match="multiples of `down`=4"):
        build(SMALL, Trajectories.from_arrays(list(np.zeros((2, 3, 1, 10, 16), np.float32))).transitions())
    with pytest.raises(ValueError, match="`frames` must have shape"):
        trained.encode(torch.zeros(2, 3, 16, 16))
    with pytest.raises(ValueError, match="draws no paths"):
        trained.sample(torch.zeros(1, 16, 16), [0.0, 1.0])
    with pytest.raises(ValueError, match="must be 2, 4, 8 or 16"):
        ConvConfig(down=3)
    with pytest.raises(ValueError, match="sees one frame"):
        AutoencoderConfig(history=2)
