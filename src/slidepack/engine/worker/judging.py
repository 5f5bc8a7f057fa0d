"""Asks a run's model what it is judged by, and reports the figures.

The training is worth more than its figures: what does not fit the card, or takes too long, is left
out with a warning.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
import torch

from slidepack.engine.contract.judgement import (
    SHORT_TOKENS,
    JudgeReport,
    RowMark,
    Voice,
    VoiceName,
    Voices,
)
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.judge.questions import Questions
from slidepack.engine.judge.report import judge_report
from slidepack.engine.model.batch import micro_batches
from slidepack.engine.worker.judging_pass import RowScore
from slidepack.engine.worker.trainee import Trainee

__all__ = ["Judging"]

_MOST_SECONDS: Final = 300.0
"""For one voice. Every job is judged, whatever it is; an evening's work is not held up for long."""
_TOKENS_AT_ONCE: Final = 8192
"""Of rows, and of a key/value cache, between two looks at the clock."""
_PROMPTS_AT_ONCE: Final = 16


class _OutOfTimeError(Exception):
    """The time of a voice is up."""


class Judging:
    """What one run is judged by."""

    def __init__(
        self,
        questions: Questions,
        trainee: Trainee,
        stop_ids: frozenset[int],
        decode: Callable[[list[int]], str],
        on_ask: Callable[[], None],
        check_stop: Callable[[], None],
        warn: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind rows and model.

        Args:
            questions: what is asked.
            trainee: who is asked.
            stop_ids: ids that end an answer.
            decode: ids to text.
            on_ask: called before a voice is asked; may raise to stop.
            check_stop: may raise to stop.
            warn: reports a code and a sentence.
            clock: seconds, from any beginning.
        """
        self._questions = questions
        self._digest = questions.digest
        self._trainee = trainee
        self._stop_ids = stop_ids
        self._decode = decode
        self._on_ask = on_ask
        self._check_stop = check_stop
        self._warn = warn
        self._clock = clock
        self._ends_at = math.inf
        self._interrupted = False

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to ask."""
        return bool(self._questions.rows)

    def begin(self, known: Voices, *, at_start: bool, continues: bool, keeps_base: bool) -> Voices:
        """Measure what there is before training, unless that is known already.

        Args:
            known: of earlier attempts, or of the job that this one continues.
            at_start: no step is done yet.
            continues: the run began with what another job left, and not with the base.
            keeps_base: the base can be asked at any time.

        Raises:
            StopRequestedError: a stop was asked for.
        """
        base, before = self._fitting(known.base), self._fitting(known.before)
        if base is None and (keeps_base or (at_start and not continues)):
            base = self.ask("base")
        if before is None and at_start and continues:
            before = self.ask("before")
        return Voices(base=base, before=before)

    def _fitting(self, voice: Voice | None) -> Voice | None:
        """Return a voice that was measured earlier, if it was asked the same."""
        return voice if voice is not None and voice.asked == self._digest else None

    def ask(self, name: VoiceName) -> Voice | None:
        """Measure a voice; None where not even its tokens could be.

        Raises:
            StopRequestedError: a stop was asked for.
        """
        if not self.has_rows:
            return None
        self._on_ask()
        tuned = name != "base"
        self._ends_at = self._clock() + _MOST_SECONDS
        marks: list[RowMark] | None = None
        try:
            marks = self._marks(tuned)
            marks = self._with_answers(marks, tuned)
            marks = self._with_choices(marks, tuned)
        except torch.OutOfMemoryError as error:
            self._leave_out("GPU-OUT-OF-MEMORY", name, f"they did not fit: {error}")
            if self._trainee.device.type == "cuda":
                torch.cuda.empty_cache()
        except _OutOfTimeError:
            why = f"they took more than {_MOST_SECONDS:.0f} seconds"
            self._leave_out("RUN-JUDGING-CUT", name, why)
        return None if marks is None else Voice(asked=self._digest, rows=tuple(marks))

    def report(self, voices: Voices, tuned: Voice | None, step: int) -> JudgeReport:
        """Return all figures; those of the tuned model where it was measured."""
        return judge_report(
            self._questions,
            {"base": voices.base, "before": voices.before, "tuned": tuned},
            step,
            self._text,
            interrupted=self._interrupted,
        )

    def _leave_out(self, code: str, name: VoiceName, why: str) -> None:
        self._interrupted = True
        self._warn(code, f"Figures of {_WHOSE[name]} are left out: {why}.")

    def _marks(self, tuned: bool) -> list[RowMark]:
        rows = self._questions.rows
        scores = self._scores([sample for row in rows for sample in row.samples], tuned)
        marks, start = [], 0
        for row in rows:
            own = scores[start : start + len(row.samples)]
            start += len(row.samples)
            loss = sum(score.loss for score in own)
            marks.append(
                RowMark(
                    tokens=sum(score.tokens for score in own),
                    right=sum(score.right for score in own),
                    loss=loss if math.isfinite(loss) else None,
                )
            )
        return marks

    def _with_answers(self, marks: list[RowMark], tuned: bool) -> list[RowMark]:
        """Let the model answer for itself where the answer is short."""
        prompts = {
            index: row.short.prompt
            for index, row in enumerate(self._questions.rows)
            if row.short is not None
        }
        answered = list(marks)
        for some in _prompt_batches(list(prompts.items())):
            self._check_time()
            # One more than fits, so that an answer that goes on is not taken for one that ends.
            answers = self._trainee.answer(
                [prompt for _, prompt in some], SHORT_TOKENS + 1, self._stop_ids, tuned=tuned
            )
            for (index, _), ids in zip(some, answers, strict=True):
                answered[index] = msgspec.structs.replace(marks[index], answer=self._text(ids))
        return answered

    def _with_choices(self, marks: list[RowMark], tuned: bool) -> list[RowMark]:
        """Let the model choose among the labels: the one whose tokens it holds most likely."""
        labelled = [
            (index, row.short.candidates)
            for index, row in enumerate(self._questions.rows)
            if row.short is not None and row.short.candidates
        ]
        scores = self._scores([one for _, some in labelled for one in some], tuned)
        chosen, count = list(marks), len(self._questions.labels)
        for number, (index, _) in enumerate(labelled):
            losses = [score.loss for score in scores[number * count : (number + 1) * count]]
            # A loss that is no number is no choice: it is never right.
            known = [loss if math.isfinite(loss) else math.inf for loss in losses]
            best = known.index(min(known)) if math.isfinite(min(known)) else -1
            chosen[index] = msgspec.structs.replace(marks[index], choice=best)
        return chosen

    def _scores(self, rows: Sequence[EncodedRow], tuned: bool) -> list[RowScore]:
        scores: list[RowScore] = []
        for some in micro_batches(rows, _TOKENS_AT_ONCE):
            self._check_time()
            scores += self._trainee.score(some, tuned=tuned)
        return scores

    def _check_time(self) -> None:
        self._check_stop()
        if self._clock() > self._ends_at:
            raise _OutOfTimeError

    def _text(self, ids: Sequence[int]) -> str:
        """Return the text of an answer, up to what ends it."""
        end = next((place for place, token in enumerate(ids) if token in self._stop_ids), len(ids))
        return self._decode(list(ids[:end]))


_WHOSE: Final[dict[VoiceName, str]] = {
    "base": "the base",
    "before": "the model before training",
    "tuned": "the tuned model",
}


def _prompt_batches(
    prompts: Sequence[tuple[int, tuple[int, ...]]],
) -> Iterator[list[tuple[int, tuple[int, ...]]]]:
    """Yield prompts in their order, as many as may share a key/value cache."""
    batch: list[tuple[int, tuple[int, ...]]] = []
    for one in prompts:
        longest = max(len(prompt) for _, prompt in (*batch, one)) + SHORT_TOKENS + 1
        full = len(batch) == _PROMPTS_AT_ONCE or (len(batch) + 1) * longest > _TOKENS_AT_ONCE
        if batch and full:
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch
