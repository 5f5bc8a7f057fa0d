"""A completed job is gone on with from its page, and the two pages lead to each other."""

import re

from e2e.browsing import REFUSALS, OpenVisitor
from e2e.conftest import Studio
from playwright.sync_api import expect


def test_a_completed_job_goes_on_from_its_page(
    open_visitor: OpenVisitor, studio: Studio, completed_job: int
) -> None:
    page = open_visitor(studio.daemon, allowed=(REFUSALS,)).go(f"/jobs/{completed_job}")
    page.get_by_text("Go on from here").click()
    page.get_by_label("Passes over the data").fill("one")
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("alert")).to_contain_text("epochs is one; use a number")
    page.get_by_label("Passes over the data").fill("0.5")
    page.get_by_role("textbox", name="Learning rate").fill("0.001")
    page.get_by_role("button", name="Go on").click()
    expect(page).not_to_have_url(re.compile(rf"/jobs/{completed_job}$"))
    child = int(page.url.rsplit("/", 1)[1])
    expect(page.locator("#origin")).to_contain_text("with its optimizer state")
    spec = studio.daemon.api("GET", f"/jobs/{child}")["spec"]
    assert (spec["epochs"], spec["optim"]["lr"]) == (0.5, 0.001)
    expect(page.locator("#job-state")).to_have_text("completed")
    # The form comes with the end, on a page that was open all the time.
    expect(page.get_by_text("Go on from here")).to_be_visible()
    page.get_by_role("link", name=f"job {completed_job}").click()
    expect(page.locator("#continued-by")).to_contain_text(f"job {child}")
