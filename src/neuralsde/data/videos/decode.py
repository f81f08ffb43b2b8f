"""One video file to frames of one size, each with the time at which it is shown.

Times are those in the file, in seconds: a variable frame rate stays what it is. A file is used whole or not at all: what the
decoder complains about, what is cut short, what goes back in time is refused with a `BadVideo` that says why.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from neuralsde.core.extras import need
from neuralsde.data.videos.report import BadVideo

MOST_PIXELS = 2**26  # of a picture, twice those of 8K: a few bytes can announce many more
FORMATS = "avi,mov,mp4,matroska,webm,gif"
"""Containers that are opened. Playlists are none of them: they would open other files."""
ODDITIES = ("variable", "alpha", "odd")
"""A variable frame rate, see-through pixels, a side with an odd number of pixels."""

_LISTENING = threading.Lock()
"""What FFmpeg complains about is heard by one reader at a time."""


@dataclass(frozen=True, kw_only=True)
class FrameSettings:
    """How frames are made from pictures."""

    size: tuple[int, int] = (64, 64)
    """Height and width."""
    fit: Literal["crop", "stretch"] = "crop"
    """Where the shape differs: cut the middle out, or squeeze the whole picture into it."""
    resize: Literal["area", "bilinear"] = "area"
    """Mean over the area of each new pixel, or linear weights over twice its width."""
    grey: bool = False
    """One channel instead of three."""
    every: int = 1
    """Take every so many-th frame."""
    min_frames: int = 2
    """Fewer of them are too short to be used."""
    refuse: tuple[Literal["variable", "alpha", "odd"], ...] = ()
    """Oddities that are noted and used otherwise: variable frame rate, see-through pixels, odd sides."""

    def __post_init__(self) -> None:
        height, width = self.size
        if min(height, width) < 1:
            raise ValueError(f"`size` must be height and width in pixels. Got {self.size}.")
        if self.fit not in ("crop", "stretch") or self.resize not in ("area", "bilinear"):
            raise ValueError(f"`fit` is crop or stretch, `resize` area or bilinear. Got {self.fit!r}, {self.resize!r}.")
        if self.every < 1 or self.min_frames < 1:
            raise ValueError(f"`every` and `min_frames` must be at least 1. Got {self.every}, {self.min_frames}.")
        if isinstance(self.refuse, str) or not set(self.refuse) <= set(ODDITIES):
            raise ValueError(f"`refuse` is a list of {', '.join(ODDITIES)}. Got {self.refuse!r}.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a frame."""
        return (1 if self.grey else 3, *self.size)

    def changed(self, *, size: int | None = None, colour: bool | None = None, **rest: Any) -> FrameSettings:
        """With what is not None: height and width as one number, colour or grey, and other fields by their names."""
        square = None if size is None else (size, size)
        given = rest | {"size": square, "grey": None if colour is None else not colour}
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FrameSettings:
        """Back from plain values."""
        plain: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
        return cls(**plain)

    def frame(self, picture: np.ndarray, aspect: float = 1.0) -> np.ndarray:
        """(C, H, W) from a picture (height, width, 3) whose pixels are `aspect` times as wide as high."""
        from PIL import Image

        height, width = picture.shape[:2]
        box_height, box_width = float(height), float(width)
        if self.fit == "crop":
            ratio = self.size[1] / self.size[0] / aspect  # width by height of the box, in pixels of the picture
            box_height, box_width = min(height, width / ratio), min(width, height * ratio)
        top, left = (height - box_height) / 2, (width - box_width) / 2
        image = Image.fromarray(picture)
        image = image.convert("L") if self.grey else image
        method = Image.Resampling.BOX if self.resize == "area" else Image.Resampling.BILINEAR
        image = image.resize(self.size[::-1], method, box=(left, top, left + box_width, top + box_height))
        pixels = np.asarray(image)
        return pixels[None] if self.grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))


@dataclass(frozen=True, eq=False)
class Video:
    """Frames and their times."""

    frames: np.ndarray
    """(T, C, H, W) bytes."""
    times: np.ndarray
    """(T,) seconds, as in the file."""
    stored_size: str
    rate: str
    """Frames per second in the file, or "variable"."""
    notes: tuple[str, ...]


def read_video(
    path: str | Path, settings: FrameSettings | None = None, *, start: int = 0, stop: int | None = None
) -> Video:
    """All frames of a file from `start` to before `stop`; `BadVideo`, a ValueError, names what cannot be used."""
    need_pyav()
    settings = settings or FrameSettings()
    file, frames, times = VideoFile(Path(path)), [], []
    try:
        for _, time, picture in file.clips([(start, stop)], settings):
            frames.append(settings.frame(picture(), file.aspect))
            times.append(time)
        file.refuse(settings)
        check_length(len(frames), settings)
    except BadVideo as error:
        raise BadVideo(f"{path} {error}") from None
    except Exception as error:  # whatever is in a file
        raise BadVideo(f"{path} cannot be read ({type(error).__name__}: {error})") from None
    return Video(np.stack(frames), np.array(times), file.size, file.rate, tuple(file.notes))


