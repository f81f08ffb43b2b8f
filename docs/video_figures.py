"""Draw the figures of docs/video.md: curves from results/, frames from a trained model.

python docs/video_figures.py --model runs/collisions/model --autoencoder runs/collisions-autoencoder/model
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from neuralsde.config import Sampler
from neuralsde.config.collisions import CollisionsConfig
from neuralsde.models import load
from neuralsde.plots_video import Curve, scaling_law, score_curves
from neuralsde.tasks.between import straight
from neuralsde.tasks.collisions import clips
from neuralsde.tasks.video import predict
from neuralsde.video_pictures import film_in_true_time, save_picture, strip, strip_over_time
from neuralsde.videos import write_video

ROOT = Path(__file__).parent.parent
ASSETS = ROOT / "docs" / "assets"
CONTEXT, LENGTH, RATE = 4, 16, 5
PANELS = {"PSNR, dB": "psnr", "SSIM": "ssim", "distance of motion": "motion_distance"}


def curves(results: Path) -> None:
    """Quality against network passes per frame."""
    summary = json.loads(results.read_text(encoding="utf-8"))["summary"]
    found: dict[str, dict[str, Curve]] = {panel: {} for panel in PANELS}
    for label in ("NSDE", "NSDE, uniform τ", "Flow Matching", "PFI"):
        row = summary.get(label) or {}
        prefixes = ["", *(k.removesuffix("psnr") for k in row if k.startswith("passes ") and k.endswith(": psnr"))]
        prefixes = sorted((p for p in prefixes if f"{p}psnr" in row), key=lambda p: row[f"{p}passes_per_frame"]["mean"])
        for panel, score in PANELS.items():
            if prefixes:
                found[panel][label] = Curve(
                    [row[f"{p}passes_per_frame"]["mean"] for p in prefixes],
                    [row[f"{p}{score}"]["mean"] for p in prefixes],
                    [row[f"{p}{score}_half_width"]["mean"] for p in prefixes],
                )
    copy = summary["NSDE"]
    references = {panel: {"copy of the last frame": copy[f"copy: {score}"]["mean"]} for panel, score in PANELS.items()}
    del references["distance of motion"]  # far above all curves
    score_curves(found, x_label="network passes per frame", references=references).savefig(ASSETS / "video_passes.png")


def law(results: Path) -> None:
    """The scaling law."""
    rows = [r for r in json.loads(results.read_text(encoding="utf-8"))["summary"].values() if "reduced_loss" in r]
    points = [(r["parameters"], r["reduced_loss"]["mean"]) for r in rows]
    if len(points) > 2:
        scaling_law(*zip(*points)).savefig(ASSETS / "video_scaling.png")


def pixels(frames: torch.Tensor) -> np.ndarray:
    """Bytes of frames with values from 0 to 1."""
    return (frames.clamp(0, 1) * 255).round().byte().cpu().numpy()


def frames(model_folder: str, autoencoder_folder: str, seed: int) -> None:
    """Truth, four futures and their spread of a test scene; and a contact between two training frames."""
    model, autoencoder = load(model_folder), load(autoencoder_folder)
    scenes = CollisionsConfig()
    scene = scenes.seeds("test")[seed]
    fine = clips([scene], num_frames=(LENGTH - 1) * RATE + 1, fps=RATE * scenes.fps)
    coarse, times = fine.frames[:, ::RATE], torch.from_numpy(fine.times)[None, ::RATE]
    drawn, _ = predict(model, autoencoder, coarse, times, context=CONTEXT, num_paths=4)
    given = coarse[0, :CONTEXT].numpy()
    rows = {"truth": coarse[0].numpy()}
    rows |= {f"future {k + 1}": np.concatenate([given, pixels(future)]) for k, future in enumerate(drawn[0])}
    spread = pixels((4 * drawn[0].std(0).mean(1, keepdim=True)).expand(-1, 3, -1, -1))
    rows["spread"] = np.concatenate([np.zeros_like(given), spread])
    since = times[0].numpy() - float(times[0, CONTEXT - 1])
    save_picture(strip_over_time(rows, since, CONTEXT), ASSETS / "video_futures.png")
    write_video(film_in_true_time(rows, since, CONTEXT, scenes.fps), ASSETS / "video_futures.mp4", fps=scenes.fps)
    contact(model, autoencoder, fine, times)


def contact(model: torch.nn.Module, autoencoder: torch.nn.Module, fine: object, times: torch.Tensor) -> None:
    """What happens between two training frames in which objects touch."""
    known = float(times[0, CONTEXT - 1])
    hits = [float(t) for t in fine.contacts["time"] if known < t < float(times[0, -1])]
    first = int(np.searchsorted(times[0].numpy(), hits[0] if hits else known + 1e-6)) - 1
    quiet = replace(model.sampler or Sampler(), diffusion=0.0)
    begin = (CONTEXT - 1) * RATE
    at = torch.cat([times[:, : CONTEXT - 1], torch.from_numpy(fine.times)[None, begin:]], dim=1)
    frames = torch.cat([fine.frames[:, :begin:RATE], fine.frames[:, begin:]], dim=1)
    dense, _ = predict(model, autoencoder, frames, at, context=CONTEXT, sampler=quiet)
    own, _ = predict(model, autoencoder, fine.frames[:, ::RATE], times, context=CONTEXT, sampler=quiet)
    start = fine.frames[:, begin, None].float() / 255
    faded = straight(torch.cat([start[:, 0][:, None], own[:, 0]], dim=1), RATE)[0]
    places = range((first - CONTEXT + 1) * RATE, (first - CONTEXT + 2) * RATE + 1)
    ends = torch.cat([start[0], own[0, 0]])
    rows = {
        "truth": [fine.frames[0, begin + k].numpy() for k in places],
        "drawn at those times": [pixels(start[0, 0] if k == 0 else dense[0, 0, k - 1]) for k in places],
        "own frames faded": [
            pixels(ends[k // RATE]) if k % RATE == 0 else pixels(faded[k // RATE * (RATE - 1) + k % RATE - 1])
            for k in places
        ],
    }
    captions = [f"{k / RATE / 5.12:.2f} s" for k in places]
    save_picture(strip(rows, captions), ASSETS / "video_contact.png")


def main() -> None:
    """Draw what there is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--autoencoder")
    parser.add_argument("--scene", type=int, default=0, help="of the test part")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    args = parser.parse_args()
    for draw, name in ((curves, "video_collisions.json"), (law, "video_scaling.json")):
        if (args.results / name).exists():
            draw(args.results / name)
    if args.model:
        frames(args.model, args.autoencoder, args.scene)


if __name__ == "__main__":
    main()
