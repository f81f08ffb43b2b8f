"""The command `nsde export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from neuralsde.cli.options import keywords


@dataclass(frozen=True)
class Export:
    """Write a model's step and its plan as files that run without this library; noise is an input."""

    model: Positional[str]
    """Folder written by save_pretrained, a run folder, a name on the Hub, or `pusht`, the policy of the library."""
    format: Literal["onnx", "pt2"] = "onnx"
    """Format of the graphs: ONNX, or that of torch.export."""
    output: Path | None = None
    """New folder to write to (MODEL's name with -onnx or -pt2 if not given)."""
    steps: int | None = None
    """Training steps of a plan (those of the backtest, or 20, if not given); a policy plans as its config says."""

    def run(self) -> None:
        from neuralsde.export.write import export_model

        target = self.output or Path(f"{Path(self.model).name}-{self.format}")
        print(export_model(self.model, target, **keywords(export_model, self)))
