"""Clips to look at: strips of frames over time, and films of several clips side by side.

Frames that were given have an orange border, so that it is seen where the model takes over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neuralsde.core.extras import need
from neuralsde.core.records import check

SHOWN = 128  # pixels that a frame has at least; smaller ones are enlarged by whole numbers
IN_STRIP = 96
GAP, BORDER, CAPTION = 6, 3, 20
PER_ROW = 6  # panels of a film side by side
GIVEN, INK = (236, 130, 30), (40, 40, 40)


def strip_over_time(clips: Mapping[str, np.ndarray], times: np.ndarray, num_given: int, most: int = 12) -> np.ndarray:
    """A strip of clips (T, C, H, W): the first and the last frame that was given, then some of the others up to the last."""
    ahead = np.linspace(num_given, len(times) - 1, min(most - 2, len(times) - num_given)).round().astype(int)
    columns = sorted({0, num_given - 1, *ahead.tolist()})
    rows = {name: [clip[c] for c in columns] for name, clip in clips.items()}
    return strip(rows, [f"{times[c]:.2g} s" for c in columns], sum(c < num_given for c in columns))


def film_in_true_time(
    clips: Mapping[str, np.ndarray], times: np.ndarray, num_given: int, fps: float, per_row: int = PER_ROW
) -> np.ndarray:
    """A film of clips (T, C, H, W) at `fps`; times are 0 at the last given frame. A given frame stays until the next one."""
    before = np.arange(-round(-times[0] * fps), 1) / fps
    given = [max(0, int(np.searchsorted(times[:num_given], t + 1e-6, side="right")) - 1) for t in before]
    order = [*given, *range(num_given, len(times))]
    return film({name: clip[order] for name, clip in clips.items()}, len(given), per_row)


def strip(rows: Mapping[str, Sequence[np.ndarray]], captions: Sequence[str], num_given: int = 0) -> np.ndarray:
    """A picture (height, width, 3): a row of frames (C, H, W) for each name, a column for each caption."""
    lengths = [len(row) for row in rows.values()]
    complete = bool(rows) and bool(captions) and set(lengths) == {len(captions)}
    check(complete, f"Each row must have a frame for each of {len(captions)} captions. Got {lengths}.")
    tiles = {name: [_enlarged(frame, IN_STRIP) for frame in row] for name, row in rows.items()}
    height, width = next(iter(tiles.values()))[0].shape[:2]
    left = 12 + max(_text_width(name) for name in rows)
    page = np.full((CAPTION + len(rows) * (height + GAP), left + len(captions) * (width + GAP), 3), 255, np.uint8)
    for k, caption in enumerate(captions):
        _write(page, caption, left + k * (width + GAP) + (width - _text_width(caption)) // 2, 3)
    for r, (name, row) in enumerate(tiles.items()):
        top = CAPTION + r * (height + GAP)
        _write(page, name, 6, top + height // 2 - 7)
        for k, tile in enumerate(row):
            x = left + k * (width + GAP)
            page[top : top + height, x : x + width] = _framed(tile) if k < num_given else tile
    return page


def film(panels: Mapping[str, np.ndarray], num_given: int = 0, per_row: int = PER_ROW) -> np.ndarray:
    """Frames (T, height, width, 3) of clips (T, C, H, W) side by side, each below its name."""
    lengths = {len(clip) for clip in panels.values()}
    check(len(lengths) == 1, f"Clips side by side must be equally long. Got {lengths or 'none'} frames.")
    clips = {name: np.stack([_enlarged(frame, SHOWN) for frame in clip]) for name, clip in panels.items()}
    num, height, width = next(iter(clips.values())).shape[:3]
    columns = min(per_row, len(clips))
    lines = -(-len(clips) // columns)
    cell = np.array([CAPTION + height + GAP, width + GAP])
    page = np.full((lines * cell[0] + GAP, columns * cell[1] + GAP, 3), 255, np.uint8)
    for k, name in enumerate(clips):
        top, left = cell * divmod(k, columns) + GAP
        _write(page, name, int(left) + max(0, (width - _text_width(name)) // 2), int(top))
    pages = np.repeat(page[None], num, axis=0)
    for k, clip in enumerate(clips.values()):
        top, left = cell * divmod(k, columns) + GAP
        for t in range(num_given):
            clip[t] = _framed(clip[t])
        pages[:, top + CAPTION : top + CAPTION + height, left : left + width] = clip
    return pages


def save_picture(picture: np.ndarray, file: Path) -> Path:
    """Write a picture (height, width, 3) as .png and return where."""
    image = _pillow("Image")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(picture).save(file, optimize=True)
    except OSError as error:
        raise ValueError(f"Cannot write {file}: {error.strerror or error}. Choose another place.") from None
    return file


def _enlarged(frame: np.ndarray, least: int) -> np.ndarray:
    """(height, width, 3) from (C, H, W), each pixel repeated."""
    pixels = np.broadcast_to(frame, (3, *frame.shape[1:])).transpose(1, 2, 0)
    factor = max(1, -(-least // min(pixels.shape[:2])))
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def _framed(tile: np.ndarray) -> np.ndarray:
    """With a border that says: given."""
    tile = tile.copy()
    for edge in (np.s_[:BORDER], np.s_[-BORDER:], np.s_[:, :BORDER], np.s_[:, -BORDER:]):
        tile[edge] = GIVEN
    return tile


def _write(page: np.ndarray, text: str, left: int, top: int) -> None:
    image = _pillow("Image").fromarray(page)
    _pillow("ImageDraw").Draw(image).text((left, top), text, fill=INK, font=_font())
    page[:] = np.asarray(image)


def _text_width(text: str) -> int:
    return int(_font().getlength(text)) + 1


def _font() -> Any:
    try:
        return _pillow("ImageFont").load_default(size=13)
    except TypeError:  # Pillow 10.0
        return _pillow("ImageFont").load_default()


def _pillow(module: str) -> Any:
    from importlib import import_module

    need("A picture", "PIL")
    return import_module(f"PIL.{module}")