def check_length(num_frames: int, settings: FrameSettings) -> None:
    """Refuse what is too short."""
    if num_frames < settings.min_frames:
        left = f" (every {settings.every}. frame)" if settings.every > 1 else ""
        raise BadVideo(f"has {num_frames} frame(s){left}, {settings.min_frames} are asked for")


class Pictures:
    """A file of pictures with times, gone through once; what is known of it grows on the way."""

    size = ""
    rate = ""
    aspect = 1.0

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.odd: list[str] = []
        self.num_frames = 0

    def __iter__(self) -> Iterator[tuple[float, Callable[[], np.ndarray]]]:
        """Time in seconds of each picture in turn, and how to get its pixels (height, width, 3)."""
        raise NotImplementedError

    def clips(
        self, ranges: Sequence[tuple[int, int | None]], settings: FrameSettings
    ) -> Iterator[tuple[int, float, Callable[[], np.ndarray]]]:
        """The frames to keep of several ranges, which may overlap: number of the range, time, pixels."""
        end = max(math.inf if stop is None else stop for _, stop in ranges)
        for k, (time, picture) in enumerate(self):
            made: list[np.ndarray] = []

            def once(picture: Callable[[], np.ndarray] = picture, made: list[np.ndarray] = made) -> np.ndarray:
                if not made:
                    made.append(picture())
                return made[0]

            for i, (start, stop) in enumerate(ranges):
                if start <= k < (end if stop is None else stop) and (k - start) % settings.every == 0:
                    yield i, time, once
            if k + 1 >= end:
                break

    def note(self, oddity: str, text: str) -> None:
        """Something that is used unless it is to be refused."""
        if oddity not in self.odd:
            self.odd.append(oddity)
            self.notes.append(text)

    def refuse(self, settings: FrameSettings) -> None:
        """Refuse the oddities that are to be refused."""
        for oddity, note in zip(self.odd, self.notes):
            if oddity in settings.refuse:
                raise BadVideo(note)


