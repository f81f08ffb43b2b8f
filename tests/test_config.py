from dataclasses import asdict, replace

import pytest
import yaml

from neuralsde.baselines.config import DDIMConfig, Generation, RectifiedFlowConfig
from neuralsde.core.formats import current
from neuralsde.core.records import each_with_settings, from_dict, load_yaml, save_yaml, to_dict, with_settings
from neuralsde.experiments.config import BranchingConfig, Experiment
from neuralsde.experiments.recipes.branching import comparison
from neuralsde.experiments.recipes.registry import RECIPES
from neuralsde.nets.config import MLPConfig
from neuralsde.sde.config import Denoiser, Deterministic, Euler, Moments, NeuralSDEConfig, Sampler
from neuralsde.training.config import RunOptions, TrainConfig

EXPERIMENTS = {name: recipe() for name, recipe in RECIPES.items()} | comparison()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_recipe_survives_yaml(name, tmp_path):
    save_yaml(EXPERIMENTS[name], tmp_path / "config.yaml")
    assert load_yaml(Experiment, tmp_path / "config.yaml") == EXPERIMENTS[name]


@pytest.mark.parametrize(
    "config",
    [
        NeuralSDEConfig(
            tau=0.25, noise=(0.1, 0.2), denoiser=Denoiser(antithetic=True), sampler=Sampler(balance=None, box=None)
        ),
        DDIMConfig(prediction="v_prediction", noise=1e-5, net=MLPConfig(dropout=0.5)),
        TrainConfig(lr=1e-7, ema=0.0),
    ],
)
def test_tuples_none_and_small_numbers_survive_yaml(config, tmp_path):
    save_yaml(config, tmp_path / "c.yaml")
    assert load_yaml(type(config), tmp_path / "c.yaml") == config


def test_the_kind_of_model_is_recorded():
    assert to_dict(RECIPES["branching-ddim"]())["model"]["kind"] == "DDIMConfig"
    assert "kind" not in to_dict(TrainConfig())


def changed(path, value):
    """The record of the branching recipe with one value changed or added."""
    values = to_dict(RECIPES["branching"]())
    *parents, last = path.split(".")
    inner = values
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("nam", "x", r"Unknown key `nam` for Experiment\. Did you mean `name`\?"),
        ("train.leraning_rate", 1.0, r"Unknown key `train\.leraning_rate` for TrainConfig"),
        ("train.step", 10, r"Unknown key `train\.step` for TrainConfig\. Did you mean `steps`\?"),
        ("model.law.flow_los", "mse", r"Unknown key `model\.law\.flow_los` .* Did you mean `flow_loss`\?"),
        ("model.nois", 0.1, r"Unknown key `model\.nois` .* Did you mean `noise`\?"),
        ("model.sampler.pul", 1.0, r"Unknown key `model\.sampler\.pul` for Sampler\. Did you mean `pull`\?"),
        ("model.net.zzz", 1, r"Unknown key `model\.net\.zzz` for MLPConfig\. It takes width, depth, dropout"),
        ("train.steps", "many", r"`train\.steps` must be of type int\. Got 'many'"),
        ("train.steps", 10.5, r"`train\.steps` must be of type int\. Got 10\.5"),
        ("train.steps", True, r"`train\.steps` must be of type int\. Got True"),
        ("train.lr", True, r"`train\.lr` must be of type float\. Got True"),
        ("train.lr", "1e-3x", r"`train\.lr` must be of type float\. Got '1e-3x'"),
        ("model.shared", 1, r"`model\.shared` must be of type bool\. Got 1"),
        ("train.precision", "fp8", r"`train\.precision` must be one of \['no', 'tf32', 'bf16'\]\. Got 'fp8'"),
        ("model.tau", "middle", r"`model\.tau` must be one of the types .*float.*Got 'middle'"),
        ("model.sampler", 3, r"`model\.sampler` must be a mapping\. Got 3"),
        ("model.sampler.box", "big", r"`model\.sampler\.box` must be one of the types float, NoneType\. Got 'big'"),
        (
            "model.kind",
            "GAN",
            r"`model\.kind` must be one of \['AutoencoderConfig', 'BETConfig', .*'DDIMConfig', .*Got 'GAN'",
        ),
        ("train", None, r"`train` must be a mapping\. Got None"),
        ("model.noise", -0.1, r"`noise` must not be negative"),
        ("train.lr", 0.0, "`lr` must be positive"),
    ],
)
def test_a_bad_record_is_refused_by_name(path, value, message):
    with pytest.raises(ValueError, match=message):
        from_dict(Experiment, changed(path, value))


