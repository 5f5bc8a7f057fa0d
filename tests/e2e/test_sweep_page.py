"""A sweep in the browser: from its first step to its best adapters in a chat, and its end."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from e2e.browsing import OpenVisitor, agree
from e2e.conftest import Studio
from playwright.sync_api import Page, expect

_RATES = [1e-4, 3e-2, 1e-2, 1e-3]


def _queue(studio: Studio, **fields: Any) -> Any:
    fixed = {"batch_size": 4, "max_seq_len": 128, "rank": 4, "steps": 8} | fields.pop("fixed", {})
    request = {"model": studio.model_id, "dataset": studio.dataset, "fixed": fixed} | fields
    return studio.daemon.api("POST", "/sweeps", json=request)


@pytest.fixture(scope="module")
def ended(studio: Studio) -> Iterator[Any]:
    """A sweep whose members are completed."""
    queued = _queue(
        studio, name="Four rates", grid={"lr": _RATES}, fixed={"test_fraction": 0.2, "steps": 8}
    )
    for job_id in queued["jobs"]:
        studio.daemon.wait_for(job_id, "completed")
    yield queued


def _column(page: Page, number: int) -> list[str]:
    return page.locator(f"#sweep-rows tr > :nth-child({number})").all_inner_texts()


def test_a_sweep_is_live_and_then_names_its_best(open_visitor: OpenVisitor, studio: Studio) -> None:
    # Held until the page has been seen without a best one.
    with studio.daemon.paused():
        queued = _queue(studio, name="Live", grid={"lr": [1e-4, 1e-2]}, fixed={"steps": 40})
        page = open_visitor(studio.daemon).go(f"/sweeps/{queued['sweep_id']}")
        expect(page.locator("#live")).to_have_text("Live")
        expect(page.locator("#best")).to_contain_text("chosen among completed members")
    expect(page.locator("#sweep-rows .state.completed:not(th *)")).to_have_count(2)
    expect(page.locator("#sweep-rows tr.best")).to_have_count(1)
    best = studio.daemon.api("GET", f"/sweeps/{queued['sweep_id']}/best")
    expect(page.locator("#best a")).to_have_attribute("href", f"/jobs/{best['job_id']}")
    expect(
        page.get_by_role("img", name=re.compile("Held-out loss by lr, of 2 members"))
    ).to_be_visible()
    expect(page.locator("#download")).to_be_visible()


def test_rows_are_sorted_as_wanted_and_stay_so(
    open_visitor: OpenVisitor, studio: Studio, ended: Any
) -> None:
    page = open_visitor(studio.daemon).go(f"/sweeps/{ended['sweep_id']}")
    losses = [float(text) for text in _column(page, 4)]
    assert losses == sorted(losses)
    lr = page.get_by_role("columnheader", name="Lr")
    lr.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(lr).to_have_attribute("aria-sort", "ascending")
    assert [float(text) for text in _column(page, 3)] == sorted(_RATES)
    page.keyboard.press("Enter")
    expect(lr).to_have_attribute("aria-sort", "descending")
    assert [float(text) for text in _column(page, 3)] == sorted(_RATES, reverse=True)
    # Members come and go; the order stays that which was asked for, and so does the focus.
    more = studio.daemon.api(
        "POST", f"/sweeps/{ended['sweep_id']}/members", json={"members": [{"lr": 5e-3}]}
    )
    expect(page.locator("#sweep-rows tr")).to_have_count(5)
    expect(page.locator("#sweep-rows tr > :nth-child(3)")).to_have_text(
        ["0.03", "0.01", "0.005", "0.001", "0.0001"]
    )
    expect(lr.get_by_role("button")).to_be_focused()
    studio.daemon.wait_for(more["jobs"][0], "completed")


def test_members_are_ranked_by_test_rows_to_be_reported(
    open_visitor: OpenVisitor, studio: Studio, ended: Any
) -> None:
    page = open_visitor(studio.daemon).go(f"/sweeps/{ended['sweep_id']}")
    page.get_by_role("link", name="test loss").click()
    expect(page).to_have_url(re.compile(r"\?by=test$"))
    expect(page.get_by_role("link", name="test loss")).to_have_attribute("aria-current", "true")
    expect(page.locator("main")).to_contain_text("This order is for reporting")
    table = studio.daemon.api("GET", f"/sweeps/{ended['sweep_id']}?by=test")
    assert _column(page, 4)[:4] == [f"{row['test_loss']:.3f}" for row in table["members"]][:4]


def test_the_best_are_tried_beside_the_base(
    open_visitor: OpenVisitor, studio: Studio, ended: Any
) -> None:
    page = open_visitor(studio.daemon).go(f"/sweeps/{ended['sweep_id']}")
    members = studio.daemon.api("GET", f"/sweeps/{ended['sweep_id']}")["members"]
    page.get_by_role("link", name="Try the best 3 beside the base").click()
    ticked = page.locator('input[name="voice"]:checked')
    expect(ticked).to_have_count(4)
    names = {ticked.nth(number).get_attribute("value") for number in range(4)}
    assert names == {"base", *(f"job-{row['job_id']}" for row in members[:3])}
    expect(page.locator("#chat-state")).to_have_text("ready")
    page.locator("summary", has_text="Settings").click()
    page.get_by_label("Longest answer, tokens").fill("8")
    page.get_by_label("Question").fill("Name stone number 1")
    page.get_by_role("button", name="Ask", exact=True).click()
    for name in names:
        card = page.locator(f'.exchange [data-voice="{name}"]')
        expect(card).to_contain_text(re.compile(r"\d+ tokens, [\d.]+ a second"))
    page.get_by_role("button", name="End chat").click()
    expect(page.locator("#chat-state")).to_have_text("ended")


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1440, "light")])
def test_a_sweep_fits_its_window(
    open_visitor: OpenVisitor, studio: Studio, ended: Any, width: int, scheme: str
) -> None:
    visitor = open_visitor(
        studio.daemon, color_scheme=scheme, viewport={"width": width, "height": 800}
    )
    for path in (f"/sweeps/{ended['sweep_id']}", "/sweeps"):
        page = visitor.go(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        wide, shown = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= shown, path


def test_the_rest_is_cancelled_and_the_sweep_deleted(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    queued = _queue(studio, name="Too long", grid={"lr": [1e-4, 1e-3]}, fixed={"steps": 9000})
    page = open_visitor(studio.daemon).go(f"/sweeps/{queued['sweep_id']}")
    page.get_by_role("button", name="Cancel the rest").click()
    # What the question was asked from may be drawn anew before the answer.
    page.evaluate("document.getElementById('cancel').remove()")
    agree(page, "Cancel the 2 members")
    expect(page.locator("#sweep-rows .state.cancelled")).to_have_count(2)
    page.get_by_role("button", name="Delete").click()
    agree(page, "Delete this sweep with its 2 jobs?")
    expect(page).to_have_url(re.compile("/sweeps$"))
    expect(page.get_by_role("heading", name="Sweeps")).to_be_visible()
    expect(page.get_by_text("Too long")).to_have_count(0)
    found = [one["id"] for one in studio.daemon.api("GET", "/sweeps")]
    assert queued["sweep_id"] not in found
