"""A pendulum with friction and kicks, seen at irregular times: learn it, forecast it, score it."""

import numpy as np

import neuralsde as nsde


def simulate(rng, *, length=400, step=0.01):
    """Angle and velocity at random times, by fine Euler-Maruyama steps."""
    x, out, times = np.array([rng.uniform(-2, 2), 0.0]), [], []
    for k in range(length * 10):
        if rng.random() < 0.2:
            out.append(x.copy())
            times.append(k * step)
        drift = np.array([x[1], -np.sin(x[0]) - 0.3 * x[1]])
        x = x + drift * step + np.array([0.02, 0.3]) * np.sqrt(step) * rng.normal(size=2)
    return np.array(out), np.array(times)


def main(steps=2_000):
    rng = np.random.default_rng(0)
    states, times = zip(*(simulate(rng) for _ in range(40)))
    data = nsde.Trajectories.from_arrays(states, times)
    train, held_out = data.split(0.2, seed=0)
    model = nsde.NeuralSDE.for_data(train)
    nsde.fit(model, train, steps=steps)
    drift, diffusion = model.fields(np.array([[1.0, 0.0]], dtype=np.float32))
    print("drift at (1, 0):", drift.numpy(), "(truth: 0, -0.84)   diffusion:", diffusion.numpy(), "(truth: 0.02, 0.3)")
    print("log p per observation, held out:", float((model.log_prob(held_out) / held_out.lengths).mean()))
    paths = model.sample([1.0, 0.0], np.linspace(0, 10, 201), num_paths=200)
    print("angle after 10 s: mean", float(paths[0, :, -1, 0].mean()), "std", float(paths[0, :, -1, 0].std()))


if __name__ == "__main__":
    main()
