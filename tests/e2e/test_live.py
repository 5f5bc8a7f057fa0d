"""Live pages: all tabs share one connection, nothing is lost when it moves, nothing jumps."""

import re
from typing import Any

import pytest
from e2e.browsing import OpenVisitor
from e2e.conftest import Studio
from playwright.sync_api import Page, expect
from support.waiting import wait_until

_TABS = 20

# Counts the streams that a page opens, before any of its scripts runs.
_COUNT_STREAMS = """
window.streams = [];
window.EventSource = class extends EventSource {
  constructor(...given) { super(...given); streams.push(this); }
};
"""

_LISTEN = """async () => {
  const { listen } = await import("/static/events.js");
  window.heard = [];
  window.stopHearing = listen({
    on: (type, data) => { if (type === "progress") heard.push([data.job, data.step]); },
  });
}"""


def open_streams(page: Page) -> int:
    """Return how many streams a page holds open."""
    found: int = page.evaluate("streams.filter((one) => one.readyState !== 2).length")
    return found


def heard_steps(page: Page, job: int) -> list[int]:
    """Return the steps of a job that a page heard of, each once, in order."""
    found: list[list[int]] = page.evaluate("heard")
    return sorted({step for number, step in found if number == job})


def _wait_for_step(studio: Studio, job: int, step: int) -> None:
    wait_until(lambda: studio.daemon.job(job)["step"] >= step, what="it trains")


def _wait_for_steps(page: Page, job: int, count: int) -> None:
    wanted = list(range(1, count + 1))
    wait_until(lambda: heard_steps(page, job) == wanted, what="the tab heard of every step")


def test_twenty_tabs_share_one_stream_and_lose_nothing_when_its_tab_closes(
    studio: Studio, open_visitor: OpenVisitor
) -> None:
    visitor = open_visitor(studio.daemon)
    context = visitor.page.context
    context.add_init_script(_COUNT_STREAMS)
    tabs = [context.new_page() for _ in range(_TABS)]
    visitor.page.close()
    for number, tab in enumerate(tabs):
        tab.on("pageerror", lambda error: visitor.complaints.append(f"page error: {error}"))
        # Hidden tabs fetch nothing, and a headless browser has none: most show what steps leave be.
        tab.goto(studio.daemon.address.url + ("/plan" if number % 5 else "/"))
    for tab in tabs:
        expect(tab.locator("#live")).to_have_text("Live")
        tab.evaluate(_LISTEN)
    assert sum(open_streams(tab) for tab in tabs) == 1

    steps = 300
    job = studio.start(steps=steps)
    for goal in (10, 100):
        _wait_for_step(studio, job, goal)
        holder = next(tab for tab in tabs if open_streams(tab))
        tabs.remove(holder)
        holder.close()
        wait_until(
            lambda: sum(open_streams(tab) for tab in tabs) == 1, what="another tab took over"
        )
    studio.daemon.wait_for(job, "completed")
    for tab in tabs:
        _wait_for_steps(tab, job, steps)
        expect(tab.locator("#live")).to_have_text("Live")


def test_a_tab_that_comes_late_is_told_what_it_missed(
    studio: Studio, open_visitor: OpenVisitor, completed_job: int
) -> None:
    first = open_visitor(studio.daemon)
    expect(first.page.locator("#live")).to_have_text("Live")
    second = first.page.context.new_page()
    second.goto(studio.daemon.address.url)
    expect(second.locator("#live")).to_have_text("Live")
    second.evaluate(
        """async (job) => {
          const { listen } = await import("/static/events.js");
          window.heard = [];
          listen({ job, after: 0, on: (type, data) => {
            if (type === "progress") heard.push([data.job, data.step]);
          } });
        }""",
        completed_job,
    )
    steps = studio.daemon.job(completed_job)["step"]
    wait_until(
        lambda: heard_steps(second, completed_job) == list(range(1, steps + 1)),
        what="the tab heard of a run that was over before it came",
    )


