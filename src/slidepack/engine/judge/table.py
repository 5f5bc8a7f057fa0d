"""The figures as text, for the command line and the page."""

from collections.abc import Mapping
from typing import Final

import msgspec

from slidepack.engine.contract.judgement import (
    Figure,
    FigureKind,
    JudgeReport,
    Measured,
    VoiceName,
)

__all__ = ["FigureRow", "JudgeTable", "judge_table"]

_NAMES: Final[Mapping[FigureKind, str]] = {
    "loss": "Held-out loss",
    "token_accuracy": "Tokens right",
    "exact_match": "Answers right to the letter",
    "exact_match_normalised": "Answers right, but for case and punctuation",
    "choice": "Label right",
}
_VOICES: Final[Mapping[VoiceName, str]] = {"base": "Base", "before": "Before", "tuned": "Tuned"}
_NOTHING: Final = "–"  # noqa: RUF001 - a dash for "no value", as tables show it


class FigureRow(msgspec.Struct, frozen=True):
    """One figure."""

    name: str
    cells: tuple[str, ...]
    """Of each voice: the figure with its interval."""
    sentences: tuple[str, ...]


class JudgeTable(msgspec.Struct, frozen=True):
    """A report as text."""

    heading: str
    voices: tuple[VoiceName, ...]
    """The columns, in order."""
    columns: tuple[str, ...]
    rows: tuple[FigureRow, ...]
    labels: tuple[tuple[str, ...], ...]
    """Of each label: itself, its rows, and how many each voice got right."""


def judge_table(report: JudgeReport) -> JudgeTable:
    """Return a report as text."""
    known = {one.voice for figure in report.figures for one in figure.measured}
    voices = tuple(voice for voice in _VOICES if voice in known)
    return JudgeTable(
        heading=_heading(report),
        voices=voices,
        columns=tuple(_VOICES[voice] for voice in voices),
        rows=tuple(
            FigureRow(
                name=_NAMES[figure.kind],
                cells=tuple(_cell(figure, voice) for voice in voices),
                sentences=tuple(one.sentence for one in figure.compared),
            )
            for figure in report.figures
        ),
        labels=tuple(
            (
                label.label,
                str(label.rows),
                *(str(label.right.get(voice, _NOTHING)) for voice in voices),
            )
            for label in report.labels
        ),
    )


def _heading(report: JudgeReport) -> str:
    rows = f"{report.rows} {report.split} row{'' if report.rows == 1 else 's'}"
    return f"{rows} that training did not see, the same ones for each; in brackets, 95% intervals."


def _cell(figure: Figure, voice: VoiceName) -> str:
    found = next((one for one in figure.measured if one.voice == voice), None)
    if found is None:
        return _NOTHING
    return _loss(found) if figure.kind == "loss" else _share(found)


def _loss(one: Measured) -> str:
    if one.low is None or one.high is None:
        return f"{one.value:.3f}"
    return f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})"


def _share(one: Measured) -> str:
    if one.low is None or one.high is None:
        return f"{one.value:.0%}"
    return f"{one.value:.0%} ({one.low:.0%} to {one.high:.0%})"
