"""The policy's answer as one value, and in words. Pure."""

from datetime import tzinfo

import msgspec

from slidepack.daemon.policy.holding import Hold
from slidepack.daemon.policy.windows import WindowState, clock_text


class PolicyState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether training may run now, for the API, the page and the command line."""

    may_run: bool
    summary: str
    """One clause for people: what holds training back, or until when it may run."""
    hold: Hold | None
    window: WindowState
    next_change: float | None
    """When that is known to change at the earliest, in unix seconds; None where nobody knows."""
    notices: tuple[str, ...] = ()
    """What the policy cannot see, and why."""


def policy_state(
    hold: Hold | None, window: WindowState, now: float, zone: tzinfo, notices: tuple[str, ...]
) -> PolicyState:
    """Put together what holds training back and what the clock says, at `now` in unix seconds."""
    return PolicyState(
        may_run=hold is None and window.open,
        summary=window_text(window, now, zone) if hold is None else hold.reason,
        hold=hold,
        window=window,
        next_change=_next_change(hold, window),
        notices=notices,
    )


def window_text(window: WindowState, now: float, zone: tzinfo) -> str:
    """Return what the clock says, as `the window opens 23:00`."""
    if window.until is None:
        return "training may run at any time" if window.open else "no window ever opens"
    when = clock_text(window.until, now, zone)
    return f"training may run until {when}" if window.open else f"the window opens {when}"


def _next_change(hold: Hold | None, window: WindowState) -> float | None:
    if hold is None:
        return window.until
    if window.open or hold.until is None or window.until is None:
        return hold.until
    return max(hold.until, window.until)
