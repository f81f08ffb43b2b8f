"""Frames into a file that plays: .gif (Pillow) or .mp4 (PyAV)."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from neuralsde.core.extras import need
from neuralsde.core.files import replacing
from neuralsde.core.records import check

FASTEST = 100.0  # frames per second at which a film can be played


def write_video(frames: Any, path: str | os.PathLike[str], *, fps: float = 10.0) -> Path:
    """Write frames (T, height, width, 3) uint8 and return where; the ending of `path` chooses the format."""
    file, images = Path(path), np.asarray(frames)
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8 or not images.size:
        raise ValueError(f"`frames` must have shape (T, height, width, 3), uint8. Got {images.shape}, {images.dtype}.")
    check(0 < fps <= FASTEST, f"`fps` must be above 0 and at most {FASTEST:g}. Got {fps:g}.")
    writers = {".gif": _write_gif, ".mp4": _write_mp4}
    check(file.suffix.lower() in writers, f"A video must end in .gif or .mp4. Got {file.name}.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as new:
            writers[file.suffix.lower()](images, new, fps)
    except OSError as error:
        raise ValueError(f"Cannot write {file}: {error.strerror or error}. Choose another place.") from None
    return file


def _write_gif(frames: np.ndarray, file: Path, fps: float) -> None:
    need("A .gif", "PIL")
    from PIL import Image

    first, *rest = [Image.fromarray(frame) for frame in frames]
    first.save(file, format="GIF", save_all=True, append_images=rest, duration=round(1000 / fps), loop=0)


def _write_mp4(frames: np.ndarray, file: Path, fps: float) -> None:
    need("An .mp4", "av")
    import av

    # Colours are stored for blocks of 2 × 2 pixels: sides must be even.
    even = np.pad(frames, [(0, 0), (0, frames.shape[1] % 2), (0, frames.shape[2] % 2), (0, 0)], mode="edge")
    with av.open(str(file), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        stream.height, stream.width = even.shape[1:3]
        stream.pix_fmt, stream.options = "yuv420p", {"crf": "20"}
        for frame in even:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode(None))