class VideoFile(Pictures):
    """A video as FFmpeg reads it."""

    def __init__(self, file: Path | bytes) -> None:
        super().__init__()
        self.file = file
        self.converter: Any = None
        self.turns = 0
        """By 90 degrees, against the clock, until the picture stands upright."""

    def __iter__(self) -> Iterator[tuple[float, Callable[[], np.ndarray]]]:
        with _open(self.file) as container:
            stream = _pictures(container)
            if stream.codec_context is None:
                raise BadVideo("is coded in a way that FFmpeg does not know")
            stream.codec_context.thread_count = 1
            stream.codec_context.options = {
                "err_detect": "crccheck+bitstream+buffer+explode",
                "max_pixels": f"{MOST_PIXELS}",
            }
            self.aspect = float(stream.sample_aspect_ratio or 1)
            rate = stream.average_rate or stream.guessed_rate
            frames, tick = container.decode(stream), float(stream.time_base or 0)
            times: list[float] = []
            while True:
                k = len(times)
                try:
                    frame, complaints = _listen(lambda: next(frames, None))
                except _GaveUp as error:
                    raise BadVideo(f"is damaged at frame {k} ({error})") from None
                if complaints or (frame is not None and frame.is_corrupt):
                    raise BadVideo(f"is damaged at frame {k} ({'; '.join(complaints) or 'pixels are missing'})")
                if frame is None:
                    break
                if frame.pts is None and not rate:
                    raise BadVideo("has neither stamps nor a frame rate")
                if frame.pts is None:
                    self.note("stamps", f"has no stamps: its frames were counted at {float(rate):g} per second")
                times.append(k / float(rate) if frame.pts is None else float(frame.pts * frame.time_base))
                if k and times[k] <= times[k - 1]:
                    raise BadVideo(f"goes back in time at frame {k}: {times[k]:g} s after {times[k - 1]:g} s")
                self._look(frame, k)
                self._keep_pace(times, tick)
                yield times[k], lambda frame=frame: self._pixels(frame)
            if not times:
                raise BadVideo("holds no frame")
            self._check_end(container, stream, times)

    def _check_end(self, container: Any, stream: Any, times: list[float]) -> None:
        """Refuse a file that ends before the end it announces; of Matroska the decoder itself complains."""
        if container.format.name == "avi" and stream.frames and len(times) > 1:
            step, end = max(np.diff(times)), (stream.frames - 1) / float(stream.average_rate or 1)
            if times[-1] + 1.5 * step < end:
                raise BadVideo(f"is cut short: {len(times)} of {stream.frames} frames are there")
        cut = "mov" in container.format.name and _lacks_media(self.file)
        if container.format.name == "gif":
            cut = not _head_and_tail(self.file)[1].rstrip(b"\0").endswith(b";")
        if cut:
            raise BadVideo(f"is cut short: it ends after {len(times)} frames, at {times[-1]:.3g} s")

    def _look(self, frame: Any, k: int) -> None:
        """The form of a frame."""
        size = f"{frame.width}×{frame.height}"
        if k == 0:
            self.size = size
            self.turns = round(getattr(frame, "rotation", 0) / 90) % 4
            self.aspect = 1 / self.aspect if self.turns % 2 else self.aspect
            if frame.width % 2 or frame.height % 2:
                self.note("odd", "has a side with an odd number of pixels")
        elif size != self.size:
            self.note("changes", f"changes its size at frame {k}")

    def _keep_pace(self, times: list[float], tick: float) -> None:
        """Whether frames are evenly spaced, up to the rounding of stamps."""
        self.num_frames = len(times)
        if len(times) < 2:
            return
        step, first = times[-1] - times[-2], times[1] - times[0]
        if abs(step - first) > 1.01 * tick + 1e-3 * first:
            self.note("variable", "has a variable frame rate, kept as it is")
        self.rate = "variable" if "variable" in self.odd else f"{round((len(times) - 1) / (times[-1] - times[0]), 2):g}"

    def _pixels(self, frame: Any) -> np.ndarray:
        """(height, width, 3) as shown: see-through pixels over black, turned as the file says."""
        components = frame.format.components
        if any(part.is_alpha for part in components) or frame.format.has_palette:
            whole = self._as(frame, "rgba")
            pixels, alpha = whole[..., :3], whole[..., 3:]
            if alpha.min() < 255:
                self.note("alpha", "has see-through pixels, laid over black")
                pixels = ((pixels.astype(np.uint16) * alpha + 127) // 255).astype(np.uint8)
        else:
            pixels = self._as(frame, "rgb24")
        return np.ascontiguousarray(np.rot90(pixels, self.turns))

    def _as(self, frame: Any, form: str) -> np.ndarray:
        """Colours as stored to colours as shown; one converter for all frames, as it is slow to set up."""
        if self.converter is None:
            from av.video.reformatter import VideoReformatter

            self.converter = VideoReformatter()
        return self.converter.reformat(frame, format=form).to_ndarray()


def need_pyav() -> Any:
    """PyAV, or what to install."""
    need("A video", "av", "PIL")
    import av

    return av


def _open(file: Path | bytes) -> Any:
    """The container, or why it cannot be opened."""
    av = need_pyav()
    if isinstance(file, Path) and not file.is_file():
        raise BadVideo("is not a file" if file.exists() else "is not there")
    size = len(file) if isinstance(file, bytes) else file.stat().st_size
    if not size:
        raise BadVideo("is empty")
    place = io.BytesIO(file) if isinstance(file, bytes) else str(file)
    try:
        container, _ = _listen(lambda: av.open(place, options={"format_whitelist": FORMATS}))
        return container
    except _GaveUp as error:
        if isinstance(error.__cause__, PermissionError):
            raise BadVideo("may not be read (permission denied)") from None
        head, _ = _head_and_tail(file)
        if head[4:8] in (b"ftyp", b"mdat", b"wide", b"free") or head[:4] in (b"RIFF", b"\x1a\x45\xdf\xa3", b"GIF8"):
            raise BadVideo(f"is cut short or damaged: it has no frames or their list is missing ({error})") from None
        raise BadVideo(f"is not a video that can be read ({error})") from None


def _head_and_tail(file: Path | bytes) -> tuple[bytes, bytes]:
    """The first and the last bytes."""
    with io.BytesIO(file) if isinstance(file, bytes) else file.open("rb") as data:
        head = data.read(64)
        data.seek(max(0, data.seek(0, io.SEEK_END) - 64))
        return head, data.read(64)


def _lacks_media(file: Path | bytes) -> bool:
    """Whether the pictures of an MP4 or MOV are said to go on behind the end of the file."""
    with io.BytesIO(file) if isinstance(file, bytes) else file.open("rb") as data:
        place, size = 0, data.seek(0, io.SEEK_END)
        while place < size:
            data.seek(place)
            length, kind = int.from_bytes(data.read(4), "big"), data.read(4)
            length = int.from_bytes(data.read(8), "big") if length == 1 else length
            if length < 8:  # to the end, wherever that is
                return False
            place += length
            if kind == b"mdat" and place > size:
                return True
    return False


def _pictures(container: Any) -> Any:
    """The stream of pictures; a cover is none."""
    for stream in container.streams.video:
        if "attached_pic" not in str(getattr(stream, "disposition", "")).lower():
            return stream
    raise BadVideo("holds sound and no pictures" if container.streams.audio else "holds no pictures")


class _GaveUp(Exception):
    """FFmpeg could not go on; the text is what it said of it."""


def _listen(step: Callable[[], Any]) -> tuple[Any, list[str]]:
    """The result of a step, and the errors that FFmpeg reported meanwhile and went on."""
    import av.logging

    with _LISTENING:
        level, skip = av.logging.get_level(), av.logging.get_skip_repeated()
        av.logging.set_level(av.logging.ERROR)
        av.logging.set_skip_repeated(False)
        try:
            with av.logging.Capture() as said:
                result = step()
        except (av.FFmpegError, OSError, ValueError, RuntimeError) as error:  # its own log may be of an earlier file
            words = said[-1][2].strip() if said else getattr(error, "strerror", None) or error
            raise _GaveUp(words) from error
        finally:
            av.logging.set_level(level)
            av.logging.set_skip_repeated(skip)
    return result, [f"{name}: {text.strip()}" for _, name, text in said]
