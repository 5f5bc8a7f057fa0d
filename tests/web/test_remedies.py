"""What a button does about each error, and that what it leads to is there."""

import re
from dataclasses import dataclass

from litestar.routes import HTTPRoute

from slidepack.engine.contract.errors import CATALOGUE, ErrorReport
from slidepack.web.app import template_engine
from slidepack.web.pages import page_router
from slidepack.web.remedies import REMEDIES, WITHOUT, remedies


@dataclass(frozen=True)
class _Job:
    id: int = 7
    dataset_id: int = 3


def _routes(method: str) -> list[re.Pattern[str]]:
    """Return the pages' addresses with a method."""
    return [
        re.compile(re.sub(r"\{\w+:(int|str)\}", r"[^/]+", route.path))
        for route in page_router().routes
        if isinstance(route, HTTPRoute) and method in route.methods
    ]


def test_every_code_has_a_button_or_a_reason_for_none() -> None:
    assert set(REMEDIES) | set(WITHOUT) == set(CATALOGUE)
    assert not set(REMEDIES) & set(WITHOUT)
    assert all(WITHOUT.values())
    assert all(REMEDIES.values())


def test_what_a_button_leads_to_is_there() -> None:
    routes = {method: _routes(method) for method in ("GET", "POST")}
    for code in REMEDIES:
        shown = remedies(code, _Job())
        assert shown, code
        for remedy in shown:
            assert bool(remedy.href) != bool(remedy.post)
            known = routes["POST" if remedy.post else "GET"]
            path = (remedy.post or remedy.href).partition("?")[0].partition("#")[0]
            assert any(route.fullmatch(path) for route in known), path


def test_without_a_job_nothing_is_offered_that_needs_one() -> None:
    for code in CATALOGUE:
        for remedy in remedies(code):
            assert not remedy.post
            assert "{" not in remedy.href
    assert remedies("NO-SUCH-CODE") == []


def test_a_job_that_cannot_be_rescued_is_not_offered_it() -> None:
    rescue = "/jobs/7/rescue"
    assert rescue in [one.post for one in remedies("RUN-DIVERGED", _Job())]
    assert rescue not in [one.post for one in remedies("RUN-DIVERGED", _Job(), rescuable=False)]


def test_an_error_on_a_page_has_its_buttons() -> None:
    error = ErrorReport(code="RAM-KILLED", what="It died.", why="oom_kill rose", fix="Less.")
    template = template_engine().get_template("parts/error.html")
    text = template.render(error=error, job=_Job())
    assert 'hx-post="/jobs/7/smaller"' in text
    assert 'href="/new?from=7"' in text
    # Without a job, as above any page.
    assert "hx-post" not in template.render(error=error)
