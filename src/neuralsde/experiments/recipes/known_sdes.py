"""SDEs whose truth is known: both ways of training, the paper's, and what irregular, coarse and noisy observation costs.

None of this is in the paper. Widths, steps and noise were chosen on seeds 10 and 11.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args, get_type_hints

from neuralsde.experiments.config import Experiment, KnownSDEConfig
from neuralsde.nets.config import MLPConfig
from neuralsde.sde.config import Denoiser, Euler, Law, Moments, NeuralSDEConfig, Sampler
from neuralsde.training.config import TrainConfig

SYSTEM_NAMES: tuple[str, ...] = get_args(get_type_hints(KnownSDEConfig)["system"])
CORE = ("ou", "gbm", "cir", "double_well", "van_der_pol", "lorenz")  # the systems with targets
IRREGULAR = 20.0  # spread of the gaps of irregular stamps
NET = MLPConfig(width=32, depth=2)
TRAIN = TrainConfig(steps=2_000, batch_size=8_192, lr=4e-3, ema=0.998)


def _sampler(system: str) -> Sampler:
    return Sampler(substeps=4 if system == "lorenz" else 2)


def _changed(run: Experiment, **settings: Any) -> NeuralSDEConfig:
    assert isinstance(run.model, NeuralSDEConfig)
    return replace(run.model, **settings)


def start(system: str = "ou") -> Experiment:
    """Flow and diffusion from start states, by the likelihood of the whole step."""
    task = KnownSDEConfig(system=system, reference=system in CORE)  # type: ignore[arg-type]
    model = NeuralSDEConfig(tau="start", law=Moments(), noise=0.0, denoiser=None, net=NET, sampler=_sampler(system))
    train = replace(TRAIN, batch_size=512) if system == "ou10" else TRAIN
    return Experiment(name=f"{system}-start", task=task, model=model, train=train)


def interpolated(system: str = "ou") -> Experiment:
    """From interpolated states: the drift is the flow with its balance, g∂g included."""
    run = start(system)
    model = _changed(run, tau="uniform", interpolation="bridge", noise=0.02, denoiser=Denoiser(antithetic=True))
    if system in ("van_der_pol", "lorenz"):  # scores in several dimensions want more
        model = replace(model, net=MLPConfig(width=64, depth=2))
    return replace(run, name=f"{system}-interpolated", task=replace(run.task, reference=False), model=model)


def paper(system: str = "ou") -> Experiment:
    """The paper's equations: interpolated states, log loss of the flow, squared error on g², no balance."""
    run = start(system)
    law, sampler = Euler(flow_loss="log", diffusion_loss="match"), replace(_sampler(system), balance=0.0)
    model = NeuralSDEConfig(tau="uniform", noise=0.05, law=law, net=NET, sampler=sampler)
    return replace(run, name=f"{system}-paper", task=replace(run.task, reference=False), model=model)


def authors_code(system: str = "ou") -> Experiment:
    """The loss of the authors' code, a squared error on log g, in place of the paper's."""
    run = paper(system)
    model = _changed(run, law=Euler(flow_loss="log", diffusion_loss="log"))
    return replace(run, name=f"{system}-authors-code", model=model)


def irregular(run: Experiment) -> Experiment:
    """The same with gaps spread over a factor of 20, their mean unchanged."""
    task = replace(run.task, gap_ratio=IRREGULAR, reference=False)
    return replace(run, name=f"{run.name}-irregular", task=task, model=_changed(run, law=Moments(steps=2)))


def coarse(system: str, law: Law) -> Experiment:
    """Gaps of half a time unit, where the Euler density is biased; each law draws the steps that it learned."""
    run = start(system)
    model = _changed(run, law=law, sampler=Sampler())
    name = f"{system}-coarse-{type(law).__name__.lower()}"
    return replace(run, name=name, task=replace(run.task, dt=0.5), model=model)


def measured(*, learned: bool) -> Experiment:
    """Ornstein-Uhlenbeck, each state measured with a noise as large as that of a step; lags tell one from the other."""
    run = start("ou")
    task = replace(run.task, measurement=1.0, reference=False)
    if not learned:
        return replace(run, name="ou-measured-ignored", task=task)
    task = replace(task, lag=tuple(k * 0.05 for k in (1, 2, 4, 8)))
    model = _changed(run, law=Moments(measurement=True), noise=0.05, denoiser=Denoiser(antithetic=True))
    return replace(run, name="ou-measured", task=task, model=model)


def incomplete() -> Experiment:
    """Van der Pol, three of ten entries not observed."""
    run = start("van_der_pol")
    return replace(run, name="van_der_pol-missing", task=replace(run.task, missing=0.3, reference=False))


def comparison() -> dict[str, Experiment]:
    """Every row of the results table."""
    rows: dict[str, Experiment] = {}
    for system in SYSTEM_NAMES:
        rows[f"{system}, start"] = start(system)
        rows[f"{system}, interpolated"] = interpolated(system)
        if system in CORE:
            rows[f"{system}, start, irregular"] = irregular(start(system))
            rows[f"{system}, interpolated, irregular"] = irregular(interpolated(system))
    for system in ("ou", "double_well"):
        for name, law in (("euler", Euler(flow_loss="nll")), ("moments", Moments(steps=4))):
            rows[f"{system}, gaps 0.5, {name}"] = coarse(system, law)
    rows["ou, measurement noise ignored"] = measured(learned=False)
    rows["ou, measurement noise learned"] = measured(learned=True)
    rows["van_der_pol, 30 % missing"] = incomplete()
    for system in SYSTEM_NAMES:
        rows[f"{system}, paper's equation"] = paper(system)
        rows[f"{system}, authors' code"] = authors_code(system)
    return rows
