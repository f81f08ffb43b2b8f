import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from disks import full_disk
from distributed_fit import problem
from safetensors.torch import load as parse
from safetensors.torch import save_file
from torch import nn

import neuralsde
from neuralsde import NeuralSDE, Sampler, load
from neuralsde.baselines.config import DDIMConfig, GaussianConfig, RectifiedFlowConfig
from neuralsde.baselines.ddim import DDIM
from neuralsde.models.build import build
from neuralsde.nets.config import MLPConfig
from neuralsde.sde.config import Denoiser, Deterministic, NeuralSDEConfig

SOURCE = Path(neuralsde.__file__).parent
PICKLES = "|".join(
    (
        r"torch\.(load|save)\(",
        r"^\s*(import|from) (pickle|dill|joblib|shelve|marshal)",
        r"yaml\.(unsafe_|full_)?load\(",
        r"allow_pickle=True|\beval\(|\bexec\(",
    )
)

SDE = {"kind": "NeuralSDEConfig", "net": {"kind": "MLPConfig", "width": 16, "depth": 1}}
"""As saved below."""


@pytest.fixture
def saved(tmp_path):
    model, _ = problem()
    return model.save_pretrained(tmp_path / "model")


def sample(model):
    times = torch.linspace(0, 1, 6)
    return model.sample([0.1, -0.2], times, num_paths=3, rng=torch.Generator().manual_seed(0))


def randomise(model):
    """Weights that are not those of a fresh model."""
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.1 * torch.randn(p.shape, generator=rng))


@pytest.mark.parametrize(
    "config",
    [
        NeuralSDEConfig(
            tau=0.5, noise=(0.1, 0.2), denoiser=Denoiser(antithetic=True), sampler=Sampler(pull=0.5, substeps=2)
        ),
        NeuralSDEConfig(law=Deterministic(), denoiser=None, time_input=True),
        DDIMConfig(net=MLPConfig(width=16, depth=1), target="increment"),
        RectifiedFlowConfig(net=MLPConfig(width=16, depth=1)),
        GaussianConfig(net=MLPConfig(width=16, depth=1)),
    ],
    ids=lambda c: type(c).__name__,
)
def test_a_model_comes_back_as_it_was(config, tmp_path):
    model = build(config, problem()[1].transitions(lag=0.2))
    randomise(model)
    model.sampler = (
        Sampler(diffusion=0.5) if isinstance(config, NeuralSDEConfig) and config.law.stochastic else model.sampler
    )
    model.save_pretrained(tmp_path / "deep" / "model")
    deep = tmp_path / "deep"  # as the folder of a run
    for again in (type(model).from_pretrained(deep / "model"), load(str(deep / "model")), load(deep)):
        assert type(again) is type(model) and not again.training
        assert again.lag == 0.2 and again.scale.step == model.scale.step and again.sampler == model.sampler
        assert torch.equal(sample(again), sample(model))
    assert sorted(p.name for p in (tmp_path / "deep" / "model").iterdir()) == ["config.json", "model.safetensors"]


def test_several_lags_travel_with_the_model(tmp_path):
    model = build(
        NeuralSDEConfig(history=2, net=MLPConfig(width=8, depth=1)), problem()[1].transitions(lag=(0.2, None))
    )
    assert model.lag == (None, 0.2) and model.scale.step == pytest.approx(0.1)
    again = load(model.save_pretrained(tmp_path))
    assert again.lag == (None, 0.2)
    assert torch.equal(again.log_prob(problem()[1]), model.log_prob(problem()[1]))  # slots as in training


def test_saving_again_replaces_and_another_class_is_refused(saved):
    model, _ = problem(noise=0.3)
    randomise(model)
    model.save_pretrained(saved)
    assert torch.equal(sample(load(saved)), sample(model))
    with pytest.raises(ValueError, match=r"holds a NeuralSDE, not a DDIM\. Use NeuralSDE\.from_pretrained"):
        DDIM.from_pretrained(saved)


def test_nothing_of_a_bad_file_is_loaded(saved, tmp_path):
    file, content = saved / "model.safetensors", (saved / "model.safetensors").read_bytes()

    for size in (0, 4, 100, len(content) - 1):
        file.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"model\.safetensors is truncated or not a safetensors file"):
            load(saved)
    file.write_bytes(b"\x89PNG" + bytes(1000))
    with pytest.raises(ValueError, match="truncated or not a safetensors file"):
        load(saved)
    for old in (True, False):  # a zip and a bare pickle
        torch.save(parse(content), file, _use_new_zipfile_serialization=old)
        with pytest.raises(ValueError, match=r"is a pickle or a zip of one\. It is never loaded"):
            load(saved)
    file.unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
        load(saved)
    torch.save({}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"model\.pt is a file\. A saved model is a folder.*pickles are never loaded"):
        load(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"config": {"kind": "GANConfig"}},
            r"unknown kind 'GANConfig'\. Import the module that defines it first\. Known: AutoencoderConfig, BETConfig, "
            r"DDIMConfig, .*NeuralSDEConfig, PFIConfig, (RandomWalkConfig, )?RectifiedFlowConfig",
        ),
        ({"config": {"noise": 0.1}}, "unknown kind None"),
        ({"config": None}, "not from this library"),
        ({"format": 5}, r"has format 5, this version reads 4\. Install a newer neuralsde"),
        ({"format": None}, "has format None"),
        ({"config": SDE | {"noize": 1.0}}, r"Unknown key `noize` for NeuralSDEConfig\. Did you mean `noise`"),
        (
            {"config": SDE | {"net": {"kind": "MLPConfig", "width": 8}}},
            r"does not fit its config\.json: .* has shape \(.*\), not \(",
        ),
        ({"config": SDE | {"denoiser": None}}, r"nets\.denoiser\..* is unknown"),
        ({"config": SDE | {"denoiser": {"alpha": True}}}, r"nets\.alpha\..* is missing"),
        ({"state_shape": [3]}, r"does not fit its config\.json"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(saved, change, message):
    record = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(record | change))
    with pytest.raises(ValueError, match=message):
        load(saved)


def without_copies(folder):
    """A folder as earlier versions wrote it."""
    file = folder / "model.safetensors"
    save_file(parse(file.read_bytes()), file)


def test_a_record_that_cannot_be_read_is_refused(saved, tmp_path):
    for content, message in ((b"{", "not valid JSON"), (b"\xff\xfe", "not text in UTF-8")):
        (saved / "config.json").write_bytes(content)
        with pytest.raises(ValueError, match=rf"config\.json is {message}"):
            load(saved)
    without_copies(saved)
    (saved / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="not from this library"):
        load(saved)
    (saved / "config.json").unlink()
    (saved / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"holds no config\.json\. Pass a folder written by save_pretrained"):
        load(saved)
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        load(tmp_path / "nowhere")


def test_a_record_that_lacks_parts_is_refused(saved):
    without_copies(saved)
    (saved / "config.json").write_text(json.dumps({"kind": "NeuralSDE", "format": 1}))
    with pytest.raises(ValueError, match=r"config\.json lacks config"):
        load(saved)


def test_tensors_of_another_shape_or_name_are_refused(saved):
    weights = load(saved).state_dict()
    name = "nets.flow.outward.weight"
    save_file({**weights, name: weights[name][:1].clone()}, saved / "model.safetensors")
    with pytest.raises(ValueError, match=rf"{name} has shape \(1, 16\), not \(2, 16\)"):
        load(saved)
    save_file({k: v for k, v in weights.items() if k != name}, saved / "model.safetensors")
    with pytest.raises(ValueError, match=f"{name} is missing"):
        load(saved)
    save_file({**weights, "extra": torch.zeros(1)}, saved / "model.safetensors")
    with pytest.raises(ValueError, match="extra is unknown"):
        load(saved)


class OwnNet(nn.Module):
    """A user's net."""

    def __init__(self, size=2, *, tied=False):
        super().__init__()
        self.a = nn.Linear(size, size)
        self.b = nn.Linear(size, size)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, state, condition=None):
        return self.b(torch.tanh(self.a(state[:, -1])))


def own_nets(size=2, *, tied=False):
    return {name: OwnNet(size, tied=tied) for name in ("flow", "diffusion", "denoiser")}


