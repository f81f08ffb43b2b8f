"""Downloads over a real connection: resumed where they stopped, refused where they are not what was announced."""

import hashlib
import socket
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pandas as pd
import pytest
from commands import call
from robot_files import pusht as pusht_arrays
from robot_files import refused, write_zarr, zip_of

from neuralsde.core.records import RunError
from neuralsde.data import download
from neuralsde.data.download import SOURCES, Source, fetch
from neuralsde.data.robots.read import read_demonstrations
from neuralsde.data.tables.public import TABLES

CONTENT = bytes(k * k % 251 for k in range(1_000_003))
SHA = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves one file; what is odd about it is set by the test."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.tag, self.ranges, self.stop_after, self.length = CONTENT, '"one"', True, None, True
        self.shift, self.asked, self.block = 0, [], 10_000

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        if self.path != "/file.bin":
            self.send_error(404, "No such file")
            return
        start, size = 0, len(server.content)
        if wanted and server.ranges and self.headers.get("If-Range") == server.tag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= size:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{size}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start + server.shift}-{size - 1}/{size}")
        else:
            self.send_response(200)
        if server.length:
            self.send_header("Content-Length", str(size - start))
        self.send_header("ETag", server.tag)
        self.end_headers()
        end = size if server.stop_after is None else min(size, start + server.stop_after)
        for k in range(start, end, server.block):
            self.wfile.write(server.content[k : min(k + server.block, end)])


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_file_arrives_whole_and_alone(server, tmp_path, capfd):
    file = fetch(Source("file.bin", server.url, SHA, len(CONTENT)), tmp_path / "new" / "folder")
    assert file.read_bytes() == CONTENT and names(file.parent) == ["file.bin"]
    assert "file.bin: 100%" in capfd.readouterr().err
    fetch(Source("file.bin", server.url, SHA, len(CONTENT)), file.parent)
    assert len(server.asked) == 1  # what is there is not fetched again


def test_without_checksum_and_length(server, tmp_path, capfd):
    server.length = False
    assert fetch(Source("file.bin", server.url), tmp_path, progress=False).read_bytes() == CONTENT
    assert capfd.readouterr().err == ""


def test_an_interrupted_download_is_resumed(server, tmp_path):
    source = Source("file.bin", server.url, SHA)
    server.stop_after = 400_000
    with pytest.raises(
        RunError, match=r"broke off after 400,000 bytes \(1,000,003 were announced\). Run the same command"
    ):
        fetch(source, tmp_path, progress=False)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:400_000]
    with pytest.raises(RunError, match="broke off after 800,000 bytes"):
        fetch(source, tmp_path, progress=False)
    assert fetch(source, tmp_path, progress=False).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=400000-", "bytes=800000-"] and names(tmp_path) == ["file.bin"]


@pytest.mark.parametrize("change", ["no ranges", "other version", "no tag"])
def test_what_cannot_be_resumed_starts_again(server, tmp_path, change):
    source = Source("file.bin", server.url, SHA)
    server.stop_after = 400_000
    if change == "other version":
        server.content = CONTENT[::-1]
    with pytest.raises(RunError, match="broke off"):
        fetch(source, tmp_path, progress=False)
    server.stop_after, server.content = None, CONTENT
    server.ranges = change != "no ranges"
    server.tag = '"two"' if change == "other version" else server.tag
    if change == "no tag":
        (tmp_path / "file.bin.part.tag").unlink()
    assert fetch(source, tmp_path, progress=False).read_bytes() == CONTENT


def test_a_part_that_is_the_whole_is_kept_and_one_that_is_too_long_is_not(server, tmp_path):
    for rest in (b"", b"more"):
        (tmp_path / "file.bin.part").write_bytes(CONTENT + rest)
        (tmp_path / "file.bin.part.tag").write_text(server.tag)
        file = fetch(Source("file.bin", server.url, SHA), tmp_path, progress=False)
        assert file.read_bytes() == CONTENT and names(tmp_path) == ["file.bin"]
        file.unlink()
    assert server.asked == ["bytes=1000003-", "bytes=1000007-", None]


def test_the_wrong_range_is_not_appended(server, tmp_path):
    server.stop_after = 400_000
    with pytest.raises(RunError):
        fetch(Source("file.bin", server.url), tmp_path, progress=False)
    server.shift = 5
    with pytest.raises(RunError, match=r"asked from byte 400000 on, got bytes 400005-"):
        fetch(Source("file.bin", server.url), tmp_path, progress=False)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:400_000]


def test_a_corrupted_file_is_removed_and_both_sums_are_told(server, tmp_path):
    server.content = CONTENT[:-1] + b"x"
    got = hashlib.sha256(server.content).hexdigest()
    with pytest.raises(
        RunError, match=rf"arrived damaged.*SHA-256 is {got} instead of {SHA}. It was removed; run again"
    ):
        fetch(Source("file.bin", server.url, SHA), tmp_path, progress=False)
    assert names(tmp_path) == []
    with pytest.raises(RunError, match="it has 1,000,003 bytes instead of 1,000,000"):
        fetch(Source("file.bin", server.url, size=1_000_000), tmp_path, progress=False)
    assert names(tmp_path) == []


