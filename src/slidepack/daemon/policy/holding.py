"""When a reason to give the GPU back counts, and when it no longer does. Pure: no clock.

A reason counts once it was there for a while, and stops to count once it was gone for longer, so
that neither a video's first second nor a game's loading screen starts or stops a run.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

HoldCode = Literal[
    "paused", "sleep", "gpu-lost", "hot", "application", "foreign-vram", "foreign-load"
]

_ORDER: Final[tuple[HoldCode, ...]] = (
    *("gpu-lost", "hot", "application", "foreign-vram", "foreign-load"),
)
"""Which of several reasons is told."""
_LONGEST_STEP: Final = 10.0
"""What one observation may add, in seconds: of a longer gap nobody knows what happened in it."""
_COOLED_SECONDS: Final = 60.0
"""A card that cooled down, or came back, is not a person who may come back to play."""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing trains now."""

    code: HoldCode
    reason: str
    """For the user, with what ends it."""
    since: float
    """Unix seconds."""
    until: float | None = None
    """The earliest end in unix seconds; None where nobody knows."""


@dataclass(frozen=True, slots=True)
class Reason:
    """What speaks against training, as it was just seen."""

    code: HoldCode
    text: str
    """While it lasts: `cs2 runs (Steam game 730)`."""
    past: str
    """Once it is gone: `cs2 ran (Steam game 730)`."""


@dataclass(slots=True)
class _Track:
    reason: Reason
    since: float
    present: bool = True
    seen_seconds: float = 0.0
    quiet_seconds: float = 0.0
    counts: bool = False


class Holding:
    """Follows each kind of reason from its first sight to the end of the quiet after it."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._tracks: dict[HoldCode, _Track] = {}
        self._last: float | None = None
        self._resume_after = 0.0

    def observe(
        self,
        now: float,
        monotonic: float,
        reasons: Iterable[Reason],
        *,
        pause_after: float,
        resume_after: float,
    ) -> Hold | None:
        """Take in what is seen now and return why nothing may train, or None.

        Args:
            now: unix seconds, for what users are told only.
            monotonic: seconds by a clock that only goes forward; all durations follow it.
            reasons: what speaks against training at this moment.
            pause_after: seconds that a reason must last before it counts.
            resume_after: seconds that it must be gone before it no longer counts.
        """
        step = 0.0 if self._last is None else monotonic - self._last
        step = min(max(step, 0.0), _LONGEST_STEP)
        self._last = monotonic
        self._resume_after = resume_after
        seen: dict[HoldCode, Reason] = {}
        for reason in reasons:
            seen.setdefault(reason.code, reason)
        for code in _ORDER:
            self._follow(code, seen.get(code), now, step, pause_after)
        return self.hold(now)

    def hold(self, now: float) -> Hold | None:
        """Return why nothing may train, or None, by the last observation; `now` is unix seconds."""
        counting = [
            (code, self._tracks[code])
            for code in _ORDER
            if code in self._tracks and self._tracks[code].counts
        ]
        if not counting:
            return None
        left = max(self._quiet_needed(code) - track.quiet_seconds for code, track in counting)
        # What is there now is told before what only waits for its quiet time.
        code, track = next((found for found in counting if found[1].present), counting[0])
        if track.present:
            return Hold(code=code, reason=track.reason.text, since=track.since)
        needed = duration_text(self._quiet_needed(code))
        reason = f"{track.reason.past}; goes on after {needed} of quiet: {duration_text(left)} left"
        return Hold(code=code, reason=reason, since=track.since, until=now + max(left, 0.0))

    def pending(self) -> str:
        """Return what is seen now and does not count yet; empty where there is nothing."""
        for code in _ORDER:
            track = self._tracks.get(code)
            if track is not None and track.present and not track.counts:
                return track.reason.text
        return ""

    def cut_quiet(self, *gone: HoldCode) -> None:
        """Forget every reason that is gone, or is in `gone`, without the quiet time after it."""
        self._tracks = {
            code: track
            for code, track in self._tracks.items()
            if track.present and code not in gone
        }

    def _follow(
        self,
        code: HoldCode,
        reason: Reason | None,
        now: float,
        step: float,
        pause_after: float,
    ) -> None:
        track = self._tracks.get(code)
        if reason is not None:
            if track is None:
                track = self._tracks[code] = _Track(reason=reason, since=now)
            else:
                track.seen_seconds = track.seen_seconds + step if track.present else 0.0
                track.reason, track.present = reason, True
            # While it counts already, a flicker shorter than that does not start the quiet anew.
            if track.seen_seconds >= pause_after:
                track.counts = True
                track.quiet_seconds = 0.0
            elif track.counts:
                track.quiet_seconds += step
        elif track is not None:
            # Nobody knows when within the step it ended: the quiet begins with this observation.
            track.quiet_seconds += 0.0 if track.present else step
            track.present = False
            if not track.counts or track.quiet_seconds >= self._quiet_needed(code):
                del self._tracks[code]

    def _quiet_needed(self, code: HoldCode) -> float:
        quick = code in ("hot", "gpu-lost")
        return min(self._resume_after, _COOLED_SECONDS) if quick else self._resume_after


def duration_text(seconds: float) -> str:
    """Return a duration as a person says it: `40 s`, `7 min`, `1 h 20 min`."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"
