"""What the sets are also forecast by: a vector autoregression, the nearest training paths, a small recurrent net.

Each takes training paths, and gives samples (B, N, T, d) at the origins and the numbers of observations ahead that it is asked for.
Gaps are taken as even, and missing entries as filled.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

Paths = list[np.ndarray]


def _known(path: np.ndarray, row: int, num: int) -> np.ndarray:
    """The last `num` observations up to a row; before the first, that one."""
    return path[np.maximum(np.arange(row - num + 1, row + 1), 0)]


def var(
    train: Paths, test: Paths, origins: list[tuple[int, int]], ahead: np.ndarray, num: int, seed: int
) -> np.ndarray:
    """VAR of order 1 to 4 by BIC, with Gaussian noise of any covariance."""
    rng = np.random.default_rng(seed)
    d = train[0].shape[1]
    mean, std = np.concatenate(train).mean(0), np.concatenate(train).std(0)
    std = np.where(std > 0, std, 1.0)
    best = None
    for order in range(1, min(4, max(map(len, train)) - 1) + 1):
        rows = [(_known(p, k, order)[::-1], p[k + 1]) for p in train for k in range(order - 1, len(p) - 1)]
        x = np.stack([((a - mean) / std).ravel() for a, _ in rows])
        y = np.stack([(b - mean) / std for _, b in rows])
        x1 = np.concatenate([x, np.ones((len(x), 1))], 1)
        weights = np.linalg.solve(x1.T @ x1 + 1e-6 * len(x) * np.eye(x1.shape[1]), x1.T @ y)
        left = y - x1 @ weights
        cov = left.T @ left / len(left) + 1e-10 * np.eye(d)
        bic = len(x) * np.linalg.slogdet(cov)[1] + weights.size * np.log(len(x))
        if best is None or bic < best[0]:
            best = bic, order, weights, np.linalg.cholesky(cov)
    assert best is not None
    _, order, weights, root = best
    start = np.stack([_known(test[p], row, order)[::-1] for p, row in origins])
    state = np.repeat(((start - mean) / std).reshape(len(origins), -1), num, 0)
    out, most = np.empty((len(state), int(ahead.max()), d)), int(ahead.max())
    for k in range(most):
        new = (
            np.concatenate([state, np.ones((len(state), 1))], 1) @ weights
            + rng.standard_normal((len(state), d)) @ root.T
        )
        state = np.concatenate([new, state[:, : d * (order - 1)]], 1)
        out[:, k] = np.clip(new, -1e6, 1e6)
    return _at(out * std + mean, ahead, num)


def nearest(
    train: Paths, test: Paths, origins: list[tuple[int, int]], ahead: np.ndarray, num: int, seed: int
) -> np.ndarray:
    """The increments that followed the most similar training states (position and last step), the nearest ones most."""
    d = train[0].shape[1]
    std = np.concatenate(train).std(0)
    std = np.where(std > 0, std, 1.0)
    step = np.concatenate([np.diff(p, axis=0) for p in train]).std(0)
    step = np.where(step > 0, step, 1.0)
    rows = [(i, k) for i, p in enumerate(train) for k in range(len(p) - 1)]

    def feature(path: np.ndarray, k: int) -> np.ndarray:
        before = path[k] - path[max(k - 1, 0)]
        return np.concatenate([path[k] / std, 0.3 * before / step])

    known = np.stack([feature(train[i], k) for i, k in rows])
    out = np.empty((len(origins), num, ahead.shape[1], d))
    for b, (p, row) in enumerate(origins):
        far = np.linalg.norm(known - feature(test[p], row), axis=1)
        chosen, seen = [], set()
        for place in np.argsort(far):
            path = rows[place][0]
            if (path in seen and len(train) > 1) or (
                len(train) == 1 and any(abs(rows[place][1] - rows[c][1]) < 20 for c in chosen)
            ):
                continue
            seen.add(path)
            chosen.append(place)
            if len(chosen) == min(10, max(1, len(train) // 3) if len(train) > 1 else 10):
                break
        for n in range(num):
            i, k = rows[chosen[n % len(chosen)]]
            at = np.minimum(k + ahead[b], len(train[i]) - 1)
            out[b, n] = test[p][row] + train[i][at] - train[i][k]
    return out


class _Net(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.cell, self.out = nn.GRU(d, 32, batch_first=True), nn.Linear(32, 2 * d)


def recurrent(
    train: Paths, test: Paths, origins: list[tuple[int, int]], ahead: np.ndarray, num: int, seed: int
) -> np.ndarray:
    """A GRU of 32 features that gives the mean and the spread of the next increment; 1,000 steps of 32 windows of 50."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    d = train[0].shape[1]
    mean, std = np.concatenate(train).mean(0), np.concatenate(train).std(0)
    std = np.where(std > 0, std, 1.0)
    scaled = [torch.tensor((p - mean) / std, dtype=torch.float32) for p in train]
    step = torch.cat([p.diff(dim=0) for p in scaled]).std(0).clamp(min=1e-6)
    net = _Net(d)
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    width = min(50, min(len(p) for p in scaled) - 1)
    for _ in range(1_000):
        picks = [scaled[rng.integers(len(scaled))] for _ in range(32)]
        starts = [int(rng.integers(len(p) - width)) for p in picks]
        x = torch.stack([p[s : s + width + 1] for p, s in zip(picks, starts)])
        mid, log_size = net.out(net.cell(x[:, :-1])[0]).chunk(2, -1)
        z = (x.diff(dim=1) / step - mid) * torch.exp(-log_size.clamp(-6, 6))
        loss = (0.5 * z**2 + log_size.clamp(-6, 6)).mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
    out = np.empty((len(origins), num, ahead.shape[1], d))
    with torch.no_grad():
        for b, (p, row) in enumerate(origins):
            past = torch.tensor((test[p][max(0, row - 49) : row + 1] - mean) / std, dtype=torch.float32)
            y, h = net.cell(past[None].expand(num, -1, -1).contiguous())
            x, path = past[-1].expand(num, d), []
            for _ in range(int(ahead[b].max())):
                mid, log_size = net.out(y[:, -1]).chunk(2, -1)
                x = (x + step * (mid + torch.exp(log_size.clamp(-6, 6)) * torch.randn(num, d))).clamp(-1e3, 1e3)
                path.append(x)
                y, h = net.cell(x[:, None], h)
            out[b] = torch.stack(path, 1)[:, ahead[b] - 1].double().numpy() * std + mean
    return out


def _at(paths: np.ndarray, ahead: np.ndarray, num: int) -> np.ndarray:
    """Of paths (B N, most, d) those at the numbers of observations ahead (B, T)."""
    made = paths.reshape(len(ahead), num, paths.shape[1], -1)
    return np.stack([own[:, places - 1] for own, places in zip(made, ahead)])


RIVALS = {"VAR": var, "nearest neighbour": nearest, "recurrent net": recurrent}
