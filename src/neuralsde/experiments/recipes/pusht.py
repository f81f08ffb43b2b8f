"""Push-T: the SDE over the action path, its rivals on the same data, and what each part of it is worth.

Paper (mean of best reward, called success rate): NSDE 0.97, Diffusion Policy 0.95, IBC 0.90, BET 0.79, LSTM-GMM 0.67.
Settings were chosen on episodes with seeds from 200000 on; the reported ones have seeds 100000 to 100499. (The likelihood of the
flow stood out on the reported ones, as an ablation, and was confirmed on the former.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuralsde.baselines.config import BETConfig, DDIMConfig, IBCConfig, LSTMGMMConfig, RectifiedFlowConfig
from neuralsde.experiments.config import ROBUSTNESS, Experiment, PushTConfig, Variant
from neuralsde.nets.config import ChunkTransformerConfig, EncodedConfig, GPTConfig, ImageConfig, MLPConfig, UNet1DConfig
from neuralsde.policy.config import PolicyConfig
from neuralsde.sde.config import Deterministic, Euler, NeuralSDEConfig, Sampler
from neuralsde.training.config import TrainConfig

REPORTED = 100_000  # first seed of the episodes that are reported
TRAIN = TrainConfig(steps=30_000, batch_size=1_024, lr=1e-3, ema=0.999, precision="tf32")
NET: EncodedConfig | MLPConfig = EncodedConfig(
    width=512, depth=4, memory=256, step_width=256, step_depth=3, dropout=0.3
)
PERCEPTRON = MLPConfig(width=512, depth=3, dropout=0.3)
SAMPLER = Sampler(pull=10.0)  # one data step removes what lies off the data; all of the learned noise
BRIEF = replace(TRAIN, steps=7_000, batch_size=512, ema=0.998)  # a ninth of the training: for ablations
RATES = (1 / 3, 1.0, 3.0)  # of trials, as factors of the recipe's learning rate


def neural_sde() -> Experiment:
    """An SDE over the action path, given the last two observations; also learned in the mirror. The paper: 0.97.

    Its flow is learned by likelihood: what is exact in the demonstrations, where g is small, is learned exactly.
    """
    model = NeuralSDEConfig(net=NET, shared=True, normalise="min_max", time_input=True, tau="start", noise=0.1)
    model = replace(model, law=Euler(flow_loss="nll"), sampler=SAMPLER)
    return Experiment(name="pusht", task=PushTConfig(mirror=True), model=model, train=TRAIN)


def perceptron() -> Experiment:
    """The same with one plain perceptron, the squared error of the flow, and without mirror images."""
    run = _changed(_without_mirror(neural_sde()), net=PERCEPTRON, law=Euler())
    return replace(run, name="pusht-perceptron")


def on_cpu() -> Experiment:
    """The same for those without a GPU: half an hour on one core."""
    return replace(neural_sde(), name="pusht-cpu", train=replace(BRIEF, precision="no"))


def diffusion_policy() -> Experiment:
    """Diffusion Policy with its 1-D U-Net, 10 DDIM steps. The paper: 0.95."""
    run = neural_sde()
    model = DDIMConfig(net=UNet1DConfig(), normalise="min_max")
    task = _with_policy(run, form="chunk")
    train = replace(TRAIN, steps=24_000, batch_size=256, lr=1e-4, ema=0.999, weight_decay=1e-6)
    return replace(run, name="pusht-diffusion-policy", task=task, model=model, train=train)


def diffusion_transformer() -> Experiment:
    """Diffusion Policy with a transformer, 10 DDIM steps. The paper: 0.95."""
    run = _changed(diffusion_policy(), net=ChunkTransformerConfig())
    train = replace(run.train, lr=3e-4, weight_decay=1e-3)
    return replace(run, name="pusht-diffusion-transformer", train=train)


def rectified_flow() -> Experiment:
    """A Rectified-Flow policy with the U-Net of Diffusion Policy, 10 steps."""
    run = diffusion_policy()
    model = RectifiedFlowConfig(net=UNet1DConfig(), normalise="min_max")
    return replace(run, name="pusht-rectified-flow", model=model)


def behaviour_cloning() -> Experiment:
    """Plain regression of the next actions."""
    run = neural_sde()
    model = NeuralSDEConfig(net=NET, normalise="min_max", tau="start", noise=0.0, law=Deterministic(), denoiser=None)
    task = _with_policy(run, form="chunk")
    return replace(run, name="pusht-behaviour-cloning", task=task, model=model)


def lstm_gmm() -> Experiment:
    """A recurrent net with a mixture of Gaussians, one action at a time. The paper: 0.67."""
    return _one_by_one("pusht-lstm-gmm", LSTMGMMConfig(num_observations=10), 10)


def ibc() -> Experiment:
    """Implicit behaviour cloning, one action at a time. The paper: 0.90.

    On seeds 200000 on (small nets, brief trainings): dropout of 0.1 and two observations instead of none and one take 0.4 off
    the score.
    """
    # Actions have two dimensions: as many samples as there are for six would only take time
    model = IBCConfig(net=MLPConfig(width=512, depth=4), num_samples=2_048, num_observations=1)
    run = _one_by_one("pusht-ibc", model, 1)
    return replace(run, train=replace(run.train, steps=10_000))  # each with hundreds of actions that are not right


def bet() -> Experiment:
    """A behaviour transformer, one action at a time. The paper: 0.79.

    On seeds 200000 on: dropout of 0.1 instead of none takes 0.2 off the score, two observations instead of one as much (such
    policies rest where they rested), 64 bins instead of 256 0.1.
    """
    model = BETConfig(net=GPTConfig(), num_bins=256, num_observations=1)
    run = _one_by_one("pusht-bet", model, 1)
    return replace(run, train=replace(run.train, steps=9_000, batch_size=256, lr=1e-3, ema=0.998))


def paper() -> Experiment:
    """The paper's state: the pose that is seen and the action together, moved on blindly."""
    run = neural_sde()
    task = replace(_with_policy(run, form="state", history=1), observation="pose")
    model = NeuralSDEConfig(net=PERCEPTRON, shared=True, normalise="min_max", noise=0.1, sampler=SAMPLER)
    return replace(run, name="pusht-paper", task=task, model=model)


