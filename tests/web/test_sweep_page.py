"""The page of a sweep, from real sweeps in a real database."""

import itertools
import re
from pathlib import Path

import pytest
from support.sweep_shop import SweepShop

from slidepack.daemon.sweeps.lane import read_rungs
from slidepack.daemon.sweeps.results import Ranking
from slidepack.engine.contract.sweep import Halving
from slidepack.web.app import template_engine
from slidepack.web.sweep_page import SweepPage, SweepsPage
from slidepack.web.sweep_view import HEIGHT, WIDTH, Scatter, SweepView, sweep_view


@pytest.fixture
def shop(tmp_path: Path) -> SweepShop:
    return SweepShop(tmp_path)


def _view(
    shop: SweepShop,
    sweep_id: int,
    by: Ranking = "selection",
    ends: dict[int, float | None] | None = None,
) -> SweepView:
    table = shop.sweeps.show(sweep_id, by)
    return sweep_view(table, read_rungs(shop.paths, sweep_id), ends or {})


def _render(name: str, view: SweepView) -> str:
    page = SweepPage(csrf_token="t", view=view)
    return template_engine().get_template(name).render(page=page)


def _scatter(view: SweepView, name: str) -> Scatter:
    (found,) = (scatter for scatter in view.scatters if scatter.name == name)
    return found


def test_every_measured_member_is_where_its_setting_and_loss_say(shop: SweepShop) -> None:
    rates = [1e-5, 1e-4, 1e-3, 1e-2]
    queued = shop.add(grid={"lr": rates, "rank": [4, 8]})
    for number, job_id in enumerate(queued.jobs[:-1]):
        shop.measure(job_id, 5.0, 4.0 - number / 10)
    view = _view(shop, queued.sweep_id)
    settings = {row.job_id: (row.settings, row.loss) for row in view.table.members}
    by_rate, by_rank = _scatter(view, "lr"), _scatter(view, "rank")
    assert (by_rate.log, by_rank.log) == (True, False)
    for scatter in (by_rate, by_rank):
        assert {dot.job_id for dot in scatter.dots} == set(queued.jobs[:-1])
        assert all(0 < dot.x < WIDTH and 0 < dot.y < HEIGHT for dot in scatter.dots)
        value = {dot.job_id: settings[dot.job_id][0][scatter.name] for dot in scatter.dots}
        across = sorted(scatter.dots, key=lambda dot: value[dot.job_id])
        assert [dot.x for dot in across] == sorted(dot.x for dot in across)
        down = sorted(scatter.dots, key=lambda dot: -(settings[dot.job_id][1] or 0.0))
        assert [dot.y for dot in down] == sorted(dot.y for dot in down), "a lower loss is lower"
    places = sorted({dot.x for dot in by_rate.dots})
    gaps = [after - before for before, after in itertools.pairwise(places)]
    assert max(gaps) - min(gaps) < 0.5, "a decade is a decade anywhere"
    assert "of 7 members" in by_rate.words
    assert [tick.text for tick in by_rate.x_ticks] == ["1e-05", "0.0001", "0.001", "0.01"]


def test_words_and_equal_values_have_places_too(shop: SweepShop) -> None:
    queued = shop.add(grid={"schedule": ["cosine", "linear"], "targets": [["q_proj"], ["v_proj"]]})
    for job_id in queued.jobs:
        shop.measure(job_id, 3.0, 2.0)
    view = _view(shop, queued.sweep_id)
    schedule = _scatter(view, "schedule")
    assert len({dot.x for dot in schedule.dots}) == 2
    assert len({dot.y for dot in schedule.dots}) == 1
    assert [tick.text for tick in schedule.x_ticks] == ["cosine", "linear"]
    assert "q_proj" in _render("parts/sweep_rows.html", view)


