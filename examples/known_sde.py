"""Learn an SDE whose truth is known, four ways, and draw what came out: `python examples/known_sde.py [figure.png]`.

Cox-Ingersoll-Ross, dx = (1 - x) dt + 0.5 sqrt(x) dw: from start states, from interpolated ones with the balance that belongs
to them, by the paper's equations, which find the noise and not the drift, and by its authors' code, which finds neither.
"""

import sys

import torch

import neuralsde as nsde
from neuralsde.experiments.config import KnownSDEConfig
from neuralsde.experiments.recipes import known_sdes as recipes
from neuralsde.experiments.tasks import known_sdes
from neuralsde.models.build import build
from neuralsde.plots import paths as plots


def main(figure="known_sde.png", system="cir", num_transitions=100_000, steps=800):
    task = KnownSDEConfig(system=system, num_transitions=num_transitions)
    truth, data = known_sdes.system(task), known_sdes.KnownSDETask(task).data()
    x = torch.linspace(*torch.quantile(data.states[:50_000, 0], torch.tensor([0.005, 0.995])).tolist(), 80)[:, None]
    curves = {"truth": (truth.drift(x.double()), truth.diffusion(x.double()))}
    for name, run in (
        ("start", recipes.start),
        ("interpolated", recipes.interpolated),
        ("paper's equation", recipes.paper),
        ("authors' code", recipes.authors_code),
    ):
        model = build(run(system).model, data.transitions())
        nsde.fit(model, data, steps=steps, batch_size=1024, lr=4e-3)
        curves[name] = model.fields(x)
        print(name, known_sdes.field_errors(model, task))
    rows = {name: (f[:, 0].numpy(), g[:, 0].numpy()) for name, (f, g) in curves.items()}
    plots.field_curves(x[:, 0].numpy(), rows).savefig(figure)
    print(f"Wrote {figure}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
