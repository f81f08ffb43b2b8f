"""The server of the studio: its page, its socket, its files.

The page is plain HTML, CSS and JavaScript in the folder `page`, and comes from nowhere else. It speaks to the server over one
socket: a request is `{"id": 7, "tab": "draw", "do": "sample", "with": {…}}`, its answer `{"id": 7, …}` or `{"id": 7, "error":
"…"}`, and what happens meanwhile comes as `{"tab": "draw", "event": "progress", …}`. Messages with arrays are binary
(`frames`). Files go through `POST /upload/TAB` and `GET /download/TAB`, with the visitor's name in a header.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from neuralsde.core.records import RunError, check
from neuralsde.studio.frames import decode
from neuralsde.studio.guard import LOOPBACK, Guard
from neuralsde.studio.jobs import Jobs
from neuralsde.studio.limits import Limits
from neuralsde.studio.tabs import tab_class
from neuralsde.studio.visits import Line, Visit, Visits, tab_names

log = logging.getLogger("neuralsde.studio")
PAGE = Path(__file__).parent / "page"
VISITOR = "x-studio-visitor"
HELLO_SECONDS = 10.0
SLOW_PAGE_SECONDS = 0.05
FULL = 4429  # code of a socket for which there is no room
SHORTEST_TOKEN = 16


class Studio:
    """A studio on one address: `run` it here, or `start` it in a thread and `close` it."""

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 8765, token: str | None = None, limits: Limits | None = None
    ) -> None:
        check(
            token is None or (len(token) >= SHORTEST_TOKEN and token.isascii() and token.isprintable()),
            f"`token` must have at least {SHORTEST_TOKEN} plain characters. Leave it out, and one is made.",
        )
        self.limits = limits or Limits()
        self.token = token if token is not None or host in LOOPBACK else secrets.token_urlsafe(24)
        self._socket = _listen(host, port)
        self.port = int(self._socket.getsockname()[1])
        shown = "127.0.0.1" if host in LOOPBACK else socket.gethostname() if host in ("0.0.0.0", "::") else host
        shown = f"[{shown}]" if ":" in shown else shown
        self.address = f"http://{shown}:{self.port}/" + (f"?token={self.token}" if self.token else "")
        self.folder = Path(tempfile.mkdtemp(prefix="nsde-studio-"))
        self.jobs = Jobs(self.limits)
        self.visits = Visits(self.folder, self.jobs, self.limits)
        self._sockets = self._uploads = 0
        config = uvicorn.Config(
            Guard(self._routes(), host=host, port=self.port, token=self.token),
            log_level="critical",
            ws="websockets-sansio",
            ws_max_size=self.limits.message_bytes,
            server_header=False,
            limit_concurrency=4 * self.limits.sockets,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=5,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until it is stopped."""
        self._server.run(sockets=[self._socket])

    def start(self) -> Studio:
        """Serve in a thread."""
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop, end every worker, and remove the studio's folder."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=10)
        self.visits.close()
        self.jobs.close()
        self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Studio:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    # What it answers

    def _routes(self) -> Starlette:
        routes = [
            Route("/upload/{tab}", self._upload, methods=["POST"]),
            Route("/download/{tab}", self._download, methods=["GET"]),
            WebSocketRoute("/socket", self._talk),
            Mount("/", StaticFiles(directory=PAGE, html=True)),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async def tidy() -> None:
            while True:
                await asyncio.sleep(1.0)
                await run_in_threadpool(self.visits.tidy)

        self.jobs.prepare()
        threading.Thread(target=_import_tabs, daemon=True).start()
        task = asyncio.create_task(tidy())
        self._calls = asyncio.Semaphore(self.limits.calls)
        yield
        task.cancel()

    async def _compute(self, call: Callable[..., Any], *given: Any) -> tuple[Any, str]:
        """What a call returns, or what it refuses, from a thread."""
        async with self._calls:
            try:
                return await run_in_threadpool(call, *given), ""
            except (ValueError, RunError) as error:
                return None, str(error)
            except MemoryError:
                return None, "There is not enough memory for this. Ask for less."
            except Exception:
                log.exception("The studio could not answer a request.")
                return None, "The studio could not do this. What went wrong is in the window where it was started."

    async def _talk(self, page: WebSocket) -> None:
        """One page, from its first word to its last."""
        if self._sockets >= self.limits.sockets:
            await page.close(FULL, "The studio is full. Close another page of it.")
            return
        self._sockets += 1
        try:
            await page.accept()
            with contextlib.suppress(WebSocketDisconnect, asyncio.TimeoutError, RuntimeError):
                await self._greet(page)
        finally:
            self._sockets -= 1

    async def _greet(self, page: WebSocket) -> None:
        hello = await asyncio.wait_for(page.receive_text(), HELLO_SECONDS)
        try:
            visit = self.visits.enter(decode(hello).get("visitor"))
            check(
                len(visit.lines) < self.limits.sockets_of_visitor, "This visit is open in too many windows. Close one."
            )
        except ValueError as error:
            await page.close(FULL, str(error)[:120])
            return
        line = Line(asyncio.get_running_loop(), self.limits.backlog)
        line.put({"hello": {"visitor": visit.name, "tabs": tab_names()}})
        visit.lines.append(line)

        async def speak() -> None:
            while True:
                frame = await line.get()
                await (page.send_text(frame) if isinstance(frame, str) else page.send_bytes(frame))

        speaking = asyncio.create_task(speak())
        try:
            await self._listen_to(page, visit, line, speaking)
        finally:
            visit.lines.remove(line)
            self.visits.find(visit.name)  # was here until now
            speaking.cancel()

    async def _listen_to(self, page: WebSocket, visit: Visit, line: Line, speaking: asyncio.Task[None]) -> None:
        under_way: set[asyncio.Task[None]] = set()
        while True:
            while line.full and not speaking.done():  # nothing more is heard from a page that does not read its answers
                await asyncio.sleep(SLOW_PAGE_SECONDS)
            message = await page.receive()
            if message["type"] == "websocket.disconnect":
                return
            number: Any = None
            try:
                request = decode(message.get("text") or "")
                number = request.get("id") if type(request.get("id")) is int else None
                check(number is not None and 0 <= number < 2**53, "A request needs an `id`, a whole number.")
                check(len(under_way) < self.limits.requests, "Too many requests at once. Wait for an answer first.")
            except ValueError as error:
                line.put({"id": number, "error": str(error)})
                continue
            task = asyncio.create_task(self._answer(visit, line, number, request))
            under_way.add(task)
            task.add_done_callback(under_way.discard)

    async def _answer(self, visit: Visit, line: Line, number: int, request: dict[str, Any]) -> None:
        def call() -> dict[str, Any]:
            tab, name, given = request.get("tab"), request.get("do"), request.get("with", {})
            if not (isinstance(tab, str) and isinstance(name, str) and isinstance(given, dict)):
                raise ValueError("A request needs `tab` and `do`, which are text, and `with`, an object.")
            if name == "state":
                return visit.tab(tab).state()
            return visit.tab(tab).call(name, given) or {}

        answer, error = await self._compute(call)
        line.put({"id": number, "error": error} if error else {"id": number, **answer})

    async def _upload(self, request: Request) -> Response:
        visit = self.visits.find(request.headers.get(VISITOR))
        if visit is None:
            return JSONResponse({"error": "Load the page again: the studio does not know this visit."}, 403)
        if self._uploads >= self.limits.uploads:
            return JSONResponse({"error": "Too many files at once. Wait a moment, then give the file again."}, 429)
        place = visit.folder / f"upload-{secrets.token_hex(8)}"
        most, size = self.limits.upload_bytes, 0
        too_large = JSONResponse({"error": f"A file may have {most // 2**20} MB. Give a smaller one."}, 413)
        self._uploads += 1
        try:
            with place.open("wb") as file:
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        return too_large
                    file.write(part)
            name = Path(request.query_params.get("name", "")).name[:100]
            made, error = await self._compute(lambda: visit.tab(request.path_params["tab"]).upload(name, place))
            return JSONResponse({"error": error} if error else made, 400 if error else 200)
        except ClientDisconnect:
            return Response(status_code=400)
        finally:
            self._uploads -= 1
            place.unlink(missing_ok=True)

    async def _download(self, request: Request) -> Response:
        visit = self.visits.find(request.headers.get(VISITOR))
        if visit is None:
            return JSONResponse({"error": "Load the page again: the studio does not know this visit."}, 403)
        what = request.query_params.get("what", "")[:100]
        made, error = await self._compute(lambda: visit.tab(request.path_params["tab"]).download(what))
        if error:
            return JSONResponse({"error": error}, 400)
        name, data = made
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(data, media_type="application/octet-stream", headers=headers)


def _import_tabs() -> None:
    """While the first page loads: torch takes seconds."""
    import torch

    torch.set_num_threads(1)  # visitors share the cores
    for name in tab_names():
        tab_class(name)


def _listen(host: str, port: int) -> socket.socket:
    """A socket on this address, before anything else begins."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, proto)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        raise ValueError(
            f"The studio cannot listen on {host}, port {port}: {error.strerror}. Give another `port`."
        ) from None
    return listening
