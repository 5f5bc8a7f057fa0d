"""What the settings page shows, read at one moment."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from slidepack.daemon.notices.sender import Trial
from slidepack.daemon.notices.settings import NoticeSettings, Told
from slidepack.daemon.notices.targets import NotifierRecord
from slidepack.daemon.passwords import SHORTEST
from slidepack.daemon.service import Service
from slidepack.daemon.store.access import Scope, SessionRecord, TokenRecord
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.access import SESSION_SECONDS, Access
from slidepack.web.settings_view import SettingGroup, setting_groups

__all__ = ["NoticesPart", "SettingsPage", "read_page"]

_DAYS: Final = (7, 30, 90, 365)
_SCOPES: Final[dict[Scope, str]] = {
    "read": "see jobs, results and metrics",
    "jobs": "also add, steer and delete jobs, data and models",
    "chat": "talk to models, as over /v1",
    "admin": "everything",
}
_KINDS: Final[dict[Told, str]] = {
    "finished": "A job is completed",
    "failed": "A job failed",
    "paused": "A job was paused, as for a game",
    "needs_you": "Something needs you",
    "digest": "What happened in the night",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class NoticesPart:
    """Who is told, and of what."""

    notifiers: list[NotifierRecord]
    settings: NoticeSettings
    kinds: Mapping[Told, str] = field(default_factory=lambda: _KINDS)
    trial: Trial | None = None
    """How a test has just gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsPage:
    """All of the page; a part of it is shown anew after each change."""

    csrf_token: str
    password_set_at: float | None
    shortest: int
    """Letters of a password, at least."""
    url: str
    elsewhere: tuple[str, ...]
    in_clear: bool
    sessions: list[SessionRecord]
    own_session: int | None
    tokens: list[TokenRecord]
    now: float
    notices: NoticesPart
    groups: tuple[SettingGroup, ...]
    waiting: tuple[str, ...]
    """Settings that count only after a restart."""
    file: str
    file_problem: str
    scopes: Mapping[Scope, str] = field(default_factory=lambda: _SCOPES)
    days: tuple[int, ...] = _DAYS
    new_token: str = ""
    """Shown this once."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with what was typed, by field."""
    typed: Mapping[str, str] = field(default_factory=dict)
    """What was typed and is no secret, by field."""
    said: str = ""
    """What has just been done."""


def read_page(service: Service, access: Access, csrf_token: str, session: str) -> SettingsPage:
    """Return all of the page as it is now.

    Args:
        service: of the daemon.
        access: of the daemon.
        csrf_token: of the session that asks.
        session: its cookie's value; empty for a request by token.
    """
    now = time.time()
    try:
        states, file_problem = service.settings_file.states(), ""
    except SlidepackError as error:
        states, file_problem = (), error.report.line()
    groups = setting_groups(states)
    return SettingsPage(
        csrf_token=csrf_token,
        password_set_at=access.passwords.changed_at(),
        shortest=SHORTEST,
        url=access.url,
        elsewhere=access.elsewhere,
        in_clear=access.listening.in_clear,
        sessions=access.sessions.records(now - SESSION_SECONDS),
        own_session=access.sessions.id_of(session) if session else None,
        tokens=access.tokens.records(),
        now=now,
        notices=NoticesPart(
            notifiers=service.notices.targets.records(), settings=service.notices.settings()
        ),
        groups=groups,
        waiting=tuple(row.label for group in groups for row in group.rows if row.state.waits),
        file=str(service.settings_file.path),
        file_problem=file_problem,
    )
