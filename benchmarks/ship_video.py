"""Write the shipped video model: a trained one with its autoencoder, weights in 16 bits, two passes per frame.

python benchmarks/ship_video.py --model runs/collisions-transport/model --output src/neuralsde/weights/video
"""

from __future__ import annotations

import argparse
from pathlib import Path

from neuralsde.sde.config import Sampler
from neuralsde.video.model import load_video_model, save_video_model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    video = load_video_model(args.model)
    video.model.sampler = Sampler(passes=1)
    save_video_model(args.output, video.model, video.autoencoder, settings=video.settings, half=True)


if __name__ == "__main__":
    main()
