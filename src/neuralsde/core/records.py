"""Records of settings: frozen dataclasses to plain values and YAML, and back with every mistake named."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import re
import types
import typing
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import yaml

from neuralsde.core.extras import need
from neuralsde.core.files import check_size, read_text, replacing
from neuralsde.core.formats import current

T = TypeVar("T")


MAX_YAML = 2**18  # bytes of a YAML file that is read: it is slow to parse
MAX_SHOWN = 200


class RunError(RuntimeError):
    """What stops a run half-way and is its user's to mend; its message says how."""


def check(condition: bool, message: str) -> None:
    """Refuse settings with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(re.sub(r"\bself\.", "", message))  # f"{self.width=}" names the field as its user does


def in_short(value: Any) -> str:
    """A value as a message shows it: what is long is cut."""
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def with_settings(config: T, settings: dict[str, Any]) -> T:
    """`config` with some fields changed; an unknown name is an error that suggests the right one."""
    return each_with_settings(settings, config)[0]


def each_with_settings(settings: dict[str, Any], *configs: Any) -> tuple[Any, ...]:
    """The same for several: each takes those settings that are its fields."""
    _check_keys([type(config) for config in configs], settings, "")
    names = [{f.name for f in dataclasses.fields(config)} for config in configs]
    own = [{k: v for k, v in settings.items() if k in some} for some in names]
    return tuple(dataclasses.replace(config, **values) for config, values in zip(configs, own))


def _check_keys(classes: Sequence[Any], values: Any, where: str) -> None:
    names = [f.name for cls in classes for f in dataclasses.fields(cls)]
    for key in values:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, 1)
            hint = f"Did you mean `{near[0]}`?" if near else f"It takes {', '.join(names)}."
            kinds = " or ".join(cls.__name__ for cls in classes)
            raise ValueError(f"Unknown key `{where}{'.' if where else ''}{key}` for {kinds}. {hint}")


class Choice:
    """Base of dataclasses that are chosen from several: their record carries the class name under `kind`.

    A field annotated with a base takes any of its kinds, also those that a user defines.
    """

    builds: ClassVar[str | type] = ""
    """What the settings are of: a class, or "module:Class", which is imported when it is needed."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules of extras that it takes, so that a run can say at its start which are missing."""
    _kinds: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        Choice._kinds[cls.__name__] = cls

    @classmethod
    def kinds(cls) -> dict[str, Any]:
        """The class itself and what derives from it, by name."""
        return {name: kind for name, kind in Choice._kinds.items() if issubclass(kind, cls)}


def need_extras(*configs: Choice) -> None:
    """Refuse settings of what takes a module that is not installed."""
    for config in configs:
        need(type(config).__name__.removesuffix("Config"), *config.needs)


def built_by(config: Choice) -> Any:
    """The class that settings are of."""
    if isinstance(config.builds, type):
        return config.builds
    kind = type(config).__name__
    check(bool(config.builds), f'{kind} names no class. Set its `builds` to one, or to "module:Class".')
    module, _, name = config.builds.partition(":")
    return getattr(importlib.import_module(module), name)


