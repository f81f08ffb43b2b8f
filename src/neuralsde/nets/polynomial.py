"""A sparse polynomial: found by least squares instead of training, without the terms that the data do not need.

Many laws of motion are polynomials with few terms. Such a field has a few numbers where a perceptron has thousands, so the
same data tell it several times more sharply, and it can be written down. Terms are dropped one after the other, the least
certain first, until each that is left is worth log n + 2 log K in twice the log-likelihood: the criterion of Schwarz for n
steps, extended to a choice among the K terms of its degree (Chen and Chen), of which some help by chance.

Powers are those of the state in its own units, or around its mean, where these need fewer terms.
Beyond the range of its data each power goes on along its tangent, and velocities are at most a little larger than in the data:
a cubic would grow without bounds there, and leave in a few steps.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralsde.core.memo import Memo
from neuralsde.nets.backbone import Backbone, Condition, Form
from neuralsde.nets.config import PolynomialConfig

DEGREE, MOST_TERMS = 3, 100  # the degree is lower where terms would be more
MOST_INPUTS = 128  # of which each has its own regression
MOST_NUMBERS = 2**24  # of a regression at once
FARTHEST = 20.0  # standard deviations of zero from the mean up to which powers around it can be told apart
EXACT = 1e-8  # share of the target that is rounding
MARGIN = 0.25  # of the range of velocities that the data have
RIDGE = 1e-9  # of the mean square of a term: constant inputs have no terms of their own


class PolynomialNet(Backbone):
    """Up to cubic in state and condition; 0 until it is solved."""

    solves: ClassVar[bool] = True
    refines: ClassVar[bool] = True
    low: Tensor
    high: Tensor
    origin: Tensor
    least: Tensor
    most: Tensor
    coefficients: Tensor

    def __init__(self, config: PolynomialConfig, form: Form) -> None:
        super().__init__(config, form)
        assert form.num_fields == 1, "a polynomial is one field"
        num = math.prod(form.shape) * form.history + form.condition_size
        if num > MOST_INPUTS:
            raise ValueError(
                f"A polynomial takes up to {MOST_INPUTS} inputs, slots and contexts together. Got {num}. Use MLPConfig()."
            )
        self.factors = _factors(num)
        self.degrees = ((self.factors + num - 1) // num).sum(1)
        self.choices = (self.degrees == self.degrees[:, None]).sum(1)  # terms of the same degree
        self._left: Memo[tuple[Tensor, Tensor]] = Memo()
        self.register_buffer("low", torch.zeros(num))
        self.register_buffer("high", torch.zeros(num))
        self.register_buffer("origin", torch.zeros(num))
        self.register_buffer("least", torch.zeros(math.prod(form.shape)))
        self.register_buffer("most", torch.zeros(math.prod(form.shape)))
        self.register_buffer("coefficients", torch.zeros(math.prod(form.shape), len(self.factors)))

    @property
    def num_terms(self) -> int:
        """Of all outputs, those that are left."""
        return int(self.coefficients.count_nonzero())

    def forward(self, state: Float[Tensor, "B H *S"], condition: Condition = None) -> Float[Tensor, "B *S"]:
        x, several = _inputs(state, condition), torch._C._functorch.peek_interpreter_stack() is not None
        factors, coefficients = (
            (self.factors.to(x.device), self.coefficients)
            if self.training or several  # nets side by side have terms of their own
            else self._left.get([self.coefficients], self._what_is_left)
        )
        y = self._terms(x, factors) @ coefficients.to(x).mT
        return torch.minimum(torch.maximum(y, self.least.to(x)), self.most.to(x)).reshape(-1, *self.form.shape)

    def _what_is_left(self) -> tuple[Int[Tensor, "K D"], Float[Tensor, "S K"]]:
        """The terms that any output has, and their coefficients."""
        left = self.coefficients.any(0)
        return self.factors.to(left.device)[left], self.coefficients[:, left]

    def _terms(self, x: Float[Tensor, "B I"], factors: Int[Tensor, "K D"]) -> Float[Tensor, "B K"]:
        """The monomials, each the product of powers of single inputs."""
        low, high, origin = self.low.to(x), self.high.to(x), self.origin.to(x)
        inside = torch.minimum(torch.maximum(x, low), high)
        beyond, inside, degree = x - inside, inside - origin, factors.shape[1]
        powers = [inside**k + k * inside ** (k - 1) * beyond for k in range(1, degree + 1)]
        table = torch.cat([torch.ones_like(x[:, :1]), *powers], dim=1)
        out = table[:, factors[:, 0]]
        for place in range(1, degree):
            out = out * table[:, factors[:, place]]
        return out

    @torch.no_grad()
    def solve(
        self,
        state: Float[Tensor, "B H *S"],
        condition: Condition,
        target: Float[Tensor, "B *S"],
        weight: Float[Tensor, "B *S"] | None = None,
        zero: Float[Tensor, "*S"] | None = None,
    ) -> None:
        """By weighted least squares, with backward elimination."""
        given = torch.ones_like(target) if weight is None else weight
        x, y, w = (v.double() for v in (_inputs(state, condition), target.flatten(1), given.flatten(1)))
        self.low.copy_(x.amin(0))
        self.high.copy_(x.amax(0))
        places = [torch.zeros_like(self.origin)]
        if bool(self.coefficients.any()):  # solved before
            places = [self.origin.clone()]
        elif zero is not None:
            raw = torch.zeros_like(self.origin)
            raw[: state[0].numel()] = zero.expand_as(state[0]).flatten()
            places += [raw] if bool((raw.abs() < FARTHEST).all()) else []
        tried = [self._solved(place, x, y, w) for place in places]
        place = min(range(len(tried)), key=lambda k: tried[k][1])
        self.origin.copy_(places[place])
        self.coefficients.copy_(tried[place][0])
        parts = torch.arange(len(x), device=x.device).split(MOST_NUMBERS // len(self.factors))
        given = torch.cat(
            [self._terms(x[rows], self.factors.to(x.device)) @ self.coefficients.to(x).mT for rows in parts]
        )
        room = MARGIN * (given.amax(0) - given.amin(0))
        self.least.copy_(given.amin(0) - room)
        self.most.copy_(given.amax(0) + room)

    def _solved(self, origin: Tensor, x: Tensor, y: Tensor, w: Tensor) -> tuple[Float[Tensor, "S K"], float]:
        """The coefficients of powers around `origin`, and what they cost by the extended criterion."""
        self.origin.copy_(origin)
        factors, num, d = self.factors.to(x.device), len(self.factors), y.shape[1]
        gram, moment, total = x.new_zeros(d, num, num), x.new_zeros(d, num), x.new_zeros(d)
        for rows in torch.arange(len(x), device=x.device).split(MOST_NUMBERS // (d * num)):
            terms = self._terms(x[rows], factors)
            weighted = w[rows].T[:, :, None] * terms
            gram += weighted.mT @ terms
            moment += (weighted.mT @ y[rows].T[:, :, None])[..., 0]
            total += (w[rows] * y[rows] ** 2).sum(0)
        price = math.log(max(len(x), 2)) + 2 * self.choices.to(x).log()
        found, costs = zip(*(self._cheapest(g, m, float(t), len(x), price) for g, m, t in zip(gram, moment, total)))
        return torch.stack(found), sum(costs)

    def _cheapest(
        self,
        gram: Float[Tensor, "K K"],
        moment: Float[Tensor, " K"],
        total: float,
        num: int,
        price: Float[Tensor, " K"],
    ) -> tuple[Float[Tensor, " K"], float]:
        """Coefficients after the elimination from terms of each highest degree that costs least, and the cost.

        Where inputs move together, products of many stand for one of few; from all at once these may be dropped first.
        """
        best = moment.new_zeros(len(moment)), math.inf
        for highest in range(1, int(self.degrees.max()) + 1):
            own = (self.degrees <= highest).nonzero()[:, 0].to(gram.device)
            found, cost = _eliminated(gram[own][:, own], moment[own], total, num, price[own])
            if cost < best[1]:
                best = torch.zeros_like(moment).index_copy(0, own, found), cost
        return best


def _inputs(state: Float[Tensor, "B H *S"], condition: Condition) -> Float[Tensor, "B I"]:
    x = state.flatten(1)
    return x if condition is None else torch.cat([x, condition], dim=1)


def _factors(num: int) -> Int[Tensor, "K D"]:
    """Of each monomial of `num` inputs, the places of its factors among 1, the inputs, their squares, their cubes."""
    degree = max((k for k in range(1, DEGREE + 1) if math.comb(num + k, k) <= MOST_TERMS), default=1)
    rows = []
    for total in range(degree + 1):
        for inputs in combinations_with_replacement(range(num), total):
            powers = {i: inputs.count(i) for i in inputs}
            places = [1 + (power - 1) * num + i for i, power in powers.items()]
            rows.append(places + [0] * (degree - len(places)))
    return torch.tensor(rows)


def _eliminated(
    gram: Float[Tensor, "K K"], moment: Float[Tensor, " K"], total: float, num_rows: int, price: Float[Tensor, " K"]
) -> tuple[Float[Tensor, " K"], float]:
    """Coefficients of a regression after backward elimination, from its normal equations and the price of each, and its cost."""
    size = torch.diagonal(gram).sqrt().clamp(min=1e-30)
    unit = gram / size[:, None] / size
    inverse = torch.linalg.inv(unit + RIDGE * torch.eye(len(unit), dtype=unit.dtype, device=unit.device))
    own = moment / size
    found, kept = inverse @ own, torch.ones_like(own, dtype=torch.bool)
    free = max(num_rows - len(own), 1)
    exact = EXACT * max(total, 1e-30)
    noise = max(total - float(found @ own), exact) / free
    while bool(kept.any()):
        worth = found.square() / torch.diagonal(inverse).clamp(min=1e-300) / noise - price
        place = int(worth.where(kept, torch.inf).argmin())
        if float(worth[place]) > 0:
            break
        pivot = inverse[:, place].clone()
        found = found - pivot * found[place] / pivot[place]
        inverse = inverse - pivot[:, None] * pivot / pivot[place]
        kept[place] = False
        found = found.where(kept, 0.0)
    left = max(total - float(found @ own), exact)
    return found / size, num_rows * math.log(left) + float(price[kept].sum())