def test_missing_parts_are_named():
    with pytest.raises(ValueError, match="`Experiment` lacks name, task"):
        from_dict(Experiment, {"model": {"kind": "NeuralSDEConfig"}})
    with pytest.raises(ValueError, match=r"`model\.kind` must be one of"):
        from_dict(Experiment, {"name": "x", "task": {"kind": "BranchingConfig"}, "model": {"kind": "Other"}})
    assert (
        from_dict(Experiment, {"name": "x", "task": {"kind": "BranchingConfig"}, "model": {"kind": "DDIMConfig"}}).train
        == TrainConfig()
    )


def test_a_record_from_before_there_was_a_choice_means_the_first():
    old = {"name": "x", "task": {}, "model": {"net": {"width": 8}}}
    found = from_dict(Experiment, current(old))
    assert isinstance(found.task, BranchingConfig) and found.model == NeuralSDEConfig(net=MLPConfig(width=8))
    with pytest.raises(ValueError, match=r"`task` lacks its `kind`, one of \['BranchingConfig', "):
        from_dict(Experiment, old)


def test_whole_numbers_serve_as_floats_also_as_people_write_them():
    assert from_dict(Experiment, changed("train.lr", 1)).train.lr == 1.0
    values = yaml.safe_load("lr: 1e-3")  # a string to YAML 1.1
    assert from_dict(TrainConfig, values).lr == 1e-3


def test_files(tmp_path):
    file = tmp_path / "c.yaml"
    with pytest.raises(ValueError, match=r"There is no config file .*c\.yaml"):
        load_yaml(Experiment, file)
    file.write_text("model: [1, 2\nname: }")
    with pytest.raises(ValueError, match=r"c\.yaml is not valid YAML"):
        load_yaml(Experiment, file)
    file.write_text("")
    with pytest.raises(ValueError, match=r"`Experiment` must be a mapping\. Got None"):
        load_yaml(Experiment, file)
    file.write_text("!!python/object/apply:os.system ['true']")
    with pytest.raises(ValueError, match="is not valid YAML"):
        load_yaml(Experiment, file)
    file.write_bytes(b"\x80\x04\xff\xfe")
    with pytest.raises(ValueError, match="is not text in UTF-8"):
        load_yaml(Experiment, file)


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (MLPConfig, {"width": 0}, "`width` and `depth` must be positive"),
        (MLPConfig, {"depth": -1}, "`width` and `depth` must be positive"),
        (MLPConfig, {"dropout": 1.0}, r"`dropout` must be in \[0, 1\)"),
        (Sampler, {"substeps": 0}, "`substeps` must be at least 1"),
        (Sampler, {"pull": -1.0}, "`pull` must not be negative"),
        (Sampler, {"diffusion": -1.0}, "`diffusion` must not be negative"),
        (Sampler, {"balance": 3.0}, r"`balance` must be within \[0, 2\]"),
        (Sampler, {"box": 0.0}, "`box` must be positive or None"),
        (NeuralSDEConfig, {"tau": "end"}, r"`tau` must be one of \['start', 'uniform'\] or a number. Got 'end'"),
        (NeuralSDEConfig, {"tau": 1.5}, r"within \[0, 1\]\. Got tau=1\.5"),
        (NeuralSDEConfig, {"noise": -0.1}, "`noise` must not be negative"),
        (NeuralSDEConfig, {"noise": float("nan")}, "`noise` must be finite. Got noise=nan"),
        (NeuralSDEConfig, {"noise": (0.1, 0.0)}, "positive for all features or none"),
        (Euler, {"delta": 0.0}, "`delta` must be positive"),
        (Denoiser, {"weight": 0.0}, "`weight` must be positive"),
        (NeuralSDEConfig, {"history": 0}, "`history` must be at least 1"),
        (NeuralSDEConfig, {"denoiser": Denoiser(alpha=True), "noise": 0.0}, "`alpha` got no score"),
        (NeuralSDEConfig, {"shared": True, "law": Deterministic(), "denoiser": None}, "`shared` takes flow with"),
        (NeuralSDEConfig, {"interpolation": "bridge", "law": Deterministic()}, "needs the diffusion"),
        (NeuralSDEConfig, {"law": Moments(measurement=True), "tau": "uniform"}, "`measurement` is learned by"),
        (Moments, {"steps": 0}, "`steps` must be at least 1"),
        (Generation, {"num_steps": 0}, "`num_steps` must be at least 1"),
        (RectifiedFlowConfig, {"noise": -1.0}, "`noise` must not be negative"),
        (RectifiedFlowConfig, {"history": 0}, "`history` must be at least 1"),
        *((TrainConfig, {n: 0}, f"`{n}` must be at least 1") for n in ("steps", "batch_size")),
        *((RunOptions, {n: 0}, f"`{n}` must be at least 1") for n in ("keep", "log_every")),
        (TrainConfig, {"lr": float("nan")}, "`lr` must be positive"),
        (TrainConfig, {"ema": 1.0}, r"`ema` must be within \[0, 1\)"),
        (TrainConfig, {"val_fraction": 1.0}, "`val_fraction` must be within"),
        (BranchingConfig, {"density": 0}, "`density` must be at least 1"),
        (BranchingConfig, {"angle": 90.0}, "`angle` must be between 0 and 90"),
    ],
)
def test_values_out_of_range_are_refused(cls, values, message):
    with pytest.raises(ValueError, match=message):
        cls(**values)


