from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from neuralsde.metrics.frechet import (
    frechet_distance,
    frechet_floor,
    frechet_of_sets,
    fvd,
    i3d_features,
    i3d_input,
    jedi,
    load_i3d,
    mmd,
    read_features,
)
from neuralsde.metrics.video import Features, VideoProtocol
from neuralsde.nets.i3d import I3D, FrozenNorm, Pool, Unit, same_padding

SHA = "ab" * 32


def normal(rng, num, size, dtype=torch.float64):
    return torch.randn(num, size, generator=rng, dtype=dtype)


def named(values, net="I3D logits", weights=SHA, **rest):
    return Features(values, VideoProtocol(features=net, weights=weights, **rest))


# Fréchet distance


def frechet_of_moments(mean_a, cov_a, mean_b, cov_b):
    """|m - m'|² + tr A + tr B - 2 tr (A^½ B A^½)^½, by eigenvalues."""
    values, vectors = torch.linalg.eigh(cov_a.double())
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ cov_b.double() @ root).clamp(min=0).sqrt().sum()
    return float((mean_a - mean_b).square().sum() + cov_a.trace() + cov_b.trace() - 2 * cross)


def test_gaussians_whose_distance_is_known():
    mean = torch.tensor([1.0, 0.0, 2.0])
    a, b = torch.tensor([1.0, 4.0, 9.0]), torch.tensor([4.0, 4.0, 1.0])
    # Commuting covariances: |m|² + Σ (√a - √b)²
    assert frechet_of_moments(mean, torch.diag(a), 0 * mean, torch.diag(b)) == pytest.approx(5 + 1 + 0 + 4)
    # The same in another basis, and with a direction of no variance
    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).double()).Q
    cov = turn @ torch.diag(a).double() @ turn.T, turn @ torch.diag(b * torch.tensor([1, 1, 0])).double() @ turn.T
    assert frechet_of_moments(mean, cov[0], 0 * mean, cov[1]) == pytest.approx(5 + 1 + 0 + 9)
    # Not commuting, by hand in two dimensions: tr (AB)^½ = (tr AB + 2 √det AB)^½
    a2, b2 = torch.tensor([[2.0, 1.0], [1.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    want = 4 + 4 - 2 * (8 + 2 * 3) ** 0.5
    assert frechet_of_moments(torch.zeros(2), a2, torch.zeros(2), b2) == pytest.approx(want)


@pytest.mark.parametrize("sizes", [(60, 80), (60, 8), (8, 60), (10, 12)])
def test_sets_have_the_distance_of_their_moments(rng, sizes):
    """More clips than the 10 dimensions, fewer, or both."""
    mix = normal(rng, 10, 10)
    a, b = normal(rng, sizes[0], 10) @ mix + 1e3, normal(rng, sizes[1], 10) + 1e3
    moments = [m for x in (a, b) for m in (x.mean(0), torch.cov(x.T))]
    # Roots of eigenvalues that are 0 up to rounding cost the moments some digits
    assert frechet_of_sets(a, b) == pytest.approx(frechet_of_moments(*moments), rel=1e-7)


def test_the_textbook_formula_agrees_where_it_is_stable(rng):
    a, b = normal(rng, 500, 20) @ normal(rng, 20, 20), normal(rng, 400, 20) + 0.3
    x, y = a.numpy(), b.numpy()
    cov_a, cov_b = np.cov(x.T), np.cov(y.T)
    want = ((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(cov_a + cov_b - 2 * sqrtm(cov_a @ cov_b).real)
    assert frechet_of_sets(a, b) == pytest.approx(want, rel=1e-9)
    assert frechet_of_sets(a.float(), b.float()) == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("num", [30, 400])
def test_identical_sets_are_at_0_and_order_does_not_matter(rng, num):
    a = 50 * normal(rng, num, 100) @ normal(rng, 100, 100)  # 100 dimensions with eigenvalues up to 1e6
    shuffled = a[torch.randperm(num, generator=rng)]
    assert frechet_of_sets(a, a) <= 1e-6 and frechet_of_sets(a, shuffled) <= 1e-6
    b = 50 * normal(rng, num, 100)
    assert frechet_of_sets(a, b) == pytest.approx(frechet_of_sets(shuffled, b), rel=1e-12)
    assert frechet_of_sets(a, b) == pytest.approx(frechet_of_sets(b, a), rel=1e-12)


def test_too_few_clips_are_refused_unless_asked_for(rng):
    a, b = normal(rng, 100, 100), normal(rng, 150, 100)
    with pytest.raises(ValueError, match=r"100 dimensions needs 101 clips.*Got 100.*`min_samples=100`"):
        frechet_distance(a, b, name="noise")
    out = frechet_distance(a, b, name="noise", min_samples=100)
    assert out.n == 100 and "fewer clips than 100 dimensions: biased" in str(out) and "sets of 100 and 150" in str(out)
    with pytest.raises(ValueError, match=r"needs 2 clips of each set: one has no covariance\. Got 1\. Score more\.$"):
        frechet_distance(a[:1], b, name="noise", min_samples=1)  # it must not advise what it refuses
    assert "biased" not in str(frechet_distance(b, b, name="noise"))


def test_halves_show_the_floor(rng):
    """Two samples of n from one unit normal law: 2 D / n by their means, D (D + 1) / (2 n) by their covariances."""
    x = normal(rng, 4_000, 10)
    floor = frechet_floor(x, name="noise", rng=rng)
    assert floor.n == 2_000 and "floor" in floor.name
    assert floor.value == pytest.approx((2 * 10 + 10 * 11 / 2) / 2_000, rel=0.2)
    assert frechet_floor(x[:400], name="noise", rng=rng).value > 5 * floor.value
    with pytest.raises(ValueError, match="10 dimensions needs 11 clips"):
        frechet_floor(x[:20], name="noise", rng=rng)


def test_the_bootstrap_is_seeded_and_as_wide_as_the_truth(rng):
    def sets(seed):
        own = torch.Generator().manual_seed(seed)
        return normal(own, 300, 3), normal(own, 300, 3) + torch.tensor([1.0, 0, 0])

    def measured(seed=1, **options):
        return frechet_distance(*sets(0), name="noise", rng=torch.Generator().manual_seed(seed), **options)

    assert measured() == measured() != measured(2)
    low, high = measured().interval
    assert low < measured().value < high
    values = np.array([frechet_of_sets(*sets(seed)) for seed in range(200)])
    assert (high - low) / (2 * 1.96) == pytest.approx(values.std(), rel=0.25)
    groups = torch.arange(30).repeat_interleave(10)
    assert measured(paired=True, groups=groups).interval != measured(paired=True).interval
    with pytest.raises(ValueError, match="Give `paired=True` too"):
        measured(groups=groups)


def test_names_belong_to_their_nets(rng):
    a, b = normal(rng, 20, 4), normal(rng, 20, 4)
    assert fvd(named(a), named(b)).name == "FVD" and fvd(named(a, "I3D pooled"), named(b, "I3D pooled")).name != "FVD"
    for wrong in (named(a, weights=None), named(a, "motion"), a):
        with pytest.raises(
            ValueError, match=r"may be called 'our FVD' only if I3D with known weights.*Name the distance"
        ):
            frechet_distance(wrong, wrong, name="our FVD")
    with pytest.raises(ValueError, match="may be called 'JEDi' only if V-JEPA"):
        jedi(named(a), named(b))
    with pytest.raises(ValueError, match="Two protocols cannot be compared"):
        fvd(named(a, context="in"), named(b, context="out"))
    with pytest.raises(ValueError, match="must have one dimension"):
        frechet_distance(a, b[:, 1:], name="noise")
    with pytest.raises(ValueError, match="Features must be finite"):
        frechet_distance(a / 0, b, name="noise")


# I3D


def random_weights(seed=0):
    """Weights in the layout of the public port, with statistics that keep activations at one scale."""
    rng = torch.Generator().manual_seed(seed)
    out = {}
    for name, value in I3D().state_dict().items():
        noise = torch.randn(value.shape, generator=rng)
        if name.endswith("conv3d.weight"):
            out[name] = noise * (2 / value[0].numel()) ** 0.5
        elif name.endswith(("bn.weight", "running_var")):
            out[name] = 1 + 0.1 * noise.abs()
        else:
            out[name] = 0.1 * noise
    return out


@pytest.fixture(scope="module")
def weights():
    return random_weights()


@pytest.fixture(scope="module")
def net(weights):
    return load_i3d(weights)


def moving(rng, num=2, frames=10, channels=3, size=32):
    return torch.rand(num, frames, channels, size, size, generator=rng)


def test_padding_is_that_of_tensorflow():
    assert same_padding((5, 4, 224), (3, 3, 7), (2, 2, 2)) == [2, 3, 0, 1, 1, 1]
    assert same_padding((7, 7), (1, 2), (1, 2)) == [0, 1, 0, 0]
    row = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 1, 4)
    unit = Unit(1, 1, 3, 2)
    unit.conv3d.weight.data.fill_(1.0)
    # Windows 1 2 3 and 3 4 0; symmetric padding would give 0 1 2 and 2 3 4
    assert unit(row).flatten().tolist() == pytest.approx([6 / 1.001**0.5, 7 / 1.001**0.5])
    assert Pool((1, 1, 3), (1, 1, 2))(row.flip(-1)).flatten().tolist() == [4.0, 2.0]


def test_normalisation_never_learns(rng):
    norm = FrozenNorm(2).train()
    norm.running_mean.copy_(torch.tensor([1.0, 2.0]))
    norm.running_var.copy_(torch.tensor([4.0, 9.0]))
    norm.weight.fill_(3.0)
    norm.bias.fill_(0.5)
    x = torch.randn(2, 2, 3, 4, 5, generator=rng)
    shift, scale = (torch.tensor(v).view(2, 1, 1, 1) for v in ((1.0, 2.0), (4.001, 9.001)))
    assert torch.allclose(norm(x), 3 * (x - shift) / scale.sqrt() + 0.5, atol=1e-6)
    assert norm.running_mean.tolist() == [1, 2]


def test_the_layout_is_that_of_the_public_port(weights):
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    units = 3 + 9 * 6
    assert len(shapes) == 5 * units + 2
    assert sum(np.prod(s) for name, s in shapes.items() if "running" not in name) == 12_697_264
    assert shapes["Conv3d_1a_7x7.conv3d.weight"] == (64, 3, 7, 7, 7)
    assert shapes["Mixed_3b.b0.bn.running_mean"] == (64,) and shapes["Mixed_4f.b1b.conv3d.weight"] == (
        320,
        160,
        3,
        3,
        3,
    )
    assert shapes["Mixed_5c.b3b.conv3d.weight"] == (128, 832, 1, 1, 1)
    assert shapes["logits.conv3d.weight"] == (400, 1024, 1, 1, 1) and shapes["logits.conv3d.bias"] == (400,)


def test_shapes_at_every_stage_and_layers(net, rng, monkeypatch):
    x = 2 * torch.rand(1, 3, 10, 224, 224, generator=rng) - 1
    with torch.no_grad():
        found = list(net.stages(x))
        monkeypatch.setattr(I3D, "stages", lambda *_: iter(found))
        logits, pooled = net(x), net(x, "pooled")
    shapes = {name: tuple(value.shape[1:]) for name, value in found}
    assert shapes["Conv3d_1a_7x7"] == (64, 5, 112, 112) and shapes["Conv3d_2c_3x3"] == (192, 5, 56, 56)
    assert shapes["Mixed_3b"] == (256, 5, 28, 28) and shapes["Mixed_3c"] == (480, 5, 28, 28)
    assert [shapes[f"Mixed_4{k}"] for k in "bcdef"] == [(c, 3, 14, 14) for c in (512, 512, 512, 528, 832)]
    assert shapes["Mixed_5b"] == (832, 2, 7, 7) and shapes["Mixed_5c"] == (1024, 2, 7, 7)
    assert logits.shape == (1, 400) and pooled.shape == (1, 1024)
    weight, bias = net.logits.conv3d.weight.flatten(1), net.logits.conv3d.bias
    assert torch.allclose(logits, pooled @ weight.T + bias, atol=1e-4)  # averages and a linear map commute


def test_a_block_is_four_branches(net, rng):
    """The block by nn's own layers, whose symmetric padding is right at stride 1 and odd kernels."""
    x = torch.rand(1, 192, 3, 5, 6, generator=rng)
    block = net.Mixed_3b

    def unit(u, x):
        y = torch.nn.functional.conv3d(x, u.conv3d.weight, padding=u.conv3d.kernel_size[0] // 2)
        b = u.bn
        y = torch.nn.functional.batch_norm(y, b.running_mean, b.running_var, b.weight, b.bias, eps=1e-3)
        return y.clamp(min=0)

    pooled = torch.nn.functional.max_pool3d(x, 3, 1, padding=1)
    want = [unit(block.b0, x), unit(block.b1b, unit(block.b1a, x)), unit(block.b2b, unit(block.b2a, x))]
    assert torch.allclose(block(x), torch.cat([*want, unit(block.b3b, pooled)], 1), atol=1e-5)


def test_weights_make_a_round_trip_through_files(weights, net, rng, tmp_path):
    from safetensors.torch import save_file

    save_file(weights, tmp_path / "i3d.safetensors")
    old = {**weights, "Conv3d_1a_7x7.bn.num_batches_tracked": torch.tensor(3)}
    torch.save(old, tmp_path / "i3d.pt")
    again = load_i3d(tmp_path / "i3d.safetensors")
    # A pickle is the user's to open, without running it
    opened = load_i3d(torch.load(tmp_path / "i3d.pt", weights_only=True))
    for other in (again, opened):
        own = other.state_dict()
        assert all(torch.equal(value, own[name]) for name, value in net.state_dict().items())
        assert not any(p.requires_grad for p in other.parameters()) and len(other.sha256) == 64
    assert again.sha256 != net.sha256 == load_i3d(random_weights()).sha256 != load_i3d(random_weights(1)).sha256
    with pytest.raises(ValueError, match=r"i3d.pt is a pickle and is not opened here.*Give its state dict"):
        load_i3d(tmp_path / "i3d.pt")


def test_weights_that_do_not_fit_are_named(weights, tmp_path):
    layout = r"Expected the names of the public PyTorch port of I3D.*Conv3d_1a_7x7\.conv3d\.weight"
    with pytest.raises(ValueError, match=r"logits\.conv3d\.bias is missing\. " + layout):
        load_i3d({k: v for k, v in weights.items() if k != "logits.conv3d.bias"})
    with pytest.raises(ValueError, match=r"is missing; .* and \d+ more. " + layout):
        load_i3d({f"module.{k}": v for k, v in weights.items()})
    with pytest.raises(ValueError, match=r"logits\.conv3d\.bias is \(600,\) instead of \(400,\)"):
        load_i3d({**weights, "logits.conv3d.bias": torch.zeros(600)})
    with pytest.raises(ValueError, match=r"Conv3d_1a_7x7\.bn\.bias is not finite"):
        load_i3d({**weights, "Conv3d_1a_7x7.bn.bias": torch.full((64,), torch.nan)})
    with pytest.raises(ValueError, match=r"There is no file .*give your own"):
        load_i3d(tmp_path / "nothing.safetensors")


def test_frames_become_what_i3d_expects(rng):
    grey = torch.rand(2, 3, 1, 5, 7, generator=rng)
    x = i3d_input(grey, torch.device("cpu"))
    assert x.shape == (2, 3, 3, 224, 224) and -1 <= float(x.min()) < -0.8 and 0.8 < float(x.max()) <= 1
    assert torch.equal(x[:, 0], x[:, 2])
    assert torch.allclose(
        x[1, 0, 2, [0, 0, -1, -1], [0, -1, 0, -1]], 2 * grey[1, 2, 0][[0, 0, -1, -1], [0, -1, 0, -1]] - 1
    )
    assert torch.equal(i3d_input(torch.ones(1, 1, 3, 224, 224), torch.device("cpu")), torch.ones(1, 3, 1, 224, 224))


def test_fvd_of_videos(net, rng):
    real = moving(rng, num=3)
    features = i3d_features(real, net, context="out", batch=1)
    a, b = (replace(features, values=features.values[rows]) for rows in ([0, 1], [1, 2]))
    assert features.values.shape == (3, 400)
    assert fvd(a, a, min_samples=2).value <= 1e-6
    out = fvd(a, b, min_samples=2)
    assert out.value > 0 and out.n == 2
    for part in (
        "FVD ",
        "frames 10",
        "context out",
        "resolution 32×32",
        "I3D logits (400)",
        "224×224",
        net.sha256,
        "biased",
    ):
        assert part in str(out)
    with pytest.raises(ValueError, match="400 dimensions needs 401 clips"):
        fvd(a, b)
    with pytest.raises(ValueError, match=r"at least 10 frames\. Got 9"):
        i3d_features(real[:, 1:], net, context="out")
    with pytest.raises(ValueError, match=r"This I3D has no weights\. Make it with load_i3d"):
        i3d_features(real, I3D(), context="out")
    with pytest.raises(ValueError, match=r"1 or 3 channels\. Got 4"):
        i3d_features(moving(rng, channels=4), net, context="out")


# JEDi


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize(("degree", "gamma", "offset"), [(2, None, 0.0), (3, 0.5, 1.0)])
def test_mmd_is_its_double_sum(rng, monkeypatch, unbiased, degree, gamma, offset):
    a, b = normal(rng, 7, 4), normal(rng, 5, 4) + 0.5
    scale = 0.25 if gamma is None else gamma

    def mean(u, v, same):
        pairs = [(i, j) for i in range(len(u)) for j in range(len(v)) if not (same and unbiased and i == j)]
        return sum(float((scale * (u[i] * v[j]).sum() + offset) ** degree) for i, j in pairs) / len(pairs)

    want = mean(a, a, True) + mean(b, b, True) - 2 * mean(a, b, False)
    monkeypatch.setattr("neuralsde.metrics.frechet.MAX_VALUES", 12)
    assert mmd(a, b, degree=degree, gamma=gamma, offset=offset, unbiased=unbiased) == pytest.approx(want, rel=1e-10)


def test_mmd_in_closed_form(rng):
    a, b = normal(rng, 50, 3) + 1, normal(rng, 40, 3) @ normal(rng, 3, 3)
    gap = a.mean(0) - b.mean(0)
    assert mmd(a, b, degree=1, gamma=1.0) == pytest.approx(float(gap.square().sum()))
    second = a.T @ a / 50 - b.T @ b / 40  # x·y squared is the product of x xᵀ and y yᵀ
    assert mmd(a, b) == pytest.approx(float(second.square().sum()) / 9)


def test_identical_sets_and_the_bias(rng):
    a = normal(rng, 60, 8)
    assert mmd(a, a) == 0 and mmd(a, a[torch.randperm(60, generator=rng)]) <= 1e-12
    pairs = [(normal(rng, 40, 8), normal(rng, 40, 8)) for _ in range(100)]
    plain, fair = (np.array([mmd(*pair, unbiased=u) for pair in pairs]) for u in (False, True))
    assert plain.min() >= 0 and abs(fair.mean()) < 4 * fair.std() / 100**0.5 < plain.mean()
    with pytest.raises(ValueError, match="2 values each, are needed"):
        mmd(a[:1], a, unbiased=True)


def test_jedi_from_files_and_from_an_extractor(rng, tmp_path):
    from safetensors.torch import save_file

    a, b = normal(rng, 30, 6).float(), normal(rng, 30, 6).float() + 0.5
    np.save(tmp_path / "real.npy", a.numpy())
    save_file({"features": b}, tmp_path / "made.safetensors")
    (tmp_path / "vjepa.pt").write_bytes(b"never opened")
    stated = {"features": "V-JEPA ViT-L", "frames": 16, "context": "out", "resolution": (64, 64)}
    real = read_features(tmp_path / "real.npy", weights=tmp_path / "vjepa.pt", **stated)
    made = read_features(tmp_path / "made.safetensors", weights=real.protocol.weights.upper(), **stated)
    out = jedi(real, made, rng=rng, num_resamples=50)
    assert out.value == pytest.approx(100 * mmd(a, b)) and out.interval[0] < out.value < out.interval[1]
    for part in ("JEDi", "n 30", "frames 16", "64×64", "V-JEPA ViT-L", real.protocol.weights, "biased", "(x·y / 6)²"):
        assert part in str(out)
    assert jedi(real, made, unbiased=True).value == pytest.approx(100 * mmd(a, b, unbiased=True))

    with pytest.raises(ValueError, match="must be a file or its SHA-256"):
        read_features(tmp_path / "real.npy", features="V-JEPA", weights="large")


def test_feature_files_that_are_none_are_refused(tmp_path):
    from safetensors.torch import save_file

    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    np.save(tmp_path / "cube.npy", np.zeros((2, 3, 4)))
    save_file({"a": torch.zeros(1, 2), "b": torch.zeros(1, 2)}, tmp_path / "two.safetensors")
    for name, message in (
        ("objects.npy", r"is not a \.npy of numbers"),
        ("cube.npy", r"floats \(clips, features\)\. Got \(2, 3, 4\)"),
        ("two.safetensors", r"must hold one tensor\. Got \['a', 'b'\]"),
        ("nothing.npy", "There is no file"),
    ):
        with pytest.raises(ValueError, match=message):
            read_features(tmp_path / name, features="V-JEPA", weights=SHA)
