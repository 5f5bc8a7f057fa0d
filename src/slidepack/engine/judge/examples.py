"""Answers side by side: those that say most about what training changed."""

from collections.abc import Mapping, Sequence
from typing import Final

from slidepack.engine.contract.judgement import Example, RowMark, VoiceName
from slidepack.engine.judge.questions import Questions

__all__ = ["shown_examples"]

_MOST_EXAMPLES: Final = 20
_SHOWN_QUESTION: Final = 1000
_SHOWN_ANSWER: Final = 500
"""Characters; the model always gets the whole of a question."""


def shown_examples(
    questions: Questions,
    marks: Mapping[VoiceName, Sequence[RowMark]],
    expected: Sequence[str],
    right: Mapping[VoiceName, Sequence[bool]],
) -> tuple[Example, ...]:
    """Return examples: what became right or wrong first, then other answers, then the rest.

    Args:
        questions: what was asked.
        marks: what the voices made of it.
        expected: text of each row's answer.
        right: of each voice that answered, which short rows it answered rightly.
    """
    short = [(index, row) for index, row in enumerate(questions.rows) if row.short is not None]
    found = []
    for number, (index, row) in enumerate(short):
        assert row.short is not None
        answers = {name: marks[name][index].answer or "" for name in right}
        found.append(
            Example(
                line=row.line,
                prompt=_clip(row.short.question, _SHOWN_QUESTION),
                expected=_clip(expected[index], _SHOWN_ANSWER),
                answers={name: _clip(text, _SHOWN_ANSWER) for name, text in answers.items()},
                right={name: hits[number] for name, hits in right.items()},
            )
        )
    return tuple(sorted(found, key=_change)[:_MOST_EXAMPLES]) if right else ()


def _change(example: Example) -> int:
    """Return 0 where the verdict changed, 1 where only the words did, 2 where nothing did."""
    if len(set(example.right.values())) > 1:
        return 0
    return 1 if len(set(example.answers.values())) > 1 else 2


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
