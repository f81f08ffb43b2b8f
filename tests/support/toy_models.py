"""Models with nets set by hand, in units that are not 1."""

import torch
from torch import nn

from neuralsde.data.transition import Transition
from neuralsde.models.scale import Scale
from neuralsde.nets.backbone import Form
from neuralsde.nets.config import MLPConfig
from neuralsde.nets.mlp import MLP
from neuralsde.sde.config import Denoiser, Deterministic, Euler, NeuralSDEConfig
from neuralsde.sde.model import NeuralSDE
from neuralsde.solvers.noise import Noise


class Constant(nn.Module):
    """Gives `value` everywhere and keeps what it was shown."""

    def __init__(self, value, shape):
        super().__init__()
        self.value = nn.Parameter(torch.as_tensor(value, dtype=torch.float32).expand(shape).clone())

    def forward(self, state, condition=None):
        self.state, self.condition = state, condition
        return self.value.expand(len(state), *self.value.shape)


class FixedNoise(Noise):
    """Chosen tau and eps; the start state is taken where `start` is at most P(tau = 0)."""

    def __init__(self, num, tau, eps, start=0.5):
        super().__init__(torch.arange(num))
        self.tau, self.eps, self.start = tau, eps, start

    def uniform(self, step, shape=(), *, stream=0):
        return torch.tensor([[self.start, self.tau]], dtype=torch.float64).expand(len(self), 2)

    def normal(self, step, shape=(), *, stream=0):
        return torch.full((len(self), *shape), self.eps)


def constant_model(shape=(2,), dt_ref=0.5, values=None, **settings):
    """Nets that are constants, and units that are not 1."""
    config = NeuralSDEConfig(**{"tau": "uniform", "noise": 0.1, **settings})
    values = {"flow": 0.3, "diffusion": 0.2, "denoiser": -0.4, "alpha": 0.1} | (values or {})
    nets = {n: Constant(values[n], shape if num == 1 else (num, *shape)) for n, num in config.parts.items()}
    scale = Scale(shape)
    scale.mean.copy_(torch.linspace(1, 2, scale.mean.numel()).reshape(shape))
    scale.std.copy_(torch.linspace(0.5, 3, scale.mean.numel()).reshape(shape))
    scale.dt_ref.fill_(dt_ref)
    model = NeuralSDE(nets, scale, config)
    model.sizes.low.fill_(-5.0)
    model.sizes.high.fill_(2.0)
    model.sizes.typical.fill_(-1.0)
    model.sizes.rate.fill_(2.0)
    return model


def pairs(num=4, shape=(2,), history=1, seed=0, **more):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(num, history + 1, *shape, generator=rng) * 2 + 1
    dt = torch.rand(num, generator=rng) + 0.2
    return Transition(history=x[:, :-1], next=x[:, -1], dt=dt, time=3 * dt, **more)


def mlp_model(shape=(2,), dropout=None, **settings):
    """Nets with weights that are not 0, so that everything depends on everything it can depend on."""
    config = NeuralSDEConfig(**{"tau": "uniform", "noise": 0.1, **settings})
    torch.manual_seed(0)
    nets = {}
    for n, num in config.parts.items():
        net = MLPConfig(width=16, depth=2, dropout=0.5 if n == dropout else 0.0)
        nets[n] = MLP(net, Form(shape, config.history, num_fields=num))
        nn.init.normal_(nets[n].outward.weight, std=0.3)
    model = NeuralSDE(nets, Scale(shape), config)
    model.sizes.low.fill_(-5.0)
    model.sizes.high.fill_(1.0)
    model.sizes.typical.fill_(-2.0)
    return model


def fields_of(model):
    """The learned fields, as one call sees them."""
    return model._fields()


class Field(nn.Module):
    """A net that is a function of the newest slot and the condition."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, state, condition=None):
        return self.function(state[:, -1], condition)


def field_model(shape=(1,), dt_ref=1.0, context_size=0, log_g=None, low=-8.0, high=2.0, **fields):
    """Nets given as functions, in units of std 1 and `dt_ref`; `log_g` is the value of log g itself."""
    settings = {k: fields.pop(k) for k in ("tau", "noise", "time_input", "history") if k in fields}
    if log_g is not None:
        # Undo the bounds: a net of logit(share) * width / 4 gives the log g whose share of the width that is.
        width = high - low
        fields["diffusion"] = lambda x, c: torch.logit((log_g(x, c) - low) / width) * width / 4
    law, denoiser = Deterministic() if log_g is None else Euler(), Denoiser() if "denoiser" in fields else None
    config = NeuralSDEConfig(law=law, denoiser=denoiser, **settings)
    scale = Scale(shape, context_size)
    scale.dt_ref.fill_(dt_ref)
    scale.low.fill_(-5.0)
    scale.high.fill_(5.0)
    model = NeuralSDE({n: Field(f) for n, f in fields.items()}, scale, config)
    model.sizes.low.fill_(low)
    model.sizes.high.fill_(high)
    model.sizes.typical.fill_((low + high) / 2)
    return model.eval()
