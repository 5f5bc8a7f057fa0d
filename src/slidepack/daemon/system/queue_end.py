"""What happens when the queue is done: nothing, sleep, or switched off. Five minutes to say no.

Switching off somebody's computer at the wrong moment is worse than leaving it on, so every doubt
ends in leaving it on.
"""

import logging
import threading
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
    """Jobs that have a worker."""
    waiting: int
    """Jobs that will start by themselves: queued, whatever they wait for. Paused ones will not."""
    hold: str
    """Why somebody needs the machine now (a game, a manual pause); empty where nobody does."""


class QueueEndState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the page and the command line show."""

    action: EndAction
    phase: Literal["off", "armed", "counting"]
    seconds_left: float | None
    """Until it happens; None where nothing counts down."""
    note: str


class QueueEnd:
    """Watches for the end of the queue. `look` is called by one thread, the rest by any.

    It counts down only after a job had a worker in this daemon's own sight, so neither a restart
    nor an empty queue can start a countdown.
    """

    def __init__(self, documents: Documents, power: Power, boot_id: str) -> None:
        """Read what an earlier daemon left.

        Raises:
            SlidepackError: DISK-UNWRITABLE or DISK-FULL.
        """
        self._documents = documents
        self._power = power
        self._boot_id = boot_id
        self._lock = threading.Lock()
        self._saw_work = False
        self._deadline: float | None = None
        self._choice = self._recall()

    def arm(self, action: EndAction) -> None:
        """Choose what happens when the queue is done.

        Raises:
            SlidepackError: DAEMON-NO-LOGIND or DAEMON-POWER-REFUSED, where it would not work.
        """
        if action != "nothing":
            self._power.check(action)
        with self._lock:
            # Set again during a countdown, it is a decision about a queue that is yet to end.
            self._settle(action, "")

    def cancel(self) -> None:
        """Leave the machine on."""
        with self._lock:
            if self._choice.action != "nothing":
                self._settle("nothing", "cancelled")

    def woke_up(self) -> None:
        """Take note that the machine slept: whoever woke it up does not want it off."""
        with self._lock:
            if self._deadline is not None:
                self._settle("nothing", "left on: the machine was put to sleep by hand")

    def state(self, monotonic: float) -> QueueEndState:
        """Return what is chosen and how long is left."""
        with self._lock:
            left = None if self._deadline is None else max(0.0, self._deadline - monotonic)
            phase: Literal["off", "armed", "counting"] = "counting"
            if left is None:
                phase = "off" if self._choice.action == "nothing" else "armed"
            return QueueEndState(
                action=self._choice.action, phase=phase, seconds_left=left, note=self._choice.note
            )

    def look(self, monotonic: float, queue: QueueView) -> None:
        """Do what is due; where that is a suspend, it returns after the wake-up.

        Args:
            monotonic: this moment on a clock that stands still while the machine sleeps.
            queue: the queue at this moment.
        """
        with self._lock:
            action = self._due(monotonic, queue)
        if action is not None:
            self._perform(action)

    def _due(self, monotonic: float, queue: QueueView) -> PowerAction | None:
        """Move on; return an action once, when its time has come."""
        action = self._choice.action
        if action == "nothing":
            return None
        if queue.live or queue.waiting:
            self._saw_work = self._saw_work or queue.live > 0
            if self._deadline is not None:
                self._settle("nothing", "left on: a new job came during the countdown")
            return None
        if not self._saw_work:
            return None
        if queue.hold:
            self._settle("nothing", f"left on: the machine is in use ({queue.hold})")
            return None
        if self._deadline is None:
            self._start_countdown(action, monotonic)
            return None
        if monotonic < self._deadline:
            return None
        # Written down before it happens: whatever comes then, it happens once.
        self._settle("nothing", f"the queue was done: this machine {_VERBS[action]}")
        return action

    def _start_countdown(self, action: PowerAction, monotonic: float) -> None:
        self._store(msgspec.structs.replace(self._choice, counting=True))
        self._deadline = monotonic + COUNTDOWN_SECONDS
        minutes = COUNTDOWN_SECONDS / 60
        logger.info("The queue is done; this machine %s in %g min.", _VERBS[action], minutes)

    def _perform(self, action: PowerAction) -> None:
        try:
            self._power.perform(action)
        except SlidepackError as error:
            logger.error("%s", error)
            with self._lock:
                # Chosen anew meanwhile, that stands.
                if self._choice.action == "nothing":
                    self._settle("nothing", f"left on: {error.report.line()}")

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

    def _settle(self, action: EndAction, note: str) -> None:
        self._deadline = None
        self._saw_work = False
        self._store(QueueEndChoice(action=action, boot_id=self._boot_id, note=note))
        if note:
            logger.info("At the queue's end: %s.", note)

    def _store(self, choice: QueueEndChoice) -> None:
        self._documents.put(DOCUMENT, choice)
        self._choice = choice
