"""What the daemon and its delivering process say to each other: one request, answers by line."""

from typing import Literal

import msgspec

Tone = Literal["info", "success", "warning", "failure"]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One text for one address."""

    key: int
    """Names the message in the answer."""
    url: str
    """Apprise URL; a secret."""
    title: str = ""
    body: str = ""
    tone: Tone = "info"

    def __repr__(self) -> str:
        """Leave the address out, so that no log and no traceback can hold it."""
        return f"Message(key={self.key}, title={self.title!r})"


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that one process has to do."""

    seconds: float
    """After which whoever has not answered counts as failed."""
    messages: tuple[Message, ...]
    check_only: bool = False
    """Look at the addresses and send nothing."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of one message."""

    key: int
    ok: bool
    service: str = ""
    """The service's display name, as in Discord."""
    shown: str = ""
    """The address without its secrets."""
    error: str = ""
    """Why it failed, without the address's secrets."""

    @property
    def problem(self) -> str:
        """Why it failed; empty where it did not."""
        return "" if self.ok else self.error or "The service did not say why it failed."