def test_a_browser_that_cannot_share_has_a_stream_of_its_own(
    studio: Studio, open_visitor: OpenVisitor
) -> None:
    visitor = open_visitor(studio.daemon)
    visitor.page.context.add_init_script("delete window.BroadcastChannel;" + _COUNT_STREAMS)
    visitor.go("/")
    other = visitor.page.context.new_page()
    other.goto(studio.daemon.address.url)
    for page in (visitor.page, other):
        expect(page.locator("#live")).to_have_text("Live")
        assert open_streams(page) == 1
    # Six of them would be all the connections that a browser opens.
    look_away = """(away) => {
        Object.defineProperty(document, "hidden", { configurable: true, get: () => away });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    other.evaluate(look_away, True)
    assert open_streams(other) == 0
    other.evaluate(look_away, False)
    wait_until(lambda: open_streams(other) == 1, what="who is looked at again listens again")


def test_who_stops_listening_lets_the_stream_go(studio: Studio, open_visitor: OpenVisitor) -> None:
    visitor = open_visitor(studio.daemon)
    visitor.page.context.add_init_script(_COUNT_STREAMS)
    page = visitor.go("/settings")
    page.evaluate(_LISTEN)
    wait_until(lambda: open_streams(page) == 1, what="it listens")
    page.evaluate("stopHearing()")
    assert open_streams(page) == 0
    page.evaluate(_LISTEN)
    wait_until(lambda: open_streams(page) == 1, what="it listens again")


@pytest.mark.parametrize("width", [360, 768, 1440, 3840])
def test_home_fits_and_nothing_jumps_while_a_job_trains(
    studio: Studio, open_visitor: OpenVisitor, width: int
) -> None:
    job = studio.start(steps=5000, name="Watched")
    viewport = {"width": width, "height": 900}
    page = open_visitor(studio.daemon, viewport=viewport).page
    expect(page.locator("#live")).to_have_text("Live")
    entry = page.locator("#queue li", has_text="Watched").first
    expect(entry.locator(".spark")).to_have_accessible_name(re.compile("^Training loss from"))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("shifts.length = 0")
    _wait_for_step(studio, job, studio.daemon.job(job)["step"] + 150)
    # What a person did not ask for may move by next to nothing: a line that wraps.
    assert page.evaluate("shifts.reduce((sum, one) => sum + one, 0)") < 0.1
    assert studio.daemon.job(job)["state"] == "running", "it was watched while it trained"
    studio.daemon.api("POST", f"/jobs/{job}/cancel")
    studio.daemon.wait_for(job, "cancelled")
    for link in page.locator(".nav a").all():
        assert link.get_attribute("href")


def _measure(page: Page, session: Any) -> tuple[int, int]:
    """Return the bytes of the JS heap and the number of DOM nodes, after a collection."""
    session.send("HeapProfiler.collectGarbage")
    found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    return int(found["JSHeapUsedSize"]), int(found["Nodes"])


@pytest.mark.full
def test_a_night_of_events_leaves_nothing_behind(
    studio: Studio, open_visitor: OpenVisitor, completed_job: int
) -> None:
    """A night of one step a second, told within a minute by replaying a run again and again."""
    visitor = open_visitor(studio.daemon)
    page = visitor.page
    expect(page.locator("#live")).to_have_text("Live")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    replay = """async (times) => {
          const { listen } = await import("/static/events.js");
          for (let round = 0; round < times; round += 1) {
            let count = 0;
            await new Promise((done) => {
              const stop = listen({ after: 0, on: (type) => {
                if (type === "progress") count += 1;
                if (type === "changed" && count) { stop(); done(); }
              } });
            });
          }
        }"""
    page.evaluate(replay, 50)
    heap, nodes = _measure(page, session)
    page.evaluate(replay, 1000)
    later_heap, later_nodes = _measure(page, session)
    assert later_heap < heap + 2_000_000
    assert later_nodes < nodes + 500
