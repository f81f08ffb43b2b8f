"""How many settings a saved experiment can hold: each needs a result or a document that justifies it."""

import dataclasses
import inspect
import typing
from importlib import import_module

import pytest

from neuralsde.core.formats import CUT, DROPPED, current
from neuralsde.core.records import Choice
from neuralsde.experiments.config import Experiment
from neuralsde.models.saving import SETTINGS

# 150; `transform`, `components` of Mixture, `covariance`, `rank` of LowRank; `pad_history`; four of StepsConfig; `passes`;
# `directions`
MOST = 161


def settings(kind, found=None):
    """The fields that each class adds: of `kind`, of its bases and kinds, and of what their fields hold."""
    found = {} if found is None else found
    if not dataclasses.is_dataclass(kind):
        for part in typing.get_args(kind):
            settings(part, found)
    elif kind not in found and kind.__module__.startswith("neuralsde."):
        own = inspect.get_annotations(kind)
        found[kind] = [f.name for f in dataclasses.fields(kind) if f.name in own]
        kinds = kind.kinds().values() if issubclass(kind, Choice) else ()
        hints = typing.get_type_hints(kind)
        for other in (*kind.__mro__[1:], *kinds, *(hints[f.name] for f in dataclasses.fields(kind))):
            settings(other, found)
    return found


@pytest.fixture(scope="module")
def found():
    for module in SETTINGS:
        import_module(module)
    return settings(Experiment)


def test_settings_are_few(found):
    shown = "\n".join(f"{len(names):3} {kind.__name__}: {', '.join(names)}" for kind, names in found.items())
    assert sum(map(len, found.values())) <= MOST, f"\n{shown}"


def test_what_was_cut_is_no_setting(found):
    fields = {kind.__name__: {f.name for f in dataclasses.fields(kind)} for kind in found}
    for table in (CUT, DROPPED):
        for kind, names in table.items():
            assert not fields[kind] & set(names), kind


@pytest.mark.parametrize("kind", CUT)
def test_a_record_with_another_value_is_refused(kind):
    for name, only in CUT[kind].items():
        assert name not in current({name: only}, kind)
        with pytest.raises(ValueError, match=rf"`{name}=other` is gone\. neuralsde 0\.1\.0 still reads this record"):
            current({name: "other"}, kind)


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "NeuralSDEConfig", "refiner": True, "history": 2},
        {"kind": "NeuralSDEConfig", "law": {"kind": "Refined", "weight": 0.1}},
    ],
)
def test_refined_models_are_refused_with_the_version_that_reads_them(record):
    with pytest.raises(ValueError, match=r"`Refined` is gone: use Transport\(\).* neuralsde 0\.1\.0 still reads"):
        current(record)
