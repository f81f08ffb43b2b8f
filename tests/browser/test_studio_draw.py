"""The Draw tab in a real browser: draw, learn, watch, change, load again, cancel."""

import io
import re
import zipfile

from playwright.sync_api import expect

SLOW = 240_000  # milliseconds: two busy cores
STEPS, FEW = 400, 40  # of trainings whose paths are looked at, and of others
UP = [(-0.85, 0.0), (-0.1, 0.0), (0.85, 0.65)]
DOWN = [(-0.85, 0.0), (-0.1, 0.0), (0.85, -0.65)]


def place(page, point):
    box = page.locator(".stage").bounding_box()
    scale = min(box["width"], box["height"]) / 2.28
    return box["x"] + box["width"] / 2 + point[0] * scale, box["y"] + box["height"] / 2 - point[1] * scale


def stroke(page, points, lift=True):
    page.mouse.move(*place(page, points[0]))
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*place(page, point), steps=12)
    if lift:
        page.mouse.up()


def wait_for_model(page, shown=".odd"):
    page.wait_for_selector(f"#odds {shown}", timeout=SLOW)
    page.wait_for_selector("#learn:visible", timeout=SLOW)


def shares(page):
    return [float(v) for v in page.eval_on_selector_all("#odds .odd", "all => all.map(o => o.dataset.share)")]


def draw_a_y(page):
    expect(page.locator("#status")).to_contain_text("Draw a path", timeout=SLOW)
    for shift in (-0.03, 0.02):
        for line in (UP, DOWN):
            stroke(page, [(x, y + shift) for x, y in line])
            page.wait_for_timeout(150)
    expect(page.locator("#status")).to_contain_text("4 paths drawn")


def set_slider(page, name, value):
    page.locator(f"input[name={name}]").evaluate(
        "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', { bubbles: true })); }", str(value)
    )


def view(page, what):
    return page.evaluate(f"() => {{ const v = nsdeStudio.tabs.get('draw').view; return {what}; }}")


def test_a_drawn_fork_is_learned_and_kept(visit, picture, tmp_path):
    page = visit(f"?figure=&steps={STEPS}")
    draw_a_y(page)
    picture(page, "drawn")
    expect(page.locator("#save")).to_be_disabled()
    page.click("#learn")
    page.wait_for_function("() => nsdeStudio.tabs.get('draw').view.learning", timeout=SLOW)
    picture(page, "learning")
    assert view(page, "v.losses.length") > 0
    wait_for_model(page)
    assert len(shares(page)) == 2 and min(shares(page)) >= 0.2
    page.wait_for_timeout(2_500)
    picture(page, "learned")
    page.click("#theme")
    page.wait_for_timeout(400)
    picture(page, "learned-dark")
    page.click("#theme")

    # A click starts particles there: past the fork, one branch is left
    page.mouse.click(*place(page, (0.5, 0.42)))
    page.wait_for_function(
        "() => (s => s.length && Math.max(...s) > 0.9)(nsdeStudio.tabs.get('draw').view.particles.shares)"
    )
    assert max(shares(page)) > 0.9
    page.mouse.click(*place(page, (-0.85, 0.0)))
    page.wait_for_function("() => nsdeStudio.tabs.get('draw').view.start[0] < -0.8")

    # Sliders: without noise all paths are one
    set_slider(page, "num_paths", 60)
    page.wait_for_function("() => nsdeStudio.tabs.get('draw').view.particles.num === 60", timeout=SLOW)
    set_slider(page, "diffusion", 0)
    page.wait_for_function("() => Math.max(...nsdeStudio.tabs.get('draw').view.particles.shares) === 1", timeout=SLOW)
    set_slider(page, "diffusion", 1)
    set_slider(page, "substeps", 2)
    set_slider(page, "pull", 0.5)
    page.wait_for_function("() => Math.max(...nsdeStudio.tabs.get('draw').view.particles.shares) < 1", timeout=SLOW)

    # The likelihood of a stroke, while it is drawn
    page.click("text=Score a stroke")
    stroke(page, [(-0.8, 0.0), (-0.2, 0.0)], lift=False)
    expect(page.locator(".verdict")).to_contain_text("as likely as your paths", timeout=SLOW)
    page.mouse.up()
    stroke(page, [(-0.5, -0.8), (-0.5, 0.8)])
    expect(page.locator(".verdict")).to_contain_text("unlike your paths", timeout=SLOW)
    picture(page, "scored")

    # What was chosen; Python; save
    expect(page.locator(".choice")).to_contain_text("One state tells where a path goes on")
    page.click("#copy")
    expect(page.locator(".code")).to_contain_text("nsde.NeuralSDE.for_data(")
    with page.expect_download() as saved:
        page.click("#save")
    file = tmp_path / "drawing.zip"
    saved.value.save_as(file)
    assert "drawing/model.safetensors" in zipfile.ZipFile(io.BytesIO(file.read_bytes())).namelist()

    # Load it in another page; reload finds it
    other = visit("?figure=")
    expect(other.locator("#status")).to_contain_text("Draw a path", timeout=SLOW)
    other.set_input_files("input[type=file]", file)
    expect(other.locator(".choice")).to_contain_text("Loaded from a file", timeout=SLOW)
    assert view(other, "v.drawing.length") == 4
    page.reload()
    wait_for_model(page)
    assert view(page, "v.drawing.length") == 4


