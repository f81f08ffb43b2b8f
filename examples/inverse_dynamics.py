"""Demonstrations without actions: a Neural SDE plans where to be next, an inverse-dynamics model finds the actions.

A planar mass goes round an obstacle, on either side, to a goal. The demonstrations hold positions and velocities, no
actions. A little labelled play (random actions) teaches a = h(x_k, x_{k+1}); nobody tells it the gain and rotation of
the actuators or the drag. In the closed loop the Neural SDE plans some states ahead, h turns the first of them into
actions, and a new plan is made from where the mass really is. Plans can be checked before they are followed: in half of
the test a wall, unknown to the demonstrations, blocks one side.

python examples/inverse_dynamics.py --output results/inverse_dynamics.json --figure docs/assets/inverse_dynamics.png
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import neuralsde as nsde
from neuralsde.nets.config import MLPConfig
from neuralsde.sde.config import Deterministic
from neuralsde.training.run_folder import provenance, write_results

DT, NUM_STEPS = 0.1, 80
GAIN, ANGLE, DRAG = 2.5, math.radians(40.0), 0.6
ROTATION = np.array([[math.cos(ANGLE), -math.sin(ANGLE)], [math.sin(ANGLE), math.cos(ANGLE)]])
START, GOAL, TOLERANCE, RADIUS, WALL = np.array([-1.2, 0.0]), np.array([1.2, 0.0]), 0.12, 0.3, 0.1
HORIZON, REPLAN, NUM_PLANS = 20, 4, 32
OURS, CHECKED, EXACT, MEAN, CLONED = (
    "Neural SDE + inverse model",
    f"the same, {NUM_PLANS} plans checked",
    f"{NUM_PLANS} plans checked, exact inverse",
    "mean next state + inverse model",
    "behaviour cloning, with actions",
)


# The simulator: states (…, 4) are positions and velocities, actions (…, 2)


def simulate(x, action, rng):
    """One step of the mass."""
    p, v = x[:, :2], x[:, 2:]
    force = GAIN * np.clip(action, -1, 1) @ ROTATION.T - DRAG * np.linalg.norm(v, axis=1, keepdims=True) * v
    v = v + force * DT + 0.01 * rng.normal(size=v.shape)
    return np.concatenate([p + v * DT, v], axis=1)


def touches(x, blocked):
    """Where states meet the obstacle, or the wall on the blocked side (+1 above, -1 below, 0 no wall)."""
    wall = (np.abs(x[..., 0]) < WALL) & (x[..., 1] * blocked > 0)
    return wall | (np.linalg.norm(x[..., :2], axis=-1) < RADIUS)


def starts(rng, num):
    """At rest, near the usual place."""
    return np.concatenate([START + 0.08 * rng.normal(size=(num, 2)), np.zeros((num, 2))], axis=1)


def demonstrate(rng, num):
    """States (num, T + 1, 4) and actions of someone who knows the machine, picks a side and has a shaky hand."""
    x, side, shake = starts(rng, num), rng.choice([-1.0, 1.0], num), np.zeros((num, 2))
    states, actions = [x], []
    for _ in range(NUM_STEPS):
        p, v = x[:, :2], x[:, 2:]
        bow = side * 0.6 * np.exp(-((p[:, 0] / 0.5) ** 4))
        slope = -4 * p[:, 0] ** 3 / 0.5**4 * bow
        way = np.stack([np.ones(num), slope + 3 * (bow - p[:, 1])], axis=1)
        way *= 0.8 / np.linalg.norm(way, axis=1, keepdims=True)
        rest = GOAL - p
        wanted = np.where(np.linalg.norm(rest, axis=1, keepdims=True) < 0.3, 0.8 / 0.3 * rest, way)
        shake = 0.8 * shake + 0.4 * rng.normal(size=shake.shape)
        force = 5 * (wanted - v) + shake + DRAG * np.linalg.norm(v, axis=1, keepdims=True) * v
        actions.append(np.clip(force @ ROTATION / GAIN, -1, 1))
        x = simulate(x, actions[-1], rng)
        states.append(x)
    return np.stack(states, axis=1), np.stack(actions, axis=1)


def play(rng, num, length=20):
    """Random motion anywhere, with its actions: rows of x_k, a_k, x_{k+1}."""
    x = np.concatenate([rng.uniform(-1.5, 1.5, (num, 2)), rng.uniform(-1, 1, (num, 2))], axis=1)
    a, rows = np.zeros((num, 2)), []
    for _ in range(length):
        a = np.clip(0.7 * a + 0.5 * rng.normal(size=a.shape), -1, 1)
        after = simulate(x, a, rng)
        rows.append((x, a, after))
        x = after
    return [np.concatenate(part) for part in zip(*rows)]


# What is learned


class InverseModel(nn.Module):
    """a = h(x_k, x_{k+1}), from the velocities before, between and after."""

    def __init__(self, x, action, after, *, steps, rng):
        super().__init__()
        inputs, targets = self.features(x, after), torch.as_tensor(action, dtype=torch.float32)
        self.mean, self.std = inputs.mean(0), inputs.std(0)
        self.net = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
        optimiser = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(steps):
            rows = torch.randint(len(inputs), (256,), generator=rng)
            loss = (self(inputs[rows]) - targets[rows]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()

    @staticmethod
    def features(x, after):
        rows = np.concatenate([x[:, 2:], after[:, 2:], (after[:, :2] - x[:, :2]) / DT], axis=1)
        return torch.as_tensor(rows, dtype=torch.float32)

    def forward(self, features):
        return self.net((features - self.mean) / self.std)

    @torch.no_grad()
    def act(self, x, after):
        return self(self.features(x, after)).numpy()


class ExactInverse:
    """What the inverse model should learn: the reference of who knows the machine."""

    @staticmethod
    def act(x, after):
        v = x[:, 2:]
        force = (after[:, 2:] - v) / DT + DRAG * np.linalg.norm(v, axis=1, keepdims=True) * v
        return force @ ROTATION / GAIN


class Planner:
    """Next states from a sequence model, actions from the inverse model; a new plan every few steps."""

    def __init__(self, model, inverse, seed, num_plans=1):
        self.model, self.inverse, self.num_plans = model, inverse, num_plans
        self.rng, self.used = torch.Generator().manual_seed(seed), REPLAN

    def __call__(self, x, blocked):
        if self.used == REPLAN:
            plans = self.model.sample(x, DT * np.arange(HORIZON + 1), num_paths=self.num_plans, rng=self.rng).numpy()
            touched = touches(plans, blocked[:, None, None])
            free_for = np.where(touched.any(2), touched.argmax(2), HORIZON + 1)
            self.plan, self.used = plans[np.arange(len(x)), free_for.argmax(1)], 0
        self.used += 1
        return self.inverse.act(x, self.plan[:, self.used])


class Cloning:
    """A policy that had the actions: a Neural SDE over the action, with the state as its context."""

    def __init__(self, model, seed):
        self.model, self.rng, self.action = model, torch.Generator().manual_seed(seed), None

    def __call__(self, x, blocked):
        last = np.zeros((len(x), 2)) if self.action is None else self.action
        self.action = self.model.sample(last, [0.0, DT], context=x, rng=self.rng)[:, 0, -1].numpy()
        return self.action


def learn(seed, *, steps, num_demonstrations=200, num_play=200):
    """The demonstrated states, and functions that make each policy anew."""
    rng = np.random.default_rng(seed)
    states, actions = demonstrate(rng, num_demonstrations)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inverse = InverseModel(*play(rng, num_play), steps=steps, rng=torch.Generator().manual_seed(seed))

    def fitted(data, **settings):
        model = nsde.NeuralSDE.for_data(data, net=MLPConfig(width=64, depth=2), seed=seed, **settings)
        return nsde.fit(model, data, steps=steps, seed=seed, progress=False, cpu=True)

    data = nsde.Trajectories.from_arrays(states, dt=DT)  # no actions
    sde = fitted(data, lag=3 * DT)
    mean = fitted(data, lag=3 * DT, law=Deterministic(), denoiser=None)
    cloned = fitted(nsde.Trajectories.from_arrays(actions, dt=DT, context=states[:, 1:]))
    return states, {
        OURS: lambda: Planner(sde, inverse, seed),
        CHECKED: lambda: Planner(sde, inverse, seed, NUM_PLANS),
        EXACT: lambda: Planner(sde, ExactInverse, seed, NUM_PLANS),
        MEAN: lambda: Planner(mean, inverse, seed),
        CLONED: lambda: Cloning(cloned, seed),
    }


# The closed loop


def episodes(policy, rng, num, *, walls):
    """Paths (num, T + 1, 2), which of them reached the goal, and the blocked sides."""
    x, blocked = starts(rng, num), rng.choice([-1.0, 1.0], num) * walls
    paths, hit, reached = [x[:, :2]], np.zeros(num, bool), np.zeros(num, bool)
    for _ in range(NUM_STEPS):
        x = np.where((hit | reached)[:, None], x, simulate(x, policy(x, blocked), rng))
        paths.append(x[:, :2])
        hit |= touches(x, blocked)
        reached |= ~hit & (np.linalg.norm(x[:, :2] - GOAL, axis=1) < TOLERANCE)
    return np.stack(paths, axis=1), reached, blocked


def wilson(successes, num, z=1.96):
    """95 % interval of a share."""
    share, shrink = successes / num, 1 + z**2 / num
    half = z * math.sqrt(share * (1 - share) / num + z**2 / (4 * num**2))
    return [(share + z**2 / (2 * num) - half) / shrink, (share + z**2 / (2 * num) + half) / shrink]


def share(successes):
    """A share of episodes with its interval."""
    num, total = len(successes), int(np.sum(successes))
    return {"share": total / num, "ci95": wilson(total, num), "n": num}


def above(paths):
    """Which paths pass the obstacle above."""
    return paths[np.arange(len(paths)), np.abs(paths[..., 0]).argmin(1), 1] > 0


def drive(seed, *, steps, num_episodes):
    """Learn once, and drive every policy through the same episodes, without and with walls."""
    states, policies = learn(seed, steps=steps)
    rolls = {
        name: [episodes(make(), np.random.default_rng(10_000 + seed), num_episodes, walls=w) for w in (0, 1)]
        for name, make in policies.items()
    }
    return states, rolls


def summarise(drives):
    """Shares over all seeds, and by seed."""
    rows = {}
    for name in drives[0][1]:
        free, walled = zip(*(rolls[name] for _, rolls in drives))
        sides = [above(paths[reached]) for paths, reached, _ in free if reached.any()]
        rows[name] = {
            "success": share(np.concatenate([reached for _, reached, _ in free])),
            "above": share(np.concatenate(sides)) if sides else None,
            "success_with_a_wall": share(np.concatenate([reached for _, reached, _ in walled])),
            "success_by_seed": [float(reached.mean()) for _, reached, _ in free],
            "above_by_seed": [float(side.mean()) for side in sides],
            "success_with_a_wall_by_seed": [float(reached.mean()) for _, reached, _ in walled],
        }
    return rows


def draw(states, rolls, file):
    """The demonstrations, and each policy without walls (above) and with a wall on the upper side (below)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 5, figsize=(17, 4.7), sharex=True, sharey=True, layout="constrained")
    good = ~touches(states, 0).any(1) & (np.linalg.norm(states[:, -10:, :2] - GOAL, axis=2) < TOLERANCE).any(1)
    panels = {"demonstrations, states only": [(states[..., :2], good, np.zeros(len(states)))], **rolls}
    panels.pop(EXACT)
    for column, (name, rows) in zip(axes.T, panels.items()):
        column[0].set_title(name, fontsize=10)
        for axis, (paths, reached, blocked), walls in zip(column, rows, (False, True)):
            chosen = np.flatnonzero(blocked == walls)[:60]
            for k in chosen:
                axis.plot(*paths[k].T, lw=0.7, alpha=0.6, color="tab:blue" if reached[k] else "tab:red")
            if walls:
                axis.add_patch(plt.Rectangle((-WALL, 0), 2 * WALL, 1.0, color="0.35"))
            axis.text(0.02, 0.04, f"{100 * reached[chosen].mean():.0f} % reach the goal", transform=axis.transAxes)
            axis.add_patch(plt.Circle((0, 0), RADIUS, color="0.35"))
            axis.plot(*GOAL, marker="*", ms=10, color="tab:orange")
            axis.set(aspect="equal", ylim=(-1, 1), xlim=(-1.6, 1.6))
    axes[1, 0].axis("off")
    figure.savefig(file, dpi=110)


def main(steps=1_500, num_episodes=200, num_seeds=1, output=None, figure=None):
    """Learn, drive, print; write what is asked for."""
    began = time.perf_counter()
    drives = [drive(seed, steps=steps, num_episodes=num_episodes) for seed in range(num_seeds)]
    rows, seconds = summarise(drives), time.perf_counter() - began
    print(f"{'':35} {'success':>20} {'passed above':>13} {'success, a wall':>21}")
    for name, row in rows.items():
        shares = (row["success"], row["success_with_a_wall"])
        cells = [f"{r['share']:.3f} [{r['ci95'][0]:.3f}, {r['ci95'][1]:.3f}]" for r in shares]
        side = f"{row['above']['share']:.2f}" if row["above"] else "-"
        print(f"{name:35} {cells[0]:>20} {side:>13} {cells[1]:>21}")
    if output is not None:
        settings = {"steps": steps, "num_episodes": num_episodes, "seeds": list(range(num_seeds))}
        write_results(Path(output), {**provenance(), **settings, "seconds": round(seconds, 1), "rows": rows})
    if figure is not None:
        draw(drives[0][0], drives[0][1], figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--num-episodes", type=int, default=200)
    parser.add_argument("--num-seeds", type=int, default=1)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--figure", type=Path)
    main(**vars(parser.parse_args()))
