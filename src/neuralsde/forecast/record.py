"""What belongs to a model of series at even times beside its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from neuralsde.core.records import Choice
from neuralsde.data.tables.frequency import Frequency
from neuralsde.data.tables.series import load_record
from neuralsde.forecast.decomposition import Decomposition

RECORD = "forecast.json"


@dataclass(frozen=True, kw_only=True)
class SeriesRecord(Choice):
    """Its calendar, what is taken off, and how far it was chosen for."""

    builds: ClassVar[str] = "neuralsde.forecast.series:SeriesModel"

    frequency: Frequency
    off: Decomposition
    horizon: int
    seasons: tuple[float, ...] = ()
    """Periods in steps that were found or named, whether the model takes them off or not."""
    known_ahead: tuple[str, ...] = ()
    """Covariates that are known ahead."""

    @classmethod
    def load(cls, folder: Path) -> SeriesRecord | None:
        """The record in a run or model folder; None where there is none."""
        return load_record(cls, folder, RECORD, "Fit again.")
