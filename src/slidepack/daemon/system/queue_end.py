"""What happens when the queue is done: nothing, sleep, or switched off. Five minutes to say no.

Switching off somebody's computer at the wrong moment is worse than leaving it on, so every doubt
ends in leaving it on.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

import msgspec

from slidepack.daemon.system.logind import PowerAction
from slidepack.engine.contract.errors import SlidepackError

logger = logging.getLogger(__name__)

EndAction = Literal["nothing", "suspend", "poweroff"]
COUNTDOWN_SECONDS: Final = 300.0
DOCUMENT: Final = "queue-end"
_VERBS: Final[dict[PowerAction, str]] = {"suspend": "sleeps", "poweroff": "switches off"}


class Documents(Protocol):
    """Where the choice is kept: `store.documents.Documents`."""

    def get(self, key: str, kind: type["QueueEndChoice"]) -> "QueueEndChoice | None":
        """Return what is stored."""

    def put(self, key: str, value: msgspec.Struct) -> None:
        """Store it."""

    def transaction(self) -> AbstractContextManager[None]:
        """Run the block as one transaction."""


class Power(Protocol):
    """Who carries it out: `system.logind.Logind`."""

    def check(self, action: PowerAction) -> None:
        """Raise where it would not work."""

    def perform(self, action: PowerAction) -> None:
        """Do it."""


class QueueEndChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a restarted daemon needs to know."""

    action: EndAction = "nothing"
    boot_id: str = ""
    """Of the boot in which it was chosen."""
    counting: bool = False
    """Whether the countdown ran when this was written."""
    note: str = ""
    """What became of the last choice, for the page."""


