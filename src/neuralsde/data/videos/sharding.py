"""Videos decoded once into shards: `frames-00000.npy`, …, `times.npy` and `videos.json`, which is written last.

Each file becomes a part of its own (`parts-of-shards/`), by several processes; parts that are complete are joined in order into a
shard as soon as there are enough of them, and then deleted. So a run that was killed goes on with the files that are missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from neuralsde.core.records import RunError
from neuralsde.data.videos.clips import Clip, by_file, job_key
from neuralsde.data.videos.decode import FrameSettings, need_pyav
from neuralsde.data.videos.jobs import cannot_write, refuse_bad, write_json
from neuralsde.data.videos.report import FileRecord, VideoReport, record_of
from neuralsde.data.videos.shards import INDEX, PARTS, TIMES, UNFINISHED, VERSION, VideoShards
from neuralsde.data.videos.workers import Job, decode_jobs

SHARD_BYTES = 2**30  # a shard is closed once it has as many bytes; a video is never cut in two


def write_shards(
    clips: Sequence[Clip],
    folder: str | os.PathLike[str],
    settings: FrameSettings | None = None,
    *,
    on_bad: Literal["skip", "raise"] = "skip",
    num_workers: int | None = None,
    source: str = "",
    remarks: Sequence[str] = (),
    shard_bytes: int = SHARD_BYTES,
    progress: bool = False,
) -> VideoShards:
    """Decode clips into a folder, or go on where an earlier call was stopped; what is there complete is only opened.

    Args:
        clips: of any files; those of one file stand together.
        folder: to write into.
        settings: of the frames.
        on_bad: leave out what cannot be used and say so in the report, or stop at the first with a ValueError.
        num_workers: processes; 0: none but this; absent: one for each processor.
        source: what the report calls all this.
        remarks: on the whole, for the report.
        shard_bytes: least size of all shards but the last.
        progress: show a bar.
    """
    from neuralsde.core.files import writable_folder

    need_pyav()
    settings = settings or FrameSettings()
    refuse_bad([], on_bad)
    if not clips:
        raise ValueError("There are no clips to write. Look whether the folder holds videos.")
    if len({clip.name for clip in clips}) < len(clips):
        raise ValueError("Each clip must have a name of its own.")
    place = writable_folder(folder)
    run = _Run(place, settings, list(clips), source, tuple(remarks))
    try:
        with _locked(place):
            if (place / INDEX).exists():
                return run.reopen()
            run.resume()
            if num_workers is None:
                num_workers = min(os.cpu_count() or 1, 16, max(1, len(run.todo())))
            run.decode(num_workers, on_bad, shard_bytes, progress)
            run.finish()
    except OSError as error:
        raise RunError(cannot_write(place, error)) from None
    return VideoShards.open(place)


@dataclass
class _Run:
    """One pass over all files: the first `len(records)` jobs are in shards, some of the others in parts."""

    folder: Path
    settings: FrameSettings
    clips: list[Clip]
    source: str
    remarks: tuple[str, ...]

    def __post_init__(self) -> None:
        cache: dict[Path, str] = {}
        seen: dict[str, int] = {}
        self.jobs: list[Job] = []
        for some in by_file(self.clips):
            key = job_key(some, self.settings, cache)
            seen[key] = seen.get(key, 0) + 1
            self.jobs.append((key if seen[key] == 1 else f"{key}-{seen[key]}", some))  # copies of one file
        text = repr([(key, [clip.name for clip in some]) for key, some in self.jobs])
        self.fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        self.source = self.source or f"{len(self.jobs)} files"
        self.parts = self.folder / PARTS
        self.records: list[FileRecord] = []
        self.shards: list[dict[str, Any]] = []

    def reopen(self) -> VideoShards:
        """What is there complete, if it is of these files and settings; labels and splits may have changed."""
        shards = VideoShards.open(self.folder, settings=self.settings)
        if shards.fingerprint != self.fingerprint:
            old, new = set(shards.index["keys"]), {key for key, _ in self.jobs}
            raise ValueError(
                f"{self.folder} holds shards of other videos: {len(new - old)} file(s) are new or changed, {len(old - new)} gone. "
                "Delete the folder to decode them anew, or name another."
            )
        videos = {video["name"]: video for video in shards.index["videos"]}
        for clip in self.clips:
            if clip.name in videos:
                videos[clip.name].update(label=clip.label, group=clip.group, splits=dict(clip.splits))
        report = replace(shards.report, source=self.source, remarks=self.remarks)
        write_json(self.folder / INDEX, shards.index | {"report": report.to_dict()})
        self.clean(
            {shard["file"] for shard in shards.index["shards"]}
        )  # it may have been stopped while it was cleaning up
        return VideoShards.open(self.folder)

    def resume(self) -> None:
        """Take over the shards and parts that an earlier run left."""
        self.parts.mkdir(exist_ok=True)
        mark, settings = self.folder / UNFINISHED, self.settings.to_dict()
        before = json.loads(mark.read_text(encoding="utf-8")) if mark.exists() else settings
        if before != settings:
            remedy = "Repeat them to go on, delete the folder, or name another."
            raise ValueError(f"{self.folder} holds the beginning of a run with other settings: {before}. {remedy}")
        write_json(mark, settings)
        for k in range(len(self.jobs)):
            notes = self.folder / f"frames-{k:05d}.json"
            if not notes.exists():
                break
            shard = json.loads(notes.read_text(encoding="utf-8"))
            start = len(self.records)
            if shard["keys"] != [key for key, _ in self.jobs[start : start + len(shard["keys"])]]:
                break
            self.records += [record_of(record) for record in shard["records"]]
            self.shards.append(shard["shard"])
        for notes in self.folder.glob("frames-[0-9]*.json"):
            if int(notes.stem.removeprefix("frames-")) >= len(self.shards):
                notes.unlink()

    def todo(self) -> list[int]:
        """Places of the jobs that nobody has done."""
        return [k for k in range(len(self.records), len(self.jobs)) if self.part(k) is None]

    def part(self, k: int) -> tuple[FileRecord, list[Path]] | None:
        """What a job left in parts; None unless it is all there."""
        key = self.jobs[k][0]
        try:
            record = record_of(json.loads((self.parts / f"{key}.json").read_text(encoding="utf-8")))
            files = []
            for i, clip in enumerate(record.clips):
                if record.reason is None and clip.reason is None:
                    files.append(self.parts / f"{key}-{i}.u8")
                    if files[-1].stat().st_size != len(clip.times) * int(np.prod(self.settings.shape)):
                        return None  # the power went before the disk had it
            return record, files
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def decode(self, num_workers: int, on_bad: str, shard_bytes: int, progress: bool) -> None:
        """Do what is to do, and make shards on the way."""
        from tqdm import tqdm

        todo = self.todo()
        missing, bad = set(todo), dict[int, FileRecord]()
        pending: list[tuple[FileRecord, list[Path]]] = []
        total = len(self.jobs)
        bar = tqdm(total=total, initial=total - len(todo), unit="file", desc="decode", disable=not progress)
        with bar, closing(decode_jobs([self.jobs[k] for k in todo], self.parts, self.settings, num_workers)) as done:
            while len(self.records) + len(pending) < len(self.jobs):
                k = len(self.records) + len(pending)
                while k in missing:
                    place, record = next(done)
                    missing.remove(todo[place])
                    if record.reason is not None:
                        bad[todo[place]] = record
                    bar.update()
                part = (bad[k], list[Path]()) if k in bad else self.part(k)
                assert part is not None
                refuse_bad([part[0]], on_bad)
                pending.append(part)
                if sum(file.stat().st_size for _, files in pending for file in files) >= shard_bytes:
                    self.join(pending)
                    pending = []
        if pending:
            self.join(pending)

    def join(self, pending: list[tuple[FileRecord, list[Path]]]) -> None:
        """A shard from parts, which are then deleted; its notes are written once it is complete."""
        files = [file for _, some in pending for file in some]
        first = len(self.records)
        keys = [key for key, _ in self.jobs[first : first + len(pending)]]
        name = f"frames-{len(self.shards):05d}.npy"
        shape = (sum(file.stat().st_size for file in files) // int(np.prod(self.settings.shape)), *self.settings.shape)
        part = self.folder / f"{name}.tmp"
        try:
            with part.open("wb") as out:
                np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": shape})
                for file in files:
                    with file.open("rb") as data:
                        shutil.copyfileobj(data, out, 2**20)
                out.flush()
                os.fsync(out.fileno())
            os.replace(part, self.folder / name)
            self.shards.append({"file": name, "num_frames": shape[0]})
            self.records += [record for record, _ in pending]
            notes = {"keys": keys, "shard": self.shards[-1], "records": [asdict(record) for record, _ in pending]}
            write_json(self.folder / f"{Path(name).stem}.json", notes)
        finally:
            part.unlink(missing_ok=True)
        for file in files:
            file.unlink()
        for key in keys:
            (self.parts / f"{key}.json").unlink(missing_ok=True)

    def finish(self) -> None:
        """The index, and nothing else left behind."""
        first: dict[str, str] = {}
        for (key, _), record in zip(self.jobs, self.records):
            if (original := first.setdefault(key.split("-")[0], record.name)) != record.name:
                record.notes.append(f"is a copy of {original}")
        report = VideoReport.of(self.source, self.records, self.remarks)
        if not report.num_videos:
            raise ValueError(f"No video can be used. {report}".replace("\n-", ";").replace("\n", ";"))
        by_name = {clip.name: clip for clip in self.clips}
        usable = (record for record in self.records if record.reason is None)
        made = [clip for record in usable for clip in record.clips if clip.reason is None]
        videos = [
            {
                "name": clip.name,
                "length": len(clip.times),
                "label": by_name[clip.name].label,
                "group": by_name[clip.name].group,
                "splits": dict(by_name[clip.name].splits),
            }
            for clip in made
        ]
        part = self.folder / f"{TIMES}.tmp"
        try:
            with part.open("wb") as out:
                np.save(out, np.concatenate([np.array(clip.times, dtype=np.float64) for clip in made]))
            os.replace(part, self.folder / TIMES)
        finally:
            part.unlink(missing_ok=True)
        index: dict[str, Any] = {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "settings": self.settings.to_dict(),
            "shards": [shard for shard in self.shards if shard["num_frames"]],
            "videos": videos,
            "keys": [key for key, _ in self.jobs],
            "report": report.to_dict(),
        }
        write_json(self.folder / INDEX, index)
        self.clean({shard["file"] for shard in index["shards"]})

    def clean(self, kept: set[str]) -> None:
        """Delete what only an unfinished run needs."""
        parts = (file for end in ("u8", "json", "tmp") for file in self.parts.glob(f"*.{end}"))
        for file in [*parts, *self.folder.glob("*.tmp")]:
            file.unlink(missing_ok=True)
        with suppress(OSError):  # a worker of a run that was killed may still write there
            self.parts.rmdir()
        for file in self.folder.glob("frames-[0-9][0-9][0-9][0-9][0-9].*"):
            if file.name not in kept:
                file.unlink(missing_ok=True)
        (self.folder / UNFINISHED).unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One run at a time in a folder, where the system can tell; a run that was killed leaves no lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"Another process is writing to {folder}. Wait for it, or name another folder.") from None
        except OSError:  # a file system without locks
            pass
        yield
