"""Watches whether training may run now; one thread looks, any other asks what it saw."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import tzinfo
from pathlib import Path
from typing import Final

from slidepack.daemon.policy.applications import Application, Applications
from slidepack.daemon.policy.blind_spots import blind_spots
from slidepack.daemon.policy.by_clock import ByClock
from slidepack.daemon.policy.card_watch import CardWatch
from slidepack.daemon.policy.gpu_sample import SampleGpus, sample_gpus
from slidepack.daemon.policy.holding import Hold, Holding, Reason
from slidepack.daemon.policy.own_processes import OwnProcesses
from slidepack.daemon.policy.pausing import Pausing
from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.policy.state import PolicyState, policy_state, window_text
from slidepack.daemon.policy.stored import StoredPolicy
from slidepack.daemon.policy.windows import WindowState, tonight
from slidepack.daemon.policy.windows_side import WindowsSide
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.store.documents import Documents

logger = logging.getLogger(__name__)

_STALE_SECONDS: Final = 10.0
"""Older looks say nothing of whether a run may start now."""


class PolicyWatch:
    """The policy, the user's pause, and what was last seen of games and cards."""

    def __init__(
        self,
        documents: Documents,
        *,
        sample: SampleGpus = sample_gpus,
        applications: Applications | None = None,
        windows_side: WindowsSide | None = None,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read what is stored; nothing is looked at until `look`.

        Args:
            documents: where the policy and a pause are kept.
            sample: asks the drivers for their cards; `no_gpus` where the daemon leaves them alone.
            applications: finds programs among the processes; None looks into /proc.
            windows_side: finds those of Windows under WSL; None where this is no WSL.
            changed: called when a hold, the pause or the policy changes.
            clock: unix time in seconds.
        """
        self._changed = changed
        self._clock = clock
        self._applications = applications or Applications(Path("/proc"))
        self._windows_side = windows_side
        self._own = OwnProcesses(self._applications)
        self._cards = CardWatch(sample, self._applications, self._own)
        self._holding = Holding()
        # Looking takes long, and only one thread does it; what it saw is read under the lock.
        self._look_lock = threading.Lock()
        self._lock = threading.Lock()
        self._told: tuple[str, bool] | None = None
        self._notices: tuple[str, ...] = ()
        self._blind = ""
        self._stored = StoredPolicy(documents, clock())
        self._pausing = Pausing(documents, clock())
        self._by_clock = ByClock()
        self._seen: Hold | None = None
        self._pending = ""
        self._looked_at: float | None = None
        self._asleep_since: float | None = None

    def look(
        self,
        now: float,
        monotonic: float,
        our_pids: Collection[int],
        *,
        waiting: bool = True,
        planned_vram_bytes: int | None = None,
        cards: frozenset[str] | None = None,
    ) -> None:
        """Look at programs and cards; call it about every second, from one thread.

        Args:
            now: unix seconds.
            monotonic: seconds by a clock that only goes forward.
            our_pids: the workers that run; they and what they started never count.
            waiting: whether a job waits; where none does and none runs, nothing is looked at.
            planned_vram_bytes: what our run takes of its card by its plan, for drivers that do not
                say who holds what; None where nobody knows.
            cards: uuids of the cards that training uses; None is every card.
        """
        with self._look_lock:
            policy = self.policy()
            self._own.update(our_pids, monotonic)
            reasons: list[Reason] = []
            active = waiting or bool(our_pids)
            if active:
                reasons += self._look_at_programs(policy, monotonic)
                reasons += self._cards.look(
                    policy, monotonic, planned_vram_bytes=planned_vram_bytes, cards=cards
                )
                self._tell_notices(policy)
            else:
                self._cards.rest()
            with self._lock:
                self._seen = self._holding.observe(
                    now,
                    monotonic,
                    reasons,
                    pause_after=policy.pause_after_seconds,
                    resume_after=policy.resume_after_seconds,
                )
                self._pending = self._holding.pending()
                self._looked_at = now if active else None
        # Without the lock: the database may be busy, and a request must not wait for both.
        self._pausing.settle(now)
        if _kind(self.hold()) != self._told:
            self._tell()

    def hold(self) -> Hold | None:
        """Return why nothing may train now, or None.

        Raises:
            SlidepackError: DISK-UNWRITABLE where a pause was just changed and cannot be read.
        """
        now = self._clock()
        manual = self._pausing.hold(now, self._zone_at(now))
        if manual is not None:
            return manual
        if self._stored.broken is not None:
            return self._stored.broken
        with self._lock:
            if self._asleep_since is not None:
                return Hold(
                    code="sleep",
                    reason="this machine is going to sleep",
                    since=self._asleep_since,
                )
            return self._seen

    def why_wait(self, now: float, *, any_time: bool = False) -> str:
        """Return why no run may start now; empty where one may.

        Beyond `hold` it minds the window, and what was seen too lately to count: a run that gives
        way five seconds after its start is worse than one that waits.

        Args:
            now: unix seconds.
            any_time: whether the run may start outside the windows.
        """
        hold = self.hold()
        if hold is not None:
            return hold.reason
        window = self.window_at(now)
        if not (window.open or any_time):
            return window_text(window, now, self._zone_at(now))
        with self._lock:
            if self._looked_at is None or not 0 <= now - self._looked_at < _STALE_SECONDS:
                return "games and other users of the card are looked for first"
            return f"{self._pending}; waits to see whether that lasts" if self._pending else ""

    def why_leave(
        self, now: float, *, seconds_left: float | None = None, any_time: bool = False
    ) -> str:
        """Return why a running job must give the GPU back now; empty where it need not.

        Args:
            now: unix seconds.
            seconds_left: how long the job still needs; None where nobody knows.
            any_time: whether it may run outside the windows.
        """
        hold = self.hold()
        if hold is not None:
            return hold.reason
        window = self.window_at(now)
        if window.open or any_time:
            return ""
        grace = self.policy().finish_within_minutes * 60
        closed_for = 0.0 if window.since is None else now - window.since
        if seconds_left is not None and closed_for + seconds_left <= grace:
            return ""
        opens = window_text(window, now, self._zone_at(now))
        return f"the window has closed; {opens}"

    def window_at(self, now: float) -> WindowState:
        """Return whether a window is open at `now`, in unix seconds."""
        return self._by_clock.at(self.policy(), now).window

    def tonight(self, now: float) -> float:
        """Return when a job that is queued for `tonight` may start, in unix seconds."""
        return tonight(self.policy(), now)

    def state(self, now: float) -> PolicyState:
        """Return everything about whether training may run at `now`, in unix seconds."""
        hold = self.hold()
        window = self.window_at(now)
        with self._lock:
            notices = self._notices
        return policy_state(hold, window, now, self._zone_at(now), notices)

    def policy(self) -> Policy:
        """Return the policy."""
        return self._stored.policy

    def set_policy(self, policy: Policy) -> None:
        """Store another policy; it holds from the next look on.

        Raises:
            SlidepackError: DISK-FULL or DISK-UNWRITABLE.
        """
        self._stored.put(policy)
        self._tell()

    def change_policy(self, changes: Mapping[str, object]) -> None:
        """Store the policy with some fields changed, given as JSON has them.

        Raises:
            SlidepackError: DAEMON-REQUEST-INVALID, DISK-FULL or DISK-UNWRITABLE.
        """
        self._stored.change(changes)
        self._tell()

    def pause(self, until: float | None = None, why: str = "") -> None:
        """Hold everything until a time in unix seconds, or until `resume`; no restart ends it.

        `why` is empty where the user asked for it.

        Raises:
            SlidepackError: DAEMON-REQUEST-INVALID where that time is not to come or more than a
                year away, DISK-FULL or DISK-UNWRITABLE.
        """
        self._pausing.pause(until, self._clock(), why)
        self._tell()

    def resume(self) -> None:
        """End the user's pause, and the quiet time after what is gone already.

        What is still there, as a game that runs, keeps holding.
        """
        self._pausing.resume()
        with self._look_lock, self._lock:
            self._cards.forget_lost()
            self._holding.cut_quiet("gpu-lost")
            self._seen = self._holding.hold(self._clock())
        self._tell()

    def sleeping(self, asleep: bool) -> None:
        """Hold everything while the machine goes to sleep, and no longer once it is awake."""
        with self._lock:
            self._asleep_since = self._clock() if asleep else None
        self._tell()

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the cards as they were last looked at; none before the first look."""
        return self._cards.gpus

    def _tell(self) -> None:
        self._told = _kind(self.hold())
        self._changed()

    def _zone_at(self, now: float) -> tzinfo:
        return self._by_clock.at(self.policy(), now).zone

    def _look_at_programs(self, policy: Policy, monotonic: float) -> list[Reason]:
        found: tuple[Application, ...] = ()
        self._blind = ""
        try:
            found = self._applications.find(policy, self._own.pids, monotonic)
        except OSError as error:
            self._blind = f"programs are not seen: {error}"
        if self._windows_side is not None:
            found += self._windows_side.find(policy, monotonic)
        return [
            Reason("application", text=app.text("runs"), past=app.text("ran")) for app in found[:1]
        ]

    def _tell_notices(self, policy: Policy) -> None:
        windows_problem = "" if self._windows_side is None else self._windows_side.problem
        spots = blind_spots(policy, self._applications.sight, self._cards.gpus)
        problems = (self._blind, spots, windows_problem, self._cards.problem)
        notices = tuple(problem for problem in problems if problem)
        for notice in notices:
            if notice not in self._notices:
                logger.warning("The policy does not see everything: %s", notice)
        with self._lock:
            self._notices = notices


def _kind(hold: Hold | None) -> tuple[str, bool] | None:
    """Return what of a hold is worth telling the page: not each minute of a countdown."""
    return None if hold is None else (hold.code, hold.until is None)
