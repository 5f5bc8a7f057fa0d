"""What `slidepack jobs show` prints of how a model compares with its base."""

from typing import Any, Final

import msgspec

from slidepack.cli.output import print_table, say
from slidepack.engine.contract.judgement import JudgeReport
from slidepack.engine.data.rows import clip
from slidepack.engine.judge.table import judge_table

__all__ = ["print_judgement"]

_SHOWN: Final = 200
"""Characters of a question or an answer, none of which moves the cursor."""


def print_judgement(judgement: dict[str, Any] | None) -> None:
    """Print figures, what they mean, and the examples; nothing where nothing was measured."""
    report = None if judgement is None else msgspec.convert(judgement, JudgeReport)
    if report is None or not report.figures:
        return
    table = judge_table(report)
    say(table.heading)
    print_table(("figure", *table.columns), ((row.name, *row.cells) for row in table.rows))
    for row in table.rows:
        for sentence in row.sentences:
            say(f"{row.name}: {sentence}")
    for note in report.notes:
        say(note)
    if table.labels:
        print_table(("label", "rows", *(f"{one} right" for one in table.columns)), table.labels)
    if report.examples:
        print_table(
            ("question", "expected", *table.columns),
            (
                (
                    clip(example.prompt, _SHOWN),
                    clip(example.expected, _SHOWN),
                    *(clip(example.answers.get(voice, ""), _SHOWN) for voice in table.voices),
                )
                for example in report.examples
            ),
        )