def to_dict(config: Any) -> Any:
    """Plain values of a dataclass; a dataclass chosen from several carries its class name under `kind`."""
    if dataclasses.is_dataclass(config):
        values = {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
        return {"kind": type(config).__name__, **values} if isinstance(config, Choice) else values
    if isinstance(config, (tuple, list)):
        return [to_dict(v) for v in config]
    return config


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested plain values under dotted names, as options of the command line have them."""
    parts = [flat(v, f"{prefix}{k}.") if isinstance(v, dict) else {prefix + k: v} for k, v in values.items()]
    return {k: v for part in parts for k, v in part.items()}


def from_dict(cls: Any, values: Any, where: str = "") -> Any:
    """Build `cls` from plain values; an unknown key or a value of the wrong type is an error that names its place."""
    if get_origin(cls) in (Union, types.UnionType):
        return _from_union(cls, values, where)
    if isinstance(cls, type) and dataclasses.is_dataclass(cls):
        check(isinstance(values, dict), f"`{where or cls.__name__}` must be a mapping. Got {in_short(values)}.")
        cls = _kind(cls, values, where)
        values = {k: v for k, v in values.items() if k != "kind"}
        hints = typing.get_type_hints(cls)
        _check_keys([cls], values, where)
        missing = [f.name for f in dataclasses.fields(cls) if f.name not in values and _required(f)]
        check(not missing, f"`{where or cls.__name__}` lacks {', '.join(missing)}.")
        prefix = f"{where}." if where else ""
        return cls(**{k: from_dict(hints[k], v, prefix + k) for k, v in values.items()})
    if get_origin(cls) is tuple:
        check(isinstance(values, (list, tuple)), f"`{where}` must be a list. Got {in_short(values)}.")
        return tuple(from_dict(get_args(cls)[0], v, where) for v in values)  # type: ignore[return-value]
    if get_origin(cls) is Literal:
        check(values in get_args(cls), f"`{where}` must be one of {list(get_args(cls))}. Got {in_short(values)}.")
        return values
    if cls is float and isinstance(values, (int, str)) and not isinstance(values, bool):
        with suppress(ValueError, OverflowError):  # YAML reads 1e-3, without a point, as text
            values = float(values)
    check(type(values) is cls, f"`{where}` must be of type {getattr(cls, '__name__', cls)}. Got {in_short(values)}.")
    check(cls is not float or math.isfinite(values), f"`{where}` must be finite. Got {values}.")
    return values


def _kind(cls: Any, values: dict[str, Any], where: str) -> Any:
    """The class that a record of `cls` is of."""
    if not issubclass(cls, Choice):
        return cls
    kinds = cls.kinds()
    if "kind" not in values:
        real = sorted(name for name, kind in kinds.items() if kind.builds)
        check(cls in kinds.values() and (not real or bool(cls.builds)), f"`{where}` lacks its `kind`, one of {real}.")
        return cls
    kind = values["kind"]
    known = f"must be one of {sorted(kinds)}. Got {in_short(kind)}. Import the module that defines it first, if it is yours."
    check(isinstance(kind, str) and kind in kinds, f"`{where}{'.' if where else ''}kind` {known}")
    return kinds[kind]


def _required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _from_union(cls: Any, values: Any, where: str) -> Any:
    options = get_args(cls)
    if isinstance(values, dict):
        kinds: dict[Any, Any] = {o.__name__: o for o in options if isinstance(o, type) and dataclasses.is_dataclass(o)}
        if len(kinds) > 1:
            kind = values.get("kind", next(iter(kinds)))  # records from before there was a choice mean the first
            known = isinstance(kind, str) and kind in kinds
            check(known, f"`{where}.kind` must be one of {sorted(kinds)}. Got {in_short(kind)}.")
            return from_dict(kinds[kind], values, where)
    if values is None and type(None) in options:
        return None
    for option in options:
        if option is type(None):
            continue
        try:
            return from_dict(option, values, where)
        except ValueError:
            continue
    types_ = ", ".join(str(getattr(o, "__name__", o)) for o in options)
    raise ValueError(f"`{where}` must be one of the types {types_}. Got {in_short(values)}.")


def save_yaml(config: Any, path: Path) -> None:
    """Write the record of `config`."""
    with replacing(path) as new:
        new.write_text(yaml.safe_dump(to_dict(config), sort_keys=False), encoding="utf-8")


def load_yaml(cls: type[T], path: Path) -> T:
    """Read the record written by `save_yaml`, by an earlier version too."""
    check(Path(path).exists(), f"There is no config file {path}. A run folder holds one as config.yaml.")
    text = read_text(Path(path), MAX_YAML)
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # dates that are none are a ValueError
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    check_size(values, Path(path))
    try:
        return from_dict(cls, current(values))
    except ValueError as error:
        raise ValueError(f"{path} cannot be used: {error}") from None
