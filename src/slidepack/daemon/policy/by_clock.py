"""What the clock says of the policy, remembered for as long as it says so."""

from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.policy.windows import WindowState, policy_zone, window_state

_BELIEVED_SECONDS: Final = 60.0
"""The system's time zone may change at any time, and nobody says so."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The zone of a policy, and whether a window is open."""

    policy: Policy
    at: float
    """When it was worked out, in unix seconds."""
    zone: tzinfo
    window: WindowState

    def holds(self, policy: Policy, now: float) -> bool:
        """Return whether it still is so."""
        if policy is not self.policy or not 0 <= now - self.at < _BELIEVED_SECONDS:
            return False
        return self.window.until is None or now < self.window.until


class ByClock:
    """Works it out where it could have changed: every waiting job asks four times a second."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._last: Reading | None = None

    def at(self, policy: Policy, now: float) -> Reading:
        """Return what the clock says of a policy at `now`, in unix seconds."""
        reading = self._last
        if reading is None or not reading.holds(policy, now):
            reading = Reading(policy, now, policy_zone(policy), window_state(policy, now))
            self._last = reading
        return reading
