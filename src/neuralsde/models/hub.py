"""Models on the Hugging Face Hub: a folder of `save_pretrained` with a card, under the name "user/model".

Nothing of this library talks to a network unless it is asked for a name that is no folder here. What comes from the Hub is
read as any other folder: JSON and tensors, of which nothing is executed.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuralsde.core.files import replacing

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
FILES = ["*.json", "*.safetensors", "README.md"]
"""What a model consists of; nothing else is fetched."""
CARD = "README.md"


def local_folder(path: str | os.PathLike[str]) -> Path:
    """The folder itself where there is one, or the copy of a model of that name on the Hub."""
    folder, name = Path(path), os.fspath(path)
    if folder.exists() or not isinstance(path, str) or not NAME.fullmatch(name):
        return folder
    return fetch(name)


def fetch(name: str) -> Path:
    """The folder of a model on the Hub: from the cache, or downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=FILES))
    except RepositoryNotFoundError:
        remedy = "Check the name, or log in with `hf auth login` where it is private."
        raise ValueError(f"There is no folder {name} here and no model of that name on the Hub. {remedy}") from None
    except LocalEntryNotFoundError:
        remedy = "Go online once, or pass the path of a folder."
        raise ValueError(
            f"There is no folder {name} here, and the Hub cannot be reached or HF_HUB_OFFLINE is set. {remedy}"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"The model {name} cannot be fetched from the Hub: {why}. Try again later.") from None


def push(name: str, save: Callable[[Path], Any], card: str, *, private: bool) -> str:
    """Upload what `save` writes into a folder, with a card; returns its address."""
    if not NAME.fullmatch(name):
        raise ValueError(f"`name` must be user/model, of letters, digits, dots and dashes. Got {name!r}.")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    with tempfile.TemporaryDirectory() as scratch:
        folder = prepare(Path(scratch) / "model", save, card)
        try:
            api = HfApi()
            api.create_repo(name, private=private, exist_ok=True)
            found = api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload a model of neuralsde")
        except OfflineModeIsEnabled:
            raise ValueError(f"{name} cannot be uploaded: HF_HUB_OFFLINE is set. Unset it to go online.") from None
        except LocalTokenNotFoundError:
            raise ValueError(f"{name} cannot be uploaded without a login. Run `hf auth login` first.") from None
        except (HfHubHTTPError, OSError) as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{name} cannot be uploaded: {why}. Check the login (`hf auth whoami`).") from None
    return str(found)


def prepare(folder: Path, save: Callable[[Path], Any], card: str) -> Path:
    """The folder that is uploaded: the model and its card."""
    save(folder)
    with replacing(folder / CARD) as new:
        new.write_text(card, encoding="utf-8")
    return folder
