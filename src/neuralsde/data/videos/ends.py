"""Whether a video file is all there.

A file that lacks its end lacks pictures, and nothing else says so. What it announces (how long it lasts, how many frames) is
compared with what came out; as a last picture may be held long, files whose parts are complete are whole all the same.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, Any

import numpy as np

from neuralsde.data.videos.report import BadVideo

EBML, SEGMENT = 0x1A45DFA3, 0x18538067
"""Marks of the head of a Matroska file, and of all the rest."""


def check_end(container: Any, stream: Any, times: list[float], file: Path | bytes) -> None:
    """Refuse a file that ends before the end it announces."""
    if len(times) < 2:
        return
    step = max(np.diff(times))
    missing = BadVideo(f"is cut short: it ends after {len(times)} frames, at {times[-1]:.3g} s")
    if container.format.name == "avi":  # its duration is made up from what is there; the number of frames is not
        if stream.frames and times[-1] + 1.5 * step < (stream.frames - 1) / float(stream.average_rate or 1):
            raise BadVideo(f"is cut short: {len(times)} of {stream.frames} frames are there")
    elif container.format.name == "gif":
        last = file[-64:] if isinstance(file, bytes) else first_and_last(file)[1]
        if not last.rstrip(b"\0").endswith(b";"):
            raise missing
    elif (end := _announced(container, stream, times[0])) and times[-1] + 2.5 * step < end and not _complete(file):
        raise missing


def _announced(container: Any, stream: Any, start: float) -> float | None:
    """When the pictures end, in seconds, where the file says so."""
    if stream.duration:
        return start + float(stream.duration * stream.time_base)
    text = stream.metadata.get("DURATION", "")  # of Matroska, which counts from 0
    if text.count(":") == 2:
        hours, minutes, seconds = map(float, text.split(":"))
        return 3600 * hours + 60 * minutes + seconds
    if not container.duration or len(container.streams) > 1:
        return None
    return container.duration / 1e6 + (0.0 if "matroska" in container.format.name else start)


def _complete(file: Path | bytes) -> bool:
    """Whether all parts of a file (MP4, MOV, Matroska) are as long as they say; False where they do not say."""
    with io.BytesIO(file) if isinstance(file, bytes) else file.open("rb") as data:
        size = data.seek(0, io.SEEK_END)
        data.seek(0)
        if int.from_bytes(data.read(4), "big") == EBML:
            data.seek(_number(data) or 0, io.SEEK_CUR)
            if int.from_bytes(data.read(4), "big") != SEGMENT or (length := _number(data)) is None:
                return False
            return data.tell() + length <= size
        place = 0
        while place < size:
            data.seek(place)
            length = int.from_bytes(data.read(4), "big")
            if data.read(4) == b"mdat" and length == 0:  # to the end, wherever that is
                return False
            length = int.from_bytes(data.read(8), "big") if length == 1 else length
            if length < 8:
                return False
            place += length
        return place == size


def _number(data: IO[bytes]) -> int | None:
    """A length as Matroska writes it: the zeros before the first 1 are the bytes to follow; all ones: not known."""
    first = data.read(1)
    more = 8 - first[0].bit_length() if first else 8
    if more > 7:
        return None
    value = int.from_bytes(bytes([first[0] & (0x7F >> more)]) + data.read(more), "big")
    return None if value == 2 ** (7 * (more + 1)) - 1 else value


def first_and_last(file: Path) -> tuple[bytes, bytes]:
    """The first and the last bytes."""
    with file.open("rb") as data:
        head = data.read(64)
        data.seek(max(0, file.stat().st_size - 64))
        return head, data.read(64)
