"""The tab Your table in a real browser: an example, a CSV of one's own, a bad one, a forecast, its backtest, a phone."""

import csv
import math

from playwright.sync_api import expect

SLOW = 240_000  # milliseconds: two busy cores
QUERY = "?trials=1&steps=10#table"  # one model; the Draw tab, which is not opened, does not learn


def write_csv(file, num=90, shops=("north", "south"), header="day,shop,sold"):
    lines = [header]
    for k, shop in enumerate(shops):
        for day in range(num):
            value = 40 + 20 * k + 9 * math.sin(2 * math.pi * day / 7) + ((7 * day) % 5)
            lines.append(f"2025-{1 + day // 28:02d}-{1 + day % 28:02d},{shop},{value:.1f}")
    file.write_text("\n".join(lines) + "\n")
    return file


def view(page, what):
    return page.evaluate(f"() => {{ const v = nsdeStudio.tabs.get('table').view; return {what}; }}")


def open_tab(visit, **settings):
    page = visit(QUERY, **settings)
    expect(page.locator("#table-status")).to_contain_text("electricity.csv", timeout=SLOW)
    return page


def wait_for_forecast(page):
    page.wait_for_selector("#scores tr.own", timeout=SLOW)
    page.wait_for_timeout(900)  # the fan unfolds


def test_a_table_of_ones_own_is_read_forecast_tested_and_downloaded(visit, picture, tmp_path):
    page = open_tab(visit)
    picture(page, "table-example")
    assert view(page, "v.fans.panels.length") == 1  # something is there before anything was asked for

    # Weekly sales of two shops: time and series are found
    page.set_input_files("#table-file", write_csv(tmp_path / "sales.csv", num=84))
    expect(page.locator("#table-status")).to_contain_text("sales.csv: 168 of 168 rows", timeout=SLOW)
    assert view(page, "[v.time.value, v.series.value]") == ["day", "shop"]
    expect(page.locator("#diagnosis")).to_contain_text("2 series.")

    # Forecast, with progress
    page.fill("#horizon", "7")
    page.click("#forecast")
    expect(page.locator("#table-cancel")).to_be_visible()
    wait_for_forecast(page)
    picture(page, "table-forecast")
    fan = view(page, "v.fans.panels[0].ahead")
    assert len(fan["t"]) == 7 and len(fan["q"]) == 7
    assert all(low <= high for low, high in zip(fan["q"][0], fan["q"][6]))
    assert fan["t"][0] > view(page, "v.fans.panels[0].past.t.at(-1)")
    names = page.eval_on_selector_all("#scores tbody tr", "all => all.map(r => r.dataset.name)")
    assert names[:2] == ["model", "naive"]

    # Pointing at the fan names the date and the bands
    box = page.locator(".fan canvas").first.bounding_box()
    page.mouse.move(box["x"] + 0.97 * box["width"], box["y"] + 0.5 * box["height"])
    expect(page.locator(".tip:visible")).to_contain_text("80 %:")
    page.mouse.move(5, 5)

    # Backtest, single futures, dark
    page.click("text=Backtest")
    assert view(page, "v.fans.cells[0].fans.length") >= 1
    page.wait_for_timeout(300)
    picture(page, "table-backtest")
    page.click(".segment:has-text('Forecast')")
    page.click("text=Some single futures")
    page.click("#theme")
    page.wait_for_timeout(400)
    picture(page, "table-dark")

    # Python and the CSV
    page.click("#table-copy")
    expect(page.locator("#panel-table .code")).to_contain_text("nsde.fit_series(")
    with page.expect_download() as saved:
        page.click("#download")
    saved.value.save_as(tmp_path / "forecast.csv")
    rows = list(csv.DictReader((tmp_path / "forecast.csv").open()))
    assert len(rows) == 2 * 7 and {row["unique_id"] for row in rows} == {"north", "south"}
    assert float(rows[0]["q0.025"]) <= float(rows[0]["q0.5"]) <= float(rows[0]["q0.975"])

    # A page that is loaded again has it all
    page.reload()
    wait_for_forecast(page)
    assert len(view(page, "v.fans.panels")) == 2


def test_a_bad_table_is_explained_where_it_happens(visit, picture, tmp_path):
    page = open_tab(visit)
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    page.set_input_files("#table-file", empty)
    expect(page.locator("#panel-table .complaint:visible")).to_contain_text("empty.csv", timeout=SLOW)
    assert str(tmp_path.parent) not in page.locator("#panel-table .complaint:visible").inner_text()

    picture_file = tmp_path / "photo.png"
    picture_file.write_bytes(b"\x89PNG")
    page.set_input_files("#table-file", picture_file)
    expect(page.locator("#panel-table .complaint:visible")).to_contain_text("A table must end in .csv")

    # Dates that may be two: the message, and the field that mends it
    twofold = tmp_path / "twofold.csv"
    twofold.write_text(
        "when,level\n" + "\n".join(f"{1 + k % 9:02d}/{1 + k // 9:02d}/2024,{k * k % 17}" for k in range(81))
    )
    page.set_input_files("#table-file", twofold)
    expect(page.locator("#panel-table .complaint:visible")).to_contain_text("can be read in 2 ways", timeout=SLOW)
    expect(page.locator("#forecast")).to_be_disabled()
    picture(page, "table-bad")
    page.fill("#date-format", "%d/%m/%Y")
    page.keyboard.press("Enter")
    expect(page.locator("#diagnosis")).to_contain_text("from 2024-01-01 to 2024-09-09", timeout=SLOW)
    expect(page.locator("#forecast")).to_be_enabled()
    expect(page.locator("#panel-table .complaint:visible")).to_have_count(0)

    # Too far ahead: the library's message, at the button
    page.fill("#horizon", "400")
    page.click("#choose", trial=True)
    page.click("text=Electricity, hourly")
    expect(page.locator("#table-status")).to_contain_text("electricity.csv", timeout=SLOW)
    page.fill("#horizon", "400")
    page.click("#forecast")
    expect(page.locator("#panel-table .complaint:visible")).to_contain_text("at most half of the longest", timeout=SLOW)


def test_cancel_and_choice_of_columns(visit, studio):
    page = open_tab(visit)
    page.click("text=Weather, daily")
    expect(page.locator("#table-status")).to_contain_text("weather.csv", timeout=SLOW)
    assert view(page, "v.fans.panels.length") == 3
    page.click("text=How it is read")
    page.click("[data-column=wind]")
    page.wait_for_function("() => nsdeStudio.tabs.get('table').view.fans.panels.length === 2", timeout=SLOW)
    page.click("#forecast")
    page.wait_for_selector("#table-cancel:visible")
    page.click("#table-cancel")
    expect(page.locator("#fit-status")).to_contain_text("Cancelled", timeout=10_000)
    assert studio.jobs.num_running == 0


def test_a_phone_forecasts(visit, picture, tmp_path):
    page = open_tab(
        visit, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, device_scale_factor=2
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_input_files("#table-file", write_csv(tmp_path / "sales.csv", num=56))
    expect(page.locator("#table-status")).to_contain_text("sales.csv", timeout=SLOW)
    page.tap("#forecast")
    wait_for_forecast(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    picture(page, "table-phone")
    picture(page, "table-phone-whole", full_page=True)
