"""The tab Your table: a CSV of the visitor's, what was read and found in it, forecasts with dates, and how good they are.

Everything is the library's: `read_table` and `describe` say what was read, `fit_series` or `fit_table` learn in a worker, and
the backtest is theirs.
"""

from __future__ import annotations

import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from neuralsde.core.doors import Range
from neuralsde.core.records import check
from neuralsde.data.columns import parse_stamps
from neuralsde.data.describe import Description, describe
from neuralsde.data.tables.cells import Cells, read_cells
from neuralsde.data.tables.frequency import Frequency
from neuralsde.data.tables.read import Table, read_table
from neuralsde.data.tables.zones import as_text
from neuralsde.forecast.series import frequency_of
from neuralsde.studio.columns import Reading, guess_reading, guess_unit
from neuralsde.studio.examples import EXAMPLES, write_example
from neuralsde.studio.forecasting import LEVELS, pasts_of
from neuralsde.studio.tabs import Tab, action

SUFFIXES = (".csv", ".tsv", ".txt")
MOST_BYTES = 8 * 2**20
MOST_ROWS, MOST_SERIES, MOST_FEATURES = 100_000, 200, 20
FIRST_ROWS, MOST_LISTED = 6, 60  # rows and columns of the preview
PANELS = 12  # of one page of the chart
QUICK_TRIALS, QUICK_STEPS = 3, 200
QUICK_BUDGET = 10.0
Budget = Annotated[float, Range("from 10 to 120 seconds", lambda v: 10 <= v <= 120)]
Trials = Annotated[int, Range("from 1 to 20", lambda v: 1 <= v <= 20)]
Steps = Annotated[int, Range("from 10 to 5,000", lambda v: 10 <= v <= 5_000)]
Horizon = Annotated[int, Range("from 1 to 500 steps", lambda v: 1 <= v <= 500)]
Place = Annotated[int, Range("at least 0", lambda v: v >= 0)]


