"""LSTM-GMM: a recurrent net of the last observations and a mixture of Gaussians for the action (Mandlekar et al., CoRL 2021).

It is drawn from as there: a component by its weight, then almost exactly its mean.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.baselines.config import ImitationConfig, LSTMGMMConfig
from neuralsde.baselines.imitation import ImitationModel, draw_index
from neuralsde.data.transition import Transition
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import CHOICE, Noise

MIN_STD = 1e-4  # smallest standard deviation of a component, in units of the scale, and that with which it acts

NUM_MODES = 5  # components of the mixture


class MixtureLSTM(nn.Module):
    """Tokens, oldest first, to one row per component: its weight, its mean, its spread."""

    def __init__(self, config: LSTMGMMConfig, token_size: int, size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(token_size, config.net.width, config.net.layers, batch_first=True)
        self.outward = nn.Linear(config.net.width, NUM_MODES * (1 + 2 * size))

    def forward(self, tokens: Float[Tensor, "B K F"]) -> Float[Tensor, "B M O"]:
        return self.outward(self.lstm(tokens)[0][:, -1]).unflatten(1, (NUM_MODES, -1))


class LSTMGMM(ImitationModel):
    """Maximum likelihood of the action."""

    config: LSTMGMMConfig

    @classmethod
    def make_net(cls, config: ImitationConfig, token_size: int, size: int) -> nn.Module:
        assert isinstance(config, LSTMGMMConfig)
        return MixtureLSTM(config, token_size, size)

    def law(self, tokens: Tensor) -> tuple[Float[Tensor, "B M"], Float[Tensor, "B M D"], Float[Tensor, "B M D"]]:
        """Log weights, means and standard deviations of the components, in units of the scale."""
        out = self.nets["net"](tokens).float()
        mean, spread = out[..., 1:].chunk(2, dim=2)
        return torch.log_softmax(out[..., 0], 1), torch.tanh(mean), nn.functional.softplus(spread) + MIN_STD

    def _log_prob(self, batch: Transition) -> Float[Tensor, " B"]:
        tokens, y = self.read(batch)
        log_weight, mean, std = self.law(tokens)
        z = (y[:, None] - mean) / std
        each = (-0.5 * z**2 - std.log()).sum(2) - 0.5 * math.log(2 * math.pi) * y.shape[1]
        return torch.logsumexp(log_weight + each, 1)

    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        return {"likelihood": -self._log_prob(batch).mean()}

    def transition_log_prob(self, batch: Transition) -> Float[Tensor, " B"]:
        return self._log_prob(batch) - self.scale.log_volume(batch)

    def act(self, tokens: Tensor, step: Step, noise: Noise) -> Tensor:
        log_weight, mean, _ = self.law(tokens)
        mode = draw_index(log_weight, noise.uniform(step.index, (1,), stream=CHOICE))[:, :, None].expand_as(mean[:, :1])
        return mean.gather(1, mode)[:, 0] + MIN_STD * step.z.flatten(1)
