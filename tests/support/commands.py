"""The command line in tests: called in this process, or refused."""

import os

import pytest

from neuralsde.cli import main

ENV = os.environ | {"OMP_NUM_THREADS": "1"}


def call(*arguments):
    """The command in this process."""
    main([str(a) for a in arguments])


def fails(capsys, *arguments, code=2):
    """The one line that a failing command prints."""
    with pytest.raises(SystemExit) as stop:
        call(*arguments)
    assert stop.value.code == code
    text = capsys.readouterr().err.strip()
    assert len(text.splitlines()) == 1 and text.startswith("nsde: ")
    return text
