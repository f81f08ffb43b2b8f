"""Hostile inputs at every door end in one line that names what is wrong, soon and in little memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "support" / "fuzz.py"


def fuzz(*options):
    """In a process of its own, whose memory is limited; shapes are not checked there, as they are not for users."""
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["bad"] == []  # raw errors, and what took more than 10 s or 2 GiB
    assert found["slowest"][0] < 10 and found["memory"] < 2 * 2**30
    assert found["counts"]["clean"] > 10 * found["counts"]["fine"]  # they were hostile
    return sum(found["counts"].values())


def test_some_hostile_inputs():
    assert fuzz("--every", "61", "--examples", "40") >= 500


@pytest.mark.slow
def test_many_hostile_inputs():
    assert fuzz("--every", "5", "--examples", "1500") >= 2_000
