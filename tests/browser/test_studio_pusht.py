"""The Push-T tab in a real browser: it plays, is disturbed at a known step, and recovers."""

import re

from playwright.sync_api import expect

SLOW = 90_000  # milliseconds: two busy cores
SEED, AT = 4, 70  # an episode, and an action after which it has covered most of the goal
SHIFT = (-110.0, 90.0)  # of the T by hand, in pixels of the table


def view(page, what):
    return page.evaluate(f"() => {{ const v = nsdeStudio.tabs.get('pusht').view; return {what}; }}")


def wait(page, what):
    page.wait_for_function(
        f"() => {{ const v = nsdeStudio.tabs.get('pusht')?.view; return v?.frame && ({what}); }}", timeout=SLOW
    )


def on_page(page, x, y, table=0):
    """Where a place of a table is on the page."""
    box = view(page, "(b => [b.left, b.top])(v.front.getBoundingClientRect())")
    t = view(page, f"v.tables()[{table}]")
    return box[0] + t["x"] + x / 512 * t["side"], box[1] + t["y"] + y / 512 * t["side"]


def middle(page):
    """The T's centre of gravity."""
    return view(page, "(p => [p[2] - 45 * Math.sin(p[4]), p[3] + 45 * Math.cos(p[4])])([...v.frame.data])")


def drag(page, start, end):
    page.mouse.move(*on_page(page, *start))
    page.mouse.down()
    page.mouse.move(*on_page(page, *end), steps=8)


def test_a_t_dragged_away_at_a_known_step_is_brought_back(visit, picture):
    page = visit(f"?seed={SEED}&pause={AT}&speed=4#pusht")
    wait(page, "v.paused")
    assert view(page, "v.frame.step") == AT and view(page, "v.frame.covered[0]") > 0.7
    expect(page.locator("#pusht-pause")).to_have_text("Go on")
    expect(page.locator("#pusht-hz")).to_contain_text("Hz")
    expect(page.locator("#pusht-ms")).to_contain_text("ms")

    x, y = middle(page)
    drag(page, (x, y), (x + SHIFT[0], y + SHIFT[1]))
    wait(page, "v.held && v.frame.covered[0] < 0.1 && v.futures")
    picture(page, "pusht-dragged")
    page.mouse.up()
    wait(page, "!v.held")
    at = middle(page)
    assert abs(at[0] - x - SHIFT[0]) < 2 and abs(at[1] - y - SHIFT[1]) < 2
    assert view(page, "v.frame.step") == AT  # nothing else moved

    page.click("#pusht-step")
    wait(page, f"v.frame.step === {AT + 1} && v.paused")
    page.click("#pusht-pause")
    wait(page, "v.frame.covered[0] > 0.7")
    picture(page, "pusht-recovered")
    assert view(page, "v.curve.length") > 60 and view(page, "v.marks.length") == 1
    page.reload()
    wait(page, "v.frame.step > 10")
    assert view(page, "v.seed") in (SEED, SEED + 1)


def test_play_beside_the_policy_in_the_dark(visit, picture):
    page = visit("?seed=3&speed=2#pusht")
    wait(page, "v.frame.step > 3")
    page.click("#theme")
    page.click("text=Play beside it")
    wait(page, "v.frame.num === 2 && v.frame.step < 40")
    page.mouse.move(*on_page(page, 100, 400, 1))
    page.mouse.move(*on_page(page, 120, 90, 1), steps=6)
    wait(page, "Math.hypot(v.frame.data[5] - 120, v.frame.data[6] - 90) < 8")
    expect(page.locator("#pusht-race")).to_contain_text(re.compile("you.*best.*policy.*best", re.S))

    # The policy's pusher, put elsewhere by hand while all rests
    page.keyboard.press("Space")
    wait(page, "v.paused")
    start = view(page, "[v.frame.data[0], v.frame.data[1]]")
    far = (60.0, 60.0) if start[0] + start[1] > 500 else (450.0, 450.0)
    drag(page, start, far)
    wait(page, f"Math.hypot(v.frame.data[0] - {far[0]}, v.frame.data[1] - {far[1]}) < 3")
    picture(page, "pusht-beside-dark")
    page.mouse.up()
    page.fill("#pusht-seed", "11")
    page.keyboard.press("Enter")
    wait(page, "v.frame.step > 2 && !v.paused")
    assert view(page, "v.seed") == 11


def test_a_phone_plays_with_a_finger(visit, picture, studio):
    settings = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    page = visit("?seed=3#pusht", device_scale_factor=2, **settings)
    wait(page, "v.frame.step > 12")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    picture(page, "pusht-phone", full_page=True)
    page.tap("text=Play beside it")
    wait(page, "v.frame.num === 2")
    page.touchscreen.tap(*on_page(page, 100, 100, 1))
    wait(page, "Math.hypot(v.frame.data[5] - 100, v.frame.data[6] - 100) < 10")
    picture(page, "pusht-phone-beside")
    page.tap("text=Draw")  # whoever looks elsewhere stops the clock
    page.wait_for_timeout(1_000)
    step = view(page, "v.frame.step")
    page.wait_for_timeout(1_500)
    assert view(page, "v.frame.step") == step
    page.tap("#tab-pusht")
    wait(page, f"v.frame.step > {step}")


def test_without_the_simulator_the_page_says_what_to_install(visit, monkeypatch):
    monkeypatch.setattr("neuralsde.studio.pusht.find_spec", lambda name: None)
    page = visit("#pusht")
    expect(page.locator("#panel-pusht .complaint")).to_contain_text("pip install 'neuralsde[pusht]'", timeout=SLOW)
