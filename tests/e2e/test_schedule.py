"""The week of the schedule in the browser: painted by mouse, touch and keyboard, then saved."""

from collections.abc import Iterator
from typing import Any

import pytest
from e2e.browsing import OpenVisitor
from playwright.sync_api import CDPSession, Locator, Page, expect
from support.daemons import DaemonProcess

_QUARTERS = 96


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon of this file's own: a policy would hold up the jobs of other tests."""
    with DaemonProcess(tmp_path_factory.mktemp("week") / "home", device="cpu") as daemon:
        yield daemon


@pytest.fixture
def page(home: DaemonProcess, open_visitor: OpenVisitor) -> Page:
    """The schedule with one window, in a zone whose clocks change."""
    window = {"days": ["mon"], "start": "23:00", "end": "07:00"}
    home.api(
        "POST",
        "/policy",
        json={"windows": [window], "closed": False, "time_zone": "Europe/Berlin"},
    )
    return open_visitor(home).go("/schedule")


def _slot(page: Page, day: int, clock: str) -> Locator:
    hour, minute = map(int, clock.split(":"))
    return page.locator(f'.slot[data-day="{day}"][data-slot="{hour * 4 + minute // 15}"]')


def _middle(slot: Locator) -> tuple[float, float]:
    box = slot.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def _drag(page: Page, first: Locator, last: Locator) -> None:
    page.mouse.move(*_middle(first))
    page.mouse.down()
    page.mouse.move(*_middle(last), steps=5)
    page.mouse.up()


def _open_slots(page: Page) -> int:
    return page.locator('.slot[aria-selected="true"]').count()


def _save(page: Page) -> None:
    page.locator("#hours-form .buttons button").click()
    expect(page.locator("#hours .said")).to_have_text("Saved.")


def _windows(home: DaemonProcess) -> Any:
    return home.api("GET", "/policy")["windows"]


def test_hours_are_dragged_across_days_and_saved(home: DaemonProcess, page: Page) -> None:
    week = page.locator("#week")
    week.scroll_into_view_if_needed()
    assert _open_slots(page) == 8 * 4
    # Saturday and Sunday, 10:00 to 12:30: the slot that is left is the last one.
    _drag(page, _slot(page, 5, "10:00"), _slot(page, 6, "12:15"))
    expect(page.locator(".unsaved").first).to_be_visible()
    assert _open_slots(page) == 8 * 4 + 2 * 10
    # Over open ones it closes: Monday's window loses its last two hours, on Tuesday.
    _drag(page, _slot(page, 1, "05:00"), _slot(page, 1, "06:45"))
    assert _windows(home) == [{"days": ["mon"], "start": "23:00", "end": "07:00"}]
    _save(page)
    assert _windows(home) == [
        {"days": ["mon"], "start": "23:00", "end": "05:00"},
        {"days": ["sat", "sun"], "start": "10:00", "end": "12:30"},
    ]
    assert _open_slots(page) == 6 * 4 + 2 * 10


def test_hours_across_midnight_on_sunday_are_one_window(home: DaemonProcess, page: Page) -> None:
    page.locator("#week").scroll_into_view_if_needed()
    _drag(page, _slot(page, 6, "22:00"), _slot(page, 6, "23:45"))
    _drag(page, _slot(page, 0, "00:00"), _slot(page, 0, "05:45"))
    _save(page)
    assert {"days": ["sun"], "start": "22:00", "end": "06:00"} in _windows(home)


def test_a_finger_paints_sideways(home: DaemonProcess, open_visitor: OpenVisitor) -> None:
    home.api("POST", "/policy", json={"windows": [], "closed": True})
    page = open_visitor(
        home, viewport={"width": 390, "height": 900}, has_touch=True, is_mobile=True
    ).go("/schedule")
    page.locator("#week").scroll_into_view_if_needed()
    x, y = _middle(_slot(page, 2, "08:00"))
    end, _ = _middle(_slot(page, 2, "11:45"))
    touch: CDPSession = page.context.new_cdp_session(page)

    def send(kind: str, *points: tuple[float, float]) -> None:
        at = [{"x": px, "y": py} for px, py in points]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})

    send("touchStart", (x, y))
    for part in range(1, 9):
        send("touchMove", (x + (end - x) * part / 8, y))
    send("touchEnd")
    expect(page.locator('input[name="mode"][value="windows"]')).to_be_checked()
    _save(page)
    assert _windows(home) == [{"days": ["wed"], "start": "08:00", "end": "12:00"}]


def test_the_keyboard_alone_opens_and_closes_hours(home: DaemonProcess, page: Page) -> None:
    first = _slot(page, 0, "00:00")
    first.focus()
    for key in ("ArrowDown", "ArrowDown", "Control+ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(_slot(page, 2, "01:15")).to_be_focused()
    for key in ("Shift+Control+ArrowRight", "Shift+ArrowDown"):
        page.keyboard.press(key)
    said = page.locator("#week-said")
    expect(said).to_have_text("Wednesday to Thursday, 01:15 to 02:30 marked.")
    page.keyboard.press("Space")
    expect(page.locator("#week-said")).to_have_text(
        "Wednesday to Thursday, 01:15 to 02:30 is open now."
    )
    page.keyboard.press("Home")
    page.keyboard.press("Control+ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Delete")
    assert page.locator('.slot[tabindex="0"]').count() == 1
    _save(page)
    assert {"days": ["wed"], "start": "01:15", "end": "02:30"} in _windows(home)
    assert {"days": ["thu"], "start": "01:30", "end": "02:30"} in _windows(home)


def test_rows_and_week_show_the_same_and_keep_odd_minutes(home: DaemonProcess, page: Page) -> None:
    start = page.locator('#rows [name="start-0"]')
    start.fill("22:07")
    assert _open_slots(page) == 9 * 4, "a part of a quarter shows as a whole one"
    page.locator("#week").scroll_into_view_if_needed()
    _drag(page, _slot(page, 4, "10:00"), _slot(page, 4, "10:45"))
    expect(page.locator('#rows [name="start-0"]')).to_have_value("22:07")
    _save(page)
    assert {"days": ["mon"], "start": "22:07", "end": "07:00"} in _windows(home)


def test_presets_never_and_a_value_that_cannot_be(home: DaemonProcess, page: Page) -> None:
    page.get_by_role("button", name="Every night 23-7").click()
    expect(page.locator("#hours .said")).to_have_text("Filled in: Every night 23-7.")
    assert _open_slots(page) == 7 * 8 * 4
    page.get_by_label("Never, but for jobs").check()
    assert _open_slots(page) == 0
    page.get_by_label("At any time", exact=True).check()
    assert _open_slots(page) == 7 * _QUARTERS
    page.locator('[name="finish_within_minutes"]').fill("soon")
    page.locator("#hours-form .buttons button").click()
    expect(page.locator("#finish-error")).to_have_text("soon is no number.")
    expect(page.locator('[name="finish_within_minutes"]')).to_have_attribute("aria-invalid", "true")
    assert _windows(home) == [{"days": ["mon"], "start": "23:00", "end": "07:00"}]
    page.locator('[name="finish_within_minutes"]').fill("10")
    _save(page)
    assert _windows(home) == []


def test_a_pause_and_a_program_act_at_once(home: DaemonProcess, page: Page) -> None:
    page.get_by_role("button", name="for 1 h").click()
    expect(page.locator("#now .verdict")).to_contain_text("now: no.")
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.locator("#now .pause")).not_to_contain_text("Resume")
    page.locator("#pattern").fill("blender")
    page.locator("#programs").get_by_role("button", name="Add", exact=True).first.click()
    expect(page.get_by_role("button", name="Remove blender")).to_be_visible()
    page.get_by_role("button", name="Remove blender").click()
    expect(page.get_by_role("button", name="Remove blender")).to_have_count(0)
    assert home.api("GET", "/policy")["exclusive_apps"] == []
