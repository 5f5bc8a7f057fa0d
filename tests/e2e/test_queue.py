"""The page of the queue in a real browser: another order by mouse, touch and keyboard, several jobs
at once, and what is looked at."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.browsing import REFUSALS, OpenVisitor
from playwright.sync_api import Locator, Page, expect
from support.daemons import DaemonProcess
from support.queueing import Farm, make_farm
from support.waiting import wait_until

NEVER = 4e9
"""A time until which the jobs of these tests wait."""
NAMES = ("Alpha", "Beta", "Gamma", "Delta")


@pytest.fixture(scope="module")
def farm(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A daemon whose jobs all wait."""
    folder = tmp_path_factory.mktemp("queue")
    daemon = DaemonProcess(folder / "home")
    daemon.start()
    try:
        yield make_farm(daemon, tiny_model, folder)
    finally:
        daemon.clean_up()


@pytest.fixture
def jobs(farm: Farm) -> Iterator[list[int]]:
    """Four jobs that wait; cancelled afterwards."""
    yield [farm.queue(name=name, not_before=NEVER) for name in NAMES]
    waiting = [job["id"] for job in farm.daemon.api("GET", "/jobs") if job["ended_at"] is None]
    if waiting:
        farm.daemon.api("POST", "/queue/act", json={"action": "cancel", "jobs": waiting})


def order(farm: Farm) -> list[int]:
    return [job["id"] for job in farm.daemon.api("GET", "/jobs") if job["ended_at"] is None]


def shown(page: Page) -> list[str]:
    found: list[str] = page.locator("#waiting-jobs .entries > .entry").evaluate_all(
        "(entries) => entries.map((entry) => entry.dataset.name)"
    )
    return found


def entry(page: Page, job: int) -> Locator:
    return page.locator(f"#entry-{job}")


def centre(place: Locator) -> tuple[float, float]:
    # None while the list is being replaced.
    box = wait_until(place.bounding_box, what="it is drawn")
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def begin_drag(page: Page, job: int, onto: int) -> None:
    """Take hold of a job and move it over the lower half of another one."""
    page.mouse.move(*centre(page.locator(f"#grip-{job}")))
    page.mouse.down()
    x, y = centre(entry(page, onto))
    for step in range(1, 9):
        page.mouse.move(x, y + step)


def test_a_mouse_moves_a_job_and_the_order_is_kept(
    open_visitor: OpenVisitor, farm: Farm, jobs: list[int]
) -> None:
    visitor = open_visitor(farm.daemon)
    page = visitor.go("/queue")
    assert shown(page) == list(NAMES)
    begin_drag(page, jobs[0], jobs[2])
    page.mouse.up()
    moved = [jobs[1], jobs[2], jobs[0], jobs[3]]
    wait_until(lambda: order(farm) == moved, what="the daemon has the new order")
    page.reload()
    assert shown(page) == ["Beta", "Gamma", "Alpha", "Delta"]
    expect(page.locator("#said")).to_have_text("")
    # Let go outside of all, and put back by Escape.
    begin_drag(page, jobs[3], jobs[1])
    page.keyboard.press("Escape")
    page.mouse.up()
    assert shown(page) == ["Beta", "Gamma", "Alpha", "Delta"]
    assert order(farm) == moved


def test_a_drag_outlives_what_changes_meanwhile(
    open_visitor: OpenVisitor, farm: Farm, jobs: list[int]
) -> None:
    page = open_visitor(farm.daemon).go("/queue")
    expect(page.locator("#live")).to_have_text("Live")
    begin_drag(page, jobs[0], jobs[1])
    handle = entry(page, jobs[0]).element_handle()
    # Another part of the page tells that the news has come; listened to before there are any.
    page.evaluate(
        """() => {
            window.asked = new Promise((done) => {
                const soon = () => setTimeout(done, 200);
                document.addEventListener("htmx:beforeRequest", soon, { once: true });
            });
        }"""
    )
    farm.daemon.api("POST", f"/jobs/{jobs[3]}/cancel")
    late = farm.queue(name="Epsilon", not_before=NEVER)
    page.evaluate("() => window.asked")
    assert handle.evaluate("(one) => one.isConnected && one.classList.contains('held')")
    expect(entry(page, late)).to_have_count(0)
    page.mouse.up()
    expect(entry(page, late)).to_be_visible()
    wait_until(lambda: order(farm) == [jobs[1], jobs[0], jobs[2], late], what="the new order")
    wait_until(
        lambda: shown(page) == ["Beta", "Alpha", "Gamma", "Epsilon"], what="the page has it too"
    )