def test_configs_are_frozen_and_replace_checks_again():
    config = TrainConfig()
    with pytest.raises(AttributeError):
        config.lr = 1.0
    with pytest.raises(ValueError, match="`lr` must be positive"):
        replace(config, lr=-1.0)
    assert asdict(config) == asdict(TrainConfig())


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (Euler, {"flow_loss": "MSE"}, r"`flow_loss` must be one of \['mse', 'log', 'nll'\]. Got 'MSE'"),
        (NeuralSDEConfig, {"normalise": "zscore"}, r"`normalise` must be one of .* Got 'zscore'"),
        (Sampler, {"solver": "rk4"}, r"`solver` must be one of .* Got 'rk4'"),
        (NeuralSDEConfig, {"history": 2.0}, r"`history` must be a whole number, at least 1. Got 2.0"),
        (TrainConfig, {"steps": 1e3}, r"`steps` must be a whole number, at least 1. Got 1000.0"),
    ],
)
def test_a_misspelt_choice_does_not_train_something_else(cls, values, message):
    with pytest.raises(ValueError, match=message):
        cls(**values)


def test_unknown_settings_are_suggested():
    with pytest.raises(ValueError, match=r"Unknown key `nosie` for NeuralSDEConfig. Did you mean `noise`"):
        with_settings(NeuralSDEConfig(), {"nosie": 0.1})
    assert with_settings(TrainConfig(), {"steps": 7}).steps == 7
    with pytest.raises(ValueError, match=r"`progres` for TrainConfig or RunOptions. Did you mean `progress`"):
        each_with_settings({"progres": False}, TrainConfig(), RunOptions())
    train, options = each_with_settings({"cpu": True, "steps": 7}, TrainConfig(), RunOptions())
    assert train.steps == 7 and options.cpu


def test_how_a_run_ran_is_in_no_record():
    old = to_dict(TrainConfig()) | {"progress": False, "cpu": True, "checkpoint_every": 7, "trackers": ["wandb"]}
    assert from_dict(TrainConfig, current(old, "TrainConfig")) == TrainConfig()
