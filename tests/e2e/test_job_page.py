"""The job page while a job is paused, resumed and cancelled, seen from two pages at once."""

import re

from e2e.browsing import REFUSALS, OpenVisitor, agree
from e2e.conftest import Studio
from playwright.sync_api import Page, expect


def expect_state(pages: tuple[Page, ...], state: str) -> None:
    for page in pages:
        expect(page.locator("#job-state")).to_have_text(state)


def test_pause_resume_and_cancel_on_two_pages(open_visitor: OpenVisitor, studio: Studio) -> None:
    job_id = studio.start(name="Long run", steps=5000)
    first = open_visitor(studio.daemon)
    second = open_visitor(studio.daemon)
    queue = open_visitor(studio.daemon).page
    pages = (first.go(f"/jobs/{job_id}"), second.go(f"/jobs/{job_id}"))
    entry = queue.locator("#queue li", has_text="Long run")
    page = pages[0]

    expect_state(pages, "running")
    for each in pages:
        expect(each.locator("#chart")).to_have_attribute("data-points", re.compile("[1-9]"))
    page.get_by_role("button", name="Pause").click()
    expect_state(pages, "paused")
    expect(entry).to_contain_text("paused")
    for each in pages:
        expect(each.get_by_role("button", name="Pause")).to_have_count(0)
        expect(each.get_by_role("button", name="Resume")).to_be_visible()

    pages[1].get_by_role("button", name="Resume").click()
    expect_state(pages, "running")
    expect(page.locator("#history")).to_contain_text("Resumed; waits for its turn.")

    page.get_by_role("button", name="Cancel").click()
    # Nothing happens before a yes.
    page.get_by_role("dialog").get_by_role("button", name="Leave it").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert studio.daemon.job(job_id)["state"] == "running"
    page.get_by_role("button", name="Cancel").click()
    agree(page, "Cancel this job for good?")
    expect_state(pages, "cancelled")
    expect(entry).to_contain_text("cancelled")
    for each in pages:
        expect(each.get_by_role("button", name="Cancel")).to_have_count(0)
        expect(each.get_by_role("button", name="Try again")).to_be_visible()
        # Nothing more can come, so the stream is let go.
        expect(each.locator("#live")).to_be_hidden()


def test_two_buttons_pressed_at_once_show_the_refusal(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    job_id = studio.start(name="Cancelled elsewhere", steps=5000)
    visitor = open_visitor(studio.daemon, allowed=(REFUSALS,))
    page = visitor.go(f"/jobs/{job_id}")
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    # This page hears of nothing any more, and so shows a button that cannot work.
    page.route("**/parts/**", lambda route: route.fulfill(status=204))
    studio.daemon.api("POST", f"/jobs/{job_id}/cancel")
    studio.daemon.wait_for(job_id, "cancelled")
    page.get_by_role("button", name="Cancel").click()
    agree(page, "Cancel this job for good?")
    expect(page.get_by_role("alert")).to_contain_text("RUN-STATE")
    expect(page.get_by_role("alert")).to_contain_text("it is cancelled")


def test_failed_job_shows_its_error_and_can_be_tried_again(
    open_visitor: OpenVisitor, studio: Studio, failed_job: int
) -> None:
    page = open_visitor(studio.daemon).go(f"/jobs/{failed_job}")
    expect(page.locator("#job-state")).to_have_text("failed")
    expect(page.locator("#status .error code")).to_have_text("MODEL-CHANGED")
    page.get_by_role("button", name="Try again").click()
    expect(page).not_to_have_url(re.compile(rf"/jobs/{failed_job}$"))
    again = int(page.url.rsplit("/", 1)[1])
    assert studio.daemon.api("GET", f"/jobs/{again}")["job"]["name"] == "On a changed model"
    studio.daemon.wait_for(again, "failed")


def test_ended_job_is_whole_without_a_stream(
    open_visitor: OpenVisitor, studio: Studio, completed_job: int
) -> None:
    visitor = open_visitor(studio.daemon)
    streams: list[str] = []
    visitor.page.on(
        "request", lambda request: streams.append(request.url) if "stream" in request.url else None
    )
    page = visitor.go(f"/jobs/{completed_job}")
    expect(page.locator("#chart")).to_have_attribute("data-points", "20")
    expect(
        page.get_by_role("img", name=re.compile("Training loss of steps 1 to 20"))
    ).to_be_visible()
    page.emulate_media(color_scheme="dark")
    page.emulate_media(color_scheme="light")
    expect(page.locator("#chart canvas")).to_have_count(1)
    assert [url for url in streams if "/jobs/" in url] == []
