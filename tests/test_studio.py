"""The studio without a browser: frames, the guard, visitors, jobs, and the Draw tab's own numbers."""

import io
import json
import re
import struct
import threading
import time
import urllib.error
import urllib.request
import zipfile
from importlib import resources

import numpy as np
import pytest
import torch

pytest.importorskip("starlette")
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from neuralsde.studio.desk import Desk, read, write
from neuralsde.studio.draw import GRID, Draw, _branch_of, _branches
from neuralsde.studio.figures import DT, FIGURES, SPEED, even, figure
from neuralsde.studio.frames import decode, encode
from neuralsde.studio.jobs import Job, Jobs
from neuralsde.studio.learning import crosses, learn
from neuralsde.studio.limits import Limits
from neuralsde.studio.server import Studio
from neuralsde.studio.tabs import TABS
from neuralsde.studio.visits import Visits

LIMITS = Limits(sockets=6, sockets_of_visitor=2, visitors=6, upload_bytes=2**16, message_bytes=2**16)


@pytest.fixture(scope="module")
def studio():
    """A studio that keeps no worker ready: a worker begins when it is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Jobs, "prepare", lambda self: None)
        with Studio(port=0, limits=LIMITS) as studio:
            yield studio


@pytest.fixture
def visit(tmp_path):
    jobs = Jobs(Limits())
    visits = Visits(tmp_path, jobs, Limits())
    yield visits.enter(None)
    visits.close()
    jobs.close()


class Page:
    """A page of the studio, without a browser."""

    def __init__(self, studio, visitor=None, **headers):
        origin = headers.pop("origin", f"http://127.0.0.1:{studio.port}")
        self.socket = connect(f"ws://127.0.0.1:{studio.port}/socket", origin=origin, additional_headers=headers)
        self.socket.send(json.dumps({"visitor": visitor}))
        self.visitor = read_frame(self.socket.recv())["hello"]["visitor"]
        self.number = 0

    def ask(self, action, **given):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "tab": "draw", "do": action, "with": given}))
        while True:
            message = read_frame(self.socket.recv(timeout=60))
            if message.get("id") == self.number:
                return message


def read_frame(frame):
    """What link.js does."""
    if isinstance(frame, str):
        return json.loads(frame)
    size = struct.unpack("<I", frame[:4])[0]
    message, at = json.loads(frame[4 : 4 + size]), 4 + size
    for name, kind, shape in message.pop("arrays"):
        count = int(np.prod(shape))
        message[name] = np.frombuffer(frame, kind, count, at).reshape(shape)
        at += -(-message[name].nbytes // 8) * 8
    return message


def test_a_frame_comes_back_as_it_went(np_rng):
    message = {
        "id": 3,
        "text": "σ",
        "paths": np_rng.normal(size=(3, 5, 2)),
        "picture": np.arange(7, dtype=np.uint8),
        "bad": float("nan"),
        "more": {"x": [1.5, float("inf")]},
    }
    back = read_frame(encode(message))
    np.testing.assert_array_equal(back["paths"], message["paths"].astype(np.float32))
    np.testing.assert_array_equal(back["picture"], message["picture"])
    assert (back["id"], back["text"], back["bad"], back["more"]) == (3, "σ", None, {"x": [1.5, None]})
    frame = encode({"a": np.zeros(3)})
    assert (4 + struct.unpack("<I", frame[:4])[0]) % 8 == 0  # where a Float32Array may begin


@pytest.mark.parametrize("text", ["", "[1]", "7", '{"x": NaN}', "{", "[" * 10_000, '{"x":' + "[" * 12 + "]" * 12 + "}"])
def test_what_is_no_message_is_refused(text):
    with pytest.raises(ValueError, match="A message"):
        decode(text)


def get(studio, path="/", **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{studio.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def test_the_page_is_served_with_a_policy(studio):
    status, text, headers = get(studio)
    assert status == 200 and "neuralsde studio" in text
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "http" not in text.replace("http-equiv", "")  # nothing from elsewhere


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_other_hosts_and_pages_are_refused(studio, headers):
    assert get(studio, **headers)[0] == 403


@pytest.mark.parametrize("path", ["/../server.py", "/..%2fserver.py", "/%2e%2e/%2e%2e/pyproject.toml", "//etc/passwd"])
def test_files_outside_the_page_are_not_served(studio, path):
    assert get(studio, path)[0] in (403, 404)


@pytest.mark.parametrize("origin", [None, "http://evil.example", "null"])
def test_a_foreign_page_gets_no_socket(studio, origin):
    with pytest.raises(InvalidStatus, match="403"):
        Page(studio, origin=origin)


def test_a_token_is_asked_for():
    token = "a-token-of-the-test"
    with Studio(port=0, token=token) as studio:
        assert get(studio)[0] == 403 and get(studio, "/?token=wrong")[0] == 403
        with pytest.raises(InvalidStatus, match="403"):
            Page(studio)
        assert get(studio, Cookie=f"nsde-studio-{studio.port}={token}")[0] == 200
        page = Page(studio, Cookie=f"nsde-studio-{studio.port}={token}")
        page.socket.close()
    with pytest.raises(ValueError, match="`token` must have at least 16"):
        Studio(port=0, token="short")


def test_a_host_that_others_reach_makes_a_token():
    studio = Studio(host="0.0.0.0", port=0)
    try:
        assert studio.token and f"?token={studio.token}" in studio.address
    finally:
        studio.close()


def test_a_port_in_use_is_said(studio):
    with pytest.raises(ValueError, match="Give another `port`"):
        Studio(port=studio.port)


def test_visitors_do_not_see_each_other(studio):
    one, two = Page(studio), Page(studio)
    assert one.visitor != two.visitor
    one.ask("ready", name="c")
    assert two.ask("state")["lengths"] == []
    again = Page(studio, one.visitor)  # the page of the first visitor, loaded again
    assert again.visitor == one.visitor and len(again.ask("state")["lengths"]) == 4
    assert Page(studio, "x" * 32).visitor not in ("x" * 32, one.visitor)
    for page in (one, two, again):
        page.socket.close()


def test_what_is_too_much_is_refused(studio):
    time.sleep(0.3)
    pages = []
    with pytest.raises((InvalidStatus, ConnectionClosed)):
        while len(pages) < LIMITS.sockets + 2:
            pages += [Page(studio)]
    for page in pages:
        page.socket.close()
    time.sleep(0.3)
    page = Page(studio)
    assert "must be a list of points" in page.ask("add", points=[["a", 1], [0, 0]])["error"]
    assert "must lie within" in page.ask("add", points=[[0, 0], [1e9, 0]])["error"]
    assert "from 10 to 5,000" in page.ask("learn", steps=10**9)["error"]
    assert "takes" in page.ask("learn", nothing=1)["error"]
    assert "no action" in page.ask("__init__")["error"]
    assert "There is no model yet" in page.ask("sample")["error"]
    request = urllib.request.Request(
        f"http://127.0.0.1:{studio.port}/upload/draw?name=x", data=b"0" * (LIMITS.upload_bytes + 1), method="POST"
    )
    request.add_header("X-Studio-Visitor", page.visitor)
    with pytest.raises(urllib.error.HTTPError, match="413"):
        urllib.request.urlopen(request, timeout=10)
    page.socket.send("x" * (LIMITS.message_bytes + 1))
    with pytest.raises(ConnectionClosed):
        page.socket.recv(timeout=10)


def ends(jobs, work, given, *, seconds=60.0, cancel=None, folder=None):
    """Run a job to its end."""
    over = threading.Event()
    job = Job(
        work, given, folder, seconds, False, lambda job, event: cancel and jobs.cancel(job), lambda job: over.set()
    )
    jobs.start(job)
    while not over.wait(0.2):
        jobs.overdue()
    return job


def test_a_job_learns_is_cancelled_and_ends_in_time(tmp_path):
    jobs = Jobs(Limits())
    work, given = "neuralsde.studio.learning:learn", {"paths": figure("y"), "steps": 5_000, "seed": 0}
    try:
        job = ends(jobs, work, given, cancel=True, folder=tmp_path / "a")
        assert job.state == "cancelled" and job.worker.process.poll() is not None
        with pytest.raises(ValueError, match="at least one path"):  # what a job says that fails: test_studio_hostile.py
            learn(Desk(tmp_path / "b", io.BytesIO()), [], 12, seed=0)
        job = ends(jobs, work, given, seconds=0.5, folder=tmp_path / "c")
        assert job.state == "failed" and "took longer" in job.error and jobs.num_running == 0
    finally:
        jobs.close()


@pytest.mark.parametrize("name", FIGURES)
def test_figures_move_at_one_speed(name):
    for path in figure(name):
        step = np.linalg.norm(np.diff(path, axis=0), axis=1)
        assert np.abs(path).max() < 1.2
        if name != "loop":  # which is noisy
            np.testing.assert_allclose(step, SPEED * DT, rtol=0.12)


def test_a_stroke_is_walked_at_one_speed():
    uneven = np.array([[0.0, 0.0], [0.9, 0.0], [0.95, 0.0], [1.0, 0.0], [1.0, 0.5]])
    np.testing.assert_allclose(even(uneven)[25], [0.5, 0.0], atol=1e-9)
    with pytest.raises(ValueError, match="too short to learn from"):
        even(np.zeros((3, 2)))


def test_paths_that_cross_are_told_from_paths_that_fork():
    assert {name for name in FIGURES if name != "loop" and crosses(figure(name))} == {"crossing", "eight"}


def test_branches_and_odds():
    ends_of = _branches(figure("three"))
    assert len(ends_of) == 3 and len(_branches(figure("s"))) == 1
    paths = np.array([[[0, 0], ends_of[2]], [[0, 0], ends_of[0]], [[0, 0], [0.0, 0.1]]])
    assert _branch_of(paths, ends_of).tolist() == [2, 0, -1]


def test_undo_and_a_stroke_of_ones_own(visit):
    tab = visit.tab("draw")
    assert isinstance(tab, Draw)
    tab.call("ready", {"name": "y"})
    tab.call("add", {"points": [[0, 0], [0.5, 0.5]]})
    assert len(tab.drawing) == 1
    tab.call("undo", {})
    assert len(tab.drawing) == 8 and tab.figure == "y"
    with pytest.raises(ValueError, match="There is no figure 'q'"):
        tab.call("ready", {"name": "q"})
    with pytest.raises(ValueError, match="There is no tab 'nothing'"):
        visit.tab("nothing")


def test_a_training_whose_drawing_is_gone_is_stopped(visit):
    tab = visit.tab("draw")
    tab.call("add", {"points": [[0, 0], [0.5, 0.5]]})
    tab.call("learn", {"steps": 5_000})
    tab.call("add", {"points": [[0, 0], [0.5, -0.5]]})
    assert not tab.job.over  # one stroke more: what it learns from is still there
    tab.call("ready", {"name": "y"})
    assert tab.job.state == "cancelled" and len(tab.drawing) == 8


def learned(visit, tmp_path, name, steps=12):
    """The Draw tab with a model of a figure, learned in this process."""
    tab = visit.tab("draw")
    tab.call("ready", {"name": name})
    folder = tmp_path / f"job-{name}"
    tab._pending = tab.drawing
    result = learn(Desk(folder, io.BytesIO()), tab.drawing, steps, seed=3)
    tab.on_done(result, folder)
    return tab


@pytest.mark.parametrize(("name", "history"), [("y", 1), ("crossing", 2)])
def test_the_copied_python_loads_draws_and_learns_the_same_model(visit, tmp_path, monkeypatch, name, history):
    tab = learned(visit, tmp_path, name)
    text = tab.call("python", {"num_paths": 7, "substeps": 2, "pull": 0.5})["text"]
    zipfile.ZipFile(io.BytesIO(tab.download("model")[1])).extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(compile(text, "copied", "exec"), found)
    again, loaded = found["model"], found["nsde"].load("drawing")
    assert found["paths"].shape[:2] == (1, 7) and loaded.config.history == history
    for one, other, own in zip(loaded.parameters(), again.parameters(), tab.model.parameters()):
        assert torch.equal(one, own)
        torch.testing.assert_close(other, own, atol=2e-3, rtol=0)  # strokes are saved with five digits
    assert found["data"].lengths.tolist() == [len(p) for p in tab.drawing]
    # Fields and likelihood, where there are any
    if history == 1:
        assert tab.call("fields", {})["drift"].shape == (GRID**2, 2)
    else:
        with pytest.raises(ValueError, match="looks at two states"):
            tab.call("fields", {})
    assert np.isfinite(tab.call("likelihood", {"points": [[-0.8, 0.0], [0.0, 0.0]]})["mean"])


def test_a_saved_model_comes_back(visit, tmp_path):
    tab = learned(visit, tmp_path, "c")
    file = tmp_path / "drawing.zip"
    file.write_bytes(tab.download("model")[1])
    kept, tab.model = tab.model, None
    tab.call("clear", {})
    tab.upload("drawing.zip", file)
    assert len(tab.drawing) == 4 and tab.state()["model"]["choice"]["loaded"]
    assert all(torch.equal(a, b) for a, b in zip(tab.model.parameters(), kept.parameters()))


def test_the_page_is_in_the_package():
    page = resources.files("neuralsde.studio") / "page"
    found, todo = set(), ["index.html", *(f"tabs/{name}.js" for name in TABS)]
    while todo:
        name = todo.pop()
        text = (page / name).read_text(encoding="utf-8")  # fails for what is not shipped
        found.add(name)
        folder = name.rpartition("/")[0]
        for other in re.findall(r'(?:from|src=|href=|import\()\s*"([^"#:]+)"', text):
            parts = [p for p in f"{folder}/{other}".split("/") if p not in ("", ".")]
            while ".." in parts:
                del parts[parts.index("..") - 1 : parts.index("..") + 1]
            todo += [place] if (place := "/".join(parts)) not in found else []
    assert {"index.html", "studio.css", "studio.js", "link.js", "stage.js", "tabs/draw.js", "icon.svg"} <= found


@pytest.mark.slow
def test_search_compares_models_and_keeps_one(studio):
    time.sleep(0.3)
    page = Page(studio)
    page.ask("ready", name="c")
    assert "error" not in page.ask("learn", budget=20)
    shares, trials = [], 0
    while True:
        message = read_frame(page.socket.recv(timeout=300))
        if message.get("event") == "progress":
            shares.append(message["share"])
            trials = max(trials, message.get("trials", 0))
        if message.get("event") == "end":
            break
    assert message["state"] == "done", message
    assert message["model"]["choice"]["budget"] == 20 and message["model"]["choice"]["tried"] > 1 and trials > 1
    assert shares == sorted(shares) and len(shares) > 5
    assert "nsde.fit(data, budget=20, seed=0, cpu=True)" in page.ask("python")["text"]
    assert page.ask("sample", num_paths=20)["paths"].shape[0] >= 20
    page.socket.close()


def test_records_of_workers_come_back_as_they_were():
    stream = io.BytesIO()
    given = ["event", {"a": np.arange(6, dtype=np.uint8).reshape(2, 3), "b": [{"c": np.zeros((0, 2))}, None, 1.5, "ü"]}]
    for record in (given, ["done", {}]):
        write(stream, record)
    with pytest.raises(TypeError, match=r"holds plain values and arrays. Got a bytes"):
        write(stream, ["done", {"a": b"text"}])
    stream.seek(0)
    found = read(stream)
    np.testing.assert_array_equal(found[1]["a"], given[1]["a"])
    assert found[1]["a"].dtype == np.uint8 and found[1]["b"][0]["c"].shape == (0, 2)
    assert found[1]["b"][1:] == [None, 1.5, "ü"]
    assert read(stream) == ["done", {}] and read(stream) is None
