"""The command line in tests: called in this process, or refused."""

import os
import signal

import pytest

from neuralsde.cli import main
from neuralsde.training.fit import _Loop

ENV = os.environ | {"OMP_NUM_THREADS": "1"}


def call(*arguments):
    """The command in this process."""
    main([str(a) for a in arguments])


def stops(monkeypatch, capsys, number, *arguments):
    """What a training prints that gets a signal when it has written its first line of metrics."""
    write = _Loop._log

    def log(loop, *given):
        write(loop, *given)
        monkeypatch.setattr(_Loop, "_log", write)
        signal.raise_signal(number)

    monkeypatch.setattr(_Loop, "_log", log)
    with pytest.raises(SystemExit) as stop:
        call(*arguments)
    assert stop.value.code == 128 + number
    return capsys.readouterr().err


def fails(capsys, *arguments, code=2):
    """The one line that a failing command prints."""
    with pytest.raises(SystemExit) as stop:
        call(*arguments)
    assert stop.value.code == code
    text = capsys.readouterr().err.strip()
    assert len(text.splitlines()) == 1 and text.startswith("nsde: ")
    return text
