"""What is pressed, typed or opened before the scripts of its page are there."""

from collections.abc import Callable
from pathlib import Path

from e2e.browsing import OpenVisitor
from e2e.conftest import Studio
from playwright.sync_api import Page, Route, expect
from support.tiny import chat_rows, write_jsonl


def hold_back(page: Page, pattern: str) -> Callable[[], None]:
    """Keep what is fetched from now on, as a slow network does; the returned call lets it come."""
    routes: list[Route] = []
    slow = True

    def on_route(route: Route) -> None:
        if slow:
            routes.append(route)
        else:
            route.continue_()

    def let_go() -> None:
        nonlocal slow
        slow = False
        for route in routes:
            route.continue_()

    page.route(pattern, on_route)
    return let_go


def test_a_button_that_is_pressed_before_the_scripts_are_there_acts_once(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    made = studio.daemon.upload(write_jsonl(tmp_path / "early.jsonl", chat_rows(8)))
    page = open_visitor(studio.daemon).page
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.method) if one.method == "POST" else None)
    let_go = hold_back(page, "**/vendor/htmx.min.js")
    page.goto(f"{studio.daemon.address.url}/datasets/{made}/delete", wait_until="commit")
    button = page.get_by_role("button", name="Delete it for good")
    button.click(no_wait_after=True)
    button.click(no_wait_after=True)
    assert made in [one["id"] for one in studio.daemon.api("GET", "/datasets")]
    let_go()
    page.wait_for_url("**/datasets")
    assert made not in [one["id"] for one in studio.daemon.api("GET", "/datasets")]
    assert asked == ["POST"]


def test_what_is_typed_and_opened_before_the_scripts_are_there_counts(
    open_visitor: OpenVisitor, studio: Studio, completed_job: int
) -> None:
    page = open_visitor(studio.daemon).page
    let_go = hold_back(page, "**/vendor/htmx.min.js")
    page.goto(f"{studio.daemon.address.url}/schedule", wait_until="commit")
    page.get_by_label("Search").fill("no program is called so")
    let_go()
    expect(page.locator("#running")).to_contain_text("Nothing of that name runs now")

    let_go = hold_back(page, "**/vendor/htmx.min.js")
    page.goto(f"{studio.daemon.address.url}/jobs/{completed_job}", wait_until="commit")
    page.locator("#first-row > summary").click()
    let_go()
    expect(page.locator("#first-row-shown")).to_contain_text("Name stone number")


def test_a_form_that_is_sent_before_the_modules_are_there_is_sent_by_them(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    file = write_jsonl(tmp_path / "given.jsonl", chat_rows(8))
    page = open_visitor(studio.daemon).page
    let_go = hold_back(page, "**/static/live.js")
    page.goto(f"{studio.daemon.address.url}/new", wait_until="commit")
    page.locator("#by-path > summary").click()
    path = page.locator("#path")
    path.fill(str(file))
    path.press("Enter")
    let_go()
    expect(page.locator("#verdict")).to_contain_text("given.jsonl")
