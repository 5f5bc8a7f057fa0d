"""A job's charts: the whole run, a closer look by mouse and by keyboard, and while it goes on."""

import contextlib
import re
import sqlite3
from typing import Any

import pytest
from e2e.browsing import OpenVisitor, chart_points
from e2e.conftest import Studio
from playwright.sync_api import Page, expect
from support.waiting import wait_until

_IDS = ("chart", "chart-lr", "chart-grad", "chart-speed")
_LONG = 40_000
_SPIKE = 23_456


@pytest.fixture(scope="module")
def long_job(studio: Studio) -> int:
    """A job with a long history: no small model can be made to train for so long."""
    job_id = studio.start(name="A long history", steps=5000)
    studio.daemon.api("POST", f"/jobs/{job_id}/cancel")
    studio.daemon.wait_for(job_id, "cancelled")
    rows = (
        (job_id, step, 1, float(step), 77.0 if step == _SPIKE else 1.0, 0.5, 1e-3, 100.0)
        for step in range(1, _LONG + 1)
    )
    with contextlib.closing(sqlite3.connect(studio.daemon.home / "slidepack.db")) as database:
        database.execute("DELETE FROM progress WHERE job_id = ?", (job_id,))
        database.executemany("INSERT INTO progress VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        database.execute("UPDATE jobs SET step = ? WHERE id = ?", (_LONG, job_id))
        database.commit()
    return job_id


def _shown(page: Page) -> tuple[int, int]:
    begin, end = (page.locator("#chart").get_attribute("data-shown") or "").split(" ")
    return int(begin), int(end)


def _fine(page: Page) -> int:
    return int(page.locator("#chart").get_attribute("data-fine") or 0)


def _drag(page: Page, begin: float, end: float) -> None:
    """Drag over a share of the loss chart's own area."""
    box = page.locator("#chart .u-over").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * begin, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, y, steps=5)
    page.mouse.up()


def _wait_for_other_range(page: Page, before: object) -> None:
    wait_until(lambda: _shown(page) != before, what="it looks closer")


def test_a_drag_looks_closer_until_single_steps_and_a_double_click_goes_back(
    open_visitor: OpenVisitor, studio: Studio, long_job: int
) -> None:
    page = open_visitor(studio.daemon).go(f"/jobs/{long_job}")
    chart = page.locator("#chart")
    expect(chart).to_have_attribute("data-points", str(_LONG))
    whole, coarsest = _shown(page), _fine(page)
    assert whole == (0, _LONG)
    assert coarsest > 10
    _drag(page, 0.5, 0.7)
    wait_until(lambda: _fine(page) < coarsest, what="the part comes finer")
    begin, end = _shown(page)
    assert begin == pytest.approx(0.5 * _LONG, abs=0.01 * _LONG)
    assert end == pytest.approx(0.7 * _LONG, abs=0.01 * _LONG)
    expect(page.locator("#chart-range")).to_have_text(f"Shown are steps {begin} to {end}.")
    for _ in range(6):
        if (coarse := _fine(page)) == 1:
            break
        before = _shown(page)
        at = (_SPIKE - before[0]) / (before[1] - before[0])
        _drag(page, max(0.01, at - 0.1), min(0.99, at + 0.1))
        _wait_for_other_range(page, before)
        # The part is seen first as it was; what is finer comes from the daemon.
        wait_until(lambda: _fine(page) < coarse, what="the part comes finer")
    wait_until(lambda: _fine(page) == 1, what="single steps are shown")
    page.locator("#figures summary").click()
    assert _shown(page)[0] <= _SPIKE <= _shown(page)[1]
    page.locator("#chart .u-over").dblclick()
    expect(chart).to_have_attribute("data-shown", f"0 {_LONG}")
    expect(page.locator("#chart-range")).to_have_text("")
    wait_until(lambda: _fine(page) == coarsest, what="the whole run is back")


