"""Exports: the routes of the REST API, and what the job's page does with them."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from slidepack.daemon.exports.record import ExportRecord, ExportWanted, RemovedExport
from slidepack.daemon.exports.source import ExportOffer
from slidepack.daemon.service import Service
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export.naming import model_name
from slidepack.web.downloads import answer, file_body, tar_body

__all__ = ["JobExports", "export_routes"]

AnyRequest = Request[Any, Any, Any]


class JobExports(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's result can become, and what it has become."""

    offers: list[ExportOffer]
    exports: list[ExportRecord]


@post("/jobs/{job_id:int}/exports")
async def add_export(service: Service, job_id: FromPath[int], data: ExportWanted) -> ExportRecord:
    """Queue an export of a completed job."""
    return await asyncio.to_thread(service.exports.add, job_id, data)


@get("/jobs/{job_id:int}/exports")
async def list_job_exports(service: Service, job_id: FromPath[int]) -> JobExports:
    """Return the forms that a job's result can be exported in, with sizes, and its exports."""
    return JobExports(
        offers=await asyncio.to_thread(service.exports.offers, job_id),
        exports=await asyncio.to_thread(service.exports.of_job, job_id),
    )


@get("/exports")
async def list_exports(service: Service) -> list[ExportRecord]:
    """Return all exports, newest first; also those whose jobs were deleted."""
    return await asyncio.to_thread(service.exports.list_exports)


@get("/exports/{export_id:int}")
async def show_export(service: Service, export_id: FromPath[int]) -> ExportRecord:
    """Return one export."""
    return await asyncio.to_thread(service.exports.get, export_id)


@post("/exports/{export_id:int}/cancel", status_code=200)
async def cancel_export(service: Service, export_id: FromPath[int]) -> ExportRecord:
    """End an export; nothing of it is kept."""
    return await asyncio.to_thread(service.exports.cancel, export_id)


@delete("/exports/{export_id:int}", status_code=200)
async def remove_export(service: Service, export_id: FromPath[int]) -> RemovedExport:
    """Delete an export with its files."""
    return await asyncio.to_thread(service.exports.remove, export_id)


@get("/exports/{export_id:int}/archive")
async def download_archive(
    request: AnyRequest, service: Service, export_id: FromPath[int]
) -> Response[Any]:
    """Return the whole export as a tar; Range is understood."""
    found = await asyncio.to_thread(_done, service, export_id)
    name = model_name(found.wanted.name or found.job_name)
    folder = f"{name}-{found.wanted.format}"
    paths = {f"{folder}/{file}": Path(found.folder) / file for file in found.files}
    return answer(
        request,
        await asyncio.to_thread(tar_body, paths, found.ended_at or 0.0),
        filename=f"{folder}.tar",
        etag=f'"export-{found.id}-{found.ended_at}"',
        media_type="application/x-tar",
    )


@get("/exports/{export_id:int}/files/{name:str}")
async def download_file(
    request: AnyRequest, service: Service, export_id: FromPath[int], name: FromPath[str]
) -> Response[Any]:
    """Return one file of an export; Range is understood."""
    found = await asyncio.to_thread(_done, service, export_id)
    # Only names that the exporter reported are files of it, so no name leads elsewhere.
    if name not in found.files:
        raise SlidepackError(
            "EXPORT-FILE-NOT-FOUND",
            f"Export {export_id} has no such file.",
            why=f"it has {', '.join(found.files)}",
            fix="Name one of them.",
        )
    return answer(
        request,
        await asyncio.to_thread(file_body, Path(found.folder) / name),
        filename=_plain(name),
        etag=f'"export-{found.id}-{found.ended_at}-{_plain(name)}"',
        media_type="application/octet-stream",
    )


def export_routes() -> list[HTTPRouteHandler]:
    """Return the routes of exports."""
    return [
        add_export,
        list_job_exports,
        list_exports,
        show_export,
        cancel_export,
        remove_export,
        download_archive,
        download_file,
    ]


def _done(service: Service, export_id: int) -> ExportRecord:
    found = service.exports.get(export_id)
    if found.state != "done":
        raise SlidepackError(
            "EXPORT-STATE",
            f"Export {export_id} has nothing to download.",
            why=f"it is {found.state}",
            fix="Wait until it is done." if not found.ended else "Make the export again.",
        )
    return found


def _plain(name: str) -> str:
    """Return a file's name as a header can carry it."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
