"""Public data sets of videos by their names: where they are, what they hold, how their frames are usually made."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from neuralsde.data.download import fetch
from neuralsde.data.videos import clevrer, kth, weizmann
from neuralsde.data.videos.clips import Clip
from neuralsde.data.videos.decode import FrameSettings, need_pyav
from neuralsde.data.videos.sharding import write_shards
from neuralsde.data.videos.shards import VideoShards

MODULES: dict[str, ModuleType] = {"kth": kth, "clevrer": clevrer, "weizmann": weizmann}
FIND = {"kth": kth.kth_clips, "clevrer": clevrer.clevrer_clips, "weizmann": weizmann.weizmann_clips}


def public_clips(
    name: str, folder: Path, only: tuple[str, ...] = (), *, published: bool = False
) -> tuple[list[Clip], list[str], FrameSettings]:
    """A data set as it lies in a folder: its videos, remarks on the whole, and how its frames are usually made.

    `only` some actions of KTH or Weizmann, or parts of CLEVRER; `published`: refuse what is not all that was published.
    """
    known = MODULES[name]
    try:
        clips, remarks = FIND[name](folder, only or tuple(known.SOURCES))
        if published and not remarks[0].startswith("All"):
            raise ValueError(f"The download is not the data that was published: {remarks[0]}")
    except ValueError as error:
        remedy = f" Delete {folder} and run again, or pass a good copy by --from." if published else ""
        raise ValueError(f"{error}{remedy}") from None
    if published:
        remarks.append("The checksums of the originals are not known to us; their content was checked instead.")
    return clips, remarks, known.SETTINGS


def write_public(
    name: str,
    output: Path,
    *,
    source: Path | None = None,
    only: tuple[str, ...] = (),
    on_bad: Literal["skip", "raise"] = "skip",
    num_workers: int | None = None,
    progress: bool = False,
    **frames: Any,
) -> VideoShards:
    """Decode a data set into shards in `output`, from `source` or downloaded; `frames` are changes to its usual settings."""
    known = MODULES[name]
    for part in only:
        if part not in known.SOURCES:
            raise ValueError(f"{name} has no {part!r}. `only` takes {', '.join(known.SOURCES)}.")
    need_pyav()
    place = source or output / "originals"
    if source is None:  # what is there already stays
        lists = [kth.LIST_SOURCE] if name == "kth" else []
        for file in [*lists, *(known.SOURCES[part] for part in only or known.SOURCES)]:
            fetch(file, place)
    clips, remarks, usual = public_clips(name, place, only, published=source is None)
    more: dict[str, Any] = {"on_bad": on_bad, "num_workers": num_workers, "remarks": remarks, "progress": progress}
    return write_shards(clips, output, usual.changed(**frames), source=str(place), **more)
