"""The part of a job's page that says whether the model is better than its base."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from support.reports import made_report

from slidepack.engine.contract.judgement import JudgeReport
from slidepack.web.app import template_engine


@dataclass(frozen=True)
class _Page:
    detail: SimpleNamespace


def _render(report: JudgeReport | None, *, terminal: bool = False) -> str:
    job = SimpleNamespace(id=7, terminal=terminal)
    page = _Page(SimpleNamespace(job=job, judgement=report))
    template = template_engine().get_template("parts/job_judged_card.html")
    return template.render(page=page)


def test_figures_with_intervals_and_what_they_mean() -> None:
    shown = _render(made_report(9, 9))
    assert "10 test rows that training did not see" in shown
    assert "<td>0% (0% to 28%)</td><td>90% (60% to 98%)</td>" in shown
    said = "0 of 10 right before, 9 after; the difference is no chance: p = 0.0039."
    assert said in shown
    assert "10 examples, those that changed first" in shown
    assert "Base (wrong)" in shown
    assert "Tuned (right)" in shown


def test_what_a_model_says_is_text_and_no_markup() -> None:
    shown = _render(made_report(9, 9))
    assert "&lt;i&gt;no&lt;/i&gt;" in shown
    assert "&lt;b&gt;What is 3?" in shown
    assert "<i>" not in shown
    assert "<b>" not in shown


def test_the_base_is_shown_while_there_is_nothing_else() -> None:
    shown = _render(made_report(0, 0))
    assert '<th scope="col">Base</th>' in shown
    assert "Tuned" not in shown
    assert "example" not in shown


@pytest.mark.parametrize(
    ("terminal", "said"),
    [(True, "Nothing was measured."), (False, "measured before training and after it")],
)
def test_a_job_without_figures_says_so(terminal: bool, said: str) -> None:
    assert said in _render(None, terminal=terminal)
