"""The Draw tab: paths in the plane, a model that learns them, and what it then does.

Everything that moves on the page was computed here: particles are paths of `model.sample`, arrows and heat map are
`model.fields`, and the likelihood of a stroke is the model's own.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Float, Int

from neuralsde.core.doors import Count, Range
from neuralsde.core.files import read_document
from neuralsde.core.records import check
from neuralsde.data.trajectories import Trajectories
from neuralsde.models.build import load
from neuralsde.sde.config import Sampler
from neuralsde.sde.model import NeuralSDE
from neuralsde.studio.figures import DT, FIGURES, REACH, even, figure
from neuralsde.studio.tabs import Tab, action

MOST_STROKES, MOST_POINTS = 60, 4_000  # of a drawing, and of a stroke
MOST_NUMBERS = 400_000  # of the paths in one answer
STRETCH = (
    12  # times its budget that a search may take: it plans its steps once, and others may use the machine meanwhile
)
UNDONE = 40  # drawings that undo remembers
GRID = 45  # points of the fields along each side
SIDE = 1.35  # half the side of the square that the fields are shown on
ENDS_APART = 0.3  # distance from which on two ends are two branches
ARRIVES = 0.4  # how near a path must come to an end to count as gone there
MOST_BYTES = 32 * 2**20  # of a saved model, unpacked
SAVED = {"config.json", "model.safetensors", "drawing.json"}
Steps = Annotated[int, Range("from 10 to 5,000", lambda v: 10 <= v <= 5_000)]
Budget = Annotated[float, Range("from 20 to 240 seconds", lambda v: 20 <= v <= 240)]
Paths = Annotated[int, Range("from 1 to 500", lambda v: 1 <= v <= 500)]
Substeps = Annotated[int, Range("from 1 to 16", lambda v: 1 <= v <= 16)]
Factor = Annotated[float, Range("from 0 to 4", lambda v: 0 <= v <= 4)]
Seed = Annotated[int, Range("from 0 to 2^31", lambda v: 0 <= v < 2**31)]

Drawing = list[Float[np.ndarray, "T 2"]]


def as_points(points: Any, name: str, *, fewest: int = 1, most: int = MOST_POINTS) -> Float[np.ndarray, "T 2"]:
    """Points of the plane, as a page gives them."""
    good = isinstance(points, list) and fewest <= len(points) <= most
    check(good, f"`{name}` must be a list of {fewest} to {most:,} points [x, y].")
    for point in points:
        pair = isinstance(point, list) and len(point) == 2 and all(type(v) in (int, float) for v in point)
        check(pair, f"`{name}` must be a list of points [x, y].")
        check(all(abs(v) <= REACH for v in point), f"`{name}` must lie within {REACH:g} of the middle.")
    return np.array(points, dtype=np.float64)


class Draw(Tab):
    """A drawing, its model, and the last training."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lock = threading.RLock()
        self.drawing: Drawing = []
        self.figure = ""
        self.before: list[tuple[Drawing, str]] = []
        self.model: NeuralSDE | None = None
        self.learned: Drawing = []  # what the model learned from
        self.choice: dict[str, Any] = {}
        self.losses: list[dict[str, float]] = []
        self.progress: dict[str, Any] = {}
        self.reference: tuple[float, float] | None = None
        self._pending: Drawing = []  # what a training learns from

    def state(self) -> dict[str, Any]:
        with self.lock:
            job = None if self.job is None else {"state": self.job.state, "error": self.job.error}
            return {
                "figures": [[name, words] for name, (words, _) in FIGURES.items()],
                "job": job,
                "losses": self.losses,
                "progress": self.progress,
                "model": self._model_state(),
                **self._drawing_state(),
            }

    # The drawing

    @action
    def ready(self, name: str) -> dict[str, Any]:
        """Replace the drawing with a ready figure."""
        return self._replace(figure(name), name)

    @action
    def add(self, points: Any) -> dict[str, Any]:
        """Add a stroke; the first replaces a ready figure."""
        check(len(self.drawing) < MOST_STROKES, f"A drawing may have {MOST_STROKES} strokes. Undo or clear some.")
        own = [] if self.figure else self.drawing  # whoever draws has seen enough of a ready figure
        return self._replace([*own, even(as_points(points, "points", fewest=2))], "")

    @action
    def undo(self) -> dict[str, Any]:
        """Take back the last change of the drawing."""
        with self.lock:
            if self.before:
                self.drawing, self.figure = self.before.pop()
            return self._drawing_state()

    @action
    def clear(self) -> dict[str, Any]:
        """An empty drawing."""
        return self._replace([], "")

    def _replace(self, drawing: Drawing, name: str) -> dict[str, Any]:
        with self.lock:
            if self.drawing or self.figure:
                self.before = [*self.before[-UNDONE:], (self.drawing, self.figure)]
            self.drawing, self.figure = drawing, name
        if not _same(self._pending, drawing[: len(self._pending)]):
            self.cancel()  # what it learns from is gone
        return self._drawing_state()

    def _drawing_state(self) -> dict[str, Any]:
        """The drawing for the page."""
        points = np.concatenate(self.drawing) if self.drawing else np.zeros((0, 2))
        return {
            "drawing": points.astype(np.float32),
            "lengths": [len(p) for p in self.drawing],
            "figure": self.figure,
            "undo": bool(self.before),
            "dt": DT,
            "same": _same(self.drawing, self.learned),
        }

    # Learning

    @action
    def learn(self, steps: Steps = 400, budget: Budget | None = None, seed: Seed = 0) -> dict[str, Any]:
        """Train a model on the drawing in a worker: `steps` of one model, or a search of `budget` seconds."""
        with self.lock:
            check(bool(self.drawing), "There is nothing to learn from yet. Draw a path, or choose a figure.")
            self.losses, self.progress = [], {"steps": steps, "step": 0, "budget": budget, "share": 0.0}
            self._pending = self.drawing
            seconds = None if budget is None else STRETCH * budget + 120
            work = "neuralsde.studio.learning:learn"
            job = self.start(work, seconds=seconds, paths=self.drawing, steps=steps, seed=seed, budget=budget)
            return {"state": job.state, "steps": steps, "budget": budget}

    def on_event(self, event: dict[str, Any]) -> None:
        with self.lock:
            self.losses.extend(event.get("losses", ()))
            last = self.losses[-1]["step"] if self.losses else 0
            self.progress |= {"step": last, **{k: event[k] for k in ("share", "trials") if k in event}}
            event |= self.progress

    def on_done(self, result: dict[str, Any], folder: Path) -> dict[str, Any]:
        model = load(folder / "model")
        with self.lock:
            self._take(model, self._pending, result["choice"])
            return {"model": self._model_state(), "same": _same(self.drawing, self.learned)}

    def _take(self, model: Any, drawing: Drawing, choice: dict[str, Any]) -> None:
        self.model, self.learned, self.choice = model, drawing, choice
        self.reference = None

    def _model_state(self) -> dict[str, Any] | None:
        if self.model is None:
            return None
        model, how = self.model, self.model.sampler
        pulls = model.config.denoiser is not None and model.config.noisy
        return {
            "choice": self.choice,
            "history": model.config.history,
            "timed": bool(model.config.time_input),
            "step": model.scale.step,
            "substeps": how.substeps,
            "diffusion": how.diffusion,
            "pull": how.pull * model.scale.step,
            "pulls": pulls,
            "fields": self._no_fields(),
            "parameters": sum(p.numel() for p in model.parameters()),
            "branches": _branches(self.learned).tolist(),
        }

    def _no_fields(self) -> str:
        """Why there are no arrows; empty if there are."""
        if self.model is not None and self.model.config.history > 1:
            return (
                "This model looks at two states: where a path goes on depends on where it came from. One place then has "
                "no single arrow, so you see paths alone."
            )
        if self.model is not None and self.model.config.time_input:
            return "This model also looks at the time since the start. One place then has no single arrow."
        return ""

    # What the model does

    def _need_model(self) -> tuple[NeuralSDE, Drawing]:
        with self.lock:
            model, learned = self.model, self.learned
        check(model is not None, "There is no model yet. Draw a path, then press learn.")
        assert model is not None
        return model, learned

    def _sampler(self, model: NeuralSDE, substeps: int | None, diffusion: float | None, pull: float | None) -> Sampler:
        """The model's sampler with these settings; `pull` is per reference step."""
        how = model.sampler
        num = how.substeps if substeps is None else substeps
        rate = how.pull if pull is None else min(pull, float(num)) / model.scale.step
        return replace(how, substeps=num, diffusion=how.diffusion if diffusion is None else diffusion, pull=rate)

    @action
    def sample(
        self,
        num_paths: Paths = 200,
        start: Any = None,
        substeps: Substeps | None = None,
        diffusion: Factor | None = None,
        pull: Factor | None = None,
        seed: Seed = 0,
    ) -> dict[str, Any]:
        """Paths of the model from a point, or from where the drawn paths begin, and where they end up."""
        model, learned = self._need_model()
        how = self._sampler(model, substeps, diffusion, pull)
        firsts = np.stack([p[0] for p in learned])
        points = firsts if start is None else as_points([start], "start")
        if start is None:
            points = points[np.linspace(0, len(points) - 1, min(len(points), num_paths, 12)).round().astype(int)]
        histories = self._histories(model, learned, points)
        span = max(self._span(learned, p) for p in points) if start is not None else max(map(len, learned)) * DT
        each = max(1, round(num_paths / len(points)))
        out = model.scale.step / (2 if how.substeps % 2 == 0 else 1)
        times = np.arange(0, max(2, round(span / out)) + 1) * out
        times = times[:: 1 + len(points) * each * len(times) * 2 // MOST_NUMBERS]
        try:
            paths = model.sample(histories, times, num_paths=each, sampler=how, rng=seed).flatten(0, 1).cpu().numpy()
        except ValueError as error:
            left = "A path left the drawing far behind. Use less noise, more pull, or finer steps."
            raise ValueError(
                left if "outside the data" in str(error) or "finite" in str(error) else str(error)
            ) from None
        branches = _branches(learned)
        labels = _branch_of(paths, branches)
        shares = [float((labels == k).mean()) for k in range(len(branches))] if len(branches) > 1 else []
        return {
            "paths": paths,
            "dt": float(times[1] - times[0]),
            "labels": labels.astype(np.float32),
            "ends": branches.tolist() if shares else [],
            "shares": shares,
            "passes": round(span / model.scale.step * how.substeps),
        }

    def _histories(self, model: NeuralSDE, learned: Drawing, points: np.ndarray) -> Float[torch.Tensor, "B H 2"]:
        """Histories that end in these points: those of the nearest drawn path, moved there."""
        slots = model.config.history
        back = round(model.scale.step / DT)
        made = []
        for point in points:
            path, at = _nearest(learned, point)
            rows = [max(0, at - back * k) for k in range(slots - 1, -1, -1)]
            made.append(path[rows] - path[at] + point)
        return torch.tensor(np.stack(made), dtype=torch.float32)

    def _span(self, learned: Drawing, point: np.ndarray) -> float:
        """How long a path from here goes on, by the drawn paths that pass nearby."""
        closest = [np.linalg.norm(p - point, axis=1) for p in learned]
        least = min(float(d.min()) for d in closest)
        left = [len(d) - int(d.argmin()) for d in closest if d.min() <= 1.5 * least + 0.05]
        return max(max(left), 0.25 * max(map(len, learned))) * DT

    @action
    def fields(self, diffusion: Factor | None = None, pull: Factor | None = None) -> dict[str, Any]:
        """Drift and diffusion on a grid, and how far each of its points is from the drawing."""
        model, learned = self._need_model()
        why = self._no_fields()
        check(not why, why)
        how = self._sampler(model, None, diffusion, pull)
        line = np.linspace(-SIDE, SIDE, GRID)
        grid = np.stack(np.meshgrid(line, line, indexing="xy"), axis=-1).reshape(-1, 2)
        drift, noise = model.fields(torch.tensor(grid, dtype=torch.float32), sampler=how)
        points = np.concatenate(learned)[:: max(1, sum(map(len, learned)) // 600)]
        away = np.sqrt(((grid[:, None] - points[None]) ** 2).sum(-1).min(1))
        size = (noise.numpy() ** 2).mean(1) ** 0.5
        return {
            "drift": drift.numpy(),
            "diffusion": size,
            "away": away.astype(np.float32),
            "num": GRID,
            "side": SIDE,
            "largest": float(np.quantile(size[away < 0.15], 0.98)) if (away < 0.15).any() else float(size.max()),
        }

    @action
    def likelihood(self, points: Any) -> dict[str, Any]:
        """How likely each step of a stroke is to the model, beside the steps of the drawn paths."""
        model, learned = self._need_model()
        check(model.config.law.stochastic, "This model has no noise, and so no likelihood.")
        if self.reference is None:
            known = np.concatenate([_log_density(model, p)[0] for p in learned])
            self.reference = (float(np.median(known)), float(np.quantile(known, 0.05)))
        try:
            values, at = _log_density(model, even(as_points(points, "points", fewest=2)))
        except ValueError:
            return {"mean": None}
        typical, low = self.reference
        mean = float(values.mean())
        words = "as likely as your paths" if mean >= low else "unlike your paths" if mean < low - 10 else "less likely"
        return {"mean": mean, "typical": typical, "low": low, "words": words, "values": values, "at": at}

    # Keeping

    @action
    def python(
        self,
        num_paths: Count = 200,
        start: Any = None,
        substeps: Substeps = 4,
        diffusion: Factor = 1.0,
        pull: Factor = 0.0,
    ) -> dict[str, Any]:
        """The same in Python: load what *save* gave, or learn it again."""
        model, learned = self._need_model()
        how = self._sampler(model, substeps, diffusion, pull)
        point = learned[0][0].tolist() if start is None else as_points([start], "start")[0].tolist()
        if self.choice.get("budget"):
            fit = [f"model = nsde.fit(data, budget={self.choice['budget']:g}, seed={self.choice['seed']}, cpu=True)"]
        elif "batch_size" in self.choice:
            own = ",\n    ".join(f"{k}={_code(v)}" for k, v in self.choice["settings"].items())
            lag = self.choice["lag"]
            train = ", ".join(f"{k}={self.choice[k]!r}" for k in ("steps", "batch_size", "lr", "ema", "seed"))
            fit = [
                "model = nsde.NeuralSDE.for_data(",
                f"    data, seed={self.choice['seed']}, lag={None if lag is None else round(lag, 6)},",
                f"    {own},",
                ")",
                f"nsde.fit(model, data, {train})",
            ]
        else:
            fit = ["# This model was loaded: how it was trained is not known here."]
        text = [
            "import json",
            "",
            "import numpy as np",
            "",
            "import neuralsde as nsde",
            "",
            '# "drawing" is the folder in the file that Save gives.',
            'model = nsde.load("drawing")',
            "sampler = nsde.Sampler(",
            f"    pull={round(how.pull, 4)!r}, diffusion={how.diffusion!r}, substeps={how.substeps}",
            ")",
            f"times = np.arange(0.0, {max(map(len, learned)) * DT:.2f}, {round(model.scale.step, 4)!r})",
            f"start = [{point[0]:.3f}, {point[1]:.3f}]",
            f"histories = np.tile(start, (1, {model.config.history}, 1))",
            f"paths = model.sample(histories, times, num_paths={num_paths}, sampler=sampler)",
            "",
            "# How it was learned:",
            'with open("drawing/drawing.json") as file:',
            '    strokes = [np.array(p) for p in json.load(file)["paths"]]',
            f"data = nsde.Trajectories.from_arrays(strokes, dt={DT})",
            *fit,
        ]
        return {"text": "\n".join(text) + "\n"}

    def download(self, what: str) -> tuple[str, bytes]:
        check(what == "model", f"There is no file {what[:40]!r}.")
        model, learned = self._need_model()
        folder = Path(tempfile.mkdtemp(dir=self.visit.folder))
        try:
            record = {"paths": [np.round(p, 5).tolist() for p in learned], "dt": DT, "choice": self.choice}
            model.save_pretrained(folder / "drawing", beside={"drawing.json": record})
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                for file in sorted((folder / "drawing").iterdir()):
                    archive.write(file, f"drawing/{file.name}")
            return "drawing.zip", packed.getvalue()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def upload(self, name: str, file: Path) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp(dir=self.visit.folder))
        try:
            _unpack(file, folder)
            model = load(folder)
            plane = isinstance(model, NeuralSDE) and model.scale.shape == (2,) and not model.scale.context_size
            check(plane, "This model does not move in the plane. Load one that was saved here.")
            record = read_document(folder, "drawing.json")
            check(isinstance(record, dict) and isinstance(record.get("paths"), list), "This file holds no drawing.")
            most = 0 < len(record["paths"]) <= MOST_STROKES
            check(most, f"The file must hold from 1 to {MOST_STROKES} strokes.")
            drawing = [as_points(p, "paths", fewest=2) for p in record["paths"]]
            choice = record.get("choice") if isinstance(record.get("choice"), dict) else {}
        except (KeyError, json.JSONDecodeError, zipfile.BadZipFile, OSError) as error:
            raise ValueError(f"This is not a file that Save gave ({type(error).__name__}). Choose another.") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        with self.lock:
            self._replace(drawing, "")
            self._take(model, drawing, _plain_choice(choice))
            self.losses = []
        return {}


def _unpack(file: Path, folder: Path) -> None:
    """The files of a saved model, and no others."""
    with zipfile.ZipFile(file) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        names = [Path(entry.filename).name for entry in entries]
        right = len(names) <= 8 and {"config.json", "model.safetensors", "drawing.json"} <= set(names)
        check(right, "This is not a file that Save gave. Choose another.")
        check(sum(e.file_size for e in entries) <= MOST_BYTES, "This file is too large for the studio.")
        for entry, name in zip(entries, names):
            if name in SAVED:
                with archive.open(entry) as source:
                    (folder / name).write_bytes(source.read(MOST_BYTES))


def _plain_choice(choice: dict[str, Any]) -> dict[str, Any]:
    """What a saved file says of the choice, as text and numbers of a bounded size; how it was trained is not taken from it."""
    text: dict[str, Any] = {k: str(choice[k])[:500] for k in ("name", "why", "sampler") if k in choice}
    steps = choice.get("steps")
    return {**text, "steps": steps if isinstance(steps, int) else 0, "settings": {}, "traits": [], "loaded": True}


def _code(text: str) -> str:
    return (
        text.replace("MLPConfig", "nsde.MLPConfig")
        .replace("Full()", "nsde.Full()")
        .replace("Mixture(", "nsde.Mixture(")
    )


def _same(one: Drawing, other: Drawing) -> bool:
    return len(one) == len(other) and all(a is b or np.array_equal(a, b) for a, b in zip(one, other))


def _nearest(drawing: Drawing, point: np.ndarray) -> tuple[np.ndarray, int]:
    """The path that passes nearest to a point, and where on it."""
    at = [(float((d := np.linalg.norm(p - point, axis=1)).min()), k, int(d.argmin())) for k, p in enumerate(drawing)]
    _, k, row = min(at)
    return drawing[k], row


def _branches(drawing: Drawing) -> Float[np.ndarray, "K 2"]:
    """Where drawn paths end, ends near each other taken together."""
    groups: list[list[np.ndarray]] = []
    for path in drawing:
        near = [g for g in groups if min(float(np.linalg.norm(path[-1] - e)) for e in g) < ENDS_APART]
        groups = [g for g in groups if not any(g is n for n in near)]
        groups.append([path[-1], *(e for g in near for e in g)])
    return np.array([np.mean(g, axis=0) for g in groups]).reshape(-1, 2)


def _branch_of(paths: Float[np.ndarray, "N T 2"], ends: Float[np.ndarray, "K 2"]) -> Int[np.ndarray, " N"]:
    """The end that each path comes nearest to; -1 where it comes near none."""
    if not len(ends):
        return np.full(len(paths), -1)
    near = np.linalg.norm(paths[:, :, None] - ends[None, None], axis=-1).min(1)
    return np.where(near.min(1) <= ARRIVES, near.argmin(1), -1)


def _log_density(model: NeuralSDE, path: np.ndarray) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, "M 2"]]:
    """Log density of each step of a path at the model's lag, and where the step ends."""
    data = Trajectories.from_arrays([path.astype(np.float32)], dt=DT)
    pairs = data.transitions(lag=model.lag, history=model.config.history, pad=model.config.pad_history)
    batch = pairs[torch.arange(len(pairs))]
    return model.log_prob(batch).numpy(), batch.next.numpy()