def test_a_finger_chooses_a_part_and_scrolls_as_elsewhere(
    open_visitor: OpenVisitor, studio: Studio, long_job: int
) -> None:
    visitor = open_visitor(
        studio.daemon, has_touch=True, is_mobile=True, viewport={"width": 390, "height": 800}
    )
    page = visitor.go(f"/jobs/{long_job}")
    expect(page.locator("#chart")).to_have_attribute("data-points", str(_LONG))
    page.locator("#chart").scroll_into_view_if_needed()
    box = page.locator("#chart .u-over").bounding_box()
    assert box is not None
    touch = page.context.new_cdp_session(page)

    def swipe(begin: tuple[float, float], end: tuple[float, float]) -> None:
        for kind, share in (("touchStart", 0), *(("touchMove", n / 6) for n in range(1, 7))):
            x, y = (one + (other - one) * share for one, other in zip(begin, end, strict=True))
            touch.send(
                "Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]}
            )
        touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    def at(share: float) -> float:
        return box["x"] + box["width"] * share

    middle = box["y"] + box["height"] / 2
    swipe((at(0.25), middle), (at(0.75), middle))
    _wait_for_other_range(page, (0, _LONG))
    begin, end = _shown(page)
    assert begin == pytest.approx(0.25 * _LONG, abs=0.02 * _LONG)
    assert end == pytest.approx(0.75 * _LONG, abs=0.02 * _LONG)
    before = page.evaluate("scrollY")
    swipe((at(0.5), middle), (at(0.52), middle - 200))
    wait_until(lambda: page.evaluate("scrollY") > before, what="the page scrolls")
    assert _shown(page) == (begin, end)


def test_every_look_is_there_by_keyboard_alone(
    open_visitor: OpenVisitor, studio: Studio, long_job: int
) -> None:
    page = open_visitor(studio.daemon).go(f"/jobs/{long_job}")
    chart = page.locator("#chart")
    expect(chart).to_have_attribute("data-shown", f"0 {_LONG}")
    zoom_in = page.get_by_role("button", name="Zoom in")
    expect(page.get_by_role("button", name="Later")).to_have_attribute("aria-disabled", "true")
    zoom_in.focus()
    page.keyboard.press("Enter")
    expect(chart).to_have_attribute("data-shown", "10000 30000")
    page.keyboard.press("+")
    expect(chart).to_have_attribute("data-shown", "15000 25000")
    page.keyboard.press("ArrowRight")
    expect(chart).to_have_attribute("data-shown", "20000 30000")
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    expect(chart).to_have_attribute("data-shown", "0 10000")
    page.keyboard.press("-")
    expect(chart).to_have_attribute("data-shown", "0 15000")
    page.keyboard.press("0")
    expect(chart).to_have_attribute("data-shown", f"0 {_LONG}")
    expect(zoom_in).to_be_focused()
    for name in ("Earlier", "Later", "Zoom out", "Whole run"):
        expect(page.get_by_role("button", name=name)).to_have_attribute("aria-disabled", "true")
    for name in ("Earlier", "Zoom out"):
        page.get_by_role("button", name=name).press("Enter")
    assert _shown(page) == (0, _LONG)


def test_charts_say_in_words_and_in_a_table_what_they_show(
    open_visitor: OpenVisitor, studio: Studio, completed_job: int
) -> None:
    page = open_visitor(studio.daemon, viewport={"width": 360, "height": 800}).go(
        f"/jobs/{completed_job}"
    )
    for name in ("Training loss", "Learning rate", "Gradient norm", "Tokens a second"):
        described = re.compile(rf"^{name} of steps 1 to 20, now [\d.e,+-]+")
        expect(page.get_by_role("img", name=described)).to_be_visible()
    for chart in _IDS:
        box = page.locator(f"#{chart} canvas").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
    page.locator("#figures summary").click()
    rows = page.locator("#figures tbody tr")
    expect(rows).to_have_count(12)
    last = studio.daemon.api("GET", f"/jobs/{completed_job}/chart")["progress"][-1]
    expect(rows.last.locator("td").nth(1)).to_have_text(f"{last['loss']:.3f}")
    page.get_by_label("Smooth").check()
    expect(page.locator("#chart-legend")).to_contain_text(re.compile(r"smoothed \d"))
    page.emulate_media(color_scheme="dark")
    for chart in _IDS:
        expect(page.locator(f"#{chart} canvas")).to_have_count(1)


