"""What the user wants to be told, and when."""

from typing import Final, Literal

import msgspec

from slidepack.daemon.notices.local_time import minute_of_day
from slidepack.daemon.store.documents import Documents

Kind = Literal["finished", "failed", "paused", "needs_you", "digest", "test"]
Told = Literal["finished", "failed", "paused", "needs_you", "digest"]
"""Kinds that the user chooses from; a test is always sent."""

AT_WINDOW_END: Final = "window"
_KEY: Final = "notices"


class NoticeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which notices are sent, and at which hours none is; all times are local, as 08:00."""

    sends: tuple[Told, ...] = ("finished", "failed", "paused", "needs_you", "digest")
    """Kinds that are sent; the others are only listed."""
    quiet_from: str = ""
    """Begin of the hours in which nothing is sent; empty for none."""
    quiet_to: str = ""
    """Their end; what has waited is then sent as one message."""
    digest_at: str = "08:00"
    """When the digest comes: a time, `window` for the end of the night's window, or empty."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        for name in ("quiet_from", "quiet_to", "digest_at"):
            text = getattr(self, name)
            if text and not (name == "digest_at" and text == AT_WINDOW_END):
                try:
                    minute_of_day(text)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from error
        if bool(self.quiet_from) != bool(self.quiet_to):
            raise ValueError("quiet hours need quiet_from and quiet_to, or neither")
        if self.quiet_from and self.quiet_from == self.quiet_to:
            raise ValueError(
                f"quiet hours from {self.quiet_from} to {self.quiet_to} have no length; "
                "choose two times, or leave both empty"
            )


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """How the policy stands now; what the digest and the metrics show of it."""

    window_open: bool | None = None
    """Whether jobs may run by the clock; None where there are no windows."""
    window_ended_at: float | None = None
    """Unix time in seconds at which a window ended last; None where none has."""
    tonight_seconds: float | None = None
    """How long the coming night's windows are in all; None where there are none."""
    holds: tuple[str, ...] = ()
    """Codes of what keeps jobs from running now."""


def read_settings(documents: Documents) -> NoticeSettings:
    """Return the settings, or the defaults.

    Raises:
        SlidepackError: DAEMON-SETTINGS where what is stored cannot be used.
    """
    return documents.get(_KEY, NoticeSettings) or NoticeSettings()


def write_settings(documents: Documents, settings: NoticeSettings) -> None:
    """Store the settings."""
    documents.put(_KEY, settings)
