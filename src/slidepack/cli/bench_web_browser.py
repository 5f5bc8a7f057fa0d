"""Times pages in Chromium: `python -P -m slidepack.cli.bench_web_browser OPTIONS`.

The options and the answer are JSON. In a process of its own, because Playwright is there for
developers only.
"""

import statistics
import sys
from typing import Any, Final

import msgspec
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

__all__ = ["Options", "main"]

_FIRST_PAINT: Final = """
() => new Promise((done) => {
  new PerformanceObserver((list, observer) => {
    const [paint] = list.getEntriesByName("first-contentful-paint");
    if (!paint) return;
    observer.disconnect();
    done(paint.startTime);
  }).observe({ type: "paint", buffered: true });
})
"""
_TRANSFERRED: Final = """
() => ["navigation", "resource"]
  .flatMap((kind) => performance.getEntriesByType(kind))
  .reduce((sum, entry) => sum + entry.transferSize, 0)
"""
# From the click itself to the frame after the change: what Playwright takes to click is left out.
_WATCH: Final = """
(shown) => {
  window.benchShown = new Promise((done, fail) => {
    setTimeout(() => fail(new Error(`${shown} did not come`)), 30_000);
    document.addEventListener("click", () => {
      const begun = performance.now();
      const look = () => {
        if (!document.querySelector(shown)) return;
        observer.disconnect();
        requestAnimationFrame(() => done(performance.now() - begun));
      };
      const observer = new MutationObserver(look);
      observer.observe(document.body, { childList: true, subtree: true, attributes: true });
      look();
    }, { once: true, capture: true });
  });
}
"""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked."""

    url: str
    """Of the daemon."""
    link: str
    """Logs in, once."""
    program: str
    """Chromium."""
    rounds: int


def main(arguments: list[str]) -> int:
    """Measure, and print one JSON object."""
    options = msgspec.json.decode(arguments[0], type=Options)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.program)
        try:
            result = _measure(browser, options)
        finally:
            browser.close()
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    return 0


def _measure(browser: Browser, options: Options) -> dict[str, Any]:
    entered = browser.new_context()
    entered.new_page().goto(options.link)
    state = entered.storage_state()
    entered.close()
    paints, sizes = [], []
    for _ in range(options.rounds):
        # A context of its own has a cache of its own, which is empty.
        context = browser.new_context(storage_state=state)
        paint, size = _first_visit(context, options.url)
        context.close()
        paints.append(paint)
        sizes.append(size)
    page = browser.new_context(storage_state=state).new_page()
    jobs = _job_pauses(page, options)
    return {
        "browser": browser.version,
        "first_paint_ms": statistics.median(paints),
        "transferred_bytes": max(sizes),
        "job_pause_ms": statistics.median(jobs) if jobs else None,
        "queue_pause_ms": statistics.median(_queue_pauses(page, options)),
    }


def _first_visit(context: BrowserContext, url: str) -> tuple[float, int]:
    page = context.new_page()
    page.goto(f"{url}/", wait_until="load")
    size = int(page.evaluate(_TRANSFERRED))
    return float(page.evaluate(_FIRST_PAINT)), size


def _job_pauses(page: Page, options: Options) -> list[float]:
    """Return how long it takes until the queue's page shows jobs as paused, in milliseconds."""
    page.goto(f"{options.url}/queue", wait_until="load")
    buttons = page.locator("#waiting-jobs button[data-act=pause]")
    names = [
        buttons.nth(place).get_attribute("id")
        for place in range(min(options.rounds, buttons.count()))
    ]
    return [_click(page, f"#{name}[data-act=pause]", f"#{name}[data-act=resume]") for name in names]


def _queue_pauses(page: Page, options: Options) -> list[float]:
    """Return how long it takes until the first page shows that all is paused."""
    page.goto(f"{options.url}/", wait_until="load")
    times = []
    for _ in range(options.rounds):
        times.append(_click(page, "#queue-pause", "#queue-resume"))
        _click(page, "#queue-resume", "#queue-pause")
    return times


def _click(page: Page, button: str, shown: str) -> float:
    page.evaluate(_WATCH, shown)
    page.click(button)
    return float(page.evaluate("() => window.benchShown"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
