"""What `slidepack jobs show` says of a model against its base."""

import msgspec
import pytest
from support.reports import made_report

from slidepack.cli.jobs_judged import print_judgement


def test_figures_sentences_and_examples_are_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_judgement(msgspec.to_builtins(made_report(9, 9)))
    shown = capsys.readouterr().out
    assert "10 test rows that training did not see" in shown
    assert "90% (60% to 98%)" in shown
    assert (
        "Answers right to the letter: 0 of 10 right before, 9 after; the difference is no chance: "
        "p = 0.0039." in shown
    )
    assert "<b>What is 3?</b>" in shown


@pytest.mark.parametrize("report", [None, made_report(0, 0, rows=10)], ids=["none", "base"])
def test_what_was_not_measured_is_not_printed(
    report: object, capsys: pytest.CaptureFixture[str]
) -> None:
    print_judgement(msgspec.to_builtins(report))
    shown = capsys.readouterr().out
    assert "Tuned" not in shown
    assert ("Base" in shown) == (report is not None)