def test_the_best_is_marked_and_the_best_few_are_offered_to_be_tried(shop: SweepShop) -> None:
    queued = shop.add(grid={"lr": [1e-4, 2e-4, 3e-4, 4e-4, 5e-4]})
    for job_id, loss in zip(queued.jobs, (2.0, 1.0, 4.0, 3.0, 0.5), strict=True):
        shop.measure(job_id, 5.0, loss, test=loss + 1)
    for job_id in queued.jobs[:4]:
        shop.end(job_id)
    shop.end(queued.jobs[4], "cancelled")
    view = _view(shop, queued.sweep_id)
    first, second, third = queued.jobs[1], queued.jobs[0], queued.jobs[3]
    assert view.tried == (first, second, third)
    assert [dot.job_id for dot in _scatter(view, "lr").dots if dot.kind == "best"] == [first]
    top, rows = (_render(f"parts/sweep_{part}.html", view) for part in ("top", "rows"))
    assert f'href="/jobs/{first}/chat?with={second},{third}"' in top
    assert "Try the best 3 beside the base" in top
    assert f'href="/api/v1/jobs/{first}/adapter"' in top
    assert 'hx-post="/sweeps/1/remove"' in top
    assert "Cancel the rest" not in top
    assert rows.count('class="best"') == 1
    tested = _view(shop, queued.sweep_id, by="test")
    assert tested.tried == view.tried, "the test rows choose nothing"
    assert "looked at 5 times" in _render("sweep.html", tested)


def test_progress_and_end_of_the_whole(shop: SweepShop) -> None:
    queued = shop.add(grid={"lr": [1e-4, 2e-4, 3e-4]})
    one, two, three = queued.jobs
    assert (_view(shop, queued.sweep_id).steps, _view(shop, queued.sweep_id).total_steps) == (0, 0)
    shop.stores.database.execute("UPDATE jobs SET step = 30, total_steps = 40 WHERE id = ?", one)
    view = _view(shop, queued.sweep_id, ends={one: 50.0, two: 90.0, three: 70.0})
    assert (view.steps, view.total_steps, view.going, view.end) == (30, 120, 3, 90.0)
    assert _view(shop, queued.sweep_id, ends={one: 50.0, two: None}).end is None
    shop.set(three, "cancelled")
    view = _view(shop, queued.sweep_id, ends={one: 50.0, two: 90.0})
    assert (view.steps, view.total_steps, view.going, view.end) == (30, 80, 2, 90.0)
    top = _render("parts/sweep_top.html", view)
    assert "Cancel the rest" in top
    assert "/remove" not in top


def test_rungs_tell_who_was_judged_and_who_ended(shop: SweepShop) -> None:
    queued = shop.add(
        grid={"lr": [1e-4, 2e-4, 3e-4, 4e-4]}, halving=Halving(first_samples=8, eta=2)
    )
    assert "The first round ends after 8 rows of each member" in _render(
        "parts/sweep_plots.html", _view(shop, queued.sweep_id)
    )
    went_on = [
        shop.judge(job_id, loss)
        for job_id, loss in zip(queued.jobs[:3], (1.0, 3.0, 2.0), strict=True)
    ]
    (rung,) = _view(shop, queued.sweep_id).rungs
    assert (rung.number, rung.samples, rung.judged, rung.best) == (1, 8, 3, 1.0)
    assert rung.stopped == went_on.count(False) > 0
    html = _render("parts/sweep_rows.html", _view(shop, queued.sweep_id))
    assert html.count("out at 1") == rung.stopped


@pytest.mark.parametrize("by", ["selection", "test", "test-score"])
def test_names_are_text_and_nothing_is_inline(shop: SweepShop, by: Ranking) -> None:
    queued = shop.add(name="<b>all</b>", grid={"lr": [1e-4, 1e-3]})
    for measured in (False, True):
        if measured:
            shop.measure(queued.jobs[0], 3.0, 2.0, test=1.0)
        html = _render("sweep.html", _view(shop, queued.sweep_id, by))
        assert "<b>all" not in html
        assert not re.search(r"\sstyle=|<script>", html)
        head, body = html.split("<tbody", 1)
        assert head.count('class="sort"') == len(
            re.findall("<t[dh] ", body.split("</tr>", 1)[0])
        ), "a head for each cell"


def test_the_list_says_what_to_do_where_it_is_empty(shop: SweepShop) -> None:
    template = template_engine().get_template("sweeps.html")
    empty = template.render(page=SweepsPage(csrf_token="t", sweeps=[]))
    assert 'href="/new"' in empty
    shop.add(name="<i>", grid={"lr": [1e-4, 1e-3]})
    full = template.render(page=SweepsPage(csrf_token="t", sweeps=shop.sweeps.list_sweeps()))
    assert 'href="/sweeps/1"' in full
    assert "2 members: 2 queued." in full
    assert "<i>" not in full
