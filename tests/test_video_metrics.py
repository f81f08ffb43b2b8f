import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from neuralsde.metrics import video as video_module
from neuralsde.metrics.frechet import frechet_distance, motion_features
from neuralsde.metrics.perceptual import LPIPS, load_lpips, lpips, measure_lpips, sha256_of
from neuralsde.metrics.video import (
    MAX_PSNR,
    VideoProtocol,
    mean_measured,
    measure_psnr,
    measure_ssim,
    paired_difference,
    psnr,
    resample,
    ssim,
)


def clips(rng, num=3, frames=4, channels=3, height=24, width=20):
    """Smooth videos with some structure, in [0, 1]."""
    coarse = torch.rand(num * frames, channels, 6, 5, generator=rng)
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return fine.view(num, frames, channels, height, width)


def disturbed(rng, video, by):
    return (video + by * torch.randn(video.shape, generator=rng)).clamp(0, 1)


# PSNR and SSIM


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 24, 20), (3, 24, 20), (1, 6, 9)])
def test_scores_of_frames_are_those_of_torchmetrics(rng, channels, height, width):
    from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

    truth = clips(rng, channels=channels, height=height, width=width)
    video = disturbed(rng, truth, 0.1)
    # Their PSNR rounds a constant to single precision
    for ours, theirs, close in (
        (psnr, peak_signal_noise_ratio, 1e-5),
        (ssim, structural_similarity_index_measure, 1e-9),
    ):
        got = ours(video, truth)
        assert got.shape == (3, 4)
        for (i, j), value in np.ndenumerate(got.numpy()):
            frame, true = video[i, j, None], truth[i, j, None]
            assert value == pytest.approx(float(theirs(frame.double(), true.double(), data_range=1.0)), abs=close)
            assert value == pytest.approx(float(theirs(frame, true, data_range=1.0)), abs=1e-5)


def test_psnr_by_hand():
    truth = torch.zeros(1, 2, 1, 2, 2)
    video = truth.clone()
    video[0, 0] = 0.1  # mean squared error 0.01
    assert psnr(video, truth)[0].tolist() == pytest.approx([20.0, MAX_PSNR], abs=1e-5)
    # Per clip: the mean of decibels, not the decibels of the mean error (23.01)
    assert measure_psnr(video, truth, context="out").value == pytest.approx((20 + MAX_PSNR) / 2, abs=1e-5)
    assert float(psnr(truth, truth, most=60.0).max()) == pytest.approx(60)


def test_the_truth_has_an_ssim_of_one_and_more_noise_less(rng):
    truth = clips(rng)
    assert ssim(truth, truth).numpy() == pytest.approx(1, abs=1e-12)
    scores = [float(ssim(disturbed(rng, truth, by), truth).mean()) for by in (0.02, 0.1, 0.3)]
    assert scores == sorted(scores, reverse=True) and scores[0] > 0.8 and scores[2] < 0.3


def test_chunks_change_nothing(rng, monkeypatch):
    truth = clips(rng, num=5)
    video = disturbed(rng, truth, 0.1)
    whole = psnr(video, truth), ssim(video, truth)
    monkeypatch.setattr(video_module, "MAX_VALUES", 2 * video[0].numel() + 1)
    assert video_module.in_chunks(lambda v: torch.full((len(v),), len(v)), video).tolist() == [2, 2, 2, 2, 1]
    for a, b in zip(whole, (psnr(video, truth), ssim(video, truth))):
        assert torch.allclose(a, b, atol=1e-12)


def test_convolutions_are_exact_for_a_while():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled
    with video_module.full_precision():
        assert not torch.backends.cudnn.allow_tf32 and not torch.is_grad_enabled()
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled) == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda v: (v, v[:, 1:]), "must have one shape"),
        (lambda v: (v * 255, v), r"`video` must have values in \[0, 1\]. Got \[.*Scale or clamp them"),
        (lambda v: (v, v * 2 - 1), r"`truth` must have values in \[0, 1\]"),
        (lambda v: (v.where(v < 0.5, torch.nan), v), "`video` must be finite"),
        (lambda v: (v[0], v[0]), r"must be floats \(B, T, C, H, W\)"),
        (lambda v: (v[:0], v[:0]), "none 0"),
    ],
)
def test_bad_videos_are_refused(rng, make, message):
    from neuralsde.metrics.video import check_pair

    with pytest.raises(ValueError, match=message):
        check_pair(*make(clips(rng)))


def test_frames_below_the_window_are_refused():
    tiny = torch.rand(1, 1, 1, 5, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"at least 6 pixels\. Got 5×8"):
        ssim(tiny, tiny)


# Intervals


