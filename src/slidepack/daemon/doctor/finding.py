"""What the doctor says, one finding at a time."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

Level = Literal["ok", "note", "problem"]

_ORDER: Final[tuple[Level, ...]] = ("problem", "note", "ok")


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that the doctor has to say."""

    level: Level
    """`problem` keeps training from working as asked; `note` is worth knowing."""
    title: str
    evidence: str
    """The values that show it."""
    fix: str
    """What to do; empty where nothing needs doing."""
    action: str = ""
    """What the daemon or its page can do about it: a name of `fixes`, or `free-room`."""


def worst_first(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return problems first, then notes, then what is well."""
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.level)))


def gib(num_bytes: int) -> str:
    """Write a number of bytes in GiB, or in MiB below one GiB."""
    if num_bytes < 1 << 30:
        return f"{num_bytes / (1 << 20):.0f} MiB"
    return f"{num_bytes / (1 << 30):.1f} GiB"


def short(text: str, limit: int = 160) -> str:
    """Return the text, cut with an ellipsis where it is longer than `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
