"""The work that one file is: its clips decoded frame by frame, with a record of what came out.

Run as a module it is a worker: a job in JSON on each line of its input, a record on each line of its output. A worker that a
broken file brings down takes only itself along, and ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from neuralsde.core.processes import lines_of_parent
from neuralsde.core.records import RunError
from neuralsde.data.videos.clips import HDF5_SUFFIXES, Clip
from neuralsde.data.videos.decode import FrameSettings, Pictures, VideoFile, check_length
from neuralsde.data.videos.hdf5 import Hdf5Video
from neuralsde.data.videos.report import BadVideo, ClipRecord, FileRecord

LARGEST_MEMBER = 2**31  # bytes of a video inside a zip, which is unpacked into memory


def open_pictures(file: Path, member: str | None, fps: float | None) -> Pictures:
    """The pictures of a file, of a member of a zip, or of a video in HDF5."""
    if member is None:
        return VideoFile(file)
    if file.suffix.lower() in HDF5_SUFFIXES:
        return Hdf5Video(file, member, fps)
    try:
        with zipfile.ZipFile(file) as archive:
            if archive.getinfo(member).file_size > LARGEST_MEMBER:
                raise BadVideo(f"is larger than {LARGEST_MEMBER:,} bytes: unzip it first")
            return VideoFile(archive.read(member))
    except (OSError, KeyError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise BadVideo(f"cannot be taken out of its zip ({error})") from None


def decode_file(clips: list[Clip], settings: FrameSettings, write: Callable[[int, np.ndarray], None]) -> FileRecord:
    """Hand the frames of each clip of one file to `write`, in order; what is wrong with the file is in the record."""
    first = clips[0]
    record = FileRecord(first.name if len(clips) == 1 else first.place, clips=[ClipRecord(clip.name) for clip in clips])
    try:
        pictures = open_pictures(first.file, first.member, first.fps)
        for i, time, picture in pictures.clips([(clip.start, clip.stop) for clip in clips], settings):
            write(i, settings.frame(picture(), pictures.aspect))
            record.clips[i].times.append(time)
        pictures.refuse(settings)
    except BadVideo as error:
        record.reason = str(error)
        return record
    except RunError:
        raise
    except Exception as error:  # no file may stop the reading of the others
        record.reason = f"cannot be read ({type(error).__name__}: {error})"
        return record
    record.size, record.rate, record.notes = pictures.size, pictures.rate, pictures.notes
    for clip, made in zip(clips, record.clips):
        if clip.stop is not None and clip.stop > pictures.num_frames:
            made.notes.append(f"is listed to frame {clip.stop}, the file has {pictures.num_frames}")
        try:
            check_length(len(made.times), settings)
        except BadVideo as error:
            made.reason = str(error)
    return record


def refuse_bad(records: Iterable[FileRecord], on_bad: str) -> None:
    """Stop at the first file or clip that cannot be used, if that is asked for."""
    if on_bad not in ("skip", "raise"):
        raise ValueError(f'`on_bad` must be "skip" or "raise". Got {on_bad!r}.')
    if on_bad == "skip":
        return
    for record in records:
        items: list[FileRecord | ClipRecord] = [record, *record.clips]
        for item in items:
            if item.reason is not None:
                raise ValueError(f'{item.name} {item.reason}. Remove or mend it, or leave such out: on_bad="skip".')


def decode_into(folder: Path, key: str, clips: list[Clip], settings: FrameSettings) -> FileRecord:
    """Frames of each good clip into `<key>-<i>.u8`, then the record into `<key>.json`: where it stands, all is done."""
    outs: dict[int, IO[bytes]] = {}

    def unfinished(i: int) -> Path:
        return folder / f"{key}-{i}.{os.getpid()}.tmp"

    def write(i: int, frame: np.ndarray) -> None:
        try:
            if i not in outs:
                outs[i] = unfinished(i).open("wb")
            outs[i].write(frame.data)
        except OSError as error:
            raise RunError(cannot_write(folder, error)) from None

    try:
        record = decode_file(clips, settings, write)
        for i, out in outs.items():
            out.close()
            if record.reason is None and record.clips[i].reason is None:
                os.replace(unfinished(i), folder / f"{key}-{i}.u8")
        write_json(folder / f"{key}.json", asdict(record))
    except OSError as error:
        raise RunError(cannot_write(folder, error)) from None
    finally:
        for i, out in outs.items():
            with suppress(OSError):  # a full disk was told of already
                out.close()
            unfinished(i).unlink(missing_ok=True)
    return record


def cannot_write(folder: Path, error: OSError) -> str:
    """What to do about a full disk."""
    return f"Cannot write to {folder} ({error.strerror or error}). Make room and run the command again: it goes on."


def write_json(file: Path, values: Any) -> None:
    """All or nothing."""
    part = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        part.write_text(json.dumps(values), encoding="utf-8")
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def to_line(folder: Path, key: str, clips: list[Clip], settings: FrameSettings) -> str:
    """A job as a worker takes it."""
    parts = [(clip.name, str(clip.file), clip.member, clip.start, clip.stop, clip.fps) for clip in clips]
    return json.dumps({"folder": str(folder), "key": key, "clips": parts, "settings": settings.to_dict()})


def work(jobs: Iterable[str], out: IO[str]) -> None:
    """Do the jobs as they come."""
    print("ready", file=out, flush=True)
    for line in jobs:
        job = json.loads(line)
        clips = [Clip(name, Path(file), *part, fps=fps) for name, file, *part, fps in job["clips"]]
        try:
            decoded = decode_into(Path(job["folder"]), job["key"], clips, FrameSettings.from_dict(job["settings"]))
            answer: dict[str, Any] = {"record": asdict(decoded)}
        except RunError as error:
            answer = {"stop": str(error)}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever gives the jobs decides when to stop
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        work(lines_of_parent(sys.stdin), answers)
    except BrokenPipeError:  # nobody listens any more
        os._exit(1)
