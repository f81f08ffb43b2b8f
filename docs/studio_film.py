"""A film of the studio in a real Chromium: a fork is drawn by hand and learned, a T is dragged away, a table is forecast.

python docs/studio_film.py docs/assets/studio.mp4
"""

from __future__ import annotations

import argparse
import base64
import io
import shutil
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from neuralsde.studio.server import Studio

SIZE = (1100, 700)
FPS = 12
LONG = 300_000  # milliseconds
CURSOR = """() => {
  const dot = document.createElement("div");
  dot.style.cssText = "position:fixed;width:18px;height:18px;border-radius:50%;margin:-9px;z-index:99;pointer-events:none;"
    + "border:2px solid #d55e00;background:rgb(213 94 0 / 25%);left:-50px";
  document.body.append(dot);
  addEventListener("pointermove", (e) => { dot.style.left = `${e.clientX}px`; dot.style.top = `${e.clientY}px`; }, true);
}"""
UP = [(-0.9, 0.0), (-0.5, 0.02), (-0.1, 0.0), (0.2, 0.18), (0.85, 0.66)]
DOWN = [(-0.9, 0.0), (-0.5, -0.02), (-0.1, 0.0), (0.2, -0.18), (0.85, -0.66)]


class Film:
    """Pictures of a page as they come, in parts, each of which is shown in so many seconds at most."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.shots: list[tuple[float, bytes]] = []
        self.parts: list[tuple[float, float]] = [(time.monotonic(), 1.0)]
        self._session = page.context.new_cdp_session(page)
        self._session.on("Page.screencastFrame", self._take)
        self._session.send("Page.startScreencast", {"format": "jpeg", "quality": 90})

    def _take(self, frame: dict[str, Any]) -> None:
        self.shots.append((time.monotonic(), base64.b64decode(frame["data"])))
        self._session.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})

    def within(self, seconds: float) -> None:
        """What follows is shown in so many seconds, faster than it was if need be."""
        self.page.wait_for_timeout(50)
        self.parts.append((time.monotonic(), seconds))

    def _times(self) -> np.ndarray:
        """When the film shows each picture."""
        begins = np.array([at for at, _ in self.parts] + [time.monotonic()])
        lengths = np.minimum(np.diff(begins), [most for _, most in self.parts])
        return np.interp([at for at, _ in self.shots], begins, np.concatenate([[0.0], lengths.cumsum()]))

    def write(self, file: Path) -> None:
        """An MP4 of even frames."""
        self._session.send("Page.stopScreencast")
        with av.open(str(file), "w", options={"movflags": "faststart"}) as container:
            stream = container.add_stream("libx264", rate=FPS, options={"crf": "31", "preset": "medium"})
            stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
            times = self._times()
            for moment in np.arange(times[0], times[-1], 1 / FPS):
                shot = self.shots[int(np.searchsorted(times, moment, side="right")) - 1][1]
                picture = Image.open(io.BytesIO(shot)).convert("RGB").resize(SIZE)
                container.mux(stream.encode(av.VideoFrame.from_image(picture)))
            container.mux(stream.encode())


def place(page: Page, point: tuple[float, float]) -> tuple[float, float]:
    """Where a point of the board is on the page."""
    box = page.locator("#panel-draw .stage").bounding_box()
    assert box is not None
    scale = min(box["width"], box["height"]) / 2.28
    return box["x"] + box["width"] / 2 + point[0] * scale, box["y"] + box["height"] / 2 - point[1] * scale


def draw(page: Page, film: Film) -> None:
    """A fork by hand, learned and tried."""
    rng = np.random.default_rng(3)
    film.within(10)
    for line in (UP, DOWN) * 4:
        shift, wobble = rng.normal(0, 0.02, 2), rng.normal(0, 0.012, (len(line), 2))
        points = [(x + a + shift[0], y + b + shift[1]) for (x, y), (a, b) in zip(line, wobble)]
        page.mouse.move(*place(page, points[0]))
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*place(page, point), steps=9)
        page.mouse.up()
        page.wait_for_timeout(120)
    page.hover("#learn")
    page.click("#learn")
    film.within(7)
    page.wait_for_selector("#odds .odd", timeout=LONG)
    film.within(5)
    page.wait_for_timeout(6_000)
    slider = page.locator("input[name=diffusion]")
    slider.scroll_into_view_if_needed()
    for share in (0.5, 0.0, 1.0):
        slider.evaluate(
            "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }", str(share)
        )
        film.within(1)
        page.wait_for_timeout(1_500)
        page.wait_for_selector("#panel-draw .stage:not(.busy)", timeout=LONG)
        film.within(3)
        page.wait_for_timeout(4_000)
    page.mouse.move(*place(page, (0.45, 0.4)), steps=10)
    page.mouse.click(*place(page, (0.45, 0.4)))
    film.within(3)
    page.wait_for_timeout(5_000)


def push(page: Page, film: Film) -> None:
    """The T, dragged away and brought back."""
    page.click("#tab-pusht")
    view = "nsdeStudio.tabs.get('pusht')?.view"
    film.within(6)
    page.wait_for_function(f"() => {view}?.frame?.covered[0] > 0.6", timeout=LONG)
    film.within(4)
    found = page.evaluate(
        f"(() => {{ const v = {view}, p = v.frame.data, t = v.tables()[0], b = v.front.getBoundingClientRect(); return"
        " [p[2] - 45 * Math.sin(p[4]), p[3] + 45 * Math.cos(p[4]), b.left + t.x, b.top + t.y, t.side / 512]; })()"
    )
    x, y, left, top, scale = found
    page.mouse.move(left + x * scale, top + y * scale, steps=8)
    page.mouse.down()
    page.mouse.move(left + 130 * scale, top + 380 * scale, steps=20)
    page.wait_for_function(f"() => {view}.frame.covered[0] < 0.2", timeout=LONG)
    page.wait_for_timeout(600)
    page.mouse.up()
    film.within(8)
    page.wait_for_function(f"() => {view}.frame.covered[0] > 0.85", timeout=LONG)
    page.wait_for_timeout(1_500)


def table(page: Page, film: Film) -> None:
    """An example table and its fan."""
    page.click("#tab-table")
    film.within(2)
    page.wait_for_selector("#table-status:has-text('electricity')", timeout=LONG)
    page.wait_for_timeout(1_200)
    page.click("#forecast")
    film.within(3)
    page.wait_for_selector("#scores tr.own", timeout=LONG)
    film.within(6)
    page.wait_for_timeout(4_000)
    page.click("#theme")
    page.wait_for_timeout(2_000)


def main() -> None:
    """Film it all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    with Studio(port=0) as studio, sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        page.goto(f"{studio.address}?figure=&seed=4")
        page.wait_for_selector("#status:has-text('Draw a path')", timeout=LONG)
        page.evaluate(CURSOR)
        film = Film(page)
        for part in (draw, push, table):
            part(page, film)
        film.write(args.file)
        browser.close()


if __name__ == "__main__":
    main()
