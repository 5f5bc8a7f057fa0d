"""Every page at every width: nothing overflows, nothing moves by itself; and their pictures."""

from pathlib import Path

import pytest
from e2e.browsing import OpenVisitor, too_wide
from e2e.conftest import Studio
from e2e.pages import PAGES, Places
from playwright.sync_api import expect

_FOLDER = (
    next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").is_file())
    / "artifacts/screenshots"
)
_WIDTHS = (360, 390, 1440, 3840)
_PICTURED = (390, 1440)
_MOST_SHIFT = 0.05
"""Share of the window's area that may move in all; 0.1 is what is called good."""


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_pages_fit_every_window_and_are_pictured(
    open_visitor: OpenVisitor, studio: Studio, places: Places, scheme: str
) -> None:
    _FOLDER.mkdir(parents=True, exist_ok=True)
    wrong = {}
    visitor = open_visitor(studio.daemon, color_scheme=scheme)
    for width in _WIDTHS:
        visitor.page.set_viewport_size({"width": width, "height": 900})
        for name, address in PAGES.items():
            page = visitor.go(address(places))
            page.locator("h1, h2").first.wait_for()
            if wide := too_wide(page):
                wrong[f"{name} {width}"] = wide
            if width in _PICTURED:
                path = _FOLDER / f"{name}-{scheme}-{width}.png"
                page.screenshot(path=path, full_page=True)
    assert wrong == {}


@pytest.mark.full
def test_nothing_moves_by_itself_while_live(
    open_visitor: OpenVisitor, studio: Studio, places: Places
) -> None:
    visitor = open_visitor(studio.daemon)
    moved = {}
    for name, address in PAGES.items():
        page = visitor.go(address(places))
        page.locator("h1, h2").first.wait_for()
        # The page of a job that has ended listens to nothing any more.
        ended = page.locator("#job-state[data-ended=yes]").count()
        if page.locator("[data-live~=changed]").count() and not ended:
            expect(page.locator("#live")).to_have_text("Live")
            with page.expect_response(lambda answer: "part" in answer.url):
                studio.daemon.api("POST", "/queue/pause", json={"seconds": 3600})
            studio.daemon.api("POST", "/queue/resume")
        shifts = sum(page.evaluate("shifts"))
        if shifts > _MOST_SHIFT:
            moved[name] = shifts
    assert moved == {}
