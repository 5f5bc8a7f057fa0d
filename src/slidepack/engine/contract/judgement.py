"""Whether a tuned model is better than its base: what a worker measured, and what it means."""

from typing import Final, Literal

import msgspec

from slidepack.engine.contract.job import Frozen

__all__ = [
    "SHORT_TOKENS",
    "Compared",
    "Example",
    "Figure",
    "FigureKind",
    "JudgeReport",
    "LabelCount",
    "Measured",
    "RowMark",
    "Voice",
    "VoiceName",
    "Voices",
]

SHORT_TOKENS: Final = 16
"""Most tokens of an answer that is compared as a whole."""

VoiceName = Literal["base", "before", "tuned"]
"""`before` is what a job began with that continues another one; else that is the base."""
FigureKind = Literal["loss", "token_accuracy", "exact_match", "exact_match_normalised", "choice"]


class RowMark(Frozen, frozen=True, kw_only=True):
    """What one voice made of one row."""

    tokens: int
    """Supervised tokens."""
    right: int
    """Of these, how many were the most likely one."""
    loss: float | None
    """Sum over these, in nats; None where it is no number."""
    answer: str | None = None
    """Its own greedy answer, where the row's is short and there was time to ask."""
    choice: int | None = None
    """Number of the label that it holds most likely, where the labels are few."""


class Voice(Frozen, frozen=True, kw_only=True):
    """What one voice made of the judged rows."""

    asked: str
    """Digest of rows and prompts; only what was asked the same is compared."""
    rows: tuple[RowMark, ...]


class Voices(Frozen, frozen=True, kw_only=True):
    """What was measured before the first step; a checkpoint keeps it."""

    base: Voice | None = None
    before: Voice | None = None


class Measured(Frozen, frozen=True, kw_only=True):
    """A figure of one voice, with its 95% interval."""

    voice: VoiceName
    value: float
    low: float | None
    """None where there are too few rows for an interval."""
    high: float | None
    right: int | None = None
    """How many were right, where the figure is a share."""


class Compared(Frozen, frozen=True, kw_only=True):
    """The tuned model against another voice on the same rows."""

    against: VoiceName
    difference: float
    """The tuned model's figure less the other's."""
    low: float | None
    """Of its 95% interval."""
    high: float | None
    better: int
    """Rows on which the tuned model is better."""
    worse: int
    p: float
    """Exact two-sided p of McNemar's test, which is the sign test of the rows that differ."""
    sentence: str


class Figure(Frozen, frozen=True, kw_only=True):
    """One figure of all voices."""

    kind: FigureKind
    rows: int
    of: int
    """What a share is of: rows, or tokens of these."""
    measured: tuple[Measured, ...]
    compared: tuple[Compared, ...] = ()


class LabelCount(Frozen, frozen=True, kw_only=True):
    """One label of a closed set."""

    label: str
    rows: int
    right: dict[VoiceName, int]
    """Rows of it that a voice chose it for."""


class Example(Frozen, frozen=True, kw_only=True):
    """A question, what the data says, and what the voices say."""

    line: int
    prompt: str
    expected: str
    answers: dict[VoiceName, str]
    right: dict[VoiceName, bool]
    """After normalisation."""


class JudgeReport(Frozen, frozen=True, kw_only=True):
    """All figures of a run."""

    step: int
    """Steps behind the tuned model; 0 while there is none."""
    split: Literal["test", "selection"]
    rows: int
    short_rows: int
    """Rows whose answer is short enough to be compared as a whole."""
    figures: tuple[Figure, ...] = ()
    labels: tuple[LabelCount, ...] = ()
    examples: tuple[Example, ...] = ()
    notes: tuple[str, ...] = ()

    def figure(self, kind: FigureKind) -> Figure | None:
        """Return a figure, or None where it was not measured."""
        return next((one for one in self.figures if one.kind == kind), None)

    def value(self, kind: FigureKind, voice: VoiceName) -> float | None:
        """Return a figure of one voice, or None where it was not measured."""
        found = self.figure(kind)
        of_voice = (one.value for one in found.measured if one.voice == voice) if found else ()
        return next(iter(of_voice), None)


def encode_report(report: JudgeReport) -> str:
    """Return the report as JSON."""
    return msgspec.json.encode(report).decode()