def test_the_first_row_settings_checkpoints_and_lanes_are_there(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    # Held until both are there: neither is done before the other comes.
    with studio.daemon.paused():
        jobs = [studio.start(name=f"Lane {number}", seed=number) for number in (1, 2)]
    for job_id in jobs:
        studio.daemon.wait_for(job_id, "completed")
    packed = {one["pack_id"] for job in jobs for one in studio.daemon.attempts(job)}
    page = open_visitor(studio.daemon).go(f"/jobs/{jobs[0]}")
    page.locator("#first-row summary").click()
    learned = page.locator("#first-row-shown mark")
    expect(learned.first).to_be_visible()
    expect(page.locator("#first-row-shown")).to_contain_text("<|start|>user")
    assert "user" not in (page.locator("#first-row-shown pre mark").first.text_content() or "")
    page.get_by_text(re.compile(r"^All \d+ settings$")).click()
    expect(page.locator(".facts.all")).to_contain_text("optim.beta2")
    kept = page.locator("#checkpoints tbody tr").first
    expect(kept).to_contain_text("20")
    expect(kept).to_contain_text("kept")
    assert len(packed) == 1, "both trained in one pack"
    lanes = page.locator("#lanes tbody tr")
    expect(lanes.filter(has_text="Lane 1").locator("[aria-current]")).to_have_text("Lane 1")
    expect(page.locator("#lanes .spark polyline").first).to_have_attribute(
        "points", re.compile(r"\d+\.\d,\d+\.\d ")
    )
    lanes.get_by_role("link", name="Lane 2").click()
    expect(page).to_have_url(re.compile(rf"/jobs/{jobs[1]}$"))


def test_a_running_job_tells_how_long_it_goes_on_and_whether_its_deadline_holds(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    late = studio.start(name="Due long ago", steps=5000, deadline=1000.0)
    page = open_visitor(studio.daemon).go(f"/jobs/{late}")
    expect(page.locator("#status .band")).to_have_text(re.compile(r"\d.* to \d"))
    expect(page.locator("#deadline")).to_contain_text("it will be late")
    nodes = _nodes(page)
    seen = chart_points(page)
    wait_until(lambda: chart_points(page) > seen + 60, what="the charts go on")
    assert _nodes(page) == nodes, "what is live replaces, and adds nothing"
    studio.daemon.api("POST", f"/jobs/{late}/cancel")
    expect(page.locator("#job-state")).to_have_text("cancelled")
    expect(page.locator("#deadline")).to_have_count(0)
    stored = studio.daemon.api("GET", f"/jobs/{late}/chart")["progress"]
    expect(page.locator("#chart")).to_have_attribute("data-points", str(len(stored)))


def test_a_second_job_with_the_same_settings_is_a_button_away(
    open_visitor: OpenVisitor, studio: Studio, long_job: int
) -> None:
    page = open_visitor(studio.daemon).go(f"/jobs/{long_job}")
    page.get_by_role("link", name="Duplicate").click()
    expect(page).to_have_url(re.compile(rf"/new\?from={long_job}$"))
    expect(page.locator("#origin")).to_contain_text("A long history")
    page.get_by_role("button", name="Start").click()
    expect(page).to_have_url(re.compile(r"/jobs/\d+$"))
    copy = int(page.url.rsplit("/", 1)[1])
    assert studio.daemon.job(copy)["name"] == "A long history"
    studio.daemon.api("POST", f"/jobs/{copy}/cancel")
    page.goto(f"{studio.daemon.address.url}/jobs/{long_job}")
    page.get_by_role("link", name="Delete").click()
    expect(page).to_have_url(re.compile(rf"/jobs/{long_job}/delete$"))


def _nodes(page: Page) -> Any:
    return page.evaluate("document.querySelectorAll('#charts *').length")


def test_a_night_of_steps_takes_no_more_room_than_an_hour(
    open_visitor: OpenVisitor, studio: Studio, long_job: int
) -> None:
    page = open_visitor(studio.daemon).go(f"/jobs/{long_job}")
    most, left = page.evaluate(
        """async ([job, steps]) => {
            const { Series } = await import("/static/series.js");
            const series = new Series();
            let most = 0;
            for (let step = 1; step <= steps; step += 1) {
                const row = { step, at: step, total_steps: steps, loss: 1, lr: 1, grad_norm: 1 };
                const stale = series.add("progress", row);
                if (step % 50 === 0) series.add("eval", { step, split: "selection", loss: 1 });
                most = Math.max(most, series.live.size);
                if (!stale) continue;
                const answer = await fetch(`/api/v1/jobs/${job}/series?points=300`);
                series.load(await answer.json());
            }
            return [most, series.columns().step.length];
        }""",
        [long_job, _LONG],
    )
    assert most <= 401
    assert left <= 300 + 401 + 1600
