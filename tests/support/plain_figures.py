"""Figures are drawn in tests too, but coarsely, with axes where they first stand and without ticks: these take the time."""

from importlib.util import find_spec

KEPT = {}


def install():
    """From here on, in this process."""
    if find_spec("matplotlib") is None:
        return
    import matplotlib

    matplotlib.rcParams["savefig.dpi"] = 30
    for kind, name, plain in _plain():
        KEPT[kind, name] = getattr(kind, name)
        setattr(kind, name, plain)


def _plain():
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    return (
        (Figure, "get_layout_engine", lambda figure: None),  # which also spares a first drawing that measures
        (Axes, "_update_title_position", lambda axes, renderer: None),
        (Axis, "draw", lambda axis, renderer: None),
    )


def restore(monkeypatch):
    """Figures as users get them, during one test."""
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "savefig.dpi", "figure")
    for (kind, name), whole in KEPT.items():
        monkeypatch.setattr(kind, name, whole)
