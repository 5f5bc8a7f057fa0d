"""What the daemon does about a sleep of the machine: runs give way before, and go on after it."""

import time
from collections.abc import Callable
from typing import Final

from slidepack.daemon.hardware import HardwareMonitor
from slidepack.daemon.policy.watch import PolicyWatch
from slidepack.daemon.system.queue_end import QueueEnd

_POLL_SECONDS: Final = 0.05


class Sleeping:
    """The sleep guard's `SleepListener`."""

    def __init__(
        self,
        policy: PolicyWatch,
        our_pids: Callable[[], list[int]],
        hardware: HardwareMonitor,
        queue_end: QueueEnd,
    ) -> None:
        """Bind what a sleep matters to.

        Args:
            policy: holds everything back meanwhile.
            our_pids: process ids of the workers and chats that run.
            hardware: is looked at anew afterwards.
            queue_end: is told of the end of a sleep.
        """
        self._policy = policy
        self._our_pids = our_pids
        self._hardware = hardware
        self._queue_end = queue_end

    def before_sleep(self, seconds: float) -> None:
        """Let workers and chats leave; return when they have, or after `seconds`."""
        self._policy.sleeping(True)
        deadline = time.monotonic() + seconds
        # The clock's next tick asks them to leave.
        while self._our_pids() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def after_wake(self) -> None:
        """Look at the hardware anew, and let runs go on."""
        self._hardware.forget_software()
        self._queue_end.woke_up()
        self._policy.sleeping(False)
