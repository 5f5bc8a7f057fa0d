"""Who gets in: one browser a link."""

import pytest
from e2e.browsing import REFUSALS, OpenVisitor
from e2e.conftest import Studio
from playwright.sync_api import Browser, expect


@pytest.mark.quick
def test_link_logs_one_browser_in_once(
    browser: Browser, open_visitor: OpenVisitor, studio: Studio
) -> None:
    link = studio.daemon.api("POST", "/login-links")["url"]
    first = browser.new_context()
    page = first.new_page()
    page.goto(link)
    expect(page.get_by_role("heading", name="New job")).to_be_visible()
    assert "token" not in page.url
    page.reload()
    expect(page.get_by_role("heading", name="New job")).to_be_visible()
    first.close()

    second = browser.new_context()
    page = second.new_page()
    page.goto(link)
    expect(page.locator(".error")).to_contain_text("DAEMON-ACCESS")
    expect(page.locator(".error")).to_contain_text("This link does not open the page any more.")
    second.close()


def test_page_without_login_shows_the_coded_message(browser: Browser, studio: Studio) -> None:
    context = browser.new_context()
    page = context.new_page()
    for path in ("/", "/jobs/1", "/no-such-page"):
        answer = page.goto(f"{studio.daemon.address.url}{path}")
        assert answer is not None
        assert answer.status == 401
        expect(page.locator(".error")).to_contain_text("DAEMON-ACCESS")
        expect(page.locator(".error")).to_contain_text("slidepack open")
    context.close()


def test_lost_login_shows_one_message_on_the_open_page(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    # The stream of live events may be refused as well, which the console shows as an event.
    visitor = open_visitor(studio.daemon, allowed=(REFUSALS, r"error: \[object Event\]"))
    page = visitor.page
    page.context.clear_cookies()
    page.get_by_role("button", name="Give the GPU back").click()
    expect(page.locator("#errors .error")).to_have_count(1)
    expect(page.locator("#errors")).to_contain_text("DAEMON-ACCESS")
    # The refusal is a whole page of its own; only its message may be put into this one.
    expect(page.get_by_role("banner")).to_have_count(1)
    expect(page).to_have_title("Slidepack")


def test_unknown_page_and_unknown_job_are_coded(open_visitor: OpenVisitor, studio: Studio) -> None:
    visitor = open_visitor(studio.daemon, allowed=(REFUSALS,))
    expect(visitor.go("/jobs/999").locator(".error")).to_contain_text("RUN-NOT-FOUND")
    expect(visitor.go("/nothing").locator(".error")).to_contain_text("DAEMON-REQUEST-INVALID")
