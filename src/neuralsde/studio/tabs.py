"""A tab of the studio: one class on the server, one module of the page, known by one name.

A tab is made for each visitor when the page first asks for it. Its *actions* are what the page may call: methods marked
`@action`, whose annotations are their door. An action runs in a thread; it returns a dictionary of numbers, text and, at the
top level, numpy arrays, or nothing. A `ValueError` goes to the page as a sentence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from neuralsde.core.doors import door
from neuralsde.core.records import check

if TYPE_CHECKING:
    from neuralsde.studio.jobs import Job

TABS = {
    "draw": "neuralsde.studio.draw:Draw",
    "pusht": "neuralsde.studio.pusht:PushTTab",
    "table": "neuralsde.studio.table:YourTable",
    "video": "neuralsde.studio.video:Video",
}
"""Every tab, in the order of the page: its class here, its module in page/tabs/NAME.js."""

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "studio_action"


def action(method: F) -> F:
    """A method that the page may call by its name."""
    checked = door(method)
    setattr(checked, _MARK, True)
    return checked


class Visitor(Protocol):
    """Whose tab it is, as the tab sees them."""

    folder: Path

    def send(self, message: Mapping[str, Any]) -> None:
        """A message for every open page."""

    def start(self, tab: Tab, work: str, *, seconds: float | None, live: bool, given: Mapping[str, Any]) -> Job:
        """A job of a tab."""

    def cancel(self, job: Job) -> None:
        """End a job."""


class Tab:
    """What one visitor has in one tab. Subclasses add actions."""

    def __init__(self, visit: Visitor, name: str) -> None:
        self.visit, self.name = visit, name
        self.job: Job | None = None
        """The last job that this tab started."""

    def state(self) -> dict[str, Any]:
        """What a page that was just opened or loaded again needs to show; it may hold arrays at its top level."""
        return {}

    def on_event(self, event: dict[str, Any]) -> None:
        """A job reported something; it goes to the page after this returns."""

    def on_done(self, result: dict[str, Any], folder: Path) -> dict[str, Any]:
        """A job came to its end; what this returns goes to the page. `folder` is removed after it."""
        return result

    def upload(self, name: str, file: Path) -> dict[str, Any]:
        """The page gave a file, which is removed after this returns."""
        raise ValueError("This tab takes no files.")

    def download(self, what: str) -> tuple[str, bytes]:
        """A name for a file, and what is in it."""
        raise ValueError("This tab gives no files.")

    def close(self) -> None:
        """The visitor is forgotten."""

    # What every tab shares

    def call(self, name: str, given: dict[str, Any]) -> dict[str, Any] | None:
        """Run the action `name` with what the page gave."""
        method = getattr(type(self), name, None) if name.isidentifier() and not name.startswith("_") else None
        check(getattr(method, _MARK, False) is True, f"The tab {self.name} has no action {name[:40]!r}.")
        assert method is not None
        takes = list(inspect.signature(method).parameters)[1:]
        wrong = [key for key in given if key not in takes]
        check(not wrong, f"{name} takes {', '.join(takes) or 'nothing'}. Got {', '.join(k[:20] for k in wrong[:4])}.")
        required = [p.name for p in inspect.signature(method).parameters.values() if p.default is p.empty][1:]
        missing = [key for key in required if key not in given]
        check(not missing, f"{name} needs {', '.join(missing)}.")
        return method(self, **given)

    @action
    def cancel(self) -> None:
        """Stop the job of this tab."""
        if self.job is not None:
            self.visit.cancel(self.job)

    def send(self, event: str, **values: Any) -> None:
        """An event for the pages of this visitor: `event(name, message)` of the tab's module gets it."""
        self.visit.send({"tab": self.name, "event": event, **values})

    def start(self, work: str, *, seconds: float | None = None, live: bool = False, **given: Any) -> Job:
        """Run `work` ("module:function" of the studio) in a worker process; the tab's job before it is cancelled."""
        if self.job is not None:
            self.visit.cancel(self.job)
        self.job = self.visit.start(self, work, seconds=seconds, live=live, given=given)
        return self.job


def tab_class(name: str) -> type[Tab]:
    """The class of a tab."""
    check(name in TABS, f"There is no tab {str(name)[:40]!r}. Tabs: {', '.join(TABS)}.")
    module, kind = TABS[name].split(":")
    return getattr(import_module(module), kind)
