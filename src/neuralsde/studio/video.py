"""The Video tab: a clip of the visitor's or a scene made on the spot, and futures of it by the shipped model."""

from __future__ import annotations

import re
import shutil
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from neuralsde.core.doors import Range
from neuralsde.core.extras import need
from neuralsde.core.records import check
from neuralsde.studio.tabs import Tab, action

SUFFIXES = (".mp4", ".webm", ".mov", ".mkv", ".avi", ".gif", ".m4v")
MOST_BYTES = 16 * 2**20
SCENES = 16
Scene = Annotated[int, Range(f"from 0 to {SCENES - 1}", lambda v: 0 <= v < SCENES)]
Rate = Annotated[float, Range("from 1 to 24 frames per second", lambda v: 1 <= v <= 24)]
Paths = Annotated[int, Range("from 2 to 6", lambda v: 2 <= v <= 6)]
Seed = Annotated[int, Range("from 0 to 2^31", lambda v: 0 <= v < 2**31)]
Part = Annotated[float, Range("from 0 to 1", lambda v: 0 <= v <= 1)]


class Video(Tab):
    """A clip, and the last futures of it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lock = threading.RLock()
        self.folder = self.visit.folder / "video"
        self.file: Path | None = None
        self.made: dict[str, Any] = {}
        self.progress: dict[str, Any] = {}

    def state(self) -> dict[str, Any]:
        with self.lock:
            job = None if self.job is None else {"state": self.job.state, "error": self.job.error}
            return {
                "job": job,
                "progress": self.progress,
                "scenes": SCENES if find_spec("pymunk") is not None else 0,
                "file": "" if self.file is None else self.file.name,
                **self.made,
            }

    @action
    def scene(self, number: Scene = 0, rate: Rate = 5.12, num_paths: Paths = 4, seed: Seed = 0) -> dict[str, Any]:
        """Futures of a scene in which objects collide."""
        need("A scene", "pymunk")
        return self._draw(file=None, scene=number, share=0.0, rate=rate, num_paths=num_paths, seed=seed)

    @action
    def clip(self, share: Part = 0.5, rate: Rate = 5.12, num_paths: Paths = 4, seed: Seed = 0) -> dict[str, Any]:
        """Futures of the visitor's clip, from `share` of its length on."""
        check(self.file is not None, "There is no clip yet. Choose a video file, or a scene.")
        return self._draw(file=str(self.file), scene=0, share=share, rate=rate, num_paths=num_paths, seed=seed)

    def _draw(self, **given: Any) -> dict[str, Any]:
        with self.lock:
            self.progress = {"share": 0.0, "said": ""}
            job = self.start("neuralsde.studio.filming:draw_futures", **given)
            return {"state": job.state}

    def upload(self, name: str, file: Path) -> dict[str, Any]:
        need("A video", "av")
        clean = re.sub(r"[^\w .-]", "_", name)
        suffix = Path(clean).suffix.lower()
        words = f"A video must end in {', '.join(SUFFIXES)}. Got {clean[-40:] or 'no name'}. Convert it."
        check(suffix in SUFFIXES, words)
        size = file.stat().st_size
        check(size <= MOST_BYTES, f"A video may have {MOST_BYTES // 2**20} MB here. Got {size / 2**20:.0f} MB.")
        with self.lock:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(mode=0o700)
            self.file = self.folder / f"{Path(clean).stem[:50]}{suffix}"
            shutil.copyfile(file, self.file)
            return {"file": self.file.name}

    def on_event(self, event: dict[str, Any]) -> None:
        with self.lock:
            if event["event"] == "clip":
                self.made = {k: v for k, v in event.items() if k != "event"}
            else:
                self.progress = {k: event[k] for k in ("share", "said") if k in event}

    def on_done(self, result: dict[str, Any], folder: Path) -> dict[str, Any]:
        with self.lock:
            self.made = result
            return result
