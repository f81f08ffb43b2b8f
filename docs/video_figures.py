"""Draw the figures of docs/results/video.md: curves from results/, frames from a trained model.

python docs/video_figures.py --model runs/collisions/model --autoencoder runs/collisions-autoencoder/model
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

from neuralsde.data.videos.decode import FrameSettings
from neuralsde.experiments.collisions.clips import clips
from neuralsde.experiments.collisions.config import CollisionsConfig
from neuralsde.models.build import load
from neuralsde.plots.paths import Point, scaling_law, score_fronts
from neuralsde.video.clips import Clip
from neuralsde.video.files import write_video
from neuralsde.video.model import VideoModel
from neuralsde.video.pictures import film_in_true_time, save_picture, strip, strip_over_time
from neuralsde.video.predict import straight

ROOT = Path(__file__).parent.parent
ASSETS = ROOT / "docs" / "assets"
LENGTH, RATE = 16, 5


def front(results: Path) -> None:
    """Distance of motion against PSNR, a line of passes for each method."""
    summary = json.loads(results.read_text(encoding="utf-8"))["summary"]
    found: dict[str, list[Point]] = {}
    for label, row in summary.items():
        if "motion_distance" not in row:
            continue
        prefixes = [k.removesuffix("psnr") for k in row if k.startswith("passes ") and k.endswith(": psnr")] or [""]
        found[label] = [
            Point(*(row[f"{p}{score}"]["mean"] for score in ("motion_distance", "psnr", "passes_per_frame")))
            for p in prefixes
        ]
    score_fronts(found, x_label="distance of motion", y_label="PSNR, dB").savefig(ASSETS / f"{results.stem}.png")


def law(results: Path) -> None:
    """The scaling law."""
    rows = [r for r in json.loads(results.read_text(encoding="utf-8"))["summary"].values() if "reduced_loss" in r]
    points = [(r["parameters"], r["reduced_loss"]["mean"]) for r in rows]
    if len(points) > 2:
        scaling_law(*zip(*points)).savefig(ASSETS / "video_scaling.png")


def frames(video: VideoModel, number: int) -> None:
    """Truth, four futures and their spread of a test scene; and a contact between two training frames."""
    size = video.settings.size[0]
    scenes = CollisionsConfig(size=size)
    scene = clips([scenes.seeds("test")[number]], num_frames=(LENGTH - 1) * RATE + 1, fps=RATE * scenes.fps, size=size)
    truth, now = scene.frames[0].cpu(), (video.context - 1) * RATE
    clip = Clip("scene", truth.numpy(), scene.times)
    drawn = video.futures(clip, at=scene.times[now], num_frames=LENGTH - video.context)
    rows = drawn.clips()
    spread = (4 * drawn.frames.float().std(0).mean(1, keepdim=True)).clamp(0, 255).byte().expand(-1, 3, -1, -1)
    rows["spread"] = torch.cat([torch.zeros_like(drawn.given), spread]).numpy()
    usual = size == CollisionsConfig().size
    name = "video_futures.png" if usual else f"video_futures_{size}.png"
    save_picture(strip_over_time(rows, drawn.all_times, video.context), ASSETS / name)
    if not usual:
        return
    pages = film_in_true_time(rows, drawn.all_times, video.context, video.fps)
    write_video(pages, ASSETS / "video_futures.mp4", fps=video.fps)

    hits = scene.contacts["time"] - scene.times[now]
    hits = hits[(hits > 0) & (hits < drawn.times[-1])]
    contact(video, clip.part(slice(now + 1)), truth[now:], float(hits[0]) if len(hits) else 0.0)


def contact(video: VideoModel, given: Clip, truth: torch.Tensor, hit: float) -> None:
    """What happens between the two training frames around a time; `truth` begins at the last given frame."""
    num, quiet = (len(truth) - 1) // RATE, replace(video.model.sampler, diffusion=0.0)

    def drawn(rate: int) -> torch.Tensor:
        found = video.futures(given, num_frames=rate * num, fps=rate * video.fps, num_paths=1, sampler=quiet)
        return torch.cat([truth[:1], found.frames[0]])

    own = drawn(1)
    between = straight(own[None].float(), RATE)[0].round().byte().unflatten(0, (num, RATE - 1))
    faded = torch.cat([torch.cat([own[:-1, None], between], dim=1).flatten(0, 1), own[-1:]])
    first = int(hit * video.fps) * RATE
    places = range(first, first + RATE + 1)
    shown = {"truth": truth, "smooth through own latents": drawn(RATE), "own frames faded": faded}
    rows = {name: [clip[k].numpy() for k in places] for name, clip in shown.items()}
    save_picture(strip(rows, [f"{k / RATE / video.fps:.2f} s" for k in places]), ASSETS / "video_contact.png")


def main() -> None:
    """Draw what there is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--autoencoder")
    parser.add_argument("--scene", type=int, default=0, help="of the test part")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    args = parser.parse_args()
    fronts = ("video_fronts.json", "video_fronts_128.json", "video_fronts_people.json")
    for draw, name in (*((front, name) for name in fronts), (law, "video_scaling.json")):
        if (args.results / name).exists():
            draw(args.results / name)
    if args.model:
        autoencoder = load(args.autoencoder)
        settings = FrameSettings(size=tuple(autoencoder.scale.shape[1:]))
        frames(VideoModel(load(args.model), autoencoder, settings), args.scene)


if __name__ == "__main__":
    main()
