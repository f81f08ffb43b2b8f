"""Euler's step on a GPU as one kernel after that of the nets.

Twenty operations on small tensors take longer than the nets before them. It is used where the fields are those of `fused`
perceptrons and a step is x + (f + pull σ d) Δt + g Δw; other steps are made as they are written, by `Fields.coefficients`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neuralsde.core.extras import kernels
from neuralsde.nets import fused
from neuralsde.sde.config import Sampler
from neuralsde.sde.fields import Fields
from neuralsde.solvers.integrate import Step

KERNELS = "neuralsde.sde.kernel"
TILE = 256  # entries of one program


def euler_step(fields: Fields, step: Step, condition: Any, sampler: Sampler) -> Tensor | None:
    """The state after a step; None where the kernel does not give what the fields would."""
    x = step.x
    if not x.is_cuda or x.dtype != torch.float32 or fields.sizes.directions is not None:
        return None
    terms = fields.terms(sampler)
    if not terms.noisy or terms.balance or terms.learned or terms.correlated or terms.sloped:
        return None
    names = ["flow", "diffusion", *(["denoiser"] if terms.scored else [])]
    state = step.state(x, step.time)
    if not fused.fits([fields.nets["trunk"]] if fields.config.shared else [fields.nets[n] for n in names], state):
        return None
    raw = fields.outputs(state, condition(step.time), *names)
    parts = [raw[name].flatten(1) for name in (*names, "flow")[:3]]  # without a pull, the third is not looked at
    dt, dw, start, sigma = step.dt.flatten(1), step.dw.flatten(1), x.contiguous(), fields.sigma
    out = torch.empty_like(start)
    with torch.cuda.device_of(x):
        kernels(KERNELS).euler[(-(-x.numel() // TILE),)](
            start,
            *parts,
            fields.sizes.rate,
            fields.sizes.low,
            *fields.sizes.curve,
            sigma,
            dt,
            dw,
            out,
            len(x),
            x[0].numel(),
            *(part.stride(0) for part in parts),
            dt.stride(0),
            dw.stride(0),
            float(sampler.diffusion),
            float(terms.pull),
            PULLED=terms.scored,
            SIGMAS=int(sigma.numel() > 1),
            TILE=TILE,
        )
    return out
