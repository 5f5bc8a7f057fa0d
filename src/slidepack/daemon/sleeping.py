"""What the daemon does about a sleep of the machine: runs give way before, and go on after it."""

import time
from typing import Final

from slidepack.daemon.hardware import HardwareMonitor
from slidepack.daemon.policy.watch import PolicyWatch
from slidepack.daemon.supervisor.supervisor import Supervisor
from slidepack.daemon.system.queue_end import QueueEnd

_POLL_SECONDS: Final = 0.05


class Sleeping:
    """The sleep guard's `SleepListener`."""

    def __init__(
        self,
        policy: PolicyWatch,
        supervisor: Supervisor,
        hardware: HardwareMonitor,
        queue_end: QueueEnd,
    ) -> None:
        """Bind what a sleep matters to."""
        self._policy = policy
        self._supervisor = supervisor
        self._hardware = hardware
        self._queue_end = queue_end

    def before_sleep(self, seconds: float) -> None:
        """Let the workers checkpoint and leave; return when they have, or after `seconds`."""
        self._policy.sleeping(True)
        deadline = time.monotonic() + seconds
        # The clock's next tick asks them to leave.
        while self._supervisor.running() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def after_wake(self) -> None:
        """Look at the hardware anew, and let runs go on."""
        self._hardware.forget_software()
        self._queue_end.woke_up()
        self._policy.sleeping(False)
