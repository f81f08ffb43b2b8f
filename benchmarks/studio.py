"""How quick the studio feels: first paint, script time per frame with 500 particles, latency; and the picture of its guide.

    python benchmarks/studio.py --output results/studio.json --picture docs/assets/studio.jpg

A real Chromium opens the page, as a first visit does: a Y is learned without a click. Script time is what the page's own code
takes in one frame of the animation, without what the browser then does with it. Latency is from asking to the answer, on the same
machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from neuralsde.studio.server import Studio
from neuralsde.training.run_folder import provenance, write_results

STEPS, PARTICLES, FRAMES, ASKED, DRAWN = 400, 500, 240, 30, 5
SLOW = 300_000  # milliseconds
VIEW = "nsdeStudio.tabs.get('draw').view"


def measure(page: Page, address: str) -> dict[str, Any]:
    """Visit the studio once."""
    began = time.perf_counter()
    page.goto(f"{address}?steps={STEPS}")
    page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length", timeout=SLOW)
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.wait_for_function("() => window.nsdeStudio?.tabs.get('draw')?.view?.losses.length", timeout=SLOW)
    learns = time.perf_counter() - began
    page.wait_for_selector("#odds .odd", timeout=SLOW)
    learned = time.perf_counter() - began
    shares = page.eval_on_selector_all("#odds .odd", "all => all.map(o => Number(o.dataset.share))")
    page.locator("input[name=num_paths]").evaluate(
        f"e => {{ e.value = {PARTICLES}; e.dispatchEvent(new Event('input', {{ bubbles: true }})); }}"
    )
    page.wait_for_function(f"() => {VIEW}.particles.num >= 0.95 * {PARTICLES}", timeout=SLOW)
    first = page.evaluate(f"{VIEW}.stage.frames")
    page.wait_for_function(f"() => {VIEW}.stage.frames > {first + 2 * FRAMES}", timeout=SLOW)  # all of them are out
    frames = sorted(page.evaluate(f"Array.from({VIEW}.stage.times)"))
    return {
        "first_paint_ms": paint,
        "first_loss_s": learns,
        "learned_s": learned,
        "shares": shares,
        "particles": page.evaluate(f"{VIEW}.particles.num"),
        "script_ms_per_frame": statistics.median(frames),
        "script_ms_per_frame_95": frames[int(0.95 * len(frames))],
        "latency_ms": latency(page, "state", {}, ASKED),
        "sample_ms": latency(page, "sample", {"num_paths": PARTICLES}, DRAWN),
        "n": {"frames": len(frames), "latency": ASKED, "sample": DRAWN},
    }


def latency(page: Page, action: str, given: dict[str, Any], num: int) -> float:
    """Milliseconds from asking to the answer; the median."""
    script = f"""async ([action, given, num]) => {{
      const took = [];
      for (let k = 0; k < num; k++) {{
        const began = performance.now();
        await {VIEW}.studio.ask(action, given);
        took.push(performance.now() - began);
      }}
      return took;
    }}"""
    return statistics.median(page.evaluate(script, [action, given, num]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("results/studio.json"))
    parser.add_argument("--picture", type=Path, help="where to keep a picture of the page")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with Studio(port=0) as studio, sync_playwright() as playwright:
        place = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=place, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1180, "height": 760})
        found = measure(page, studio.address)
        if args.picture:
            page.screenshot(path=args.picture, type="jpeg", quality=80)
        version = browser.version
        browser.close()
    values = {
        "command": "python benchmarks/studio.py",
        "seed": 0,
        "steps": STEPS,
        "chromium": version,
        "load_before": load,
    }
    write_results(args.output, {**provenance(), **values, **found})
    print({k: round(v, 2) for k, v in found.items() if isinstance(v, float)})


if __name__ == "__main__":
    main()