def test_a_paired_difference_has_the_interval_of_the_differences(np_rng):
    from scipy import stats

    base = np_rng.normal(25, 5, 40)  # clips differ much more than models
    a, b = base + np_rng.normal(0.5, 0.3, 40), base + np_rng.normal(0, 0.3, 40)
    out = paired_difference(torch.tensor(a), torch.tensor(b), name="PSNR, ours - theirs")
    want = stats.ttest_rel(a, b)
    assert out.value == pytest.approx((a - b).mean()) and out.n == 40
    assert out.interval == pytest.approx(tuple(want.confidence_interval(0.95)), rel=1e-3)
    frames = torch.tensor(np.stack([a - 1, a + 1], 1)), torch.tensor(np.stack([b, b], 1))
    assert paired_difference(*frames).interval == pytest.approx(out.interval)
    with pytest.raises(ValueError, match="Both must score the same clips"):
        paired_difference(torch.tensor(a), torch.tensor(b[1:]))


def test_clips_of_one_group_count_as_one(np_rng):
    values = torch.tensor(np_rng.normal(size=10)).repeat_interleave(8)
    groups = torch.arange(10).repeat_interleave(8)
    alone, grouped = (mean_measured("x", values, VideoProtocol(), groups=g) for g in (None, groups))
    width = [high - low for low, high in (alone.interval, grouped.interval)]
    assert width[1] > 2.5 * width[0]
    assert mean_measured("x", values[:1], VideoProtocol()).interval is None


