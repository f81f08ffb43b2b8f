"""Machines of any speed, for what a search plans."""

from neuralsde.selection import fit


def on_a_machine(monkeypatch, *, step, draw):
    """A machine on which a training step and a draw of the smallest size take so long."""
    monkeypatch.setattr(fit, "measure_step", lambda *_, **__: step)
    monkeypatch.setattr(
        fit,
        "measure_draws",
        lambda tried, _, sizes: ({c.name: draw for c, _ in tried}, [len(sizes) - k for k in range(len(sizes))]),
    )
