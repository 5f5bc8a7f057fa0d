"""The policy's windows of the next days, as the planner wants them. Pure."""

from collections.abc import Sequence
from typing import Final

from slidepack.daemon.planner.tasks import Window
from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.policy.windows import window_state

__all__ = ["is_open", "open_hours"]

_AHEAD_SECONDS: Final = 7 * 86_400.0


def open_hours(policy: Policy, now: float) -> tuple[Window, ...]:
    """Return when work may run from now (unix seconds) until in a week.

    Empty is always; hours that are over already stand for a policy whose windows never open.
    """
    over = (Window(begin=now - 1.0, end=now),)
    found: list[Window] = []
    at, until = now, now + _AHEAD_SECONDS
    while at < until or not found:
        state = window_state(policy, at)
        if state.until is None:
            # Without windows, or with such as never close or never open.
            return () if state.open else over
        if state.open:
            found.append(Window(begin=at, end=state.until))
        at = state.until
    return tuple(found)


def is_open(windows: Sequence[Window], now: float) -> bool:
    """Return whether work may run at `now` by windows that `open_hours` has returned."""
    return not windows or any(window.begin <= now < window.end for window in windows)
