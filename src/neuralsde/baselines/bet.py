"""Behaviour Transformer (Shafiullah et al., NeurIPS 2022): a transformer of the last observations chooses a bin of actions.

Bins are the clusters of the actions of the data, found once by k-means; the action is the centre of a bin drawn by its
probability, and an offset from it that the net gives for each bin.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.baselines.config import BETConfig, ImitationConfig
from neuralsde.baselines.imitation import ImitationModel, draw_index
from neuralsde.data.trajectories import Transitions
from neuralsde.data.transition import Transition
from neuralsde.models.scale import Scale
from neuralsde.nets.attention import Layer, positions
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import CHOICE, Noise

MAX_ROUNDS = 100  # rounds of k-means

GAMMA = 2.0  # exponent of the focal loss, which spends less on what is already likely; 0: cross-entropy


def k_means(points: Float[Tensor, "N D"], num: int, *, seed: int = 0) -> Float[Tensor, "M D"]:
    """Centres of `num` clusters by Lloyd's rounds from far-apart points; it depends on points and seed alone."""
    rng = torch.Generator().manual_seed(seed)
    points = points.detach().cpu()
    centres = points[torch.randint(len(points), (1,), generator=rng)]
    far = torch.full((len(points),), torch.inf)
    while len(centres) < num:  # the next one: in proportion to the squared distance to the nearest so far
        far = torch.minimum(far, (points - centres[-1]).square().sum(1))
        chosen = torch.multinomial(far + 1e-12, 1, generator=rng)
        centres = torch.cat([centres, points[chosen]])
    for _ in range(MAX_ROUNDS):
        nearest = torch.cdist(points, centres).argmin(1)
        count = torch.bincount(nearest, minlength=num)[:, None]
        mean = torch.zeros_like(centres).index_add_(0, nearest, points) / count.clamp(min=1)
        moved = torch.where(count > 0, mean, centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


class GPT(nn.Module):
    """A causal transformer of the tokens; the last of them gives, for each bin, a logit and an offset."""

    def __init__(self, config: BETConfig, token_size: int, size: int) -> None:
        super().__init__()
        net = config.net
        self.num_bins = config.num_bins
        self.inward = nn.Linear(token_size, net.width)
        self.positions = positions(config.num_observations, net.width)
        self.layers = nn.Sequential(*(Layer(net.width, net.heads, 0.0, causal=True) for _ in range(net.layers)))
        self.norm = nn.LayerNorm(net.width)
        self.outward = nn.Linear(net.width, config.num_bins * (1 + size))
        nn.init.zeros_(self.outward.weight)
        nn.init.zeros_(self.outward.bias)

    def forward(self, tokens: Float[Tensor, "B K F"]) -> Float[Tensor, "B M O"]:
        x = self.layers(self.inward(tokens) + self.positions)
        return self.outward(self.norm(x[:, -1])).unflatten(1, (self.num_bins, -1))


class BET(ImitationModel):
    """Focal loss for the bin, squared error for the offset from its centre."""

    config: BETConfig
    centres: Tensor
    spread: Tensor

    def __init__(self, nets: Mapping[str, nn.Module], scale: Scale, config: BETConfig) -> None:
        super().__init__(nets, scale, config)
        self.register_buffer("centres", torch.zeros(config.num_bins, scale.mean.numel()))
        self.register_buffer("spread", torch.ones(()))

    @classmethod
    def make_net(cls, config: ImitationConfig, token_size: int, size: int) -> nn.Module:
        assert isinstance(config, BETConfig)
        return GPT(config, token_size, size)

    def measure(self, data: Transitions) -> Transition:
        """Find the bins, and how far actions are from their centres."""
        pairs = super().measure(data)
        y = self.scale.states(pairs.next).flatten(1).cpu()
        centres = k_means(y, self.config.num_bins)
        self.centres.copy_(centres)
        self.spread.copy_(torch.cdist(y, centres).amin(1).square().mean().div(y.shape[1]).sqrt().clamp(min=1e-3))
        return pairs

    def choices(self, tokens: Tensor) -> tuple[Float[Tensor, "B M"], Float[Tensor, "B M D"]]:
        """Log probability of each bin, and its offset in units of their typical size."""
        out = self.nets["net"](tokens).float()
        return torch.log_softmax(out[..., 0], 1), out[..., 1:]

    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        tokens, y = self.read(batch)
        log_prob, offset = self.choices(tokens)
        own = torch.cdist(y, self.centres).argmin(1, keepdim=True)
        log_own = log_prob.gather(1, own)
        focal = -((1 - log_own.exp()).clamp(min=0) ** GAMMA) * log_own
        error = self._of(offset, own) - (y - self.centres[own[:, 0]]) / self.spread
        return {"bins": focal.mean(), "offset": error.square().mean()}

    def act(self, tokens: Tensor, step: Step, noise: Noise) -> Tensor:
        log_prob, offset = self.choices(tokens)
        own = draw_index(log_prob, noise.uniform(step.index, (1,), stream=CHOICE))
        return self.centres[own[:, 0]] + self.spread * self._of(offset, own)

    @staticmethod
    def _of(offset: Tensor, own: Tensor) -> Tensor:
        return offset.gather(1, own[:, :, None].expand(-1, -1, offset.shape[2]))[:, 0]
