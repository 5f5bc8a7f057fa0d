"""The page of settings: who gets in, who is told, and what the daemon's file says."""

import asyncio
import time
from dataclasses import replace
from typing import Annotated, Any, get_args

import msgspec
from litestar import Request, Response, get, post
from litestar.enums import RequestEncodingType
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, FromPath
from litestar.response import Template

from slidepack.daemon.notices.sender import Trial
from slidepack.daemon.notices.settings import NoticeSettings, Told
from slidepack.daemon.service import Service
from slidepack.daemon.store.access import SCOPES
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.access import Access
from slidepack.web.access_api import change_password
from slidepack.web.callers import caller_of
from slidepack.web.login_page import leave
from slidepack.web.page_session import csrf_of
from slidepack.web.settings_api import field_problems, store_settings
from slidepack.web.settings_parts import SettingsPage, read_page
from slidepack.web.settings_view import changes_of, setting_groups

__all__ = ["settings_pages"]

AnyRequest = Request[Any, Any, Any]
Form = Annotated[dict[str, str], Body(media_type=RequestEncodingType.URL_ENCODED)]


@get("/settings")
async def show(request: AnyRequest, service: Service, access: Access) -> Template:
    """Show the settings."""
    return Template("settings.html", context={"page": await _page(request, service, access)})


@post("/settings/password", request_max_body_size=8192, status_code=200)
async def set_password(
    request: AnyRequest, service: Service, access: Access, data: Form
) -> Template:
    """Set the password."""
    problems, said = {}, ""
    if data.get("new", "") != data.get("again", ""):
        problems = {"again": "The two are not the same."}
    else:
        try:
            await change_password(request, access, data.get("new", ""), data.get("old", ""))
            said = "The password is set. All other browsers have to log in again."
        except SlidepackError as error:
            wrong = "new" if error.report.code == "DAEMON-PASSWORD-INVALID" else "old"
            problems = field_problems(error, wrong)
    return await _part("password", request, service, access, problems=problems, said=said)


@post("/settings/sessions/{session_id:int}/end", status_code=200)
async def end_session(
    request: AnyRequest, service: Service, access: Access, session_id: FromPath[int]
) -> Template:
    """End one browser's session."""
    await asyncio.to_thread(access.end_session, session_id)
    return await _part("sessions", request, service, access, said="That browser is logged out.")


@post("/settings/sessions/end-all", status_code=200)
async def end_sessions(access: Access) -> Response[Any]:
    """Log all browsers out, this one too."""
    await asyncio.to_thread(access.end_sessions)
    return leave(access)


@post("/settings/tokens", status_code=200)
async def add_token(request: AnyRequest, service: Service, access: Access, data: Form) -> Template:
    """Make a token and show it once."""
    scopes = tuple(scope for scope in SCOPES if f"scope_{scope}" in data)
    days = data.get("days", "")
    try:
        token, record = await asyncio.to_thread(
            access.new_token,
            data.get("name", ""),
            scopes,
            float(days) if days.isdecimal() and len(days) < 6 else None,
        )
    except SlidepackError as error:
        wrong = "scopes" if data.get("name", "").strip() and not scopes else "name"
        return await _part(
            "tokens",
            request,
            service,
            access,
            problems=field_problems(error, wrong),
            typed={"name": data.get("name", "")},
        )
    said = f"The token {record.name} is made."
    return await _part("tokens", request, service, access, new_token=token, said=said)


@post("/settings/tokens/{token_id:int}/remove", status_code=200)
async def remove_token(
    request: AnyRequest, service: Service, access: Access, token_id: FromPath[int]
) -> Template:
    """End a token."""
    await asyncio.to_thread(access.remove_token, token_id)
    return await _part("tokens", request, service, access, said="The token is removed.")


@post("/settings/notifiers", status_code=200)
async def add_notifier(
    request: AnyRequest, service: Service, access: Access, data: Form
) -> Template:
    """Add an address that notices go to."""
    name = data.get("name", "")
    try:
        added = await asyncio.to_thread(
            service.notices.targets.add, data.get("url", ""), name, time.time()
        )
    except SlidepackError as error:
        return await _part(
            "notices",
            request,
            service,
            access,
            problems=field_problems(error, "url"),
            typed={"notifier": name},
        )
    service.changes.bump()
    return await _part("notices", request, service, access, said=f"{added.name} is added.")


@post("/settings/notifiers/{notifier_id:int}/test", status_code=200)
async def test_notifier(
    request: AnyRequest, service: Service, access: Access, notifier_id: FromPath[int]
) -> Template:
    """Send a test and show how it went."""
    trial = await asyncio.to_thread(service.notices.test, notifier_id, time.time())
    said = "The test arrived." if trial.ok else f"The test did not arrive: {trial.error}"
    return await _part("notices", request, service, access, trial=trial, said=said)


@post("/settings/notifiers/{notifier_id:int}/remove", status_code=200)
async def remove_notifier(
    request: AnyRequest, service: Service, access: Access, notifier_id: FromPath[int]
) -> Template:
    """Forget an address."""
    await asyncio.to_thread(service.notices.targets.remove, notifier_id)
    service.changes.bump()
    return await _part("notices", request, service, access, said="The address is removed.")


@post("/settings/notices", status_code=200)
async def choose_notices(
    request: AnyRequest, service: Service, access: Access, data: Form
) -> Template:
    """Choose what is told, and when."""
    digest = data.get("digest", "")
    values = {
        "sends": [kind for kind in get_args(Told) if f"send_{kind}" in data],
        "quiet_from": data.get("quiet_from", ""),
        "quiet_to": data.get("quiet_to", ""),
        "digest_at": data.get("digest_time", "") if digest == "time" else digest,
    }
    try:
        chosen = msgspec.convert(values, NoticeSettings)
    except msgspec.ValidationError as error:
        problems = {"when": str(error)}
        return await _part("notices", request, service, access, problems=problems)
    await asyncio.to_thread(service.notices.choose, chosen)
    return await _part("notices", request, service, access, said="Stored.")


@post("/settings/values", status_code=200)
async def store_values(
    request: AnyRequest, service: Service, access: Access, data: Form
) -> Template:
    """Write changed settings into the file."""
    states = await asyncio.to_thread(service.settings_file.states)
    changes = changes_of(data, states)
    try:
        await asyncio.to_thread(store_settings, service, access, changes)
    except SlidepackError as error:
        problems = field_problems(error, "file")
        groups = setting_groups(states, data, problems)
        return await _part("values", request, service, access, problems=problems, groups=groups)
    said = "Stored; it counts after a restart." if changes else "Nothing was changed."
    return await _part("values", request, service, access, said=said)


def settings_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [
        show,
        set_password,
        end_session,
        end_sessions,
        add_token,
        remove_token,
        add_notifier,
        test_notifier,
        remove_notifier,
        choose_notices,
        store_values,
    ]


async def _part(
    name: str,
    request: AnyRequest,
    service: Service,
    access: Access,
    *,
    trial: Trial | None = None,
    **changes: Any,
) -> Template:
    """Return a part of the page as it is now, with what has just happened."""
    page = await _page(request, service, access)
    if trial is not None:
        page = replace(page, notices=replace(page.notices, trial=trial))
    return Template(f"parts/settings_{name}.html", context={"page": replace(page, **changes)})


async def _page(request: AnyRequest, service: Service, access: Access) -> SettingsPage:
    caller = caller_of(request)
    return await asyncio.to_thread(
        read_page, service, access, csrf_of(request, access), caller.session if caller else ""
    )
