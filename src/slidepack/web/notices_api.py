"""The API of notices: where they go, what is sent, what was sent, and the digest."""

import asyncio
import time

import msgspec
from litestar import delete, get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery

from slidepack.daemon.notices.digest import Digest
from slidepack.daemon.notices.outbox import NoticeRecord
from slidepack.daemon.notices.sender import Trial
from slidepack.daemon.notices.settings import NoticeSettings
from slidepack.daemon.notices.targets import NotifierRecord
from slidepack.daemon.service import Service

_MOST_LISTED = 500


class NotifierRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An address to add."""

    url: str
    """Apprise URL; a secret, which no answer repeats."""
    name: str = ""
    """What to call it; empty takes the service's name."""

    def __repr__(self) -> str:
        """Leave the address out, so that no log and no traceback can hold it."""
        return f"NotifierRequest(name={self.name!r})"


@get("/notifiers")
async def list_notifiers(service: Service) -> list[NotifierRecord]:
    """Return the addresses, without their secrets."""
    return await asyncio.to_thread(service.notices.targets.records)


@post("/notifiers")
async def add_notifier(service: Service, data: NotifierRequest) -> NotifierRecord:
    """Check an address and add it."""
    added = await asyncio.to_thread(service.notices.targets.add, data.url, data.name, time.time())
    service.changes.bump()
    return added


@delete("/notifiers/{notifier_id:int}")
async def remove_notifier(service: Service, notifier_id: FromPath[int]) -> None:
    """Forget an address."""
    await asyncio.to_thread(service.notices.targets.remove, notifier_id)
    service.changes.bump()


@post("/notifiers/{notifier_id:int}/test", status_code=200)
async def test_notifier(service: Service, notifier_id: FromPath[int]) -> Trial:
    """Send a test at once and say how it went; a service that refuses is an answer, no error."""
    return await asyncio.to_thread(service.notices.test, notifier_id, time.time())


@get("/notices")
async def list_notices(service: Service, limit: FromQuery[int] = 50) -> list[NoticeRecord]:
    """Return the newest notices and how they fared at each address."""
    bounded = max(1, min(limit, _MOST_LISTED))
    return await asyncio.to_thread(service.notices.outbox.recent, bounded)


@get("/notices/settings")
async def show_settings(service: Service) -> NoticeSettings:
    """Return which notices are sent, and when none is."""
    return await asyncio.to_thread(service.notices.settings)


@put("/notices/settings")
async def change_settings(service: Service, data: NoticeSettings) -> NoticeSettings:
    """Replace which notices are sent, and when none is."""
    return await asyncio.to_thread(service.notices.choose, data)


@get("/digest")
async def show_digest(service: Service) -> Digest:
    """Return what happened in the last night, and what runs tonight."""
    return await asyncio.to_thread(service.notices.digest, time.time())


def notice_routes() -> list[HTTPRouteHandler]:
    """Return the routes of notices, below the API's root."""
    return [
        list_notifiers,
        add_notifier,
        remove_notifier,
        test_notifier,
        list_notices,
        show_settings,
        change_settings,
        show_digest,
    ]
