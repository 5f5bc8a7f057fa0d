"""Puts what packs measured into the book of costs."""

from collections.abc import Callable

from slidepack.daemon.planner.cost import Sample
from slidepack.daemon.store.costs import CostBook
from slidepack.daemon.store.packs import PackRecord
from slidepack.engine.contract.events import StepTimed

__all__ = ["MeasuredSteps"]


class MeasuredSteps:
    """The supervisor's `StepSink`."""

    def __init__(self, book: CostBook, name_of: Callable[[str], str]) -> None:
        """Bind the book, and what names the card behind torch's name of a device."""
        self._book = book
        self._name_of = name_of

    def record(self, pack: PackRecord, event: StepTimed, now: float) -> None:
        """Keep what steps of a pack took."""
        name = self._name_of(pack.device)
        if name and event.seconds > 0.0:
            sample = Sample(tokens=event.tokens, lanes=event.lanes, seconds=event.seconds)
            self._book.record_step(name, pack.model, sample, now)

    def began(self, pack: PackRecord, seconds: float, now: float) -> None:
        """Keep how long a pack took until its first lane was in it."""
        name = self._name_of(pack.device)
        if name and seconds > 0.0:
            self._book.record_start(name, pack.model, seconds, now)

    def left(self, pack: PackRecord, held_up_seconds: float, now: float) -> None:
        """Keep for how long a pack made no step because of a lane that is done."""
        name = self._name_of(pack.device)
        if name and held_up_seconds > 0.0:
            self._book.record_held_up(name, pack.model, held_up_seconds, now)
