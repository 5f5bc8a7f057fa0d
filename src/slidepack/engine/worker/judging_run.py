"""When a run is judged: before its first step and after its last, across all of its attempts."""

from pathlib import Path

from slidepack.engine.contract.events import Judged
from slidepack.engine.contract.job import ContinueRef, JobSpec, LoraMethod
from slidepack.engine.contract.judgement import JudgeReport, Voice, Voices
from slidepack.engine.worker.checkpoint import InvalidCheckpointError, read_state
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.judging import Judging
from slidepack.engine.worker.restore import Origin

__all__ = ["RunJudge"]


class RunJudge:
    """Judges one run."""

    def __init__(self, judging: Judging, spec: JobSpec, events: EventLog) -> None:
        """Bind what is asked, and where it is reported.

        Args:
            judging: asks.
            spec: of the job.
            events: takes the reports.
        """
        self._judging = judging
        self._spec = spec
        self._events = events

    def before(self, origin: Origin) -> Voices:
        """Measure what training begins with, and report it; not again what is known.

        Args:
            origin: what the attempt goes on from.

        Raises:
            StopRequestedError: a stop was asked for.
        """
        continues = self._spec.continues
        if origin.state is not None:
            known = origin.state.judged
        else:
            known = Voices(base=None if continues is None else _base_of(continues))
        judged = self._judging.begin(
            known,
            at_start=origin.state is None,
            continues=continues is not None,
            keeps_base=isinstance(self._spec.method, LoraMethod),
        )
        if self._judging.has_rows and (origin.state is None or origin.adopted):
            self._report(self._judging.report(judged, None, 0))
        return judged

    def after(self, judged: Voices, step: int) -> JudgeReport | None:
        """Measure the tuned model, and report how it compares; None where there are no rows.

        Args:
            judged: what was measured before.
            step: steps behind the model.

        Raises:
            StopRequestedError: a stop was asked for.
        """
        if not self._judging.has_rows:
            return None
        report = self._judging.report(judged, self._judging.ask("tuned"), step)
        self._report(report)
        return report

    def _report(self, report: JudgeReport) -> None:
        self._events.append(Judged(at=self._events.now(), report=report))


def _base_of(continues: ContinueRef) -> Voice | None:
    """Return what the job that is continued knew of their base, where its checkpoint says."""
    if continues.kind != "checkpoint":
        return None
    try:
        return read_state(Path(continues.path)).judged.base
    except InvalidCheckpointError:
        # Whether it can be gone on from is for `restore` to say; this is a figure beside it.
        return None