def test_nets_of_the_users_own_are_asked_for_by_name(tmp_path):
    model = NeuralSDE.for_data(problem()[1], nets=own_nets())
    model.save_pretrained(tmp_path)
    call = r"NeuralSDE\.from_pretrained\(path, nets=\{'denoiser': …, 'diffusion': …, 'flow': …\}\)"
    with pytest.raises(ValueError, match=rf"nets of your own\. Load it with {call}"):
        load(tmp_path)
    again = NeuralSDE.from_pretrained(tmp_path, nets=own_nets())
    assert torch.equal(sample(again), sample(model))
    with pytest.raises(ValueError, match=r"does not fit its config\.json: .*Save again, or give the same nets"):
        load(tmp_path, nets=own_nets(size=3))
    with pytest.raises(ValueError, match=r"`nets` must hold \['flow', 'diffusion', 'denoiser'\].*Got \['flow'\]"):
        load(tmp_path, nets={"flow": OwnNet()})


class Blind(OwnNet):
    def forward(self, state):
        return state[:, -1]


def test_nets_of_another_form_are_refused_with_what_they_get():
    data, net = problem()[1], OwnNet()
    with pytest.raises(ValueError, match=r"`nets` must hold your nets by name.*Got a OwnNet"):
        NeuralSDE.for_data(data, nets=net)
    with pytest.raises(ValueError, match=r"`net` must be a NetConfig. Got a OwnNet.*go into `nets`"):
        NeuralSDE.for_data(data, net=net)
    with pytest.raises(ValueError, match=r"'flow' must take a state \(2, 1, 2\) and a condition None. It says"):
        NeuralSDE.for_data(data, nets={name: Blind() for name in own_nets()})
    with pytest.raises(ValueError, match="Got one twice"):
        NeuralSDE.for_data(data, nets=dict.fromkeys(own_nets(), net))


def test_nets_that_share_a_tensor_can_be_saved(tmp_path):
    model = NeuralSDE.for_data(problem()[1], nets=own_nets(tied=True))
    model.save_pretrained(tmp_path)
    assert torch.equal(sample(load(tmp_path, nets=own_nets(tied=True))), sample(model))


def test_a_failed_save_leaves_the_old_model_valid(saved):
    before = {p.name: p.read_bytes() for p in saved.iterdir()}
    model = load(saved)
    model.scale.mean += 1
    with full_disk() as fill, pytest.raises(Exception, match="File too large"):
        fill(2_000)
        model.save_pretrained(saved)
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before
    load(saved)


def test_an_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="Cannot write to the folder"):
        problem()[0].save_pretrained(tmp_path / "file" / "model")


def test_a_moved_folder_loads(saved, tmp_path):
    shutil.move(saved, tmp_path / "elsewhere")
    load(tmp_path / "elsewhere")


def test_no_source_file_reads_or_writes_a_pickle():
    allowed = {
        "taef2.py": [
            '        found = torch.load(file, map_location="cpu", weights_only=True)'
        ],  # tensors, nothing else
        "distributed.py": ["import pickle"],  # for the name of an error
    }
    found = {}
    for file in SOURCE.rglob("*.py"):
        lines = file.read_text().splitlines()
        if hits := [line for line in lines if re.search(PICKLES, line) and ".eval(" not in line]:
            found.setdefault(file.name, []).extend(hits)
    assert found == allowed


def test_half_precision_halves_the_file_and_keeps_the_units(tmp_path):
    model, _ = problem()
    randomise(model)
    whole, small = (model.save_pretrained(tmp_path / name, half=name == "small") for name in ("whole", "small"))
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (whole, small)]
    assert sizes[1] < 0.7 * sizes[0]
    again = NeuralSDE.from_pretrained(small)
    for (name, before), after in zip(model.state_dict().items(), again.state_dict().values()):
        assert after.dtype == before.dtype
        torch.testing.assert_close(after, before, rtol=1e-3 if "nets" in name else 0, atol=1e-6)
    next(model.parameters()).data.fill_(1e6)
    with pytest.raises(ValueError, match="does not fit into 16 bits"):
        model.save_pretrained(tmp_path / "large", half=True)
    assert not (tmp_path / "large").exists()
