"""The Video tab in a real browser: futures of a scene are scrubbed, a clip of one's own, a file that is none, a phone."""

import numpy as np
import pytest
from playwright.sync_api import expect

pytest.importorskip("pymunk")
pytest.importorskip("av")
SLOW = 280_000  # milliseconds: two busy cores


def view(page, what):
    return page.evaluate(f"() => {{ const v = nsdeStudio.tabs.get('video').view; return {what}; }}")


def wait_for_futures(page):
    page.wait_for_function("() => nsdeStudio.tabs.get('video')?.view?.made?.frames", timeout=SLOW)
    expect(page.locator("#video-cancel")).to_be_hidden()


def scrub(page, value):
    page.locator("#scrub").evaluate(
        "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }", str(value)
    )


def pixels(page, number):
    script = """film => {
        const copy = new OffscreenCanvas(film.width, film.height).getContext("2d", { willReadFrequently: true });
        copy.drawImage(film, 0, 0);
        return [...copy.getImageData(0, 0, film.width, film.height).data];
    }"""
    return np.array(page.locator(".film").nth(number).evaluate(script))


def test_futures_of_a_scene_are_drawn_and_scrubbed(visit, picture):
    page = visit("#video")
    wait_for_futures(page)
    assert view(page, "v.made.frames.shape")[:3] == [4, 12, 3]
    assert page.eval_on_selector_all(".still figcaption", "all => all.map(c => c.textContent)") == [
        "What happened",
        "Future 1",
        "Future 2",
        "Future 3",
        "Future 4",
        "Spread of the futures",
    ]

    # What is given is the same in all; at the end futures differ
    scrub(page, -0.3)
    expect(page.locator(".when")).to_contain_text("given")
    np.testing.assert_array_equal(pixels(page, 1), pixels(page, 2))
    scrub(page, 9)
    expect(page.locator(".when")).to_contain_text("+2.3")
    assert np.abs(pixels(page, 1) - pixels(page, 2)).max() > 20
    assert pixels(page, 5).reshape(-1, 4)[:, :3].max() > 60  # the heat map has bright places
    picture(page, "video")
    page.click("#theme")
    page.wait_for_timeout(300)
    picture(page, "video-dark")

    # It plays
    page.click("#play")
    before = view(page, "v.clock")
    page.wait_for_function(f"() => nsdeStudio.tabs.get('video').view.clock !== {before}")

    # Another frame rate, another number of futures; a page that is loaded again has them
    for name, value in (("rate", 10), ("num", 2)):
        page.locator(f"input[name={name}]").evaluate(
            "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }", str(value)
        )
    page.click("#again")
    page.wait_for_function("() => nsdeStudio.tabs.get('video').view.made.frames?.shape[0] === 2", timeout=SLOW)
    assert view(page, "v.made.frames.shape")[1] == 24
    page.reload()
    wait_for_futures(page)
    assert view(page, "v.made.frames.shape")[:2] == [2, 24]


def test_a_clip_of_ones_own_and_a_file_that_is_none(visit, picture, tmp_path):
    from neuralsde.experiments.collisions.clips import clips
    from neuralsde.video.files import write_video

    page = visit("#video", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page.wait_for_selector("#video-cancel:visible", timeout=SLOW)
    page.tap("#video-cancel")
    expect(page.locator("#video-status")).to_contain_text("Cancelled", timeout=10_000)

    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video" * 100)
    page.set_input_files("#video-file", broken)
    expect(page.locator("#panel-video .complaint:visible")).to_contain_text("broken.mp4", timeout=SLOW)
    page.set_input_files("#video-file", __file__)
    expect(page.locator("#panel-video .complaint:visible").first).to_contain_text("A video must end in", timeout=SLOW)

    filmed = clips([7], num_frames=40, fps=10, size=64).frames[0].permute(0, 2, 3, 1).numpy()
    file = tmp_path / "mine.mp4"
    write_video(filmed, file, fps=10)
    page.set_input_files("#video-file", file)
    page.wait_for_function("() => nsdeStudio.tabs.get('video').view.made?.name === 'mine.mp4'", timeout=SLOW)
    wait_for_futures(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.wait_for_timeout(2_500)
    picture(page, "video-phone", full_page=True)
