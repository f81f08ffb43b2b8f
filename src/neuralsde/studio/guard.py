"""Who may speak to the studio: this machine alone, or whoever has the token; and no page but its own.

Three checks stand before every request and every socket. The *host* that a browser names must be this machine's, so that a
foreign name that points here is refused. The *origin* of a request must be the studio itself, so that no other page can use it
through a visitor's browser. Where the studio listens to other machines, or a token was given, the *token* must come once in the
address; a cookie holds it from then on.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
POLICY = (
    "default-src 'self'; connect-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; style-src 'self'; "
    "script-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
REFUSED = 4403  # code of a socket that is closed by the guard


class Guard:
    """The checks, before the app."""

    def __init__(self, app: ASGIApp, *, host: str, port: int, token: str | None) -> None:
        self.app, self.token = app, token
        self.local = host in LOOPBACK
        self.hosts = {f"{f'[{name}]' if ':' in name else name}:{port}" for name in LOOPBACK}
        self.cookie = f"nsde-studio-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it in a sentence."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        wrong = self._wrong(scope["type"], headers)
        if not wrong and self.token is not None and not self._has_cookie(headers):
            if self._has_token(scope):
                await self._remember(scope, receive, send)
                return
            wrong = "This studio needs its token. Open the address that `nsde studio` printed."
        if wrong:
            await _refuse(wrong, scope, receive, send)
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, protected)

    def _wrong(self, kind: str, headers: Headers) -> str:
        """What is wrong with host or origin; empty if nothing is."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if len(headers.getlist("host")) != 1 or (self.local and host.lower() not in self.hosts):
            return "The studio answers to this machine's own name only, such as localhost."
        own = origin is not None and origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())
        site = headers.get("sec-fetch-site", "same-origin")
        foreign = (
            (origin is not None and not own) or (kind == "websocket" and not own) or site not in ("same-origin", "none")
        )
        return "Another page may not use the studio." if foreign else ""

    def _has_cookie(self, headers: Headers) -> bool:
        try:
            held = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return held is not None and self._same(held.value)

    def _has_token(self, scope: Scope) -> bool:
        query = parse_qs(scope.get("query_string", b"").decode("latin-1")[:1024])
        plain = scope["type"] == "http" and scope["path"] == "/"
        return plain and self._same(query.get("token", [""])[0])

    def _same(self, text: str) -> bool:
        assert self.token is not None
        return hmac.compare_digest(text.encode(), self.token.encode())

    async def _remember(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = RedirectResponse("/", status_code=303, headers=HEADERS)
        assert self.token is not None
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
        await response(scope, receive, send)


async def _refuse(why: str, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await PlainTextResponse(why, status_code=403, headers=HEADERS)(scope, receive, send)
        return
    message: dict[str, Any] = {"type": "websocket.close", "code": REFUSED, "reason": why[:120]}
    await send(message)  # before it is accepted: the browser gets 403
