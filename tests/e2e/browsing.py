"""A visitor: one browser page that is logged in to a daemon, and what its browser complained of."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect
from support.daemons import DaemonProcess
from support.waiting import PATIENCE

OpenVisitor = Callable[..., "Visitor"]

REFUSALS = r"Failed to load resource: the server responded with a status of 4\d\d"
"""The browser's own line about every request that is refused, as tests of bad input provoke."""

# A violation of the Content-Security-Policy is made to show in the console; `shifts` tells how much
# of the window moved on its own, as a share of its area.
_WATCH = """
document.addEventListener("securitypolicyviolation",
  (event) => console.error(`CSP violation: ${event.violatedDirective} ${event.blockedURI} on ` +
    `${location.pathname} by ${event.sourceFile}:${event.lineNumber} ${event.sample}`));
window.shifts = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) shifts.push(entry.value);
}).observe({ type: "layout-shift", buffered: true });
"""


@dataclass
class Visitor:
    """A page and its complaints."""

    daemon: DaemonProcess
    page: Page
    allowed: tuple[str, ...] = ()
    complaints: list[str] = field(default_factory=list)

    def go(self, path: str) -> Page:
        """Open a path of the daemon and return the page."""
        self.page.goto(f"{self.daemon.address.url}{path}")
        return self.page

    def unexpected(self) -> list[str]:
        """Return the complaints that nobody announced."""
        return [
            complaint
            for complaint in self.complaints
            if not any(re.search(pattern, complaint) for pattern in self.allowed)
        ]

    def on_console(self, message: ConsoleMessage) -> None:
        """Note what the console shows as an error or a warning."""
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def on_dialog(self, dialog: Dialog) -> None:
        """Complain: the pages ask with dialogs of their own."""
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()


def visit(
    browser: Browser, daemon: DaemonProcess, *, allowed: tuple[str, ...] = (), **options: Any
) -> Visitor:
    """Return a visitor who is logged in by a link of the daemon.

    Args:
        browser: whose pages.
        daemon: to log in to.
        allowed: patterns of complaints that the test provokes.
        options: of the browser context, such as `color_scheme`.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE * 1000)
    context.add_init_script(_WATCH)
    visitor = Visitor(daemon, context.new_page(), allowed)
    visitor.page.on("console", visitor.on_console)
    visitor.page.on("pageerror", lambda error: visitor.complaints.append(f"page error: {error}"))
    visitor.page.on("dialog", visitor.on_dialog)
    visitor.page.goto(daemon.api("POST", "/login-links")["url"])
    return visitor


def agree(page: Page, question: str) -> None:
    """Say yes to what a page asks before it does something that cannot be undone."""
    dialog = page.get_by_role("dialog", name=question)
    dialog.locator('[value="yes"]').click()
    expect(dialog).to_be_hidden()


def wait_for(page: Page, condition: Callable[[], object], what: str) -> None:
    """Wait for something that the test hears of by the page's events, which come meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        page.wait_for_timeout(50)


def drop_file(page: Page, path: Path) -> None:
    """Drop a file on the drop zone, with the events of a real drag."""
    transfer = page.evaluate_handle(
        """([name, text]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([text], name));
            return transfer;
        }""",
        [path.name, path.read_text()],
    )
    for event in ("dragenter", "dragover", "drop"):
        page.dispatch_event("#drop", event, {"dataTransfer": transfer})


def chart_points(page: Page) -> int:
    """Return how many training steps the chart shows."""
    return int(page.locator("#chart").get_attribute("data-points") or 0)


def too_wide(page: Page) -> list[str]:
    """Return what is wider than the window, beginning with the tag; what scrolls in itself may."""
    wide: list[str] = page.evaluate(
        """() => {
            const scrolls = (one) => {
                for (let up = one.parentElement; up && up !== document.body; up = up.parentElement)
                    if (["auto", "scroll"].includes(getComputedStyle(up).overflowX)) return true;
                return false;
            };
            return [...document.querySelectorAll("body *")]
                .filter((one) => one.getBoundingClientRect().right > innerWidth + 0.5)
                .filter((one) => !one.closest("pre, .unseen") && !scrolls(one))
                .map((one) => one.outerHTML.slice(0, 80));
        }"""
    )
    scrolled, shown = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    return wide if scrolled <= shown else [*wide, f"{scrolled} of {shown} px"]
