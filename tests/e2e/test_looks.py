"""How the pages look: no sideways scrolling, tied labels, a visible focus; and their pictures."""

import re
from pathlib import Path

import pytest
from e2e.browsing import OpenVisitor, drop_file, too_wide
from e2e.conftest import Studio
from playwright.sync_api import Page, expect
from support.daemons import DaemonProcess
from support.tiny import chat_rows, write_jsonl

_SCREENS = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").is_file()) / (
    "artifacts/screens"
)
_VIEWS = [
    pytest.param(scheme, width, id=f"{scheme}-{width}")
    for scheme in ("light", "dark")
    for width in (390, 1440)
]


def look(page: Page, name: str) -> None:
    """Check that nothing is wider than the window and keep a picture."""
    # A page has its address before it has its styles.
    page.wait_for_load_state()
    assert too_wide(page) == [], name
    _SCREENS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=_SCREENS / f"{name}.png", full_page=True)


@pytest.mark.parametrize(("scheme", "width"), _VIEWS)
def test_pages_fit_their_window(
    open_visitor: OpenVisitor,
    studio: Studio,
    completed_job: int,
    failed_job: int,
    tmp_path: Path,
    scheme: str,
    width: int,
) -> None:
    visitor = open_visitor(
        studio.daemon, color_scheme=scheme, viewport={"width": width, "height": 900}
    )
    page = visitor.page
    view = f"{scheme}-{width}"
    long_word = "Donaudampfschifffahrtsgesellschaftskapitaen" * 3
    rows: list[dict[str, object]] = [*chat_rows(20), {"messages": long_word}]
    expect(page.locator("#queue")).to_contain_text("Done lately")
    look(page, f"home-{view}")
    # A file that is dropped on the first page is taken to where a job is made of it.
    drop_file(page, write_jsonl(tmp_path / f"{long_word}.jsonl", rows))
    expect(page).to_have_url(re.compile(r"/new\?(dataset|draft)="))
    look(page, f"new-{view}")
    visitor.go(f"/jobs/{completed_job}")
    expect(page.locator("#chart canvas")).to_be_visible()
    look(page, f"job-{view}")
    visitor.go(f"/jobs/{failed_job}")
    expect(page.locator("#status .error")).to_be_visible()
    look(page, f"job-failed-{view}")


def test_the_name_of_the_page_is_in_sight_on_a_telephone(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    visitor = open_visitor(studio.daemon, viewport={"width": 390, "height": 844})
    for path, name in (("/doctor", "Doctor"), ("/models", "Models"), ("/", "Home")):
        here = visitor.go(path).get_by_role("navigation").get_by_role("link", name=name)
        expect(here).to_be_in_viewport(ratio=0.9)


def test_empty_pages_say_what_to_do(daemon: DaemonProcess, open_visitor: OpenVisitor) -> None:
    for scheme, width in (("light", 1440), ("dark", 390)):
        page = open_visitor(
            daemon, color_scheme=scheme, viewport={"width": width, "height": 900}
        ).page
        expect(page.locator("#queue")).to_contain_text("No job yet.")
        expect(page.locator("#first-model")).to_contain_text("No model yet")
        expect(page.get_by_role("link", name="Begin without a file")).to_be_visible()
        look(page, f"home-empty-{scheme}-{width}")


def test_every_field_has_a_label_and_every_stop_of_tab_a_visible_focus(page: Page) -> None:
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input:not([type=hidden]), select, textarea")]
            .filter((field) => !field.labels.length).map((field) => field.name || field.id)"""
    )
    assert unnamed == []
    # The outline of the file field is drawn around the drop zone, which is what one sees of it.
    focus = """() => {
        const at = document.activeElement;
        const seen = at.id === "file" ? document.getElementById("drop") : at;
        return [at.id || at.name || at.tagName, getComputedStyle(seen).outlineStyle];
    }"""
    # What is fetched again meanwhile could take away what has the focus.
    page.route("**/parts/**", lambda route: route.fulfill(status=204))
    page.locator(".brand").focus()
    stops: list[tuple[str, str]] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(focus)
        if name == "BODY":
            break
        stops.append((name, outline))
    assert {"file", "queue-pause"} <= {name for name, _ in stops}
    assert {outline for _, outline in stops} == {"solid"}
