"""A polynomial drift, written down in the units of the data."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from neuralsde.core.records import check
from neuralsde.models.scale import Scale
from neuralsde.nets.polynomial import PolynomialNet


def equations(flow: PolynomialNet, scale: Scale, rate: Tensor, names: Sequence[str]) -> list[str]:
    """One line per feature, such as "dx = (0.98 x - 0.97 x^3) dt"."""
    check(not scale.turns, f"With normalise={scale.normalise!r} the drift is one of turned states, and has no formula.")
    kinds = scale.transforms * (len(names) if len(scale.transforms) == 1 else 1)
    own = [name if kind == "none" else f"{kind}({name})" for name, kind in zip(names, kinds)]
    slots = flow.form.history
    inputs = [name if k == slots - 1 else f"{name}[{k - slots + 1}]" for k in range(slots) for name in own]
    inputs += [f"u{k}" for k in range(flow.form.condition_size)]  # contexts and time, in units of their spread
    num = slots * len(own)
    std, mean = (v.double().flatten().tolist() for v in (scale.std, scale.mean))
    units = [std[k % len(own)] if k < num else 1.0 for k in range(len(inputs))]
    middle = [mean[k % len(own)] if k < num and not flow.origin[k] else 0.0 for k in range(len(inputs))]
    speed = (rate.double().flatten() * scale.std.double().flatten() / scale.step).tolist()
    lines = []
    for place, name in enumerate(own):
        terms = []
        for factors, value in zip(flow.factors.tolist(), flow.coefficients[place].double().tolist()):
            if value == 0:
                continue
            powers = [((at - 1) % len(inputs), (at - 1) // len(inputs) + 1) for at in factors if at]
            size = value * speed[place] / math.prod(units[k] ** power for k, power in powers)
            terms.append((size, " ".join(_power(inputs[k], middle[k], power) for k, power in powers)))
        lines.append(f"d{name} = ({_sum(terms)}) dt")
    return lines


def _power(name: str, middle: float, power: int) -> str:
    base = name if middle == 0 else f"({name} {'-' if middle > 0 else '+'} {abs(middle):.3g})"
    return base if power == 1 else f"{base}^{power}"


def _sum(terms: list[tuple[float, str]]) -> str:
    if not terms:
        return "0"
    text = ""
    for k, (size, what) in enumerate(terms):
        sign = ("-" if size < 0 else "") if k == 0 else (" - " if size < 0 else " + ")
        text += f"{sign}{abs(size):.3g}" + (f" {what}" if what else "")
    return text