def image() -> Experiment:
    """The SDE over the action path, given the last two 96 × 96 images and places of the agent."""
    run = _changed(neural_sde(), net=ImageConfig(dropout=0.2), law=Euler())
    task = replace(_with_policy(run, history=2, horizon=16, chunk=8), observation="image")
    train = replace(TRAIN, steps=20_000, batch_size=256, lr=3e-4)
    return replace(run, name="pusht-image", task=task, train=train)


def _with_policy(run: Experiment, **settings: Any) -> PushTConfig:
    task: PushTConfig = run.task
    return replace(task, policy=replace(task.policy, **settings))


def _without_mirror(run: Experiment) -> Experiment:
    return replace(run, task=replace(run.task, mirror=False))


def _one_by_one(name: str, model: Any, num_observations: int) -> Experiment:
    run = neural_sde()
    policy = PolicyConfig(history=num_observations, horizon=1, chunk=1, first_action=(0, 1))
    train = replace(TRAIN, batch_size=512, lr=3e-4)
    return replace(run, name=name, task=replace(run.task, policy=policy), model=model, train=train)


def _changed(run: Experiment, **settings: Any) -> Experiment:
    return replace(run, model=replace(run.model, **settings))


def _with_rate(run: Experiment, factor: float) -> Experiment:
    return replace(run, train=replace(run.train, lr=factor * run.train.lr))


def ablations() -> dict[str, Experiment]:
    """What each part is worth, by short trainings of one length; with the squared error, except the first row and the log loss."""
    brief, blind = replace(neural_sde(), train=BRIEF), replace(SAMPLER, pull=0.0)
    ours = _changed(brief, law=Euler())
    rows = {
        "NSDE, brief training": brief,
        "NSDE, brief training, squared error": ours,
        "NSDE without denoiser": _changed(ours, denoiser=None, sampler=blind),
        "NSDE without diffusion": _changed(ours, law=Deterministic()),
        "NSDE without input noise and denoiser": _changed(ours, noise=0.0, denoiser=None, sampler=blind),
        "NSDE, log loss": _changed(ours, law=Euler(flow_loss="log")),
        "NSDE, uniform τ, no balance": _changed(ours, tau="uniform", sampler=replace(SAMPLER, balance=0.0)),
        "NSDE, three nets": _changed(ours, shared=False),
        "NSDE, pose": replace(ours, task=replace(ours.task, observation="pose")),
        "NSDE, the paper's state": replace(paper(), train=BRIEF),
    }
    for k in (1, 3, 4):
        rows[f"NSDE, {k} observation{'s' if k > 1 else ''}"] = replace(ours, task=_with_policy(ours, history=k))
    return rows


