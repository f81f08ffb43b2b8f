"""torchsde's latent SDE (Li et al., AISTATS 2020): our own model, for the objective of its Lorenz example.

A recurrent net reads the observations backwards; the posterior's drift sees its memory and the next observation; the
bound is the log-likelihood of the observations less the annealed divergence of the two path measures (`logqp`).

Posterior and prior share g, so over a gap of few solver steps the posterior cannot be as narrow as the observations are:
the bound is then best with too small a g, and a part of the steps taken for observation noise. More solver steps help.
"""

from __future__ import annotations

from typing import Any

import torch
import torchsde
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from neuralsde.nets.backbone import Form
from neuralsde.nets.config import MLPConfig
from neuralsde.nets.mlp import MLP
from neuralsde.sde.model import NeuralSDE
from peers.prior import LatentModel

SOLVERS: dict[str, dict[str, Any]] = {
    "euler": {"method": "euler"},
    "euler_adjoint": {"method": "euler", "adjoint_method": "milstein"},
    "reversible_heun": {"method": "reversible_heun", "adjoint_method": "adjoint_reversible_heun"},
}
"""Back-propagation through the solver; the adjoint as in the example; the adjoint whose gradients are exact.

The last solves in the sense of Stratonovich: its drifts differ from Ito's by g∂g/2, which is left out, since g is close
to constant in all systems here. It cannot follow a posterior that contracts within a gap, as noiseless data asks for.
"""


class LatentSDE(LatentModel):
    """The posterior, and the methods `f`, `g`, `h` that torchsde asks for; time is in observation gaps."""

    noise_type = "diagonal"

    def __init__(self, prior: NeuralSDE, memory: int, *, solver: str, substeps: int, noise: float | None) -> None:
        super().__init__(prior, noise)
        self.solver, self.substeps = solver, substeps
        self.sde_type = "stratonovich" if solver == "reversible_heun" else "ito"
        size, net = prior.scale.shape[0], prior.config.net
        assert isinstance(net, MLPConfig)
        self.encoder = nn.GRU(size, memory, batch_first=True)
        self.start = nn.Linear(memory + size, 2 * size)
        self.posterior = MLP(net, Form((size,), condition_size=memory + size))
        self.first_mean = nn.Parameter(torch.zeros(size))
        self.first_log_std = nn.Parameter(torch.zeros(size))
        self.context = torch.empty(0)

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        """Drift of the posterior: it knows the next observation and, through the memory, those after."""
        k = min(int(t) + 1, self.context.shape[1] - 1)
        return self.prior.sizes.rate * self.posterior(y[:, None], self.context[:, k])

    def h(self, t: Tensor, y: Tensor) -> Tensor:
        return self.drift(y)

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return self.diffusion(y)

    def loss(self, x: Tensor, weight: float) -> Tensor:
        memory = self.encoder(x.flip(1))[0].flip(1)
        self.context = torch.cat([memory, x], dim=2)
        mean, log_std = self.start(self.context[:, 0]).chunk(2, dim=1)
        first = Normal(mean, log_std.exp())
        z, divergence = self.solve(first.rsample(), torch.arange(x.shape[1], dtype=x.dtype))
        seen = Normal(z.transpose(0, 1), self.log_error.exp()).log_prob(x).sum((1, 2))
        before = kl_divergence(first, Normal(self.first_mean, self.first_log_std.exp())).sum(1)
        return (weight * (before + divergence.sum(0)) - seen).mean() / x[0].numel()

    def solve(self, first: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """States (T, B, d) of the posterior and its divergence from the prior over each gap (T - 1, B)."""
        options = {"dt": 1 / self.substeps, "logqp": True, **SOLVERS[self.solver]}
        if self.solver == "euler":
            return torchsde.sdeint(self, first, times, **options)
        nets = (self.posterior, self.prior.nets)
        parameters = (self.context, *(p for net in nets for p in net.parameters()))
        return torchsde.sdeint_adjoint(self, first, times, adjoint_params=parameters, **options)
