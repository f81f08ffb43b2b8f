"""Options that belong to one use of a command: given for another, they are an error and not silently nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any


def given(options: Any, names: Collection[str] | None = None, usual: Any = None) -> list[str]:
    """The flags of those fields of a dataclass (of these `names`, or all) that are not as they are by default, or in `usual`."""
    flags = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if names is not None and field.name not in names:
            continue
        default = field.default_factory() if callable(field.default_factory) else field.default
        default = default if usual is None else getattr(usual, field.name)
        if dataclasses.is_dataclass(value):
            flags += given(value, usual=default if type(default) is type(value) else None)
        elif value != default:
            flags.append(f"--{field.name.replace('_', '-')}")
    return flags


def refuse(flags: list[str], why: str) -> None:
    """Say that these flags mean nothing here."""
    if flags:
        raise ValueError(f"{', '.join(flags)}: {why}")