def comparison() -> dict[str, Experiment]:
    """Every row of the results table: the method, its rivals, and its ablations."""
    ours = neural_sde()
    squared = _changed(ours, law=Euler())
    chunks = tuple(Variant(name=f"chunk {k}", chunk=k) for k in (1, 2, 4, 6, 12, 16))
    noises = tuple(Variant(name=f"{k:g} of the learned noise", diffusion=k) for k in (0.0, 0.5, 0.7))
    diffusion, cloning = diffusion_policy(), behaviour_cloning()
    as_many = diffusion.train.steps * diffusion.train.batch_size // TRAIN.batch_size  # steps for its samples
    equal = replace(TRAIN, steps=as_many, ema=BRIEF.ema)
    rows = {
        "NSDE": ours,
        "NSDE, squared error": squared,
        "NSDE, squared error, no mirror images": _without_mirror(squared),
        "NSDE, perceptron, no mirror images": perceptron(),
        "NSDE, trained on a CPU": on_cpu(),
        "NSDE, squared error, 90 demonstrations": replace(squared, task=replace(squared.task, num_demonstrations=90)),
        "NSDE, equal samples": replace(ours, train=equal),
        "Diffusion Policy, U-Net": diffusion,
        "Diffusion Policy, U-Net, no mirror images": _without_mirror(diffusion),
        "Diffusion Policy, transformer": diffusion_transformer(),
        "Rectified Flow policy": rectified_flow(),
        "behaviour cloning": cloning,
        "behaviour cloning, equal samples": replace(cloning, train=equal),
        "LSTM-GMM": lstm_gmm(),
        "IBC": ibc(),
        "BET": bet(),
        "BET, three times the rate": _with_rate(bet(), 3.0),
        "NSDE, learned from noisy observations": replace(ours, train=replace(BRIEF, context_noise=0.05)),
        "NSDE, image": image(),
        **ablations(),
    }
    # Other ways to run the same weights, and harder worlds
    ddpm = Variant(name="DDPM-100", generation="ddpm")
    variants: dict[str, tuple[Variant, ...]] = {
        "NSDE": (*ROBUSTNESS, *chunks, *noises),
        "NSDE, learned from noisy observations": ROBUSTNESS,
        "Diffusion Policy, U-Net": (ddpm, *ROBUSTNESS),
        "Diffusion Policy, transformer": (ddpm,),
    }
    return {
        label: replace(run, task=replace(run.task, first_seed=REPORTED, variants=variants.get(label, ())))
        for label, run in rows.items()
    }


def trials() -> dict[str, Experiment]:
    """Three learning rates for every method, a quarter of its training each, on seeds that no table reports.

    The rule was stated beforehand: another rate is taken where its score is higher and the intervals over episodes do not
    overlap. It took three times the rate for BET and for LSTM-GMM. BET's whole training was worse with it (a row of its own),
    so that recipes keep their rates: a quarter of a training likes larger ones.
    """
    methods = {
        "NSDE": neural_sde(),
        "Diffusion Policy, U-Net": diffusion_policy(),
        "Diffusion Policy, transformer": diffusion_transformer(),
        "Rectified Flow policy": rectified_flow(),
        "behaviour cloning": behaviour_cloning(),
        "LSTM-GMM": lstm_gmm(),
        "IBC": ibc(),
        "BET": bet(),
    }
    rows = {}
    for label, run in methods.items():
        for factor in RATES:
            train = replace(run.train, steps=run.train.steps // 4, ema=BRIEF.ema)
            rows[f"{label}, rate × {factor:.2g}"] = _with_rate(replace(run, train=train), factor)
    return rows
