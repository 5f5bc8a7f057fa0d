"""The part "Use it" of a job's page: shown, fetched again while an export runs, and its buttons."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.enums import RequestEncodingType
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, FromPath
from litestar.response import Template

from slidepack.daemon.exports.record import ExportWanted
from slidepack.daemon.service import Service
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.export_view import ExportsView, exports_view, stage_words
from slidepack.web.page_parts import leave

__all__ = ["export_page_routes"]

Form = Annotated[dict[str, str], Body(media_type=RequestEncodingType.URL_ENCODED)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportsPart:
    """The part alone; the whole page has the same field."""

    exports: ExportsView


@get("/jobs/{job_id:int}/parts/exports")
async def exports_part(service: Service, job_id: FromPath[int]) -> Response[Any]:
    """Show the part."""
    try:
        return await _part(service, job_id)
    except SlidepackError as error:
        return leave(error, "/queue")


@get("/jobs/{job_id:int}/exports/{export_id:int}/progress")
async def progress_part(
    service: Service, job_id: FromPath[int], export_id: FromPath[int]
) -> Response[Any]:
    """Show how far an export is; once it has ended, let the page fetch the part anew."""
    export = await asyncio.to_thread(service.exports.get, export_id)
    headers = {"hx-trigger": "exports-ended"} if export.ended else {}
    context = {"export": export, "stage": stage_words(export)}
    return Template("parts/job_export_progress.html", context=context, headers=headers)


@post("/jobs/{job_id:int}/exports", status_code=200)
async def make_export(service: Service, job_id: FromPath[int], data: Form) -> Template:
    """Queue an export, as its button says, and show the part."""
    try:
        wanted = msgspec.convert(data, ExportWanted, strict=False)
    except msgspec.ValidationError as error:
        raise SlidepackError(
            "EXPORT-INVALID", "There is no such export.", why=str(error), fix="Reload the page."
        ) from error
    await asyncio.to_thread(service.exports.add, job_id, wanted)
    return await _part(service, job_id)


@post("/jobs/{job_id:int}/exports/{export_id:int}/cancel", status_code=200)
async def cancel_export(
    service: Service, job_id: FromPath[int], export_id: FromPath[int]
) -> Template:
    """End an export and show the part."""
    await asyncio.to_thread(service.exports.cancel, export_id)
    return await _part(service, job_id)


@post("/jobs/{job_id:int}/exports/{export_id:int}/delete", status_code=200)
async def delete_export(
    service: Service, job_id: FromPath[int], export_id: FromPath[int]
) -> Template:
    """Delete an export and show the part."""
    await asyncio.to_thread(service.exports.remove, export_id)
    return await _part(service, job_id)


def export_page_routes() -> list[HTTPRouteHandler]:
    """Return the routes of the part."""
    return [exports_part, progress_part, make_export, cancel_export, delete_export]


async def _part(service: Service, job_id: int) -> Template:
    view = await asyncio.to_thread(exports_view, service, job_id)
    return Template("parts/job_exports.html", context={"page": ExportsPart(exports=view)})
