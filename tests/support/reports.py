"""Reports of how a model compares with its base, made without a worker."""

from typing import Literal

from slidepack.engine.contract.judgement import JudgeReport, RowMark, Voice, VoiceName
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.judge.questions import JudgedRow, Questions, ShortAnswer
from slidepack.engine.judge.report import judge_report


def made_report(
    step: int, right: int, rows: int = 10, *, split: Literal["test", "selection"] = "test"
) -> JudgeReport:
    """Return the report on a model that answers so many rows rightly, and its base none.

    Args:
        step: steps behind it; 0 for the base alone.
        right: how many.
        rows: in all.
        split: which rows they are.
    """
    sample = EncodedRow(1, (1, 2), (False, True))
    questions = Questions(
        split,
        tuple(
            JudgedRow(line, (sample,), ShortAnswer(f"<b>What is {line}?</b>", (1,), (2,)))
            for line in range(rows)
        ),
    )

    def voice(answers: int) -> Voice:
        marks = [
            RowMark(
                tokens=1,
                right=int(row < answers),
                loss=1.0,
                answer="yes" if row < answers else "<i>no</i>",
            )
            for row in range(rows)
        ]
        return Voice(asked=questions.digest, rows=tuple(marks))

    voices: dict[VoiceName, Voice | None] = {
        "base": voice(0),
        "tuned": voice(right) if step else None,
    }
    return judge_report(questions, voices, step, lambda _ids: "yes")