class YourTable(Tab):
    """A table, how it is read, and the last forecast."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lock = threading.RLock()
        self.folder = self.visit.folder / "table"
        self.file: Path | None = None
        self.example_name = ""
        self.cells: Cells | None = None
        self.reading = Reading()
        self.table: Table | None = None
        self.error = ""
        self.found: dict[str, Any] = {}
        self.panels: list[dict[str, Any]] = []
        self.report: dict[str, Any] | None = None
        self.csv = ""
        self.progress: dict[str, Any] = {}

    def state(self) -> dict[str, Any]:
        with self.lock:
            job = None if self.job is None else {"state": self.job.state, "error": self.job.error}
            return {
                "examples": [[name, words] for name, (words, _) in EXAMPLES.items()],
                "job": job,
                "progress": self.progress,
                **self._view(),
            }

    def _view(self, first: int = 0) -> dict[str, Any]:
        """The table, what was found, and some of the panels."""
        axis = None if self.table is None else self.table.time
        return {
            "table": self._table_state(),
            "report": self.report,
            "panels": self.panels[first : first + PANELS],
            "first": first,
            "num_panels": len(self.panels),
            "axis": None if axis is None else {"dates": axis.kind == "dates", "label": axis.column or "row"},
        }

    def _table_state(self) -> dict[str, Any] | None:
        if self.cells is None or self.file is None:
            return None
        names = list(self.cells.columns)[:MOST_LISTED]
        rows = zip(*(self.cells.columns[name].iloc[:FIRST_ROWS] for name in names))
        reading = self.reading
        return {
            "file": self.file.name,
            "example": self.example_name,
            "names": names,
            "rows": [[str(cell)[:40] for cell in row] for row in rows],
            "time": reading.time,
            "id": reading.id,
            "columns": list(reading.columns or (self.table.columns if self.table else ())),
            "date_format": reading.date_format or "",
            "na_values": ", ".join(reading.na_values),
            "error": self.error,
            **self.found,
        }

    # The table

    @action
    def example(self, name: str) -> dict[str, Any]:
        """Take one of the tables that come with the studio."""
        with self.lock:
            self._empty()
            self._open(write_example(name, self.folder), name)
            return self._view()

    def upload(self, name: str, file: Path) -> dict[str, Any]:
        clean = re.sub(r"[^\w .-]", "_", name)
        suffix = Path(clean).suffix.lower()
        check(
            suffix in SUFFIXES,
            f"A table must end in {', '.join(SUFFIXES)}. Got {clean[-40:] or 'no name'}. Save it as CSV.",
        )
        size = file.stat().st_size
        check(size <= MOST_BYTES, f"A table may have {MOST_BYTES // 2**20} MB here. Got {size / 2**20:.0f} MB.")
        with self.lock:
            self._empty()
            place = self.folder / f"{Path(clean).stem[:50]}{suffix}"
            shutil.copyfile(file, place)
            self._open(place, "")
            return self._view()

    @action
    def read(
        self,
        time: str | None = None,
        id: str | None = None,
        columns: Any = None,
        date_format: str = "",
        na_values: str = "",
    ) -> dict[str, Any]:
        """Read the table anew, as the visitor says."""
        with self.lock:
            cells = self._need_cells()
            names = [] if columns is None else columns
            good = isinstance(names, list) and all(isinstance(n, str) and n in cells.columns for n in names)
            check(good, "`columns` must be a list of columns of the table.")
            for name in (time, id):
                check(name is None or name in cells.columns, f"There is no column {str(name)[:40]!r}.")
            missing = tuple(v.strip() for v in na_values[:200].split(",") if v.strip())
            self.reading = Reading(
                time=time,
                id=id,
                columns=tuple(dict.fromkeys(names)) or None,
                date_format=date_format[:60] or None,
                na_values=missing,
            )
            self._read()
            return self._view()

    def _need_cells(self) -> Cells:
        check(self.cells is not None, "There is no table yet. Drop a CSV file, or choose an example.")
        assert self.cells is not None
        return self.cells

    def _empty(self) -> None:
        """Forget the table and what came of it."""
        if self.job is not None:
            self.visit.cancel(self.job)
            self.job = None
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        self.file, self.cells, self.table, self.error, self.found, self.example_name = None, None, None, "", {}, ""
        self._drop_forecast()

    def _drop_forecast(self) -> None:
        self.panels, self.report, self.csv, self.progress = [], None, "", {}

    def _open(self, file: Path, example: str) -> None:
        try:
            cells = read_cells(file)
            num = len(cells.line)
            check(num <= MOST_ROWS, f"A table may have {MOST_ROWS:,} rows here. Got {num:,}. Use `nsde fit` for it.")
        except ValueError as error:
            raise ValueError(_without_folder(str(error), self.folder)) from None
        self.file, self.cells, self.example_name = file, cells, example
        self.reading = guess_reading(cells)
        self._read()

    def _read(self) -> None:
        """Read the table; what is wrong is kept for the page, which lets the visitor choose other columns."""
        assert self.file is not None and self.cells is not None
        if self.job is not None:
            self.visit.cancel(self.job)
        self._drop_forecast()
        self.table, self.error, self.found = None, "", {}
        try:
            if self.reading.time is not None:
                stamps = parse_stamps(self.cells.columns[self.reading.time], date_format=self.reading.date_format)
                self.reading = replace(self.reading, time_unit=guess_unit(stamps))
            table = read_table(self.file, **self.reading.arguments())
            num, size = len(table.ids), len(table.columns)
            check(num <= MOST_SERIES, f"A table may have {MOST_SERIES} series here. Got {num:,}. Name another column.")
            check(size <= MOST_FEATURES, f"At most {MOST_FEATURES} columns here. Got {size}. Choose some of them.")
            summary, even = describe(table.data), frequency_of(table)
        except ValueError as error:
            self.error = _without_folder(str(error), self.folder)
            return
        self.table = table
        self.found = _diagnosis(table, summary, even)
        self.panels = [panel for series in pasts_of(table) for panel in series]

    # The forecast

    @action
    def forecast(
        self,
        budget: Budget | None = None,
        horizon: Horizon | None = None,
        trials: Trials = QUICK_TRIALS,
        steps: Steps = QUICK_STEPS,
    ) -> dict[str, Any]:
        """Learn and forecast in a worker: a search of `budget` seconds, or quickly with a few trials or steps."""
        with self.lock:
            check(self.table is not None, self.error or "There is no table yet. Drop a CSV file, or choose an example.")
            quick = budget is None
            self.progress = {"share": 0.0, "said": ""}
            self.chosen = {"budget": budget, "horizon": horizon}
            job = self.start(
                "neuralsde.studio.forecasting:forecast",
                seconds=None,
                file=str(self.file),
                reading=self.reading.arguments(),
                budget=QUICK_BUDGET if budget is None else budget,
                max_trials=trials if quick else None,
                steps=steps if quick else None,
                horizon=horizon,
                seed=0,
            )
            return {"state": job.state, **self.progress}

    def on_event(self, event: dict[str, Any]) -> None:
        with self.lock:
            self.progress = {k: event[k] for k in ("share", "said") if k in event}

    def on_done(self, result: dict[str, Any], folder: Path) -> dict[str, Any]:
        with self.lock:
            self.report = {**result["report"], **self.chosen}
            self.panels, self.csv = result["panels"], result["csv"]
            return self._view()

    @action
    def look(self, first: Place = 0) -> dict[str, Any]:
        """Other panels of the chart."""
        with self.lock:
            return self._view(min(first, max(0, len(self.panels) - 1)) // PANELS * PANELS)

    @action
    def python(self) -> dict[str, Any]:
        """The same in Python."""
        with self.lock:
            check(self.report is not None, "There is no forecast yet. Press forecast.")
            assert self.report is not None and self.file is not None
            return {"code": _python(self.file.name, self.reading, self.report)}

    def download(self, what: str) -> tuple[str, bytes]:
        with self.lock:
            check(what == "forecast", f"There is no file {what[:40]!r}.")
            check(bool(self.csv), "There is no forecast yet. Press forecast.")
            return "forecast.csv", self.csv.encode()


def _without_folder(text: str, folder: Path) -> str:
    """Messages name files; where these lie on the server is nobody's business."""
    return text.replace(f"{folder}/", "")


