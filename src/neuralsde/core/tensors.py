"""Files of tensors: safetensors, never a pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from neuralsde.core.files import check_file

MAX_TENSORS = 2**35  # bytes of a file of tensors that is read


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, or one clear error."""
    return read_with_header(file)[0]


def read_with_header(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors of a safetensors file and what its header holds besides, both of one moment; or one clear error."""
    if not file.exists():
        raise ValueError(f"{file} is missing. Copy the whole folder.")
    check_file(file, MAX_TENSORS)
    try:
        with safe_open(file, framework="pt") as found:
            return {name: found.get_tensor(name) for name in found.keys()}, found.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise ValueError(f"{file} is missing. Copy the whole folder.") from None
    except OSError as error:
        raise ValueError(f"Cannot read {file}: {error.strerror or error}.") from None
    except SafetensorError as error:
        with file.open("rb") as data:
            head = data.read(2)
        if head in (b"\x80\x02", b"\x80\x04", b"\x80\x05", b"PK"):
            raise ValueError(
                f"{file} is a pickle or a zip of one. It is never loaded: pickles can run code. Save with save_pretrained."
            ) from None
        raise ValueError(f"{file} is truncated or not a safetensors file ({error}). Copy or save it again.") from None


def not_finite(tensors: Mapping[str, Tensor]) -> str:
    """Which number is not finite, in words; empty if all are."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            where = (~torch.isfinite(tensor)).nonzero()[0].tolist()
            return f"{name}{where or ''} is {float(tensor[tuple(where)])}"
    return ""
