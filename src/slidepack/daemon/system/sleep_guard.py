"""Keeps the machine awake while a run is on, and gives a run its last seconds before a sleep.

Two locks: `idle` in mode block, so that nothing suspends a machine that merely looks unused, and
`sleep` in mode delay, so that a suspend that somebody asked for waits until a checkpoint is saved.
`sleep` is never blocked: a lid that is closed and a click on Suspend mean what they say.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Literal, Protocol

import msgspec

from slidepack.daemon.system.desktop import DesktopInhibitor
from slidepack.daemon.system.logind import Inhibitor, Logind
from slidepack.daemon.system.sleep_watch import SleepWatch, suspended_seconds
from slidepack.engine.contract.errors import ErrorReport, SlidepackError

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 30.0
"""After a refusal, and between looks at whether a desktop came or went."""
_DEFAULT_DELAY_SECONDS: Final = 5.0
"""What logind allows where nobody changed it."""


class SleepListener(Protocol):
    """What the daemon does about a sleep. Only SlidepackError and OSError may leave it."""

    def before_sleep(self, seconds: float) -> None:
        """Make the workers checkpoint and leave; return when they have, or after `seconds`."""

    def after_wake(self) -> None:
        """Look at the hardware anew: a card may have been lost."""


class GuardState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What keeps this machine awake."""

    state: Literal["off", "held", "unprotected"]
    """`unprotected`: a run is on, and nothing stops this machine from falling asleep."""
    by: tuple[str, ...]
    """Who holds it awake: `logind`, `desktop`."""
    delay_seconds: float | None
    """How long a suspend waits for a checkpoint; None where it would not wait."""
    announced: bool
    """Whether a sleep would be announced to the daemon."""
    problem: ErrorReport | None
    """Why logind holds nothing, where it does not."""


class SleepGuard:
    """Takes and releases the locks in a thread of its own, so that no caller waits for D-Bus."""

    def __init__(
        self,
        logind: Logind,
        listener: SleepListener,
        *,
        desktop: DesktopInhibitor | None = None,
        suspended: Callable[[], float] = suspended_seconds,
        retry_seconds: float = _RETRY_SECONDS,
        look_seconds: float = 15.0,
    ) -> None:
        """Bind the parts; nothing is taken until `start`.

        Args:
            logind: the login manager.
            listener: told about sleep and wake-up, in the watch's thread.
            desktop: the session's own lock; None asks no desktop.
            suspended: how long the machine has slept so far, in seconds.
            retry_seconds: between attempts at locks that could not be had.
            look_seconds: between looks at the clocks, where a wake-up was not announced.
        """
        self._logind = logind
        self._listener = listener
        self._desktop = desktop
        self._retry_seconds = retry_seconds
        self._watch = SleepWatch(
            logind.address, self._on_change, suspended=suspended, look_seconds=look_seconds
        )
        self._changed = threading.Condition()
        self._why = ""
        self._asleep = False
        self._stopping = False
        self._block: Inhibitor | None = None
        self._delay: Inhibitor | None = None
        self._delay_seconds = _DEFAULT_DELAY_SECONDS
        self._on_desktop = False
        self._problem: ErrorReport | None = None
        self._thread = threading.Thread(target=self._run, name="sleep-guard", daemon=True)

    def start(self) -> None:
        """Begin to watch for sleep, and to take the locks that are wanted."""
        self._watch.start()
        self._thread.start()

    def stop(self) -> None:
        """Release everything and stop watching."""
        # In this order: a sleep that is just announced keeps its lock until the workers are done.
        self._watch.stop()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def keep_awake(self, why: str) -> None:
        """Say why the machine is to stay awake, or "" where it may sleep; call it at will.

        It returns at once; the locks follow within moments.
        """
        with self._changed:
            if bool(why) != bool(self._why):
                self._changed.notify_all()
            self._why = why

    def state(self) -> GuardState:
        """Return what holds at this moment."""
        with self._changed:
            by = (("logind",) if self._block else ()) + (("desktop",) if self._on_desktop else ())
            return GuardState(
                state="held" if by else "unprotected" if self._why else "off",
                by=by,
                delay_seconds=self._delay_seconds if self._delay else None,
                announced=self._watch.connected,
                problem=self._problem if self._why else None,
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    break
                why, asleep = self._why, self._asleep
            # What is held during a sleep stays: the watch lets go of the delay when it is time.
            if not asleep:
                self._take(why) if why else self._release_all()
            with self._changed:
                unchanged = (bool(self._why), self._asleep) == (bool(why), asleep)
                if unchanged and not self._stopping:
                    self._changed.wait(self._retry_seconds if why else None)
        self._release_all()

    def _take(self, why: str) -> None:
        """Take what is not held. Only this thread takes; the watch's thread only lets go."""
        problem = self._attempt(lambda: self._take_block(why)) or self._attempt(self._take_delay)
        on_desktop = self._desktop is not None and self._desktop.take(why)
        with self._changed:
            if problem is not None and self._problem is None:
                logger.warning("%s", problem.line())
            self._problem = problem
            self._on_desktop = on_desktop

    def _attempt(self, take: Callable[[], None]) -> ErrorReport | None:
        try:
            take()
        except SlidepackError as error:
            return error.report
        return None

    def _take_block(self, why: str) -> None:
        if self._block is None or not self._block.held:
            block = self._logind.inhibit("idle", why, "block")
            with self._changed:
                self._block = block

    def _take_delay(self) -> None:
        if self._delay is not None and self._delay.held:
            return
        seconds = self._logind.delay_seconds()
        delay = self._logind.inhibit("sleep", "Writes a checkpoint first", "delay")
        with self._changed:
            # A sleep that was announced meanwhile must not wait for this lock.
            if self._asleep:
                delay.release()
                return
            self._delay, self._delay_seconds = delay, seconds

    def _release_all(self) -> None:
        self._release_delay()
        with self._changed:
            block, self._block = self._block, None
            self._on_desktop = False
        if block is not None:
            block.release()
        if self._desktop is not None:
            self._desktop.release()

    def _release_delay(self) -> None:
        with self._changed:
            delay, self._delay = self._delay, None
        if delay is not None:
            delay.release()

    def _on_change(self, sleeping: bool) -> None:
        if sleeping:
            self._go_to_sleep()
        else:
            self._wake_up()

    def _go_to_sleep(self) -> None:
        with self._changed:
            self._asleep = True
            seconds = self._delay_seconds if self._delay is not None else 0.0
        started = time.monotonic()
        try:
            self._tell("before its sleep", lambda: self._listener.before_sleep(seconds))
        finally:
            self._release_delay()
            with self._changed:
                self._changed.notify_all()
        logger.info("This machine goes to sleep; ready after %.1f s.", time.monotonic() - started)

    def _wake_up(self) -> None:
        with self._changed:
            self._asleep = False
            self._changed.notify_all()
        logger.info("This machine woke up.")
        self._tell("after its sleep", self._listener.after_wake)

    def _tell(self, when: str, callback: Callable[[], None]) -> None:
        try:
            callback()
        except (SlidepackError, OSError) as error:
            # Neither the suspend nor the next one may hang on it; what was not saved now is in
            # the last timed checkpoint.
            logger.error("This machine, %s: %s", when, error)
