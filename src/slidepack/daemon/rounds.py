"""What the daemon looks at again and again beside its queue: games, cards, its machine's sleep."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from slidepack.daemon.hardware import HardwareMonitor
from slidepack.daemon.notices.notices import Notices
from slidepack.daemon.policy.gpu_sample import card_key
from slidepack.daemon.policy.holding import HoldCode
from slidepack.daemon.policy.watch import PolicyWatch
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.store.jobs import JobStore
from slidepack.daemon.system.queue_end import QueueEnd, QueueView
from slidepack.daemon.system.sleep_guard import SleepGuard
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
        guard: SleepGuard,
        queue_end: QueueEnd,
        our_pids: Callable[[], list[int]],
    ) -> None:
        """Bind the parts.

        Args:
            jobs: the queue.
            attempts: the tries at its jobs.
            hardware: knows which cards training uses.
            policy: decides whether training may run.
            notices: measures energy and tells the user.
            guard: keeps the machine awake.
            queue_end: what happens when the queue is done.
            our_pids: process ids of the workers that run.
        """
        self._jobs = jobs
        self._attempts = attempts
        self._hardware = hardware
        self._policy = policy
        self._notices = notices
        self._guard = guard
        self._queue_end = queue_end
        self._our_pids = our_pids
        self._planned: tuple[str, int | None] = ("", None)

    def look(self) -> None:
        """Look at games, cards and other programs; about every second."""
        live = self._attempts.live()
        self._policy.look(
            time.time(),
            time.monotonic(),
            self._our_pids(),
            waiting=bool(live or self._jobs.queued()),
            planned_vram_bytes=self._planned_vram(live),
            cards=self._hardware.training_cards(),
        )
        running = ", ".join(str(attempt.job_id) for attempt in live)
        self._guard.keep_awake(f"Job {running} trains" if running else "")

    def tell(self) -> None:
        """Measure energy, send what is due, mind the queue's end; every few seconds."""
        monotonic = time.monotonic()
        live = self._attempts.live()
        cards = self._hardware.training_cards()
        gpus = [gpu for gpu in self._policy.gpus() if cards is None or card_key(gpu) in cards]
        for attempt in live:
            self._notices.energy.sample(monotonic, attempt.job_id, attempt.number, gpus)
        self._notices.tick(time.time())
        hold = self._policy.hold()
        self._queue_end.look(
            monotonic,
            QueueView(
                live=len(live),
                waiting=len(self._jobs.queued()),
                hold=hold.reason if hold is not None and hold.code in _SOMEBODY else "",
            ),
        )

    def _planned_vram(self, live: list[AttemptRecord]) -> int | None:
        if not live:
            return None
        nonce, planned = self._planned
        if nonce != live[0].nonce:
            try:
                planned = RunFolder(Path(live[0].folder)).read_plan().predicted_device_bytes
            except SlidepackError:
                # Its worker will say what is wrong with its folder.
                planned = None
            self._planned = (live[0].nonce, planned)
        return planned
