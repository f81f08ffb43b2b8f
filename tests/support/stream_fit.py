"""Read or train on a stream in a process of its own, for tests that measure its memory or kill it.

usage: python stream_fit.py read FOLDER         prints the peak of resident memory before and after one epoch, in MiB
       python stream_fit.py train FOLDER RUN    trains slowly, into a run folder
"""

import sys
import time
from pathlib import Path

import torch

from neuralsde import NeuralSDE, Stream, fit
from neuralsde.nets.config import MLPConfig

TRAIN = {"steps": 60, "batch_size": 32, "progress": False, "cpu": True, "log_every": 5, "checkpoint_every": 10}


def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def model_for(stream):
    return NeuralSDE.for_data(stream, net=MLPConfig(width=16, depth=1))


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "read":
        pairs = Stream.open(sys.argv[2], shuffle=2**16).transitions()
        batches = pairs.batches(0, 0, 4_000)
        total, before = float(next(batches).next.double().sum()), peak()
        total += sum(float(next(batches).next.double().sum()) for _ in range(len(pairs) // 4_000 - 1))
        batches.close()
        print(before, peak(), total)
        return
    stream = Stream.open(sys.argv[2])
    model = model_for(stream)
    model.register_forward_pre_hook(lambda *_: time.sleep(0.02))
    fit(model, stream, run_dir=sys.argv[3], **TRAIN)


if __name__ == "__main__":
    main()
