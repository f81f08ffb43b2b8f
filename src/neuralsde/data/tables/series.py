"""The record of the table that a model was fitted on: what its features are called and what its time means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from neuralsde.core.files import read_document, write_json
from neuralsde.core.formats import current
from neuralsde.core.records import from_dict, to_dict

FILE = "series.json"
Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class Series:
    """Names and units of a table; it lies beside the model, and tables that are given later are read by it."""

    file: str
    """Name of the file, without folders."""
    id: str | None
    """Column that names the path of a row."""
    time: str | None
    """Column of the stamps."""
    columns: tuple[str, ...]
    """The features, in the order of the states."""
    context: tuple[str, ...]
    """The context, in order."""
    time_unit: str
    """Unit of dates and durations."""
    date_format: str | None = None
    """How dates are written, where it is not ISO."""
    separator: str | None = None
    """Between the columns of a CSV, where it was told."""
    decimal: Literal[".", ","] | None = None
    """Decimal sign in a CSV, where it was told."""
    na_values: tuple[str, ...] = ()
    """Cells without a value, where they were told."""
    time_kind: Literal["order", "numbers", "dates", "durations"]
    """What the stamps were."""
    time_origin: str | None = None
    """The date of time 0, in UTC, where they were dates."""
    time_zone: str | None = None
    """The time zone of dates; None: they name none."""
    time_last: float
    """The last time in the table."""
    holdout_ids: tuple[str, ...] = ()
    """Paths that were not trained on, or trained on in part."""
    holdout_from: float | None = None
    """Where one path was split in time: what follows was not trained on."""

    def save(self, folder: Path) -> None:
        """Write the record into `folder`."""
        write_json(folder / FILE, to_dict(self))

    @classmethod
    def load(cls, folder: Path) -> Series | None:
        """The record in a run or model folder; None where there is none."""
        return load_record(cls, folder, FILE, "Fit again, or remove it.")


def load_record(kind: type[Record], folder: Path, file: str, remedy: str) -> Record | None:
    """What a file of a run or model folder records; None where there is none."""
    for place in (folder / "model", folder):
        values = read_document(place, file)
        if values is not None:
            try:
                return from_dict(kind, current(values))
            except ValueError as error:
                raise ValueError(f"{place / file} cannot be used: {error} {remedy}") from None
    return None
