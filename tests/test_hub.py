"""Models on the Hub, against a folder of this machine: what is uploaded, what the card says, what a name finds offline."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
import yaml

import neuralsde as nsde
from neuralsde.models import hub

COMMIT = "0" * 40


def model_of():
    rng = np.random.default_rng(0)
    walks = 10 + rng.normal(0, 0.1, (6, 40, 2)).cumsum(1)
    data = nsde.Trajectories.from_arrays(list(walks), [np.arange(40) * 0.5] * 6)
    return nsde.NeuralSDE.for_data(data, net=nsde.MLPConfig(width=8, depth=1), law=nsde.Moments())


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A Hub in a folder: uploads become what a download would leave in the cache; there is no network."""
    folder = tmp_path / "hub"
    folder.mkdir()
    calls = []

    def create_repo(self, repo_id, **options):
        calls.append(("create", repo_id, options["private"]))

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        place = folder / f"models--{repo_id.replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(COMMIT)
        shutil.copytree(folder_path, place / "snapshots" / COMMIT)
        calls.append(("upload", repo_id, sorted(p.name for p in Path(folder_path).iterdir())))
        return f"https://huggingface.co/{repo_id}"

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return folder, calls


def test_a_model_goes_up_and_comes_back_by_its_name(cache):
    _, calls = cache
    model = model_of()
    assert model.push_to_hub("ada/walks", private=True) == "https://huggingface.co/ada/walks"
    files = ["README.md", "config.json", "model.safetensors"]
    assert calls == [("create", "ada/walks", True), ("upload", "ada/walks", files)]
    for load in (nsde.NeuralSDE.from_pretrained, nsde.load):
        back = load("ada/walks")
        for name, value in model.state_dict().items():
            assert torch.equal(back.state_dict()[name], value)
    assert back.learned_from == {"paths": 6, "transitions": 234}


def test_a_folder_here_comes_before_the_hub(cache):
    model = model_of()
    model.push_to_hub("ada/walks")
    with torch.no_grad():
        next(model.nets.parameters()).fill_(7.0)
    model.save_pretrained("ada/walks")
    assert bool((next(nsde.load("ada/walks").nets.parameters()) == 7.0).all())


def test_another_process_finds_it_offline(cache):
    folder, _ = cache
    model_of().push_to_hub("ada/walks")
    code = "import neuralsde as nsde; m = nsde.load('ada/walks'); print(type(m).__name__, m.scale.shape)"
    source = str(Path(nsde.__file__).parents[1])
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(folder), "PYTHONPATH": source}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "NeuralSDE (2,)", done.stderr


def test_a_policy_and_a_table_bring_their_records(cache, tmp_path):
    policy = nsde.SDEPolicy.from_pretrained(Path(nsde.__file__).parent / "weights" / "pusht")
    policy.push_to_hub("ada/pusht")
    back = nsde.SDEPolicy.from_pretrained("ada/pusht")
    assert back.config == policy.config and back.observation == policy.observation
    card = (hub.local_folder("ada/pusht") / "README.md").read_text()
    assert 'nsde.SDEPolicy.from_pretrained("ada/pusht")' in card
    rows = [f"{0.5 * k},{np.sin(k):.4f},{np.cos(k):.4f}" for k in range(60)]
    (tmp_path / "pumps.csv").write_text("\n".join(["t,pressure,flow", *rows]))
    quiet, columns = nsde.RunOptions(progress=False), ["pressure", "flow"]
    nsde.fit_table("pumps.csv", steps=2, options=quiet, output="run", time="t", columns=columns)
    table = nsde.TableModel.load("run")
    table.push_to_hub("ada/pumps")
    assert nsde.TableModel.load("ada/pumps").series == table.series
    assert "| pressure |" in (hub.local_folder("ada/pumps") / "README.md").read_text()


def test_the_card_says_what_a_user_needs(cache):
    model = model_of()
    card = model.card("ada/walks", data="Six walks of an hour.", scores={"CRPS": 0.1234})
    _, header, text = card.split("---\n", 2)
    assert yaml.safe_load(header)["library_name"] == "neuralsde"
    for part in (
        "Six walks of an hour.",
        'model = nsde.load("ada/walks")',
        "| paths of the training | 6 |",
        "| transitions of the training | 234 |",
        "| law | Moments(steps=1, most=32, measurement=False) |",
        "| training step | 0.5 |",
        "| CRPS | 0.1234 |",
        f"| 0 | {float(model.scale.mean[0]):.4g} | {float(model.scale.std[0]):.4g} |",
        "| substeps | 1 |",
    ):
        assert part in text, part
    assert "None are recorded with the model." in model.card("ada/walks")
    model.report = {
        "choice": "Moments",
        "reason": "It was best.",
        "score": {"score": 0.5},
        "words": "on held-out paths",
    }
    chosen = model.card("ada/walks")
    assert "Moments. It was best." in chosen and "| score, score | 0.5 |" in chosen and "On held-out paths." in chosen


def test_doors(cache, monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="There is no folder ada/none here, and the Hub cannot be reached"):
        nsde.load("ada/none")
    with pytest.raises(ValueError, match="`name` must be user/model"):
        model_of().push_to_hub("walks")
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        nsde.load("a/b/c")  # no name of the Hub

    def offline(self, *given, **options):
        raise huggingface_hub.errors.OfflineModeIsEnabled("offline")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", offline)
    with pytest.raises(ValueError, match="ada/walks cannot be uploaded: HF_HUB_OFFLINE is set"):
        model_of().push_to_hub("ada/walks")


def test_what_is_fetched_is_never_executed(cache):
    """Only JSON, tensors and the card are asked for."""
    assert hub.FILES == ["*.json", "*.safetensors", "README.md"]
    model_of().push_to_hub("ada/walks")
    found = hub.fetch("ada/walks")
    assert json.loads((found / "config.json").read_text())["state_shape"] == [2]