def _diagnosis(table: Table, summary: Description, even: Frequency | None) -> dict[str, Any]:
    """What was read and diagnosed, for the page."""
    report = table.report
    span = table.time.clock(np.array([float(table.data.times.min()), float(table.data.times.max())]))
    dates = table.time.kind == "dates"
    shown = as_text(span.astype("M8[m]"), None) if dates else [f"{v:g}" for v in span]
    return {
        "read": report.rows_read,
        "kept": report.rows_kept,
        "dropped": [[d.num_rows, d.reason, d.first_line] for d in report.dropped],
        "notes": list(report.notes),
        "unused": [[name, why] for name, why in report.unused.items()][:MOST_LISTED],
        "num_series": len(table.ids),
        "every": "" if even is None else even.words,
        "horizon": 0 if even is None else min(even.horizon, max(1, int(summary.lengths.high) // 4)),
        "span": shown,
        "features": [[f.name, f.low, f.high, f.mean, f.num_missing] for f in summary.features],
        "traits": [[t.name, t.text] for t in summary.traits],
        "warnings": list(summary.warnings),
    }


def _python(file: str, reading: Reading, report: dict[str, Any]) -> str:
    even = report["kind"] == "series"
    budget = report["budget"]
    given = {k: v for k, v in reading.arguments().items() if not (even and k == "time_unit")}
    if even:
        given |= {"horizon": report["horizon"]}
        given |= {"max_trials": QUICK_TRIALS, "budget": QUICK_BUDGET} if budget is None else {"budget": budget}
    else:
        given |= {"steps": QUICK_STEPS} if budget is None else {"budget": budget}
    lines = [f"    {name}={value!r}," for name, value in given.items()]
    call = "fit_series" if even else "fit_table"
    levels = "quantiles=levels)"
    ahead = f"fitted.forecast({levels}" if even else f'nsde.forecast_table(fitted, "{file}", {levels}'
    return "\n".join(
        [
            "import neuralsde as nsde",
            "",
            f"fitted = nsde.{call}(",
            f'    "{file}",',
            *lines,
            ")",
            "print(fitted.report)",
            f"levels = {LEVELS}",
            f"forecast = {ahead}",
            'forecast.write("forecast.csv")',
            "",
        ]
    )
