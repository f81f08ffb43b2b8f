"""Twenty steps of a small problem with weights in pieces, by torch's `fully_shard`; for a test, under torchrun on CPU processes.

usage: torchrun sharded_steps.py OUTPUT
"""

import sys

import torch
import torch.distributed
from distributed_fit import problem
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from neuralsde.solvers.noise import Noise


def train(model, data, process=0, num_processes=1):
    pairs, optimiser = data.transitions(), torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(20):
        noise = Noise.for_step(0, step, torch.arange(process, 32, num_processes))
        losses = model(pairs.batch(noise), noise)
        optimiser.zero_grad()
        sum(losses.values()).backward()
        optimiser.step()


def main():
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    process, num = torch.distributed.get_rank(), torch.distributed.get_world_size()
    mesh = init_device_mesh("cpu", (num,))
    model, data = problem()
    for net in model.nets.values():
        fully_shard(net, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert all(isinstance(p, DTensor) and p.to_local().numel() < p.numel() for p in model.parameters() if p.numel() > 2)
    train(model, data, process, num)
    whole = {name: v.full_tensor() if isinstance(v, DTensor) else v for name, v in model.state_dict().items()}
    if process == 0:
        save_file({name: value.contiguous() for name, value in whole.items()}, sys.argv[1])
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
