"""Options that belong to one use of a command: given for another, they are an error and not silently nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
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


@contextmanager
def in_flags(names: Collection[str]) -> Iterator[None]:
    """Let errors of Python name these arguments as the command line does: `num_paths` is `--num-paths`."""
    try:
        yield
    except ValueError as error:

        def flag(found: re.Match[str]) -> str:
            return f"`--{found[1].replace('_', '-')}`" if found[1].split(".")[0] in names else found[0]

        raise ValueError(re.sub(r"`([a-z_.]+)`", flag, str(error))) from None
