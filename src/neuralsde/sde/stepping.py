"""Euler's step on a GPU as one kernel after those of the nets.

Twenty operations on small tensors take longer than a small net before them. The kernel makes x + (f + pull σ d) Δt + g Δw
where nothing is differentiated; other steps are made as they are written, by `Fields.coefficients`.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
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
    if not fused.serves(x) or fields.sizes.directions is not None:
        return None
    terms = fields.terms(sampler)
    if not terms.noisy or terms.balance or terms.learned or terms.correlated or terms.sloped:
        return None
    sigma, size = fields.sigma, x[0].numel()
    if terms.scored and size % sigma.numel():
        return None
    names = ["flow", "diffusion", *(["denoiser"] if terms.scored else [])]
    raw = fields.outputs(step.state(x, step.time), condition(step.time), *names)
    parts = [_rows(raw[name]) for name in (*names, "flow")[:3]]  # without a pull, the third is not looked at
    dt, dw, start = step.dt.flatten(1), _rows(step.dw), x.contiguous()
    out = torch.empty_like(start)
    with torch.cuda.device_of(x):
        kernels(KERNELS).euler[(-(-x.numel() // TILE),)](
            start,
            *parts,
            fields.sizes.rate,
            fields.sizes.low,
            *fields.sizes.curve,
            sigma.contiguous(),
            dt,
            dw,
            out,
            len(x),
            size,
            *(part.stride(0) for part in parts),
            dt.stride(0),
            dw.stride(0),
            size // sigma.numel(),
            float(sampler.diffusion),
            float(terms.pull),
            PULLED=terms.scored,
            TILE=TILE,
        )
    return out


def _rows(values: Float[Tensor, "P *S"]) -> Float[Tensor, "P D"]:
    """Flattened, the entries of a row side by side."""
    rows = values.flatten(1)
    return rows if rows.stride(1) == 1 else rows.contiguous()