def test_a_reloaded_page_finds_its_job_and_cancel_ends_it(visit, studio):
    page = visit("?steps=5000")  # the first visit learns a figure by itself
    page.wait_for_function("() => window.nsdeStudio?.tabs.get('draw')?.view?.losses.length", timeout=SLOW)
    page.reload()
    page.wait_for_selector("#cancel:visible", timeout=SLOW)
    expect(page.locator("#status")).to_contain_text(re.compile(r"Step \d+ of 5000"), timeout=SLOW)
    page.click("#cancel")
    expect(page.locator("#status")).to_contain_text("Cancelled", timeout=SLOW)
    expect(page.locator("#learn")).to_be_enabled()
    assert studio.jobs.num_running == 0

    # Who draws while a figure is learned is not kept waiting
    page.click("#learn")
    expect(page.locator("#cancel")).to_be_visible()
    stroke(page, UP)
    expect(page.locator("#learn")).to_be_enabled(timeout=SLOW)
    expect(page.locator("#status")).to_contain_text("1 path drawn")

    # Nothing to learn from is said where it happens
    page.click("text=Clear")
    expect(page.locator("#learn")).to_be_disabled()
    stroke(page, [(0.0, 0.0), (0.05, 0.0)])
    expect(page.locator(".complaint:visible")).to_contain_text("too short to learn from")


def test_two_pages_at_once_do_not_see_each_other(visit):
    one, two = visit(f"?figure=c&steps={FEW}"), visit(f"?figure=three&steps={FEW}")
    for page, name in ((one, "Letter C"), (two, "Three-way")):
        wait_for_model(page, "p")
        expect(page.locator(f"button.chip:has-text('{name}')")).to_have_attribute("aria-pressed", "true")
    assert shares(one) == [] and len(shares(two)) == 3
    assert view(one, "v.drawing.length") == 4 and view(two, "v.drawing.length") == 12
    names = [page.evaluate("sessionStorage.getItem('nsde-visitor')") for page in (one, two)]
    assert len(set(names)) == 2


def test_a_crossing_needs_two_states_and_has_no_arrows(visit, picture):
    page = visit(f"?figure=crossing&steps={FEW}")
    wait_for_model(page, ".odd")
    expect(page.locator("text=This model looks at two states")).to_be_visible()
    expect(page.locator("text=Arrows: where")).to_be_hidden()
    picture(page, "crossing")


def test_a_phone_draws_with_a_finger(visit, picture):
    page = visit(
        f"?steps={FEW}", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, device_scale_factor=2
    )
    wait_for_model(page, ".odd")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#learn").bounding_box()["y"] < 844  # in sight, without scrolling
    stage = page.locator(".stage").bounding_box()
    page.touchscreen.tap(stage["x"] + 60, stage["y"] + stage["height"] / 2)
    page.wait_for_function("() => nsdeStudio.tabs.get('draw').view.start", timeout=SLOW)
    page.wait_for_timeout(1_500)
    picture(page, "phone")
    picture(page, "phone-whole", full_page=True)
