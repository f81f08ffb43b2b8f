"""A studio and Debian's Chromium; where there is none, the tests are skipped, and say so."""

import shutil
from pathlib import Path

import pytest

PICTURES = Path(__file__).parents[2] / "runs" / "studio"


@pytest.fixture(scope="session")
def browser():
    place = shutil.which("chromium") or shutil.which("chromium-browser")
    if place is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def studio():
    pytest.importorskip("starlette")
    from neuralsde.studio.server import Studio

    with Studio(port=0) as studio:
        yield studio


@pytest.fixture
def visit(browser, studio):
    """Open pages of the studio, each of a visitor of its own; foreign requests and errors of the console fail the test."""
    wrong, contexts = [], []

    def open_page(query="", **settings):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **settings})
        contexts.append(context)

        def pass_on(route):
            if not route.request.url.startswith((studio.address, "blob:", "data:")):
                wrong.append(f"foreign request: {route.request.url}")
                route.abort()
            else:
                route.continue_()

        context.route("**/*", pass_on)
        page = context.new_page()
        page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "websocket", lambda s: None if f":{studio.port}/" in s.url else wrong.append(f"foreign socket: {s.url}")
        )
        page.goto(studio.address + query)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong


@pytest.fixture
def picture():
    """Keep a picture of a page, to be looked at."""
    PICTURES.mkdir(parents=True, exist_ok=True)

    def keep(page, name, **settings):
        page.screenshot(path=PICTURES / f"{name}.png", **settings)

    return keep
