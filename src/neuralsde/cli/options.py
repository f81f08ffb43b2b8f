"""Options of commands: those that belong to one use only, those that the short help shows, and their names in messages."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import shlex
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import tyro

from neuralsde.core.records import check, from_dict
from neuralsde.sde.config import Covariance, Denoiser, Law


def flags_of(options: Any, names: Collection[str] | None = None, usual: Any = None) -> list[str]:
    """The flags of those fields of a dataclass (of these `names`, or all) that are not as they are by default, or in `usual`."""
    flags = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if names is not None and field.name not in names:
            continue
        default = field.default_factory() if callable(field.default_factory) else field.default
        default = default if usual is None else getattr(usual, field.name)
        if dataclasses.is_dataclass(value):
            flags += flags_of(value, usual=default if type(default) is type(value) else None)
        elif value != default:
            flags.append(f"--{field.name.replace('_', '-')}")
    return flags


def refuse(flags: list[str], why: str) -> None:
    """Say that these flags mean nothing here."""
    check(not flags, f"{', '.join(flags)}: {why}")


def keywords(function: Callable[..., Any], options: Any) -> dict[str, Any]:
    """The keyword arguments of a function that are options of the same name; None leaves the function its default."""
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def in_flags(text: str, command: Any) -> str:
    """A message of Python's in the words of a command: `lag=5` becomes `--lag 5`."""
    flags = _flags(command)
    flags |= {flag.removeprefix("--").replace("-", "_"): flag for flag in flags.values()}  # `train.lr` too

    def rewritten(match: re.Match[str]) -> str:
        try:
            call: Any = ast.parse(f"f({match[1]})", mode="eval").body
            words = [flags[ast.unparse(argument)] for argument in call.args]
            for argument in call.keywords:
                value = ast.literal_eval(argument.value)
                values = [] if value is True else value if isinstance(value, (list, tuple)) else [value]
                words += [flags[argument.arg], *(shlex.quote(str(v)) for v in values)]
        except (SyntaxError, ValueError, KeyError, AttributeError):  # no arguments, or none of this command's
            return match[0]
        return f"`{' '.join(words)}`"

    return re.sub(r"`([^`\n]+)`", rewritten, text)


def _flags(command: Any, prefix: str = "--") -> dict[str, str]:
    """The flag of each field; a name that stands in several groups is the first one's."""
    own: dict[str, str] = {}
    nested: dict[str, str] = {}
    for name, kind, marks in _fields(command):
        if dataclasses.is_dataclass(kind):
            bare = tyro.conf.OmitArgPrefixes in marks or any(getattr(mark, "name", None) == "" for mark in marks)
            nested = _flags(kind, prefix if bare else f"{prefix}{name}.") | nested
        elif tyro.conf.Positional not in marks:
            own[name] = f"{prefix}{name}".replace("_", "-")
    return nested | own


def _fields(command: Any) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Name and type of each field, and what its type is annotated with."""
    hints = typing.get_type_hints(command, include_extras=True)
    for field in dataclasses.fields(command):
        hint = hints[field.name]
        kind, *marks = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
        yield field.name, kind, tuple(marks)


def short_help(command: Any, shown: Mapping[str, Collection[str]]) -> Any:
    """The command for its help page: the fields `shown` alone; a group of options has the names of those to show."""
    annotate: Any = typing.Annotated
    body: dict[str, Any] = {"__doc__": command.__doc__, "__annotations__": {}}
    for name, kind, marks in _fields(command):
        field = command.__dataclass_fields__[name]
        default = field.default_factory
        if shown.get(name):
            kind = default = short_help(kind, dict.fromkeys(shown[name], ()))
        elif name not in shown:
            marks = (*marks, tyro.conf.Suppress)
        body["__annotations__"][name] = annotate[(kind, *marks)] if marks else kind
        if default is not dataclasses.MISSING:
            body[name] = dataclasses.field(default_factory=default)
        elif field.default is not dataclasses.MISSING:
            body[name] = field.default
    return dataclasses.dataclass(frozen=True, kw_only=True)(type(command.__name__, (command,), body))


PARTS = tyro.constructors.ConstructorRegistry()
"""How options are read whose value is one of several kinds, each with settings of its own."""


@PARTS.primitive_rule
def _part(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """The law of a step, its covariance and the denoiser, written as in Python: `Euler`, `Moments(steps=2)`."""
    kinds = typing.get_args(info.type) or (info.type,)
    base = next(
        (b for b in (Law, Covariance, Denoiser) for k in kinds if isinstance(k, type) and issubclass(k, b)), None
    )
    if base is None:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=base.__name__.upper(),
        instance_from_str=lambda words: read_part(base, words[0]),
        is_instance=lambda value: value is None or isinstance(value, base),
        str_from_instance=lambda value: [repr(value)],
    )


def read_part(base: Any, text: str) -> Any:
    """`Moments(steps=2)` as a value of `base`, `None` as none; nothing is executed."""
    if text == "None" and base is Denoiser:
        return None
    try:
        call = ast.parse(text, mode="eval").body
        name, given = (call.func, call.keywords) if isinstance(call, ast.Call) and not call.args else (call, [])
        assert isinstance(name, ast.Name)
        values = {str(word.arg): ast.literal_eval(word.value) for word in given}
    except (SyntaxError, ValueError, AssertionError):
        raise ValueError(f"{text!r} is none. Write it as in Python, e.g. 'Moments(steps=2)'.") from None
    return from_dict(base, {"kind": name.id, **values})
