"""The demonstration of video: objects collide, and the model that comes with the library draws how it may go on."""

from __future__ import annotations

import time
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from neuralsde.core.files import writable_folder
from neuralsde.core.records import check
from neuralsde.experiments.collisions.clips import clips
from neuralsde.experiments.collisions.config import CollisionsConfig
from neuralsde.experiments.collisions.physics import simulate
from neuralsde.experiments.demos.page import image, page
from neuralsde.training.run_folder import provenance, write_results
from neuralsde.video.clips import Clip
from neuralsde.video.files import write_video
from neuralsde.video.model import VideoModel, video_folder
from neuralsde.video.pictures import film_in_true_time, save_picture, strip, strip_over_time

FUTURE = 12  # frames ahead
SLOW = 4  # how many times slower the slow motion is; as many more frames are drawn
NUM_SCENES = 64  # scenes among which those with a collision are looked for
HARD = 0.5  # least speed of approach, m/s, of a collision that is worth looking at


def shipped() -> Path:
    """The folder of the model of videos that comes with the library."""
    folder = video_folder(Path(str(resources.files("neuralsde"))) / "weights" / "video")
    if folder is None:
        remedy = "Train one (nsde fit FOLDER, with films of collisions) and give --model."
        raise ValueError(f"This copy of the library holds no trained model of videos. {remedy}")
    return folder


def collision(seed: int, start: float, stop: float) -> tuple[int, float]:
    """The seed of a test scene with a hard collision in this time, and when it is; `seed` counts such scenes."""
    numbers = CollisionsConfig().seeds("test")[:NUM_SCENES]
    found = simulate(numbers, [0.0, stop]).contacts
    hard = found[(found["time"] > start) & (found["time"] < stop) & (found["speed"] > HARD)]
    scenes, first = np.unique(hard["scene"], return_index=True)
    if not 0 <= seed < len(scenes):
        raise ValueError(f"`--seed` must be from 0 to {len(scenes) - 1}: so many scenes have a collision. Got {seed}.")
    return int(numbers[int(scenes[seed])]), float(hard["time"][first[seed]])


def run_demo(video: VideoModel, output: Path, *, num_paths: int = 4, seed: int = 0) -> dict[str, Any]:
    """Film a scene, draw futures of its beginning at the model's rate and slower, leave films, a strip and a report."""
    began = time.perf_counter()
    channels, height, width = video.settings.shape
    if channels != 3 or height != width:
        shape = video.settings.shape
        raise ValueError(f"The demonstration films square frames in colour. This model takes {shape}: use nsde sample.")
    check(num_paths >= 1, f"`--num-paths` must be at least 1. Got {num_paths}.")
    folder = writable_folder(output)
    now, last = (video.context - 1) * video.step, (video.context - 1 + FUTURE) * video.step
    scene, hit = collision(seed, now + video.step, 0.5 * (now + last))
    print(f"Filming scene {scene}: a collision at {hit - now:.2f} s after the last frame that is given.", flush=True)
    num = (video.context - 1 + FUTURE) * SLOW + 1
    filmed = clips([scene], num_frames=num, fps=video.fps * SLOW, size=height)
    clip = Clip(f"scene {scene}", filmed.frames[0].cpu().numpy(), filmed.times)

    print("Drawing futures.", flush=True)
    found: dict[str, Any] = {"scene": scene, "collision": round(hit - now, 3), "num_paths": num_paths}
    for name, factor in (("futures", 1), ("slow", SLOW)):
        start = time.perf_counter()
        many: dict[str, Any] = {"num_frames": FUTURE * factor, "fps": video.fps * factor, "num_paths": num_paths}
        drawn = video.futures(clip, at=now, seed=seed, **many)
        seconds = round(time.perf_counter() - start, 3)
        found[name] = {"frames": FUTURE * factor, "seconds": seconds, "network_passes": sum(drawn.nfe.values())}
        shown, num_given = drawn.clips(), len(drawn.given)
        pages = film_in_true_time(shown, drawn.all_times, num_given, video.fps * factor)
        for suffix in ("gif", "mp4"):
            write_video(pages, folder / f"{name}.{suffix}", fps=video.fps)
        if factor == 1:
            save_picture(strip_over_time(shown, drawn.all_times, num_given, most=FUTURE + 2), folder / "futures.png")
    # Of the slow motion, the frames around the collision one by one
    around = slice(max(0, int((drawn.all_times < hit - now).sum()) - FUTURE // 3), None)
    rows = {name: list(clip[around][:FUTURE]) for name, clip in shown.items()}
    save_picture(strip(rows, [f"{t:.2f} s" for t in drawn.all_times[around][:FUTURE]]), folder / "slow.png")
    spread = drawn.frames.float().std(0, correction=0).mean() / 255
    values = {**found, "spread": round(float(spread), 4), "seconds": round(time.perf_counter() - began, 1)}
    write_results(folder / "results.json", {**provenance(), **values})
    (folder / "report.html").write_text(report(folder, values, video), encoding="utf-8")
    return values


def report(folder: Path, values: dict[str, Any], video: VideoModel) -> str:
    """One HTML page that needs no other file."""
    apart = f"{SLOW} times as many frames; the model was trained on frames {video.step:.2f} s apart"
    slow = f"Other futures with {apart}, and is drawn from at the times between as well."
    if video.knows_only_frames:
        slow = f"The same futures with {apart}, and those between are read from smooth paths through its latents."
    weights = sum(p.numel() for part in (video.model, video.autoencoder) for p in part.parameters())
    return page(
        "Four futures of a scene" if values["num_paths"] == 4 else "Futures of a scene",
        f"""<p>Objects slide with friction and collide. The model saw the {video.context} frames with an orange border and draws
what may come next, as an SDE of small latents ({values["futures"]["network_passes"]} network passes for
{values["futures"]["frames"]} frames, {values["futures"]["seconds"]:.1f} s for all futures on this machine). It has {weights:,}
weights. The scene, number {values["scene"]}, was made here and is none that it was trained on; the collision comes
{values["collision"]:.2f} s after the last given frame.</p>
<h2>The truth, and futures that the model draws</h2>
{image(folder / "futures.gif", "The true scene and the futures of the model, side by side")}
{image(folder / "futures.png", "The same as a strip of frames over time")}
<h2>{SLOW}× slow motion</h2>
<p>{slow} The truth is filmed as finely.</p>
{image(folder / "slow.gif", "Slow motion of the truth and of the futures")}
<p>Around the collision, frame by frame:</p>
{image(folder / "slow.png", "Slow motion around the collision as a strip of frames")}""",
    )
