"""What became of video files: every file and every part of one is used, or named with the reason why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

NAMES = 5  # so many names stand in print behind one reason; `to_dict` has all


class BadVideo(ValueError):
    """Why a file cannot be used; the message goes on where the file's name ends: "is empty"."""


@dataclass(frozen=True)
class Named:
    """A file or a part of one, and what is to be said of it."""

    name: str
    text: str


@dataclass
class FileRecord:
    """What came out of one file; plain values, as they go from process to process and into JSON."""

    name: str
    reason: str | None = None
    """Why it cannot be used at all."""
    size: str = ""
    """Width × height in pixels, as stored."""
    rate: str = ""
    """Frames per second, or "variable"."""
    notes: list[str] = field(default_factory=list)
    """What is odd about it and no reason to leave it out."""
    clips: list[ClipRecord] = field(default_factory=list)


@dataclass
class ClipRecord:
    """What came out of one part of a file."""

    name: str
    reason: str | None = None
    times: list[float] = field(default_factory=list)
    """Seconds, of each frame kept."""
    notes: list[str] = field(default_factory=list)


def record_of(values: Mapping[str, Any]) -> FileRecord:
    """Back from plain values."""
    return FileRecord(**{**values, "clips": [ClipRecord(**clip) for clip in values["clips"]]})


@dataclass(frozen=True)
class VideoReport:
    """What was read and what was not; `print` it, or take `to_dict()` for JSON."""

    source: str
    files_found: int
    files_read: int
    """Of which at least a part was used."""
    num_videos: int
    """Parts of files count each: KTH has about four to a file."""
    num_frames: int
    seconds: float
    sizes: dict[str, int]
    """Files of each width × height, as stored."""
    rates: dict[str, int]
    """Files of each number of frames per second."""
    skipped: tuple[Named, ...]
    """Files and parts that were left out, and why."""
    notes: tuple[Named, ...]
    """What is odd about files and parts that were used."""
    remarks: tuple[str, ...] = ()
    """On the whole."""

    @classmethod
    def of(cls, source: str, records: Iterable[FileRecord], remarks: Iterable[str] = ()) -> VideoReport:
        """The account of these files."""
        records = list(records)
        clips = [clip for record in records if record.reason is None for clip in record.clips]
        read = [r for r in records if r.reason is None and any(clip.reason is None for clip in r.clips)]
        kept = [clip for clip in clips if clip.reason is None]
        skipped = [Named(r.name, r.reason) for r in records if r.reason is not None]
        skipped += [Named(c.name, c.reason) for c in clips if c.reason is not None]
        notes = [Named(r.name, note) for r in read for note in r.notes]
        notes += [Named(c.name, note) for c in kept for note in c.notes]
        sizes = Counter(record.size for record in read)
        usual = max(sizes, key=lambda size: sizes[size], default="")
        notes += [
            Named(r.name, f"is not of the usual size {usual}")
            for r in read
            if r.size != usual and sizes[r.size] < 0.5 * len(read)
        ]
        return cls(
            source=source,
            files_found=len(records),
            files_read=len(read),
            num_videos=len(kept),
            num_frames=sum(len(clip.times) for clip in kept),
            seconds=round(sum(clip.times[-1] - clip.times[0] for clip in kept), 3),
            sizes=dict(sizes.most_common()),
            rates=dict(Counter(record.rate for record in read).most_common()),
            skipped=tuple(skipped),
            notes=tuple(notes),
            remarks=tuple(remarks),
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> VideoReport:
        """Back from `to_dict`."""
        lists = {name: tuple(Named(**item) for item in values[name]) for name in ("skipped", "notes")}
        return cls(**{**values, **lists, "remarks": tuple(values["remarks"])})

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        values = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def __str__(self) -> str:
        lines = [
            f"{self.source}: {self.files_read} of {self.files_found} files read, {self.num_videos} videos, "
            f"{self.num_frames:,} frames, {self.seconds:,.1f} s"
        ]
        if self.files_read:
            lines.append(f"  size as stored: {_counts(self.sizes)}; frames per second: {_counts(self.rates)}")
        lines += [f"- skipped: {line}" for line in _grouped(self.skipped)]
        lines += [f"- used, but {line}" for line in _grouped(self.notes)]
        return "\n".join([*lines, *(f"- {remark}" for remark in self.remarks)])


def _counts(counts: Mapping[str, int]) -> str:
    """Values with how often they occur, unless there is only one."""
    if len(counts) == 1:
        return next(iter(counts))
    shown = [f"{value} ({number} files)" for value, number in list(counts.items())[:NAMES]]
    return ", ".join([*shown, *(["…"] if len(counts) > NAMES else [])])


def _grouped(items: Iterable[Named]) -> list[str]:
    """One line for each thing that is said, with the names it is said of."""
    said: dict[str, list[str]] = {}
    for item in items:
        said.setdefault(item.text, []).append(item.name)
    lines = []
    for text, names in said.items():
        more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
        lines.append(f"{', '.join(names[:NAMES])}{more} {text}")
    return lines
