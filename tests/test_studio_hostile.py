"""Five hundred hostile requests: the studio stays up, keeps its memory, and gives nobody what is another's."""

import http.client
import inspect
import io
import json
import logging
import os
import socket
import struct
import time
import urllib.parse
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("starlette")
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import connect

from neuralsde.studio.jobs import Jobs
from neuralsde.studio.limits import Limits
from neuralsde.studio.server import Studio
from neuralsde.studio.tabs import TABS, tab_class
from neuralsde.studio.visits import MOST_WAITING

LIMITS = Limits(sockets=12, sockets_of_visitor=3, visitors=60, upload_bytes=2**18, message_bytes=2**16, waiting=2)
MOST_GROWTH = 96 * 2**20  # bytes that the process, which holds server and client, may grow by
SECRET = 0.123456  # a number that only the victim's drawing has
VALUES = [
    None,
    True,
    -1,
    10**300,
    1e308,
    "",
    "../../etc/passwd",
    "\x00" * 40,
    "a" * 5_000,
    [],
    [[]],
    [[1, 2, 3]],
    [[True, False]] * 3,
    [["x", "y"]],
    [[1e300, -1e300]] * 2,
    [[0, 0]] * 5_000,
    {},
    {"__class__": "Studio"},
    {"a": {"b": {"c": []}}},
]
TEXTS = [
    "",
    "null",
    "[]",
    "7",
    '"x"',
    "{",
    '{"id": NaN, "tab": "draw", "do": "state"}',
    '{"id": 1, "tab": "draw", "do": "add", "with": {"points": [[NaN, 0], [Infinity, 1]]}}',
    '{"id": 1, "tab": "draw", "do": "learn", "with": {"steps": ' + "9" * 5_000 + "}}",
    "[" * 30_000,
    '{"a":' * 10_000,
    '{"id": 1}',
    '{"id": 1, "tab": 3, "do": {}}',
    '{"id": 1, "tab": "draw", "do": "learn", "with": []}',
    '{"id": -1, "tab": "draw", "do": "state"}',
    '{"id": 1e400, "tab": "draw", "do": "state"}',
    '{"id": true, "tab": "draw", "do": "state"}',
    '{"id": "1", "tab": "draw", "do": "state"}',
    '{"id": 1, "tab": "../draw", "do": "state"}',
    '{"id": 1, "tab": "__init__", "do": "__class__"}',
    "\U0001f600" * 4_000,
    '{"id": 1, "tab": "draw", "do": "\u202e", "with": {}}',
    b"\x00\x01\x02",
    b"\xff" * 4_000,
]
ACTIONS = [
    "__init__",
    "_take",
    "_replace",
    "lock",
    "visit",
    "call",
    "start",
    "send",
    "close",
    "upload",
    "download",
    "x y",
]
PATHS = [
    "/../server.py",
    "/..%2fserver.py",
    "/%2e%2e/%2e%2e/%2e%2e/pyproject.toml",
    "/....//....//etc/passwd",
    "//etc/passwd",
    "/tabs/..%5c..%5cserver.py",
    "/tabs/%2e%2e/%2e%2e/guard.py",
    "/%00",
    "/index.html%00.py",
    "/" + "a" * 20_000,
    "/" + "../" * 500 + "etc/passwd",
    "/download/draw?what=../../model",
    "/download/..%2f..%2fetc?what=model",
    "/upload/draw",
    "/socket",
    "/?token=" + "x" * 5_000,
    "/tabs/",
    "/%ff%fe",
    "/studio.js/../../server.py",
    "/C:/windows/win.ini",
]
FOREIGN = [
    {"Host": "evil.example"},
    {"Host": ""},
    {"Host": "127.0.0.1"},
    {"Host": "localhost:1@evil.example"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "file://"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://127.0.0.1:1"},
]
RAW = [
    b"\x00" * 200,
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"POST /upload/draw HTTP/1.1\r\nHost: {host}\r\nContent-Length: -5\r\n\r\n",
    b"POST /upload/draw HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\nZZZZ\r\n",
    b"GET / HTTP/1.1\r\nHost: {host}\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET /socket HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
]


@pytest.fixture
def studio(monkeypatch):
    """A studio that keeps no worker ready: a worker begins when it is asked for."""
    monkeypatch.setattr(Jobs, "prepare", lambda self: None)
    with Studio(port=0, limits=LIMITS) as studio:
        yield studio


class Attacker:
    """Counts what is sent, and keeps what comes back."""

    def __init__(self, studio):
        self.studio, self.count, self.heard = studio, 0, []
        self.host = f"127.0.0.1:{studio.port}"

    def socket(self, visitor=None):
        page = connect(f"ws://{self.host}/socket", origin=f"http://{self.host}", max_size=2**22, compression=None)
        page.send(json.dumps({"visitor": visitor}))
        self.heard.append(page.recv(timeout=20))
        return page

    def request(self, path="/", method="GET", body=None, **headers):
        self.count += 1
        line = http.client.HTTPConnection("127.0.0.1", self.studio.port, timeout=20)
        try:
            line.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                line.putheader(name, value)
            if body is not None:
                line.putheader("Content-Length", str(len(body)))
            line.endheaders()
            with suppress(OSError):  # what is too large is refused before all of it was sent
                line.send(body or b"")
            answer = line.getresponse()
            self.heard.append(text := answer.read())
            return answer.status, text
        except (http.client.HTTPException, OSError):
            return 0, b""
        finally:
            line.close()

    def raw(self, data):
        self.count += 1
        with socket.create_connection(("127.0.0.1", self.studio.port), timeout=20) as line, suppress(OSError):
            line.sendall(data.replace(b"{host}", self.host.encode()))
            line.shutdown(socket.SHUT_WR)
            self.heard.append(line.recv(4_096))

    def ask(self, page, messages):
        """Send all, then wait until the last was answered."""
        self.count += len(messages)
        for message in messages:
            page.send(message)
            self.heard.append(page.recv(timeout=60))


def test_five_hundred_hostile_requests(studio, caplog):
    caplog.set_level(logging.ERROR, logger="neuralsde.studio")
    attacker = Attacker(studio)
    victim = attacker.socket()
    name = json.loads(attacker.heard.pop())["hello"]["visitor"]
    stroke = [[SECRET, SECRET], [SECRET + 0.5, SECRET]]
    ask(victim, "add", points=stroke)
    guest = attacker.socket()  # what a first table imports is no growth
    own = json.loads(attacker.heard[-1])["hello"]["visitor"]
    assert attacker.request("/upload/table?name=x.csv", "POST", GOOD, **{"X-Studio-Visitor": own})[0] == 200
    guest.send(request("table", "example", {"name": "shops"}))
    until(attacker, guest, lambda m: m.get("id") == 1)
    guest.close()
    before = resident()

    for path in PATHS:
        for more in ({}, {"method": "POST", "body": b"x"}):
            status, text = attacker.request(path, **more)
            assert status not in (200, 500) or b"nsdeStudio" in text or b"<title>" in text, (path, status)
    for headers in FOREIGN:
        for path, method in (("/", "GET"), ("/download/draw?what=model", "GET"), ("/upload/draw?name=x", "POST")):
            own = {**headers, "X-Studio-Visitor": name}
            assert attacker.request(path, method, b"x" if method == "POST" else None, **own)[0] in (400, 403), headers
    for data in RAW * 3:
        attacker.raw(data)
    for guess in ("", "x" * 32, "../", name[:-1], name + "x", name.swapcase(), "%s", "'; --"):
        for path, method in (("/download/draw?what=model", "GET"), ("/upload/draw?name=x", "POST")):
            status, _ = attacker.request(path, method, **{"X-Studio-Visitor": guess})
            assert status == 403, guess
    files(attacker)
    tables(attacker)
    films(attacker)
    match(attacker)
    words(attacker)
    crowd(attacker)
    deaf(attacker)

    assert attacker.count >= 500
    grown = resident() - before
    assert grown < MOST_GROWTH, f"{grown / 2**20:.0f} MB"
    print(f"{attacker.count} requests, {grown / 2**20:.0f} MB more")
    assert not caplog.records, caplog.records[0].getMessage()  # nothing that nobody thought of
    told = b"".join(h if isinstance(h, bytes) else h.encode() for h in attacker.heard)
    assert name.encode() not in told and struct.pack("<f", SECRET) not in told and str(SECRET).encode() not in told
    assert b"Traceback" not in told and str(Path(__file__).parents[1]).encode() not in told
    assert len(ask(victim, "state")["lengths"]) == 1  # the victim still has a drawing, and the studio still answers
    left = [f.relative_to(studio.folder).parts for f in studio.folder.rglob("*") if f.is_file()]
    assert all(len(parts) == 3 for parts in left), left  # visitor, tab, file
    assert sorted((tab, Path(file).suffix) for _, tab, file in left) == [
        *[("table", ".csv")] * 2,
        ("video", ".mp4"),
    ]  # the last file of each visitor, and nothing else
    victim.close()


def ask(page, action, **given):
    page.send(json.dumps({"id": 1, "tab": "draw", "do": action, "with": given}))
    return parse(page.recv(timeout=60))


def parse(answer):
    """What a frame says, without its arrays."""
    if isinstance(answer, bytes):
        size = struct.unpack("<I", answer[:4])[0]
        return json.loads(answer[4 : 4 + size])
    return json.loads(answer)


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def archive(**members):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in members.items():
            made.writestr(urllib.parse.unquote(name), data)
    return packed.getvalue()


def files(attacker):
    """Files that are no models."""
    page = attacker.socket()
    visitor = json.loads(attacker.heard[-1])["hello"]["visitor"]
    whole = {"config.json": b"{}", "model.safetensors": b"\x08" + b"\x00" * 7 + b"{}      ", "drawing.json": b"{}"}
    bomb = archive(**{**whole, "model.safetensors": b"\x00" * (80 * 2**20)})
    assert len(bomb) < LIMITS.upload_bytes  # it passes the first limit
    header = struct.pack("<Q", 2**62) + b"{}"
    given = [
        b"",
        b"PK\x03\x04" + b"\x00" * 60,
        b"\x00" * (LIMITS.upload_bytes + 1),
        archive(**whole),
        archive(**{f"..%2f..%2f{k}": v for k, v in whole.items()}),
        archive(**{f"%2fetc%2f{k}": v for k, v in whole.items()}),
        archive(**{**whole, "config.json": b"[" * 50_000}),
        archive(**{**whole, "config.json": b'{"kind": "os.system"}'}),
        archive(**{**whole, "model.safetensors": header}),
        archive(**{**whole, "drawing.json": b'{"paths": [[[1e99, NaN]]]}'}),
        bomb,
        archive(**{str(k): b"" for k in range(200)}),
    ]
    for body in given:
        for name in ("drawing.zip", "../../../etc/cron.d/x"):
            where = f"/upload/draw?name={urllib.parse.quote(name, safe='')}"
            status, text = attacker.request(where, "POST", body, **{"X-Studio-Visitor": visitor})
            assert status in (200, 413) and json.loads(text)["error"], (body[:40], status, text)
    status, text = attacker.request("/upload/nothing", "POST", b"x", **{"X-Studio-Visitor": visitor})
    assert status == 200 and json.loads(text)["error"]
    page.close()


NAMES = ["x.csv", "../../../etc/cron.d/x.csv", "..\\\\..\\\\x.csv", "/etc/passwd.csv", "\x00.csv", "a" * 90 + ".csv"]
GOOD = b"t,x\n" + b"".join(b"%d,%d\n" % (k, k * k % 17) for k in range(60))
CSVS = [
    b"",
    b"\n\n\n",
    b"\x00\x01" * 300,
    b"\xff\xfe" + "t,x\n0,1\n".encode("utf-16-le"),
    b"PK\x03\x04" + b"\x00" * 900,
    b"\x1f\x8b" + b"\x00" * 900,
    b"t,x\n" + b"," * 200_000,
    b"," * 200_000 + b"\n",
    b"t,x\n" + b"1" * 200_000 + b",2\n",
    b"a" * 250_000,
    b't,x\n0,"' + b"y" * 200_000,
    b'"' * 100_001,
    b"t,t\n1,2\n",
    b"x\n" + b"1\n" * 120_000,
    b"t,x\n0,NaN\n1,nan\n2,NaN\n3,NaN\n",
    b"t,x\n0,inf\n1,-inf\n2,1e400\n3,-1e400\n",
    b"t,x\n" + b"".join(b"%d,1e308\n" % k for k in range(40)),
    b"t,x\n" + b"".join(b"%d,5e-324\n" % k for k in range(40)),
    b"t,x\n" + b"".join(b"1e%d,1\n" % (290 + k) for k in range(40)),
    b"date,x\n" + b"".join(b"%d-13-45,1\n" % (9_000 * k) for k in range(40)),
    b"date,x\n9999-12-31,1\n0001-01-01,2\n99999-01-01,3\n",
    b"date,x\n2024-01-01T00:00:00+99:99,1\n2024-01-02T00:00:00-99:99,2\n",
    b"x\n=cmd|' /C calc'!A0\n@SUM(1)\n",
    b"<script>alert(1)</script>,x\n0,1\n1,2\n2,3\n",
    b"t,x\r0,1\r1,2\r",
    b"id,x\n" + b"".join(b"%d,1\n" % k for k in range(5_000)),
    b"t,x\n" + "\u202e\u0665,\uff11\n".encode() * 40,
]


def tables(attacker):
    """Files that are no tables, or tables that nobody can forecast, under names that are none."""
    page = attacker.socket()
    visitor = json.loads(attacker.heard[-1])["hello"]["visitor"]

    def give(name, body):
        where = f"/upload/table?name={urllib.parse.quote(name, safe='')}"
        return attacker.request(where, "POST", body, **{"X-Studio-Visitor": visitor})

    for body in CSVS:
        status, text = give("x.csv", body)
        assert status == 200 and "could not do this" not in str(json.loads(text)), (body[:40], status, text[:300])
    assert give("x.csv", b"0" * (LIMITS.upload_bytes + 1))[0] == 413
    for name in ("x.csv.gz", "x.zip", "x.parquet", "x.xlsx", "", "csv", ".csv", "a" * 900 + ".csv", "x.csv%00.py"):
        assert "must end in" in json.loads(give(name, b"t,x\n0,1\n")[1])["error"], name
    for name in NAMES:
        status, text = give(name, GOOD)
        assert status == 200 and "error" not in json.loads(text), (name, text[:300])
    for action, name in (("read", "time"), ("read", "columns"), ("read", "date_format"), ("read", "na_values")):
        attacker.ask(page, [request("table", action, {name: value}) for value in VALUES])
    page.close()


def films(attacker):
    """Files that are no videos, and one of a few bytes that announces pictures of 400 MB."""
    pytest.importorskip("av")
    page = attacker.socket()
    visitor = json.loads(attacker.heard[-1])["hello"]["visitor"]
    side = struct.pack("<HH", 10_000, 10_000)
    frame = b"\x2c" + b"\x00" * 4 + side + b"\x00" + b"\x02\x02\x4c\x01\x00"
    vast = b"GIF89a" + side + b"\x80\x00\x00" + b"\x00\x00\x00\xff\xff\xff" + frame * 6 + b";"
    for name, body, wrong in (
        ("x.exe", b"x", "must end in"),
        ("mp4", b"x", "must end in"),
        ("x.mp4.py", b"x", "must end in"),
        ("x.mp4", b"x" * (LIMITS.upload_bytes + 1), "larger"),
        ("../../../../tmp/x.gif", vast, ""),
        ("/dev/null.mp4", b"ffconcat version 1.0\nfile /etc/passwd\n", ""),
    ):
        where = f"/upload/video?name={urllib.parse.quote(name, safe='')}"
        status, text = attacker.request(where, "POST", body, **{"X-Studio-Visitor": visitor})
        said = json.loads(text).get("error", "")
        assert status in (200, 413) and (bool(said) == bool(wrong)), (name, status, text)
        if wrong:
            continue
        attacker.ask(page, [request("video", "clip", {})])
        end = until(attacker, page, lambda m: m.get("event") == "end")
        assert end["state"] == "failed" and ("max pixel" in end["error"] or "is not a video" in end["error"]), end
    page.close()


def match(attacker):
    """A match that is told what no page says: it refuses, and goes on."""
    pytest.importorskip("gym_pusht")
    page = attacker.socket()
    page.send(request("pusht", "begin", {"seed": 3}))
    until(attacker, page, lambda m: m.get("event") == "frame")
    good = {"what": "block", "x": 200.0, "y": 200.0, "u": 0.0, "v": 0.0, "down": True}
    wrong = [*VALUES, -1e9, 1e9, "block ", "1", 2**63]
    for name in good:
        for value in wrong:
            if value != -1 and not (value is True and name == "down"):  # which a page may say
                attacker.count += 1
                page.send(request("pusht", "hold", {**good, name: value}))
                assert until(attacker, page, lambda m: m.get("id") == 1).get("error"), (name, value)
    page.send(request("pusht", "step", {}))  # all of the above reached nobody
    assert until(attacker, page, lambda m: m.get("event") == "frame")["event"] == "frame"
    page.send(request("pusht", "cancel", {}))
    until(attacker, page, lambda m: m.get("event") == "end")
    page.close()


def until(attacker, page, wanted):
    """The next message of the page that is wanted."""
    while True:
        answer = page.recv(timeout=120)
        attacker.heard.append(answer)
        message = parse(answer)
        if wanted(message):
            return message


def words(attacker):
    """Messages that are none, and every action of every tab with what it does not take."""
    page = attacker.socket()
    attacker.ask(page, TEXTS)
    for tab in TABS:
        kind = tab_class(tab)
        own = [n for n, f in inspect.getmembers(kind) if getattr(f, "studio_action", False)]
        asked = [
            (n, p, v) for n in own for p in list(inspect.signature(getattr(kind, n)).parameters)[1:] for v in VALUES
        ]
        asked += [(n, None, None) for n in ACTIONS] + [(n, "no_such", 1) for n in own]
        attacker.ask(page, [request(tab, n, {} if p is None else {p: v}) for n, p, v in asked])
        attacker.ask(page, [request(tab, "cancel", {})])
    errors = [json.loads(h).get("error", "") for h in attacker.heard if isinstance(h, str) and "error" in h]
    assert len(errors) > 200 and not [e for e in errors if "could not do this" in e]
    attacker.count += 1
    with suppress(ConnectionClosed):
        page.send("x" * (LIMITS.message_bytes + 1))
        page.recv(timeout=20)
        raise AssertionError("a message beyond the limit was taken")


def request(tab, action, given):
    return json.dumps({"id": 1, "tab": tab, "do": action, "with": given})


def crowd(attacker):
    """Fifty sockets at once: as many as there may be are served, the others refused."""
    open_now, refused = [], 0
    for _ in range(50):
        attacker.count += 1
        try:
            open_now.append(attacker.socket())
        except (InvalidStatus, WebSocketException, OSError, TimeoutError):
            refused += 1
    assert len(open_now) <= LIMITS.sockets and refused >= 50 - LIMITS.sockets
    for page in open_now:
        page.close()


def deaf(attacker):
    """A page that asks and never listens: it is not heard any more, and its answers do not pile up."""
    page = attacker.socket()
    (line,) = attacker.studio.visits.find(json.loads(attacker.heard[-1])["hello"]["visitor"]).lines
    zigzag = [[(-1) ** k * 0.9, 0.02 * k] for k in range(20)]
    for _ in range(30):
        ask(page, "add", points=zigzag)
    attacker.count += 100
    most = 0
    for _ in range(100):
        page.send(request("draw", "state", {}))  # whose answers have 0.4 MB each: 40 MB together
        time.sleep(0.02)
        most = max(most, line.waiting)
    until = time.monotonic() + 10
    while most < 2**20 and time.monotonic() < until:  # some of them wait
        time.sleep(0.02)
        most = max(most, line.waiting)
    assert 2**20 <= most < MOST_WAITING + (LIMITS.requests + 1) * 2**19
    page.socket.close()
