"""Video files of every kind, written here with PyAV."""

from fractions import Fraction

import av
import numpy as np

from neuralsde.data.videos.clips import by_file
from neuralsde.data.videos.decode import FrameSettings, Video
from neuralsde.data.videos.folders import folder_clips
from neuralsde.data.videos.jobs import decode_file, refuse_bad
from neuralsde.data.videos.report import VideoReport


def pictures(num, height=48, width=64, seed=0):
    """(num, height, width, 3): a smooth scene that slides, so that codecs keep it."""
    rng = np.random.default_rng(seed)
    waves = rng.uniform(0.5, 2.5, (3, 2)), rng.uniform(0, 6, 3)
    y, x = np.mgrid[:height, :width] / 20
    frames = [
        np.stack([np.sin(a * (x + 0.1 * k) + b * y + c) for (a, b), c in zip(*waves)], axis=-1) for k in range(num)
    ]
    return np.round(127.5 + 120 * np.array(frames).reshape(num, height, width, 3)).astype(np.uint8)


def write_film(
    path,
    frames,
    codec="libx264",
    *,
    rate=25,
    stamps=None,
    pix_fmt="yuv420p",
    aspect=None,
    options=None,
    container_options=None,
    hold=None,
):
    """Frames (T, height, width, 3 or 4) into a file; `stamps` in milliseconds; the last is held for `hold` seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt, stream.options = pix_fmt, options or {}
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        if stamps is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        container.start_encoding()
        packets = []
        for k, picture in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(picture, format="rgba" if picture.shape[-1] == 4 else "rgb24")
            if stamps is not None:
                frame.pts, frame.time_base = int(stamps[k]), Fraction(1, 1000)
            packets += stream.encode(frame)
        packets += stream.encode(None) if len(frames) else []
        if hold is not None:
            packets[-1].duration = round(hold / packets[-1].time_base)
        container.mux(packets)
    return path


def write_sound(path, codec="aac", seconds=0.2):
    """A file with sound and nothing else."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=8000)
        form = "fltp" if codec == "aac" else "s16"
        samples = np.zeros((1, int(8000 * seconds)), np.float32 if codec == "aac" else np.int16)
        frame = av.AudioFrame.from_ndarray(samples, format=form, layout="mono")
        frame.sample_rate, frame.pts = 8000, 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def lossless(path, frames, **kwargs):
    """Frames that come back to the bit."""
    return write_film(path, frames, "ffv1", pix_fmt="bgr0", **kwargs)


def read_videos(source, settings=None, *, on_bad="skip"):
    """All videos of a folder, or these clips, decoded in this process, by name, with the account of them."""
    settings = settings or FrameSettings()
    clips = source if isinstance(source, list) else folder_clips(source)
    records, videos = [], {}
    for some in by_file(clips):
        frames = [[] for _ in some]
        record = decode_file(some, settings, lambda i, frame, frames=frames: frames[i].append(frame))
        refuse_bad([record], on_bad)
        records.append(record)
        for clip, made in zip(record.clips, frames):
            if record.reason is None and clip.reason is None:
                notes = (*record.notes, *clip.notes)
                videos[clip.name] = Video(np.stack(made), np.array(clip.times), record.size, record.rate, notes)
    return videos, VideoReport.of(str(source), records)
