"""From marks to figures: what counts as right, what is compared, and what is said of it."""

from collections.abc import Sequence

import pytest

from slidepack.engine.contract.judgement import FigureKind, JudgeReport, RowMark, Voice, VoiceName
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.judge.intervals import mcnemar, paired_difference, wilson
from slidepack.engine.judge.questions import JudgedRow, Questions, ShortAnswer
from slidepack.engine.judge.report import judge_report
from slidepack.engine.judge.table import judge_table

Voices = dict[VoiceName, Voice | None]

WORDS = ("yes", "no", "a longer answer")


def _row(number: int, expected: int | None) -> JudgedRow:
    sample = EncodedRow(number, (number, 1, 2), (False, True, True))
    short = None if expected is None else ShortAnswer(f"Is it {number}?", (number,), (expected,))
    return JudgedRow(number, (sample,), short)


def _voice(questions: Questions, answers: Sequence[str | None], loss: float | None = 1.0) -> Voice:
    marks = [RowMark(tokens=2, right=1, loss=loss, answer=answer) for answer in answers]
    return Voice(asked=questions.digest, rows=tuple(marks))


def _decode(ids: Sequence[int]) -> str:
    return " ".join(WORDS[token] for token in ids)


def _report(base: Sequence[str], tuned: Sequence[str]) -> JudgeReport:
    questions = Questions("test", tuple(_row(number, 0) for number in range(len(base))))
    voices: Voices = {"base": _voice(questions, base), "tuned": _voice(questions, tuned)}
    return judge_report(questions, voices, 9, _decode)


def test_answers_are_compared_to_the_letter_and_without_what_does_not_count() -> None:
    report = _report(["Yes.", "no", "yes", "no"], ["yes", "YES!", "yes", "no"])
    expected: list[tuple[FigureKind, int, int]] = [
        ("exact_match", 1, 2),
        ("exact_match_normalised", 2, 3),
    ]
    for kind, base, tuned in expected:
        figure = report.figure(kind)
        assert figure is not None
        assert [one.right for one in figure.measured] == [base, tuned]
        assert [one.value for one in figure.measured] == [base / 4, tuned / 4]
        assert [(one.low, one.high) for one in figure.measured] == [
            wilson(base, 4),
            wilson(tuned, 4),
        ]
        (compared,) = figure.compared
        assert (compared.better, compared.worse, compared.p) == (1, 0, mcnemar(1, 0))
        assert (compared.low, compared.high) == paired_difference(base, 1, 0, 3 - base)


@pytest.mark.parametrize(
    ("gained", "lost", "same", "said"),
    [
        (13, 0, 17, "17 of 30 right before, 30 after; the difference is no chance: p = 0.0002."),
        (0, 13, 17, "30 of 30 right before, 17 after; it got worse, and that is no chance: p"),
        (3, 2, 20, "22 of 25 right before, 23 after; that may be chance: p = 1.00."),
        (4, 0, 0, "0 of 4 right before, 4 after; too few rows to tell: p = 0.12."),
        (0, 0, 7, "7 of 7 right before, 7 after; no row differs."),
    ],
)
def test_sentences_say_what_a_difference_means(
    gained: int, lost: int, same: int, said: str
) -> None:
    base = ["no"] * gained + ["yes"] * (lost + same)
    tuned = ["yes"] * gained + ["no"] * lost + ["yes"] * same
    figure = _report(base, tuned).figure("exact_match")
    assert figure is not None
    assert figure.compared[0].sentence.startswith(said)


def test_examples_that_changed_come_first() -> None:
    report = _report(["yes", "no", "no", "no"], ["yes", "maybe", "yes", "no"])
    assert [one.line for one in report.examples] == [2, 1, 0, 3]
    assert report.examples[0].answers == {"base": "no", "tuned": "yes"}
    assert report.examples[0].right == {"base": False, "tuned": True}
    many = _report(["no"] * 50, ["yes"] * 50)
    assert len(many.examples) == 20


def test_what_was_asked_otherwise_is_not_compared() -> None:
    questions = Questions("test", (_row(1, 0), _row(2, 0)))
    other = Questions("test", (_row(1, 0), _row(3, 0)))
    voices: Voices = {"base": _voice(other, ["yes"] * 2), "tuned": _voice(questions, ["yes"] * 2)}
    report = judge_report(questions, voices, 9, _decode)
    assert report.value("exact_match", "base") is None
    assert report.value("exact_match", "tuned") == 1.0
    assert all(not figure.compared for figure in report.figures)
    assert report.notes == ("The untouched base was not measured on these rows.",)


def test_figures_that_are_missing_of_one_voice_are_told_of_the_other() -> None:
    questions = Questions("selection", (_row(1, 0), _row(2, None)))
    voices: Voices = {
        "base": _voice(questions, [None, None], loss=None),
        "tuned": _voice(questions, ["yes", None]),
    }
    report = judge_report(questions, voices, 9, _decode, interrupted=True)
    assert report.value("loss", "base") is None
    assert report.value("loss", "tuned") == 0.5
    assert report.value("exact_match", "base") is None
    assert report.value("exact_match", "tuned") == 1.0
    assert (report.rows, report.short_rows) == (2, 1)
    assert [note.split()[0] for note in report.notes] == ["No", "Some"]
    table = judge_table(report)
    assert table.columns == ("Base", "Tuned")
    assert table.rows[0].cells == ("–", "0.500")  # noqa: RUF001 - as tables show nothing
    assert table.heading.startswith("2 selection rows ")


def test_labels_are_counted_one_by_one() -> None:
    rows = tuple(
        JudgedRow(
            number,
            (EncodedRow(number, (1, 2), (False, True)),),
            ShortAnswer("?", (1,), (label,), (EncodedRow(0, (1, 2), (False, True)),) * 2, label),
        )
        for number, label in enumerate((0, 0, 1))
    )
    questions = Questions("test", rows, ("no", "yes"))

    def voice(*choices: int) -> Voice:
        marks = [RowMark(tokens=1, right=0, loss=1.0, answer="", choice=one) for one in choices]
        return Voice(asked=questions.digest, rows=tuple(marks))

    voices: Voices = {"base": voice(0, 1, 0), "tuned": voice(0, 0, -1)}
    report = judge_report(questions, voices, 9, _decode)
    assert report.value("choice", "base") == 1 / 3
    assert report.value("choice", "tuned") == 2 / 3
    assert judge_table(report).labels == (("no", "2", "1", "2"), ("yes", "1", "0", "0"))
