"""Shapes of tensors are checked at run time, in tests only and in all of `neuralsde`; kinds of other arguments are the door's."""

import functools
import importlib.abc
import importlib.machinery
import inspect
import re
import sys
import types

import numpy as np
import torch
from beartype import beartype
from jaxtyping import jaxtyped
from torch import Tensor

SHAPED = re.compile(r"\b(Float|Int|Bool|UInt8|Shaped)\[")
INTS = frozenset([int])


def checked(function):
    """`function` with its annotations of shapes checked; itself when it has none."""
    hints = getattr(function, "__annotations__", {})
    shaped = {
        name: hint for name, hint in hints.items() if SHAPED.search(hint if isinstance(hint, str) else repr(hint))
    }
    if not shaped:
        return function
    parameters = inspect.signature(function).parameters.values()
    places = [(k, p.name, p.kind is p.VAR_POSITIONAL) for k, p in enumerate(parameters) if p.name in shaped]
    seen = set()

    first = [k for k, _, several in places if not several]
    rest = next((k for k, _, several in places if several), None)
    returns = "return" in shaped

    @functools.wraps(function)
    def outer(*args, **kwargs):
        made = function(*args, **kwargs)
        num = len(args)
        forms = [num, form(made) if returns else None]
        for k in first:
            if k < num:
                value = args[k]
                forms += (value.dtype, value.shape) if type(value) is Tensor else (form(value),)
        if rest is not None:
            forms += map(form, args[rest:])
        if kwargs:
            forms += [(name, form(value)) for name, value in kwargs.items() if name in shaped]
        key = tuple(forms)
        if key not in seen:  # what has passed once passes again
            given = {}
            for k, name, several in places:
                given |= {f"{name}__{j}": value for j, value in enumerate(args[k:] if several else args[k : k + 1])}
            given |= {f"{name}__": value for name, value in kwargs.items() if name in shaped}
            with jaxtyped("context"):  # names of axes hold within one call
                checker(function, shaped, tuple(given))(**given, made=made)
            seen.add(key)
        return made

    return outer


@functools.cache
def _code(names):
    parts = {}
    exec(f"def check(*, {''.join(f'{name}, ' for name in names)}made): return made", parts)
    return parts["check"].__code__


def checker(function, shaped, names):
    """A function that takes some arguments of `function` and what it made of them, with its annotations of shapes."""
    made = types.FunctionType(_code(names), function.__globals__, function.__name__)
    own = {name: shaped[name.split("__")[0]] for name in names}
    own |= {"return": shaped["return"]} if "return" in shaped else {}
    made.__annotations__ = {
        name: eval(hint, inspect.unwrap(function).__globals__) if isinstance(hint, str) else hint
        for name, hint in own.items()
    }
    return beartype(made)


def form(value):
    """All that a check of shapes sees of a value."""
    if type(value) is Tensor:  # most are, and its sizes are whole numbers
        return value.dtype, value.shape
    if isinstance(value, (torch.Tensor, np.ndarray)):
        shape = tuple(value.shape)
        if not INTS.issuperset(map(type, shape)):  # exports have symbols
            shape = tuple(map(str, shape))
        return value.dtype, shape
    if isinstance(value, (list, tuple)):
        return type(value), *map(form, value)
    if isinstance(value, dict):
        return dict, *((name, form(each)) for name, each in value.items())
    return type(value)


def check_all(module):
    """Check every function and method that `module` defines."""
    for name, thing in list(vars(module).items()):
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(thing):
            setattr(module, name, checked(thing))
        elif inspect.isclass(thing):
            _check_class(thing)


def _check_class(cls):
    for name, thing in list(vars(cls).items()):
        if isinstance(thing, (staticmethod, classmethod)):
            setattr(cls, name, type(thing)(checked(thing.__func__)))
        elif isinstance(thing, property):
            setattr(cls, name, property(checked(thing.fget), thing.fset, thing.fdel, thing.__doc__))
        elif inspect.isfunction(thing):
            setattr(cls, name, checked(thing))


class _Loader(importlib.abc.Loader):
    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        check_all(module)

    def __getattr__(self, name):
        return getattr(self.loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] != "neuralsde":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install():
    """Check all of `neuralsde` from its import on."""
    if "neuralsde" in sys.modules:
        raise RuntimeError("`neuralsde` was imported before its shapes could be checked.")
    sys.meta_path.insert(0, _Finder())