def test_a_move_that_is_refused_goes_back_and_says_why(
    open_visitor: OpenVisitor, farm: Farm, jobs: list[int]
) -> None:
    page = open_visitor(farm.daemon, allowed=(REFUSALS,)).go("/queue")
    begin_drag(page, jobs[0], jobs[2])
    assert shown(page)[0] != "Alpha"
    farm.daemon.api("POST", f"/jobs/{jobs[0]}/cancel")
    page.mouse.up()
    expect(page.locator("#errors .error")).to_contain_text("cannot be moved")
    expect(page.locator("#said")).to_contain_text("could not be moved")
    expect(page.locator("#waiting-jobs .entry")).to_have_count(3)
    assert shown(page) == ["Beta", "Gamma", "Delta"]


def test_a_finger_moves_a_job(open_visitor: OpenVisitor, farm: Farm, jobs: list[int]) -> None:
    visitor = open_visitor(
        farm.daemon, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    page = visitor.go("/queue")
    page.locator("#waiting-title").evaluate("(title) => title.scrollIntoView()")
    touch = page.context.new_cdp_session(page)

    def send(kind: str, *points: tuple[float, float]) -> None:
        touch.send(
            "Input.dispatchTouchEvent",
            {"type": kind, "touchPoints": [{"x": x, "y": y} for x, y in points]},
        )

    x, y = centre(page.locator(f"#grip-{jobs[3]}"))
    _, goal = centre(entry(page, jobs[1]))
    send("touchStart", (x, y))
    for step in range(1, 11):
        send("touchMove", (x, y + (goal - 8 - y) * step / 10))
    send("touchEnd")
    expected = [jobs[0], jobs[3], jobs[1], jobs[2]]
    wait_until(lambda: order(farm) == expected, what="the daemon has the new order")
    wait_until(
        lambda: shown(page) == ["Alpha", "Delta", "Beta", "Gamma"], what="the page has it too"
    )


def test_the_keyboard_moves_a_job_and_says_so(
    open_visitor: OpenVisitor, farm: Farm, jobs: list[int]
) -> None:
    page = open_visitor(farm.daemon).go("/queue")
    grip, said = page.locator(f"#grip-{jobs[0]}"), page.locator("#said")
    grip.focus()
    page.keyboard.press("Space")
    expect(grip).to_have_attribute("aria-pressed", "true")
    expect(said).to_contain_text("Alpha taken, place 1 of 4")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(said).to_contain_text("place 3 of 4")
    expect(grip).to_be_focused()
    assert order(farm) == jobs, "it is only held"
    page.keyboard.press("Space")
    wait_until(
        lambda: order(farm) == [jobs[1], jobs[2], jobs[0], jobs[3]], what="the new order is kept"
    )
    expect(grip).to_be_focused()
    # Held and put back.
    page.keyboard.press("Space")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Escape")
    expect(said).to_contain_text("put back, place 3 of 4")
    # At once, several times in a row.
    for _ in range(3):
        page.keyboard.press("Alt+ArrowUp")
    wait_until(lambda: order(farm) == jobs, what="it is first again")
    wait_until(lambda: shown(page) == list(NAMES), what="the page has it too")
    page.reload()
    assert shown(page) == list(NAMES)


def test_several_jobs_are_chosen_and_acted_on(
    open_visitor: OpenVisitor, farm: Farm, jobs: list[int]
) -> None:
    page = open_visitor(farm.daemon).go("/queue")
    toolbar = page.get_by_role("toolbar", name="Selected jobs")
    expect(toolbar).to_be_hidden()
    page.locator(f"#pick-{jobs[0]}").check()
    page.locator(f"#pick-{jobs[2]}").click(modifiers=["Shift"])
    expect(toolbar).to_contain_text("3 jobs selected")
    expect(toolbar.get_by_role("button", name="Resume")).to_be_hidden()
    toolbar.get_by_role("button", name="Pause").click()
    for job in jobs[:3]:
        expect(entry(page, job).locator(".state")).to_have_text("paused")
    expect(toolbar).to_contain_text("3 jobs selected")
    toolbar.get_by_role("button", name="Resume").click()
    expect(entry(page, jobs[1]).locator(".state")).to_have_text("queued")
    toolbar.get_by_role("button", name="Cancel").click()
    sure = page.get_by_role("dialog", name="Cancel 3 jobs for good?")
    expect(sure).to_contain_text("Beta")
    sure.get_by_role("button", name="Leave it").click()
    expect(sure).to_be_hidden()
    assert len(order(farm)) == 4
    toolbar.get_by_role("button", name="Cancel").click()
    sure.get_by_role("button", name="Cancel", exact=True).click()
    for job in jobs[:3]:
        expect(page.locator("#ended-jobs").locator(f"#entry-{job}")).to_be_visible()
    assert order(farm) == [jobs[3]]
    toolbar.get_by_role("button", name="Delete").click()
    gone = page.get_by_role("dialog", name="Delete 3 jobs?")
    expect(gone).to_contain_text("That frees")
    gone.get_by_role("button", name="Delete", exact=True).click()
    for job in jobs[:3]:
        expect(entry(page, job)).to_have_count(0)
    expect(toolbar).to_be_hidden()
    with farm.daemon.http() as client:
        assert client.get(f"/api/v1/jobs/{jobs[1]}").status_code == 404


def test_a_rows_menu_works_by_keyboard_and_shows_what_applies(
    open_visitor: OpenVisitor, farm: Farm, jobs: list[int]
) -> None:
    page = open_visitor(farm.daemon).go("/queue")
    more = page.locator(f"#more-{jobs[2]}")
    more.focus()
    page.keyboard.press("Enter")
    menu = page.get_by_role("menu", name="More for Gamma")
    expect(menu.get_by_role("menuitem", name="Resume")).to_be_hidden()
    expect(menu.get_by_role("menuitem", name="Pause")).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    expect(more).to_be_focused()
    page.keyboard.press("Enter")
    menu.get_by_role("menuitem", name="To the top").click()
    wait_until(lambda: order(farm)[0] == jobs[2], what="it is the first")
    wait_until(lambda: shown(page)[:1] == ["Gamma"], what="the page has it too")
    more.click()
    menu.get_by_role("menuitem", name="Priority…").click()
    page.get_by_role("dialog", name="Priority").get_by_role("spinbutton").fill("12")
    page.get_by_role("button", name="Set").click()
    expect(entry(page, jobs[2])).to_contain_text("priority 12")
    more.click()
    menu.get_by_role("menuitem", name="Keep to the schedule").click()
    wait_until(lambda: farm.daemon.job(jobs[2])["not_before"] is None, what="it waits for no time")


def test_what_is_looked_at_is_part_of_the_address(
    open_visitor: OpenVisitor, farm: Farm, jobs: list[int]
) -> None:
    farm.daemon.api("POST", f"/jobs/{jobs[1]}/pause")
    page = open_visitor(farm.daemon).go("/queue")
    page.get_by_label("Show").select_option("paused")
    expect(page.locator("#waiting-jobs .entry")).to_have_count(1)
    page.reload()
    assert shown(page) == ["Beta"]
    expect(page.locator("#waiting-jobs .grip")).to_have_count(0)
    page.get_by_label("Show").select_option("all")
    page.get_by_label("Find").fill("gam")
    # There is one entry before, too.
    wait_until(lambda: shown(page) == ["Gamma"], what="only what is looked for is shown")
    expect(page).to_have_url(re.compile(r"/queue\?q=gam$"))


def test_the_top_is_that_of_the_whole_queue_and_two_clicks_are_one(
    open_visitor: OpenVisitor, farm: Farm, jobs: list[int]
) -> None:
    page = open_visitor(farm.daemon).go("/queue?q=gam")
    assert shown(page) == ["Gamma"]
    page.locator(f"#more-{jobs[2]}").click()
    page.get_by_role("menu").get_by_role("menuitem", name="To the top").click()
    wait_until(lambda: order(farm)[0] == jobs[2], what="it is the first")
    page.locator(f"#pick-{jobs[2]}").check()
    page.locator("#more-selected").click()
    page.get_by_role("menu").get_by_role("menuitem", name="Duplicate").evaluate(
        "(item) => { item.click(); item.click(); }"
    )
    expect(page.locator("#waiting-jobs .entry")).to_have_count(2)
    copies = [job for job in farm.daemon.api("GET", "/jobs") if job["name"] == "Gamma"]
    assert sum(job["ended_at"] is None for job in copies) == 2


def test_a_sweep_unfolds_and_moves_as_one(
    open_visitor: OpenVisitor, farm: Farm, jobs: list[int]
) -> None:
    made = farm.daemon.api(
        "POST",
        "/sweeps",
        json={
            "model": farm.model,
            "dataset": farm.dataset,
            "name": "Rates",
            "not_before": NEVER,
            "members": [{"lr": 1e-4}, {"lr": 2e-4}],
        },
    )
    page = open_visitor(farm.daemon).go("/queue")
    assert shown(page) == [*NAMES, "Rates"]
    fold = page.get_by_role("button", name="Members of Rates")
    expect(fold).to_have_attribute("aria-expanded", "false")
    fold.click()
    expect(entry(page, made["jobs"][1])).to_be_visible()
    expect(fold).to_have_attribute("aria-expanded", "true")
    page.get_by_role("button", name="Move the sweep Rates").focus()
    page.keyboard.press("Alt+ArrowUp")
    expected = [*jobs[:3], *made["jobs"], jobs[3]]
    wait_until(lambda: order(farm) == expected, what="both members were moved")
    page.locator(f"#grip-{made['jobs'][1]}").focus()
    page.keyboard.press("Alt+ArrowUp")
    expected[3:5] = reversed(made["jobs"])
    wait_until(lambda: order(farm) == expected, what="they changed places")


@pytest.mark.quick
def test_an_empty_queue_says_what_to_do(daemon: DaemonProcess, open_visitor: OpenVisitor) -> None:
    page = open_visitor(daemon).go("/queue")
    expect(page.get_by_role("link", name="Make the first one")).to_be_visible()
