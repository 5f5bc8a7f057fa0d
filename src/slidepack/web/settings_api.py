"""The API of the settings file: what each setting is, where that comes from, and changes."""

import asyncio

from litestar import get, patch
from litestar.handlers import HTTPRouteHandler

from slidepack.daemon.service import Service
from slidepack.daemon.settings import Settings
from slidepack.daemon.settings_file import SettingsRefused, SettingState, Value
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.access import Access
from slidepack.web.listen_check import start_problems

__all__ = ["field_problems", "settings_routes", "store_settings"]

Changes = dict[str, Value | None]


@get("/settings")
async def show_settings(service: Service) -> tuple[SettingState, ...]:
    """Return all settings: as the daemon runs, as it will start next, and why."""
    return await asyncio.to_thread(service.settings_file.states)


@patch("/settings")
async def change_settings(
    service: Service, access: Access, data: Changes
) -> tuple[SettingState, ...]:
    """Store settings, all or none; null takes the default. They count from the next start on."""
    return await asyncio.to_thread(store_settings, service, access, data)


def settings_routes() -> list[HTTPRouteHandler]:
    """Return the routes of settings, below the API's root."""
    return [show_settings, change_settings]


def store_settings(service: Service, access: Access, changes: Changes) -> tuple[SettingState, ...]:
    """Store settings with which the daemon can start again, and return all.

    Raises:
        SettingsRefused: it could not, or they are none.
        SlidepackError: DAEMON-SETTINGS, DISK-FULL or DISK-UNWRITABLE.
    """
    if changes:
        coming: Settings = service.settings_file.next_settings(changes)
        problems = start_problems(coming, access.passwords)
        # What was wrong before, as a certificate that is gone, keeps nobody from other changes.
        mine = {name: why for name, why in problems.items() if name in _together(changes)}
        if mine:
            raise SettingsRefused(mine)
        service.settings_file.change(changes)
    return service.settings_file.states()


def _together(changes: Changes) -> set[str]:
    """Return the changed settings, and those that are judged with them."""
    pair = {"tls_certificate", "tls_key"}
    return set(changes) | (pair if pair & set(changes) else set())


def field_problems(error: SlidepackError, name: str) -> dict[str, str]:
    """Return what to show beside a form's field.

    Args:
        error: the refusal.
        name: of the field that it is about, where the error does not say it.
    """
    if isinstance(error, SettingsRefused):
        return error.fields
    return {name: error.report.line().partition(": ")[2]}
