"""How the policy stands, for the digest and the metrics."""

from typing import Final

from slidepack.daemon.notices.settings import Outlook
from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.policy.watch import PolicyWatch
from slidepack.daemon.policy.windows import open_spans, window_state

_DAY_SECONDS: Final = 86_400.0


def outlook(watch: PolicyWatch, now: float) -> Outlook:
    """Return how the policy stands at `now`, in unix seconds."""
    policy, hold = watch.policy(), watch.hold()
    window = window_state(policy, now)
    limited = policy.closed or bool(policy.windows)
    return Outlook(
        window_open=window.open if limited else None,
        window_ended_at=None if window.open else window.since,
        tonight_seconds=open_seconds(policy, now, now + _DAY_SECONDS) if limited else None,
        holds=() if hold is None else (hold.code,),
    )


def open_seconds(policy: Policy, begin: float, end: float) -> float:
    """Return how long windows are open between two unix times, in seconds."""
    return sum(until - since for since, until in open_spans(policy, begin, end))
