"""Video: colliding objects in the latents of a small autoencoder; the method, its rivals with the same net, and its ablations.

Paper, on CLEVRER (FVD, JEDi, SSIM, PSNR): 128.07, 1.172, 0.944, 33.78. Not measured here: our clips are our own, and the nets that
compute FVD and JEDi are not at hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuralsde.baselines.config import Generation, PFIConfig, RectifiedFlowConfig
from neuralsde.experiments.collisions.config import CollisionsConfig
from neuralsde.experiments.config import Experiment
from neuralsde.experiments.video_config import ClipsConfig, FramesConfig, VideoConfig, VideoVariant
from neuralsde.nets.config import UViTConfig
from neuralsde.sde.config import Denoiser, Deterministic, Euler, LowRank, Sampler
from neuralsde.video import defaults
from neuralsde.video.defaults import CONTEXT, NET, NOISE, SHARE_OF_NOISE, TRAIN, learning_rate

NUM_STEPS = 10  # passes per frame of the generative rivals
LIKELIHOOD = Euler(flow_loss="nll")


def autoencoder() -> Experiment:
    """Frames of colliding objects as 4 × 8 × 8 latents, and back."""
    task, train = FramesConfig(num_frames=96_000), defaults.AUTOENCODER_TRAIN
    return Experiment(name="collisions-autoencoder", task=task, model=defaults.AUTOENCODER, train=train)


def neural_sde() -> Experiment:
    """One step per frame from start states, flow and diffusion by one trunk: one pass per frame."""
    task = VideoConfig(num_clips=512)
    return Experiment(name="collisions", task=task, model=defaults.latent_sde(), train=TRAIN)


def flow_matching() -> Experiment:
    """Flow Matching from noise to the change of the frame, same net and input noise, ten passes per frame."""
    sampler = Generation(num_steps=NUM_STEPS)
    model = RectifiedFlowConfig(net=NET, history=CONTEXT, target="increment", noise=NOISE, sampler=sampler)
    return replace(neural_sde(), name="collisions-flow-matching", model=model)


def pfi() -> Experiment:
    """The Föllmer interpolant (β = s, ε = 0.3), same net and input noise, ten passes per frame."""
    model = PFIConfig(net=NET, history=CONTEXT, noise=NOISE, sampler=Generation(num_steps=NUM_STEPS))
    return replace(neural_sde(), name="collisions-pfi", model=model)


def regression() -> Experiment:
    """The mean of the next frame: no diffusion, no denoiser."""
    run = _changed(neural_sde(), law=Deterministic(), shared=False, sampler=Sampler())
    return replace(run, name="collisions-regression")


def _changed(run: Experiment, **settings: Any) -> Experiment:
    return replace(run, model=replace(run.model, **settings))


def _with_rivals(
    ours: Experiment, variants: dict[str, tuple[VideoVariant, ...]], usual: tuple[VideoVariant, ...]
) -> dict[str, Experiment]:
    """A run and those of its rivals on the same clips with the same net, and how each is drawn from."""
    net: Any = ours.model.net  # type: ignore[attr-defined]
    rows = {"NSDE": ours} | {
        label: replace(ours, name=run.name.replace("collisions", ours.name), model=replace(run.model, net=net))  # type: ignore[call-arg]
        for label, run in {"Flow Matching": flow_matching(), "PFI": pfi(), "regression": regression()}.items()
    }
    return {k: _with_variants(run, variants.get(k, usual)) for k, run in rows.items()}


def _with_variants(run: Experiment, variants: tuple[VideoVariant, ...]) -> Experiment:
    """How a run is drawn from."""
    return replace(run, task=replace(run.task, variants=variants))  # type: ignore[call-arg]


# Variants: the same weights, drawn from in other ways

RATES = (2, 5)
LONG = VideoVariant(name="36 frames", length=CONTEXT + 36)
QUIET = VideoVariant(name="g off", diffusion=0.0)
LOUD = VideoVariant(name="all of the learned noise", diffusion=1.0)


def passes(*numbers: int) -> tuple[VideoVariant, ...]:
    """Quality against network passes per frame."""
    return tuple(VideoVariant(name=f"passes {k}", passes=k) for k in numbers)


def between(*ways: str, note: str = "", **settings: Any) -> tuple[VideoVariant, ...]:
    """Frames between training frames, drawn with these settings, which `note` names."""
    return tuple(
        VideoVariant(name=f"×{rate} {way}{note}", rate=rate, between=way, **settings)  # type: ignore[arg-type]
        for rate in RATES
        for way in ways
    )


CHOICE = tuple(
    VideoVariant(name=f"validation, {k:g} of the learned noise", diffusion=k, part="validation")
    for k in (0, 0.4, 0.6, 0.8, 1)
)
"""By which the sampler is chosen."""
VALIDATION = VideoVariant(name="validation", part="validation")
WAYS = ("sampled", "latents", "cubic", "pixels")
G_OFF: dict[str, Any] = {"note": ", g off", "diffusion": 0.0}
ONE_PASS: dict[str, Any] = {"note": ", passes 1", "passes": 1}


def comparison() -> dict[str, Experiment]:
    """Every row of the results table: the method, its rivals, and what each part of it is worth."""
    ours, brief = neural_sde(), Sampler(diffusion=SHARE_OF_NOISE, correction="off")  # g∂g: a backward pass per step
    rival = {"Flow Matching": flow_matching(), "PFI": pfi()}
    scored = _changed(ours, denoiser=Denoiser())
    rows = {
        "NSDE": ours,
        **rival,
        "Flow Matching, noise to next frame": _changed(rival["Flow Matching"], target="next"),
        "regression": regression(),
        "NSDE, uniform τ": _changed(scored, tau="uniform", sampler=replace(brief, substeps=NUM_STEPS)),
        "NSDE, half of τ at the start": _changed(scored, tau=0.5, sampler=brief),
        "NSDE, log loss": _changed(ours, law=Euler(flow_loss="log")),
        "NSDE, likelihood loss": _changed(ours, law=LIKELIHOOD),
        "NSDE, three nets": _changed(scored, shared=False),
    }
    for name, width in {"9 million": 320, "33 million": 480}.items():
        train = replace(ours.train, lr=learning_rate(width))
        rows[f"NSDE, {name}"] = replace(_changed(ours, net=UViTConfig(width=width)), train=train)
    rivals = (*passes(1, 2, 5, 20), *between("latents", "cubic", "pixels"), LONG)
    variants: dict[str, tuple[VideoVariant, ...]] = {
        "NSDE": (
            *passes(2, 5, 10, 20),
            *(QUIET, LOUD, LONG, replace(LONG, name="36 frames, g off", diffusion=0.0)),
            *between(*WAYS),
            *between(*WAYS, **G_OFF),
            *CHOICE,
        ),
        "Flow Matching": (*rivals, *between("latents", "cubic", "pixels", **ONE_PASS)),
        "PFI": rivals,
        "Flow Matching, noise to next frame": passes(1, 20),
        "regression": (*between("latents", "cubic", "pixels"), LONG),
        "NSDE, uniform τ": (*passes(1, 2, 5, 20), QUIET, *between("sampled", **G_OFF)),
        "NSDE, half of τ at the start": (*passes(2, 5), QUIET, *between("sampled", **G_OFF)),
    }
    usual = {k: (QUIET,) for k in rows} | variants
    return {k: _with_variants(run, usual[k]) for k, run in rows.items()}


def parts() -> dict[str, Experiment]:
    """What the denoiser and the noise on the inputs are worth: one change each."""
    ours = neural_sde()
    rows = {
        "NSDE": ours,
        "with denoiser": _changed(ours, denoiser=Denoiser()),
        "with a light denoiser": _changed(ours, denoiser=Denoiser(weight=0.1)),
        "without input noise": _changed(ours, noise=0.0),
    }
    return {label: _with_variants(run, (QUIET, LOUD)) for label, run in rows.items()}


# Fronts: quality against passes, every method at the temperature that validation clips choose for it

FRONT = (1, 2, 4, 8, 16)
TEMPERATURES = (0.0, 0.4, 0.6, 0.8, 1.0)
AHEAD = (1, 8)  # passes of the long roll-outs
RANK = 8


def _front(*numbers: int) -> tuple[VideoVariant, ...]:
    chosen: dict[str, Any] = {"temperatures": TEMPERATURES}
    short = tuple(VideoVariant(name=f"passes {k}", passes=k, **chosen) for k in numbers)
    length = LONG.length
    ahead = tuple(
        VideoVariant(name=f"36 frames, passes {k}", passes=k, length=length, **chosen) for k in AHEAD if k in numbers
    )
    return short + ahead


def _carried(run: Experiment) -> Experiment:
    """The same with steps of any law: one pass is the Gaussian, each further one carries it on."""
    model = defaults.with_passes(run.model, 2)  # type: ignore[arg-type]
    return replace(run, name=f"{run.name}-transport", model=model)


def transport() -> Experiment:
    """Steps of any law: one pass is the Gaussian, each further one carries it on."""
    return _carried(neural_sde())


def fronts() -> dict[str, Experiment]:
    """Who is better at which cost: the method, noise that pixels share, and the rivals, with the same net and steps."""
    return _fronts(neural_sde())


def _fronts(ours: Experiment) -> dict[str, Experiment]:
    one, all_ = _front(1), _front(*FRONT)
    brief = Sampler(passes=3, diffusion=SHARE_OF_NOISE)  # of no variant: they have passes and temperatures of their own
    rival = _with_rivals(ours, {"regression": (LONG,)}, all_)
    low_rank = _changed(ours, covariance=LowRank(rank=RANK))
    return {
        "NSDE": _with_variants(_changed(_carried(ours), sampler=brief), all_),
        "NSDE, low-rank noise": _with_variants(low_rank, one),
        **{label: rival[label] for label in ("Flow Matching", "PFI", "regression")},
    }


# 128 × 128

LARGE = ClipsConfig(collisions=CollisionsConfig(size=128))


def large_autoencoder() -> Experiment:
    """Frames of 128 × 128 as 4 × 16 × 16 latents, and back."""
    run = autoencoder()
    train = replace(run.train, steps=6_000, batch_size=64, precision="bf16")
    return replace(run, name="collisions-128-autoencoder", task=replace(run.task, clips=LARGE), train=train)


def large() -> Experiment:
    """Colliding objects, 128 × 128; the same net on patches of 2 × 2 latents."""
    run = _changed(neural_sde(), net=replace(NET, patch=2))
    task = replace(run.task, clips=LARGE, autoencoder="runs/collisions-128-autoencoder/model")
    return replace(run, name="collisions-128", task=task)


def large_fronts() -> dict[str, Experiment]:
    """The fronts on larger frames."""
    return _fronts(large())


# The scaling law

WIDTHS = (32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768)  # 0.04 to 115 million parameters


def scaling() -> dict[str, Experiment]:
    """One net in twelve sizes, equal steps, the paper's loss. The paper: 0.13 to 113.44 million, Pearson -0.9988."""
    rows = {}
    for width in WIDTHS:
        net, law = UViTConfig(width=width), Euler(flow_loss="log")
        run = _changed(neural_sde(), net=net, law=law, denoiser=Denoiser(), sampler=Sampler())
        train = replace(TRAIN, steps=2_000, lr=learning_rate(width), ema=0.99)
        rows[f"width {width}"] = replace(run, task=replace(run.task, num_clips=128, num_paths=1), train=train)
    return rows