def test_a_wrong_file_that_was_there_is_left_alone(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"mine")
    with pytest.raises(
        RunError, match=r"file.bin is there, but its SHA-256 is .* Delete it and run again, or .*--from"
    ):
        fetch(Source("file.bin", server.url, SHA), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"mine" and not server.asked


def test_no_server_names_the_address_and_the_way_out(server, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/file.bin"
    with pytest.raises(
        RunError, match=rf"{url} cannot be reached .*Download file.bin elsewhere and pass it by --from DIR"
    ):
        fetch(Source("file.bin", url), tmp_path)
    with pytest.raises(RunError, match=r"nothing answers 404 \(No such file\)..*--from DIR"):
        fetch(Source("file.bin", server.url.replace("file.bin", "nothing")), tmp_path)
    assert names(tmp_path) == []


def test_a_server_that_falls_silent(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        with pytest.raises(RunError, match=r"(cannot be reached|broke off).*timed out"):
            fetch(Source("file.bin", f"http://127.0.0.1:{mute.getsockname()[1]}/file.bin"), tmp_path)


def test_a_folder_that_takes_no_files(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="Cannot write to the folder"):
        fetch(SOURCES["pusht"], tmp_path / "file")


# nsde data pusht


@pytest.fixture
def pusht(server, tmp_path, monkeypatch):
    """A zip like the published one, served here, with a member that would like to leave its folder."""

    def serve(num_episodes=206, num_rows=25_650):
        values, ends = pusht_arrays(num_episodes, num_rows)
        folder = write_zarr(tmp_path / "x.zarr", values, ends, chunk=5000)
        file = zip_of(folder, tmp_path / "served.zip", "pusht/pusht_cchi_v7_replay.zarr/")
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr("../outside.txt", "harm")
        server.content = file.read_bytes()
        monkeypatch.setitem(SOURCES, "pusht", Source("pusht.zip", server.url))
        return values

    return serve


def test_pusht_is_downloaded_checked_and_written(pusht, server, tmp_path, capsys):
    values, output = pusht(), tmp_path / "new" / "pusht.npz"
    server.stop_after = 400_000
    refused(capsys, "broke off after 400,000 bytes", "--output", output)
    server.stop_after = None
    call("data", "pusht", "--output", output)
    text = capsys.readouterr().out
    assert "The checksum of the original is not known to us; its content was checked instead." in text
    assert "206 episodes, 25,650 rows" in text and f"Wrote {output}" in text
    np.testing.assert_array_equal(read_demonstrations(output).observations["state"], values["state"])
    assert names(output.parent) == ["pusht.npz", "pusht.zip"] and server.asked == [None, "bytes=400000-"]
    assert not list(tmp_path.parent.rglob("outside.txt"))


def test_a_download_with_other_content_is_refused(pusht, server, tmp_path, capsys):
    pusht(5, 100)
    zipped = tmp_path / "pusht.zip"
    message = "not the data that was published: the published data has 206 episodes and 25,650 rows, this has 5 and 100"
    refused(capsys, message, "--output", tmp_path / "pusht.npz")
    refused(capsys, f"Delete {zipped} and run again", "--output", tmp_path / "pusht.npz")
    zipped.write_bytes(b"<html>Moved</html>")
    refused(capsys, "no demonstrations that can be read", "--output", tmp_path / "pusht.npz")
    assert not (tmp_path / "pusht.npz").exists()


# nsde data etth1, …


def small_tables(folder):
    """Files of the forms that their authors publish, with few rows."""
    folder.mkdir()
    hours = pd.date_range("2016-07-01", periods=50, freq="h")
    pd.DataFrame({"date": hours, "HUFL": np.arange(50.0), "OT": 0.5}).to_csv(folder / "ETTh1.csv", index=False)
    np.savetxt(folder / "exchange_rate.txt.gz", np.arange(80.0).reshape(10, 8), delimiter=",")
    for part, rows in (("train", {"H1": [1, 2, 3], "H2": [4, 5, np.nan]}), ("test", {"H1": [6, 7], "H2": [8, 9]})):
        table = pd.DataFrame.from_dict(rows, orient="index")
        table.columns = [f"V{k + 2}" for k in range(table.shape[1])]
        table.to_csv(folder / f"Hourly-{part}.csv", index_label="V1")
    return folder


def test_public_tables_become_files_that_fit_reads(tmp_path, capsys):
    folder = small_tables(tmp_path / "given")
    for name, shape, said in (
        ("etth1", (50, 3), "The published table has 17,420 rows, this has 50."),
        ("exchange", (10, 9), "Licence: not stated by its authors."),
        ("m4-hourly", (9, 3), "9 rows, 2 series, columns y"),
    ):
        output = tmp_path / f"{name}.csv"
        call("data", name, "--from", folder, "--output", output)
        text = capsys.readouterr().out
        assert said in text and f"Go on with: nsde fit {output}" in text
        table = pd.read_csv(output, parse_dates=["ds"])
        assert table.shape == shape and table["ds"].notna().all()
    assert table["y"].tolist() == [1, 2, 3, 6, 7, 4, 5, 8, 9] and table["unique_id"].tolist() == ["H1"] * 5 + ["H2"] * 4


def test_a_public_table_is_downloaded(server, tmp_path, monkeypatch, capsys):
    server.content = (small_tables(tmp_path / "given") / "ETTh1.csv").read_bytes()
    known = replace(TABLES["etth1"], files=(Source("ETTh1.csv", server.url),))
    monkeypatch.setitem(TABLES, "etth1", known)
    call("data", "etth1", "--output", tmp_path / "new" / "etth1.csv")
    assert names(tmp_path / "new" / "downloads") == ["ETTh1.csv"]
    assert names(tmp_path / "new") == ["downloads", "etth1.csv"] and "50 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["etth2", "--from", "given"], "must hold ETTh2.csv"),
        (["etth1", "--from", "nowhere"], "is not there"),
        (["etth1", "--from", "given", "--output", "x.npz"], "must end in .csv"),
        (["etth1", "--from", "given", "--every", "2"], "--every is for videos, not for etth1"),
    ],
)
def test_what_is_no_public_table_is_refused(given, message, tmp_path, monkeypatch, capsys):
    small_tables(tmp_path / "given")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        call("data", *given)
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*.csv")) and not (tmp_path / "data" / "etth1.csv").exists()
