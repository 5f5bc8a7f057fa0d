"""What the figures mean, in sentences."""

from collections.abc import Set as AbstractSet
from typing import Final

from slidepack.engine.contract.judgement import FigureKind, VoiceName
from slidepack.engine.judge.questions import Questions

__all__ = ["loss_sentence", "notes_on", "share_sentence", "shown_p"]

_LEVEL: Final = 0.05
_FEWEST_ROWS: Final = 6
"""With fewer, even if all of them change the same way, p is above 0.05."""
_WORDS: Final[dict[VoiceName, str]] = {"base": "by the base", "before": "before"}


def share_sentence(
    kind: FigureKind,
    against: VoiceName,
    counts: tuple[int, int, int],
    *,
    better: int,
    worse: int,
    rows: int,
    p: float,
) -> str:
    """Return what a comparison of two shares means.

    Args:
        kind: of the figure.
        against: the other voice.
        counts: right of the other, right of the tuned model, and of how many.
        better: rows on which the tuned model is better.
        worse: rows on which it is worse.
        rows: in all.
        p: of the difference.
    """
    first, second, of = counts
    what = " tokens" if kind == "token_accuracy" else ""
    return (
        f"{first} of {of}{what} right {_WORDS[against]}, {second} after; "
        f"{_verdict(better, worse, rows, p)}."
    )


def loss_sentence(
    against: VoiceName, first: float, second: float, *, better: int, worse: int, rows: int, p: float
) -> str:
    """Return what a comparison of two losses means; see `share_sentence`."""
    return (
        f"Loss {first:.3f} {_WORDS[against]}, {second:.3f} after, lower on {better} of {rows} "
        f"rows; {_verdict(better, worse, rows, p)}."
    )


def shown_p(p: float) -> str:
    """Return a p value with what matters of its digits."""
    if p < 0.0001:
        return "p < 0.0001"
    return f"p = {p:.4f}" if p < 0.01 else f"p = {p:.2f}"


def _verdict(better: int, worse: int, rows: int, p: float) -> str:
    if not better and not worse:
        return "no row differs"
    if p < _LEVEL:
        direction = "the difference is" if better > worse else "it got worse, and that is"
        return f"{direction} no chance: {shown_p(p)}"
    if rows < _FEWEST_ROWS:
        return f"too few rows to tell: {shown_p(p)}"
    return f"that may be chance: {shown_p(p)}"


def notes_on(
    questions: Questions, voices: AbstractSet[VoiceName], *, interrupted: bool
) -> tuple[str, ...]:
    """Return what a reader of the figures should know about the rows."""
    notes = []
    if questions.split == "selection":
        notes.append(
            "No test rows are held out, so the rows are those that the best step or member is "
            "chosen by: what was chosen by them looks better on them than on new ones."
        )
    if not any(row.short for row in questions.rows):
        notes.append(
            "No answer is short enough to be compared as a whole, so only tokens are counted."
        )
    if "base" not in voices:
        notes.append("The untouched base was not measured on these rows.")
    if interrupted:
        notes.append("Some figures are missing: see the warnings.")
    return tuple(notes)
