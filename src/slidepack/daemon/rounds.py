"""What the daemon looks at again and again beside its queue: games, cards, its machine's sleep."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from slidepack.daemon.chat.sessions import ChatSessions
from slidepack.daemon.hardware import HardwareMonitor
from slidepack.daemon.notices.notices import Notices
from slidepack.daemon.policy.gpu_sample import card_key
from slidepack.daemon.policy.holding import HoldCode
from slidepack.daemon.policy.watch import PolicyWatch
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.store.jobs import JobStore
from slidepack.daemon.supervisor.retention import Retention
from slidepack.daemon.system.queue_end import QueueEnd, QueueView
from slidepack.daemon.system.sleep_guard import SleepGuard
from slidepack.daemon.told_once import ToldOnce
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.runfolder import RunFolder

_SOMEBODY: Final[frozenset[HoldCode]] = frozenset(
    {"paused", "application", "foreign-vram", "foreign-load"}
)
"""Holds that mean that somebody uses the machine."""


class Rounds:
    """One look at everything; each method belongs to one thread of the clock."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        attempts: AttemptStore,
        hardware: HardwareMonitor,
        policy: PolicyWatch,
        notices: Notices,
        retention: Retention,
        guard: SleepGuard,
        queue_end: QueueEnd,
        chats: ChatSessions,
        our_pids: Callable[[], list[int]],
        exports: Callable[[], int] = lambda: 0,
    ) -> None:
        """Bind the parts.

        Args:
            jobs: the queue.
            attempts: the tries at its jobs.
            hardware: knows which cards training uses.
            policy: decides whether training may run.
            notices: measures energy and tells the user.
            retention: deletes what nobody needs any more.
            guard: keeps the machine awake.
            queue_end: what happens when the queue is done.
            chats: hold devices too, while they are used.
            our_pids: process ids of the workers and chats that run.
            exports: how many wait or run; the machine stays up for them.
        """
        self._jobs = jobs
        self._attempts = attempts
        self._hardware = hardware
        self._policy = policy
        self._notices = notices
        self._retention = retention
        self._guard = guard
        self._queue_end = queue_end
        self._chats = chats
        self._our_pids = our_pids
        self._exports = exports
        self._planned: dict[str, int | None] = {}
        self._parts = ToldOnce()

    def look(self) -> None:
        """Look at games, cards and other programs; about every second."""
        live = self._attempts.live()
        running = ", ".join(str(attempt.job_id) for attempt in live)
        # First: a look that fails must not let the machine fall asleep under a run.
        self._guard.keep_awake(f"Job {running} trains" if running else "")
        self._policy.look(
            time.time(),
            time.monotonic(),
            self._our_pids(),
            waiting=bool(live) or self._somebody_could_start(time.time()),
            planned_vram_bytes=self._planned_vram(live),
            cards=self._hardware.training_cards(),
        )
        self._chats.looked()

    def _somebody_could_start(self, now: float) -> bool:
        """Return whether a look could let anything start: it wakes a card that sleeps."""
        if self._chats.wants_look():
            return True
        queued = self._jobs.queued()
        open_now = bool(queued) and self._policy.window_at(now).open
        return any(open_now or job.any_time for job in queued)

    def tell(self) -> None:
        """Measure energy, send what is due, mind the queue's end; every few seconds.

        Each is done whatever becomes of the others. What fails is logged, and tried again.
        """
        monotonic = time.monotonic()
        self._part("energy", lambda: self._measure(monotonic))
        self._part("notices", lambda: self._notices.tick(time.time()))
        self._part("what is of no use", self._retention.work)
        self._part("the queue's end", lambda: self._queue_end.look(monotonic, self._queue))

    def _part(self, part: str, work: Callable[[], None]) -> None:
        self._parts.run(part, work, prefix=f"{part}: ")

    def _measure(self, monotonic: float) -> None:
        cards = self._hardware.training_cards()
        gpus = [gpu for gpu in self._policy.gpus() if cards is None or card_key(gpu) in cards]
        live = self._attempts.live()
        company = Counter(attempt.nonce for attempt in live)
        for attempt in live:
            card = self._hardware.card_of(attempt.device)
            self._notices.energy.sample(
                monotonic,
                attempt.job_id,
                attempt.number,
                [gpu for gpu in gpus if card is None or card_key(gpu) == card],
                share=1 / company[attempt.nonce],
                cpu_share=1 / len(live),
            )

    def _queue(self) -> QueueView:
        attempts = self._attempts.live()
        with_worker = {attempt.job_id for attempt in attempts}
        # One that starts has left the queue, and may not have an attempt yet.
        others = [job for job in self._jobs.live() if job.id not in with_worker]
        hold = self._policy.hold()
        return QueueView(
            live=len(attempts) + len(self._chats.pids()),
            waiting=len(self._jobs.queued()) + len(others) + self._exports(),
            hold=hold.reason if hold is not None and hold.code in _SOMEBODY else "",
        )

    def _planned_vram(self, live: list[AttemptRecord]) -> int | None:
        """Return the most that one of ours takes of its card by its plan; None if nobody knows."""
        folders = {attempt.nonce: attempt.folder for attempt in live}
        self._planned = {
            nonce: self._planned[nonce] if nonce in self._planned else _planned_vram_of(folder)
            for nonce, folder in folders.items()
        }
        planned = [*self._planned.values(), *self._chats.device_bytes()]
        known = [size for size in planned if size is not None]
        return max(known, default=None) if len(known) == len(planned) else None


def _planned_vram_of(folder: str) -> int | None:
    try:
        return RunFolder(Path(folder)).read_plan().predicted_device_bytes
    except SlidepackError:
        # Its worker will say what is wrong with its folder.
        return None