class QueueView(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The queue as it is now."""

    live: int
    """Jobs that have a worker, and chats."""
    waiting: int
    """Jobs that will have one by themselves, whatever they wait for. Paused ones will not."""
    hold: str
    """Why somebody needs the machine now (a game, a manual pause); empty where nobody does."""


class QueueEndState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the page and the command line show."""

    action: EndAction
    phase: Literal["off", "armed", "counting"]
    seconds_left: float | None
    """Until it happens; None where nothing counts down."""
    note: str


@dataclass(frozen=True, slots=True)
class _Standing:
    """Everything that changes, in one piece: who reads it waits for nobody."""

    choice: QueueEndChoice
    deadline: float | None = None
    """When the countdown is over, on the clock that `look` is given."""
    saw_work: bool = False
    was_empty: bool = False
    """Whether the queue was done at the last look."""


class QueueEnd:
    """Watches for the end of the queue. `look` is called by one thread, the rest by any.

    It counts down only after a job had a worker in this daemon's own sight, so neither a restart
    nor an empty queue can start a countdown; and only after two looks in a row found it done.
    """

    def __init__(self, documents: Documents, power: Power, boot_id: str) -> None:
        """Read what an earlier daemon left.

        Raises:
            SlidepackError: DISK-UNWRITABLE or DISK-FULL.
        """
        self._documents = documents
        self._power = power
        self._boot_id = boot_id
        # Held while the database is written, which can take long; `state` does without. Nothing
        # that is in a transaction already calls any of this.
        self._lock = threading.Lock()
        self._standing = _Standing(self._recall())

    def arm(self, action: EndAction) -> None:
        """Choose what happens when the queue is done.

        Raises:
            SlidepackError: DAEMON-NO-LOGIND or DAEMON-POWER-REFUSED, where it would not work, and
                DISK-FULL or DISK-UNWRITABLE; then the choice before still holds.
        """
        if action != "nothing":
            self._power.check(action)
        with self._lock:
            # Set again during a countdown, it is a decision about a queue that is yet to end.
            self._write(self._settled(action, ""))

    def cancel(self) -> None:
        """Leave the machine on."""
        with self._lock:
            if self._standing.choice.action != "nothing":
                self._write(self._settled("nothing", "cancelled"))

    def woke_up(self) -> None:
        """Take note that the machine slept: whoever woke it up does not want it off."""
        with self._lock:
            if self._standing.deadline is not None:
                note = "left on: the machine was put to sleep by hand"
                self._write(self._settled("nothing", note))

    def state(self, monotonic: float) -> QueueEndState:
        """Return what is chosen and how long is left; at once, whatever is being written."""
        now = self._standing
        left = None if now.deadline is None else max(0.0, now.deadline - monotonic)
        phase: Literal["off", "armed", "counting"] = "counting"
        if left is None:
            phase = "off" if now.choice.action == "nothing" else "armed"
        return QueueEndState(
            action=now.choice.action, phase=phase, seconds_left=left, note=now.choice.note
        )

    def look(self, monotonic: float, read: Callable[[], QueueView]) -> None:
        """Do what is due; where that is a suspend, it returns after the wake-up.

        Args:
            monotonic: this moment on a clock that stands still while the machine sleeps.
            read: reads the queue; called in a transaction, so that a job which starts meanwhile
                is seen as one that waits or as one that runs.
        """
        with self._lock:
            if self._standing.choice.action == "nothing":
                return
            with self._documents.transaction():
                after, action = self._moved_on(self._standing, monotonic, read())
                if after.choice != self._standing.choice:
                    self._documents.put(DOCUMENT, after.choice)
            # Only what is stored counts, and what is due is stored before it happens: whatever
            # comes then, it happens once.
            self._take(after)
        if action is not None:
            self._perform(action)

    def _moved_on(
        self, standing: _Standing, monotonic: float, queue: QueueView
    ) -> tuple[_Standing, PowerAction | None]:
        """Return how it stands after a look, and an action once, when its time has come."""
        action = standing.choice.action
        if action == "nothing":
            return standing, None
        if queue.live or queue.waiting:
            if standing.deadline is not None:
                note = "left on: a new job came during the countdown"
                return self._settled("nothing", note), None
            saw_work = standing.saw_work or queue.live > 0
            return replace(standing, saw_work=saw_work, was_empty=False), None
        if not standing.saw_work:
            return standing, None
        if queue.hold:
            note = f"left on: the machine is in use ({queue.hold})"
            return self._settled("nothing", note), None
        if not standing.was_empty:
            return replace(standing, was_empty=True), None
        if standing.deadline is None:
            choice = msgspec.structs.replace(standing.choice, counting=True)
            return replace(standing, choice=choice, deadline=monotonic + COUNTDOWN_SECONDS), None
        if monotonic < standing.deadline:
            return standing, None
        note = f"the queue was done: this machine {_VERBS[action]}"
        return self._settled("nothing", note), action

    def _perform(self, action: PowerAction) -> None:
        try:
            self._power.perform(action)
        except SlidepackError as error:
            logger.error("%s", error)
            with self._lock:
                # Chosen anew meanwhile, that stands.
                if self._standing.choice.action == "nothing":
                    self._write(self._settled("nothing", f"left on: {error.report.line()}"))

    def _recall(self) -> QueueEndChoice:
        try:
            found = self._documents.get(DOCUMENT, QueueEndChoice)
        except SlidepackError as error:
            if error.report.code.startswith("DISK-"):
                raise
            # Of another version: it cannot be known what was wanted, so nothing is.
            logger.warning("%s", error)
            found = None
        if found is None or found.action == "nothing":
            return found or QueueEndChoice()
        note = ""
        # No id at all is no proof that it is the same boot.
        if not self._boot_id or found.boot_id != self._boot_id:
            note = "left on: the machine was restarted"
        elif found.counting:
            note = "left on: the daemon was restarted during the countdown"
        if not note:
            return found
        logger.info("At the queue's end: %s.", note)
        choice = QueueEndChoice(note=note)
        self._documents.put(DOCUMENT, choice)
        return choice

    def _settled(self, action: EndAction, note: str) -> _Standing:
        return _Standing(QueueEndChoice(action=action, boot_id=self._boot_id, note=note))

    def _write(self, standing: _Standing) -> None:
        self._documents.put(DOCUMENT, standing.choice)
        self._take(standing)

    def _take(self, standing: _Standing) -> None:
        before, self._standing = self._standing, standing
        choice = standing.choice
        if choice.note and choice != before.choice:
            logger.info("At the queue's end: %s.", choice.note)
        elif choice.action != "nothing" and choice.counting and not before.choice.counting:
            minutes = COUNTDOWN_SECONDS / 60
            logger.info(
                "The queue is done; this machine %s in %g min.", _VERBS[choice.action], minutes
            )
