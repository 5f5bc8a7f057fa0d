"""The page of the plan, from real plans of a queue in a real database."""

import re
from datetime import UTC
from pathlib import Path

import msgspec
import pytest
from support.plan_shop import NOW, PlanShop, cards

from slidepack.daemon.planner.plan import make_plan
from slidepack.daemon.planning.planned_queue import PlannedQueue, planned_queue
from slidepack.daemon.policy.state import PolicyState, policy_state
from slidepack.daemon.policy.windows import WindowState
from slidepack.daemon.store.timing import JobTiming
from slidepack.web.app import template_engine
from slidepack.web.contexts import PlanPage
from slidepack.web.plan_view import PlanView, plan_view


def _planned(shop: PlanShop) -> PlannedQueue:
    picture = shop.reader.picture(NOW)
    request = shop.maker.request(picture)
    plan = make_plan(request.tasks, request.devices, NOW, request.options)
    return planned_queue(picture, plan, 1)


def _view(shop: PlanShop) -> PlanView:
    jobs = shop.stores.jobs.names_unended()
    return plan_view(_planned(shop), jobs, {"cuda:0": "RTX 4090", "cuda:1": "RTX 4090"})


def _page(view: PlanView | None) -> str:
    page = PlanPage(csrf_token="t", view=view, policy=_policy())
    return template_engine().get_template("plan.html").render(page=page)


def _policy() -> PolicyState:
    return policy_state(None, WindowState(open=True, since=None, until=None), NOW, UTC, ())


def test_every_job_has_a_bar_where_the_plan_has_it(tmp_path: Path) -> None:
    shop = PlanShop(tmp_path, cards(2))
    jobs = [shop.add(batch_size=size, epochs=epochs) for size, epochs in ((1, 9.0), (8, 1.0))]
    full = shop.stores.jobs.add(shop.full(), NOW).id
    planned, view = _planned(shop), _view(shop)
    placed = {task.task: task.devices for task in planned.plan.tasks}
    drawn = {row.job_id: (device.key,) for device in view.devices for row in device.rows}
    assert drawn == {job: placed[f"job {job}"] for job in (*jobs, full)}
    for device in view.devices:
        for row in device.rows:
            assert all(0 <= bar.x < bar.x + bar.width <= 1000 for bar in row.bars)
    ends = max(bar.x + bar.width for d in view.devices for row in d.rows for bar in row.bars)
    assert ends == 1000, "the last one ends at the end of the chart"
    assert list(view.ticks) == sorted(set(view.ticks))
    assert 2 <= len(view.ticks) <= 7
    assert any("No plan can take less" in figure for figure in view.figures)
    html = _page(view)
    assert html.count('class="bar-of-plan"') == sum(
        len(row.bars) for device in view.devices for row in device.rows
    )
    assert not re.search(r"\sstyle=|<script>", html), "the policy forbids both"


def test_what_waits_says_why_and_what_is_late_is_marked(tmp_path: Path) -> None:
    shop = PlanShop(tmp_path, cards(1))
    first = shop.stores.jobs.add(shop.full(), NOW).id
    late = shop.stores.jobs.add(shop.full(), NOW, JobTiming(deadline=NOW + 1.0)).id
    view = _view(shop)
    assert {row.job_id for row in view.waiting} <= {first, late}
    assert view.waiting
    rows = {row.job_id: row for device in view.devices for row in device.rows}
    assert (rows[first].late, rows[late].late) == (False, True)
    assert "bar-of-plan late" in _page(view)


@pytest.mark.parametrize("count", [0, 41])
def test_nothing_and_very_much(tmp_path: Path, count: int) -> None:
    shop = PlanShop(tmp_path, cards(1))
    for _ in range(count):
        shop.add()
    view = _view(shop)
    html = _page(view)
    if count:
        (device,) = view.devices
        assert (len(device.rows), device.more) == (40, 1)
        assert "1 job more" in html
    else:
        assert "Nothing" in html


def test_names_are_text(tmp_path: Path) -> None:
    shop = PlanShop(tmp_path, cards(1))
    spec = msgspec.structs.replace(shop.spec(), name="<img src=x onerror=alert(1)>")
    shop.stores.jobs.add(spec, NOW)
    html = _page(_view(shop))
    assert "<img src=x" not in html
    assert "&lt;img" in html


def test_without_a_plan_the_page_says_so() -> None:
    assert "There is no plan yet" in _page(None)
