"""Figures are drawn in tests too, but coarsely and with axes where they first stand: to fit labels takes half of the time."""

from importlib.util import find_spec

KEPT = {}


def install():
    """From here on, in this process."""
    if find_spec("matplotlib") is None:
        return
    import matplotlib
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    matplotlib.rcParams["savefig.dpi"] = 30
    KEPT["execute"] = ConstrainedLayoutEngine.execute
    ConstrainedLayoutEngine.execute = lambda self, figure: None


def restore(monkeypatch):
    """Figures as users get them, during one test."""
    import matplotlib
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    monkeypatch.setitem(matplotlib.rcParams, "savefig.dpi", "figure")
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", KEPT["execute"])
