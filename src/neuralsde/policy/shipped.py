"""The policy that comes with the library."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def shipped() -> Path:
    """The folder of the Push-T policy that comes with the library."""
    folder = Path(str(resources.files("neuralsde"))) / "weights" / "pusht"
    if not (folder / "policy.json").is_file():
        raise ValueError("This copy of the library holds no trained policy. Train one (nsde train pusht): --policy.")
    return folder