# People: Weizmann and what there is of KTH

PEOPLE = ClipsConfig(source="data/weizmann,data/kth", length=CONTEXT + 16, stride=4, copies=15)


def people_autoencoder() -> Experiment:
    """Frames of walking, running and waving people as 4 × 8 × 8 latents, and back."""
    run = autoencoder()
    task = FramesConfig(clips=replace(PEOPLE, stride=PEOPLE.length), num_frames=100_000)  # each frame in one clip
    return replace(run, name="people-autoencoder", task=task, train=replace(run.train, steps=4_000))


def people() -> Experiment:
    """Weizmann and KTH, 64 × 64, 4 → 16 frames of persons that were not seen. The paper, on all of KTH: PSNR 27.55."""
    task = VideoConfig(clips=PEOPLE, autoencoder="runs/people-autoencoder/model", num_clips=512, variants=(LONG,))
    return Experiment(name="people", task=task, model=defaults.real_sde(), train=defaults.REAL_TRAIN)


def people_comparison() -> dict[str, Experiment]:
    """The method and its rivals on real clips."""
    variants = {
        "NSDE": (*passes(2, 5), QUIET, LOUD, LONG, *CHOICE),
        "regression": (LONG, VALIDATION),
    }
    rows = _with_rivals(people(), variants, (*passes(1, 2, 5, 20), LONG, VALIDATION))
    return rows | {"NSDE, squared error": _changed(rows["NSDE"], law=Euler())}


def people_fronts() -> dict[str, Experiment]:
    """The fronts on real clips."""
    return _fronts(people())