def test_the_bootstrap_is_seeded_and_agrees_with_student(np_rng):
    values = torch.tensor(np_rng.normal(3, 2, 200))
    student = mean_measured("x", values, VideoProtocol())
    draw = [mean_measured("x", values, VideoProtocol(), rng=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert draw[0] == draw[1] != draw[2] and draw[0].value == student.value
    assert draw[0].interval == pytest.approx(student.interval, abs=0.05)


def test_groups_are_drawn_whole(rng):
    groups = torch.tensor([0, 0, 0, 1, 2, 2])
    for _ in range(5):
        counts = resample(6, rng, groups).bincount(minlength=6)
        assert counts[0] == counts[1] == counts[2] and counts[4] == counts[5]
        assert counts[0] + counts[3] + counts[4] == 3
    with pytest.raises(ValueError, match="group of each of the 6 clips"):
        resample(6, rng, groups[1:])


def test_a_number_prints_its_protocol(rng):
    truth = clips(rng)
    out = measure_ssim(disturbed(rng, truth, 0.1), truth, context="out")
    text = str(out)
    for part in (
        f"SSIM {out.value:.4g} [",
        "n 3",
        "frames 4",
        "context out",
        "resolution 24×20",
        "window 11",
        out.digest,
    ):
        assert part in text
    assert (
        out.digest
        == measure_ssim(truth, truth, context="out").digest
        != measure_ssim(truth, truth, context="in").digest
    )
    assert out.record()["protocol"]["resolution"] == (24, 20)
    assert "frames not stated, context not stated" in str(VideoProtocol())
    with pytest.raises(ValueError, match="`context` must be 'in' or 'out'"):
        VideoProtocol.of(truth, "both")


# LPIPS


def random_lpips(seed=0):
    rng = torch.Generator().manual_seed(seed)
    out = {}
    for name, value in LPIPS().state_dict().items():
        noise = torch.randn(value.shape, generator=rng)
        out[name] = noise.abs() if name.startswith("lin") else noise / value[0].numel() ** 0.5
    return out


@pytest.fixture(params=["random", "real"])
def net(request):
    if request.param == "random":
        return load_lpips(random_lpips())
    file = Path(os.environ.get("NEURALSDE_DATA", "")) / "lpips" / "alexnet_lpips.npz"
    if not file.is_file():
        pytest.skip("needs lpips/alexnet_lpips.npz in the folder NEURALSDE_DATA")
    return load_lpips(file)


@pytest.mark.parametrize("size", [31, 64, 100])
def test_lpips_is_a_distance(rng, net, size):
    truth = clips(rng, num=2, frames=2, height=size, width=size)
    other = disturbed(rng, truth, 0.1)
    assert lpips(truth, truth, net).tolist() == [[0, 0], [0, 0]]
    got = lpips(other, truth, net)
    assert float(got.min()) > 0 and torch.allclose(got, lpips(truth, other, net), atol=1e-6)
    chunked = torch.cat([lpips(a[None], b[None], net) for a, b in zip(other, truth)])
    assert torch.allclose(got, chunked, atol=1e-6)


def test_lpips_grows_with_noise_and_blur(rng, net):
    # A sharp pattern, so that there is something to blur
    truth = clips(rng, num=2, frames=1, height=64, width=64).gt(0.5).float()
    noise = [float(lpips(disturbed(rng, truth, by), truth, net).mean()) for by in (0.02, 0.1, 0.4)]
    blur = [
        float(lpips(torch.nn.functional.avg_pool2d(truth[:, 0], k, 1, k // 2)[:, None], truth, net).mean())
        for k in (3, 7, 15)
    ]
    assert noise == sorted(noise) and blur == sorted(blur) and noise[0] < 0.5 * noise[2]


def test_lpips_by_hand(rng):
    """One layer at a time: unit vectors at each pixel, squared difference, weights, mean over pixels."""
    weights = random_lpips()
    net = load_lpips(weights)
    a, b = (2 * torch.rand(1, 3, 40, 36, generator=rng) - 1 for _ in range(2))
    total = 0.0
    for k, (x, y) in enumerate(zip(net.features(a), net.features(b))):
        for i, j in np.ndindex(*x.shape[2:]):
            u, v = (z[0, :, i, j] / z[0, :, i, j].norm() for z in (x, y))
            total += float((weights[f"lin{k}"] * (u - v) ** 2).sum()) / x[0, 0].numel()
    assert float(net(a, b)) == pytest.approx(total, rel=1e-4)
    first = net.features(a)[0]
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)))
    scaled = (a - mean) / std
    want = torch.nn.functional.conv2d(scaled, weights["Conv_0.weight"], weights["Conv_0.bias"], 4, 2).clamp(min=0)
    assert torch.allclose(first, want, atol=1e-5)
    assert [tuple(f.shape[1:]) for f in net.features(torch.zeros(1, 3, 64, 64))] == [
        (64, 15, 15),
        (192, 7, 7),
        (384, 3, 3),
        (256, 3, 3),
        (256, 3, 3),
    ]


def test_lpips_files_and_their_mistakes(rng, tmp_path):
    weights = random_lpips()
    save_file(weights, tmp_path / "lpips.safetensors")
    np.savez(tmp_path / "lpips.npz", **{k: v.numpy() for k, v in weights.items()})
    truth = clips(rng, num=1, frames=2, channels=1, height=40, width=32)
    other = disturbed(rng, truth, 0.1)
    values = [
        lpips(other, truth, load_lpips(w)) for w in (weights, tmp_path / "lpips.safetensors", tmp_path / "lpips.npz")
    ]
    assert torch.equal(values[0], values[1]) and torch.equal(values[0], values[2])
    out = measure_lpips(other, truth, load_lpips(tmp_path / "lpips.npz"), context="in")
    assert out.value == pytest.approx(float(values[0].mean())) and sha256_of(tmp_path / "lpips.npz") in str(out)
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    (tmp_path / "broken.npz").write_bytes((tmp_path / "lpips.npz").read_bytes()[:5000])
    for wrong, message in (
        (tmp_path / "objects.npz", "is not an npz of plain arrays"),
        (tmp_path / "broken.npz", "is not an npz of plain arrays"),
        (tmp_path / "nothing.npz", "There is no file"),
        ({"lin0": torch.zeros(64)}, r"lin1 is missing.*and 10 more\. Expected AlexNet's `Conv_0"),
    ):
        with pytest.raises(ValueError, match=message):
            load_lpips(wrong)
    with pytest.raises(ValueError, match=r"at least 31 pixels\. Got 30×40"):
        lpips(torch.zeros(1, 1, 3, 30, 40), torch.zeros(1, 1, 3, 30, 40), load_lpips(weights))


# Motion


def test_motion_by_hand():
    video = torch.zeros(1, 2, 1, 4, 4)
    video[0, 0, 0, :2, :2], video[0, 1, 0, :2, 2:] = 1.0, 0.5  # a patch moves to the right and fades
    got = motion_features(video, context="out", grid=2)
    assert got.values.tolist() == [[1, 0, 0, 0, 0, 0.5, 0, 0, 1, 0.5, 0, 0]]
    assert "on a 2×2 grid (12)" in str(got.protocol) and "projected" not in str(got.protocol)


def test_motion_is_projected_the_same_way_everywhere(rng):
    videos = torch.randn(64, 6, 4, 8, 8, generator=rng)  # latents
    whole = motion_features(videos, context="out", max_features=10_000)
    small = motion_features(videos, context="out", max_features=128)
    assert whole.values.shape == (64, 11 * 4 * 16) and small.values.shape == (64, 128)
    assert torch.allclose(small.values[5:7], motion_features(videos[5:7], context="out", max_features=128).values)
    assert not torch.allclose(small.values, motion_features(videos, context="out", max_features=128, seed=1).values)
    ratio = torch.pdist(small.values) / torch.pdist(whole.values)
    assert float(ratio.mean()) == pytest.approx(1, abs=0.03) and float(ratio.std()) < 0.1
    assert "(704), projected to 128 (seed 0)" in str(small.protocol)
    for wrong in (videos[:, :1], videos[..., :3]):
        with pytest.raises(ValueError, match="Motion needs 2 frames of 4×4 or more"):
            motion_features(wrong, context="out")


def test_motion_tells_still_videos_from_moving_ones(rng):
    def walk(seed):
        own = torch.Generator().manual_seed(seed)
        return torch.randn(300, 6, 1, 4, 4, generator=own).cumsum(1)

    def distance(a, b):
        a, b = (motion_features(v, context="out", grid=2) for v in (a, b))
        return frechet_distance(a, b, name="motion").value

    still = walk(2)[:, :1].expand(-1, 6, -1, -1, -1)
    assert distance(walk(0), walk(0)) <= 1e-6
    assert distance(walk(0), still) > 5 * distance(walk(0), walk(1))
