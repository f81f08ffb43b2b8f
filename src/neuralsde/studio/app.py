"""The studio: a web page on this machine on which people draw, let a model learn, and watch its paths."""

from __future__ import annotations

import threading
import webbrowser
from typing import Annotated

from neuralsde.core.doors import Range, door
from neuralsde.core.extras import need
from neuralsde.studio.limits import Limits

Port = Annotated[int, Range("from 0 to 65,535", lambda v: 0 <= v <= 65_535)]


@door
def serve(
    *,
    host: str = "127.0.0.1",
    port: Port = 8765,
    token: str | None = None,
    open_browser: bool = False,
    limits: Limits | None = None,
) -> None:
    """Run the studio until it is stopped.

    Args:
        host: the address to listen on; one that other machines can reach needs a token.
        port: of the address; 0 takes a free one.
        token: what a visitor's address must hold; made up and printed where one is needed and none is given.
        open_browser: open the page.
        limits: of what visitors may ask.
    """
    need("The studio", "starlette", "uvicorn", "websockets")
    from neuralsde.studio.server import Studio

    studio = Studio(host=host, port=port, token=token, limits=limits)
    try:
        print(f"The studio is at {studio.address}\nStop it with Ctrl-C.", flush=True)
        if open_browser:
            threading.Timer(1.0, webbrowser.open, (studio.address,)).start()
        studio.run()
    finally:
        studio.close()
