"""What the policy means for one job: whether it may start, and whether it must give way."""

from datetime import tzinfo
from typing import Protocol

from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.policy.windows import clock_text, policy_zone
from slidepack.daemon.store.jobs import JobRecord


class Rules(Protocol):
    """The policy as it is now: `policy.watch.PolicyWatch`."""

    def policy(self) -> Policy:
        """Return what the user set."""
        ...

    def why_wait(self, now: float, *, any_time: bool = False) -> str:
        """Return why no run may start now; empty where one may."""
        ...

    def why_leave(
        self, now: float, *, seconds_left: float | None = None, any_time: bool = False
    ) -> str:
        """Return why a run must give the GPU back now; empty where it need not."""
        ...


class PolicyGate:
    """Applies the policy to jobs."""

    def __init__(self, rules: Rules) -> None:
        """Bind the policy."""
        self._rules = rules
        self._zone_at: tuple[tuple[float, str], tzinfo] | None = None
        self._hours: dict[float, str] = {}
        """Texts of the present zone and tick: thousands of jobs may wait for one hour."""

    def why_wait(self, job: JobRecord, now: float) -> str:
        """Return why a queued job may not start now; empty where it may."""
        if job.not_before is not None and now < job.not_before:
            return f"waits until {self._hour(job.not_before, now)}"
        why = self._rules.why_wait(now, any_time=job.any_time)
        return f"waits: {why}" if why else ""

    def why_leave(self, job: JobRecord, now: float) -> str:
        """Return why a running job must give way now; empty where it need not."""
        left = 0.0 if job.state == "finishing" else job.eta_seconds
        return self._rules.why_leave(now, seconds_left=left, any_time=job.any_time)

    def _hour(self, instant: float, now: float) -> str:
        zone = self._zone(now)
        if instant not in self._hours:
            self._hours[instant] = clock_text(instant, now, zone)
        return self._hours[instant]

    def _zone(self, now: float) -> tzinfo:
        """Return the zone of the policy, which is read once for all jobs of a tick."""
        policy, known = self._rules.policy(), self._zone_at
        if known is None or known[0] != (now, policy.time_zone):
            # The system's zone is a file, and thousands of jobs may wait for their hour.
            known = self._zone_at = ((now, policy.time_zone), policy_zone(policy))
            self._hours.clear()
        return known[1]
