"""What axe-core finds on the pages: nothing serious."""

from pathlib import Path
from typing import Any

import pytest
from e2e.browsing import OpenVisitor
from e2e.conftest import Studio
from e2e.pages import PAGES, Places
from playwright.sync_api import Page

_ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").is_file())
_AXE = _ROOT / "node_modules/axe-core/axe.min.js"
_GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, which the build of a checkout fetches."""
    if not _AXE.exists():
        pytest.skip("axe-core is not there: run `npm ci` in the checkout")
    return _AXE.read_text("utf-8")


def faults(page: Page, axe: str) -> list[str]:
    """Return what is seriously wrong with a page, in lines."""
    # Evaluated by the debugger, which no Content-Security-Policy holds back.
    page.evaluate(axe)
    found: Any = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{one['id']}: {node['html'][:120]}: {' '.join(node['failureSummary'].split())[:200]}"
        for one in found["violations"]
        if one["impact"] in _GRAVE
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_axe_finds_nothing_serious(
    open_visitor: OpenVisitor, studio: Studio, places: Places, axe: str, scheme: str
) -> None:
    visitor = open_visitor(studio.daemon, color_scheme=scheme)
    found = {}
    for name, address in PAGES.items():
        page = visitor.go(address(places))
        page.locator("h1, h2").first.wait_for()
        if wrong := faults(page, axe):
            found[name] = wrong
    assert found == {}


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_axe_finds_nothing_serious_before_the_login(
    open_visitor: OpenVisitor, studio: Studio, axe: str, scheme: str
) -> None:
    visitor = open_visitor(studio.daemon, color_scheme=scheme, allowed=(r"status of 40[13]",))
    visitor.page.context.clear_cookies()
    assert faults(visitor.go("/login"), axe) == []


def test_axe_finds_what_is_wrong(open_visitor: OpenVisitor, studio: Studio, axe: str) -> None:
    page = open_visitor(studio.daemon).go("/schedule")
    page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    assert any(fault.startswith("label:") for fault in faults(page, axe))
