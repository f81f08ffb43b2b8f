"""The command `nsde studio`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Studio:
    """Open a page in the browser: draw paths, let a model learn them, and watch."""

    host: str = "127.0.0.1"
    """Address to listen on; one that other machines can reach needs a token."""
    port: int = 8765
    """Port of the address; 0 takes a free one."""
    token: str | None = None
    """What a visitor's address must hold (made and printed where one is needed)."""
    browser: bool = True
    """Open the page in the browser."""

    def run(self) -> None:
        from neuralsde.studio.app import serve

        serve(host=self.host, port=self.port, token=self.token, open_browser=self.browser)
