"""Draw docs/assets/collisions.png: scenes of colliding objects, one per row, every 5/8 of a second.

python docs/collisions_sheet.py
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from neuralsde.experiments.collisions.clips import clips

SEEDS = (0, 20, 22, 23, 24, 33)


def main() -> None:
    """One picture of 6 x 8 frames."""
    frames = clips(SEEDS, num_frames=8, fps=1.6, size=128).frames
    rows, columns, _, side, _ = frames.shape
    sheet = frames.permute(0, 3, 1, 4, 2).reshape(rows * side, columns * side, 3)
    Image.fromarray(sheet.numpy()).save(Path(__file__).parent / "assets" / "collisions.png", optimize=True)


if __name__ == "__main__":
    main()
