"""The dataset routes of the REST API: uploads in one go or in pieces, checks, deletion."""

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter

from slidepack.daemon.dataset_view import RejectPage, reject_page
from slidepack.daemon.drafts import Draft, DraftRequest
from slidepack.daemon.removals import Removal
from slidepack.daemon.service import Service
from slidepack.daemon.store.catalogue import DatasetRecord
from slidepack.daemon.uploads import Checked, CheckProgress
from slidepack.engine.data.mapping import parse_columns
from slidepack.engine.data.report import CheckOptions
from slidepack.web.header_values import whole_number

__all__ = ["check_draft_now", "dataset_routes"]

AnyRequest = Request[Any, Any, Any]


class PathRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data that is on the daemon's machine."""

    path: str
    """Of a file, or of a folder whose data files become one dataset."""


@get("/datasets")
async def list_datasets(service: Service) -> list[DatasetRecord]:
    """Return all datasets."""
    return await asyncio.to_thread(service.catalogue.datasets)


# Uploads are bounded by the free disk space, which `Drafts` watches, not by a size.
@put("/datasets", request_max_body_size=None, status_code=201)
async def upload_dataset(
    request: AnyRequest,
    service: Service,
    name: FromQuery[str],
    form: Annotated[str | None, QueryParameter(name="format")] = None,
    columns: Annotated[list[str] | None, QueryParameter(name="map")] = None,
    allow_rejects: FromQuery[bool] = False,
    text_mode: FromQuery[str | None] = None,
    encoding: FromQuery[str | None] = None,
) -> DatasetRecord:
    """Store and check a data file; the body is the file itself, `map` says ROLE=COLUMN."""
    length = request.headers.get("content-length", "")
    dataset = await service.uploads.receive(
        request.stream(),
        name=name,
        declared_bytes=whole_number(length),
        options=CheckOptions(
            form=form,
            columns=parse_columns(columns or ()),
            allow_rejects=allow_rejects,
            text_mode=text_mode,
            encoding=encoding,
        ),
    )
    service.changes.bump()
    return dataset


@post("/datasets/uploads")
async def begin_upload(service: Service, data: DraftRequest) -> Draft:
    """Announce files that are to become one dataset; they come piece by piece."""
    return await asyncio.to_thread(service.uploads.drafts.create, data.files)


@post("/datasets/paths")
async def register_path(service: Service, data: PathRequest) -> Draft:
    """Copy a file of the daemon's machine, or those of a folder, to be checked."""
    return await asyncio.to_thread(service.uploads.register, data.path)


@get("/datasets/uploads/{draft_id:str}")
async def show_upload(service: Service, draft_id: FromPath[str]) -> Draft:
    """Return how far an upload is, file by file."""
    return await asyncio.to_thread(service.uploads.drafts.get, draft_id)


@put("/datasets/uploads/{draft_id:str}/files/{number:int}", request_max_body_size=None)
async def send_piece(
    request: AnyRequest,
    service: Service,
    draft_id: FromPath[str],
    number: FromPath[int],
    offset: FromQuery[int] = 0,
) -> Draft:
    """Append to a file; the body is its bytes from `offset` on, which is where it ends so far."""
    return await service.uploads.drafts.receive(draft_id, number, offset, request.stream())


@post("/datasets/uploads/{draft_id:str}/check", status_code=200)
async def check_upload(
    service: Service, draft_id: FromPath[str], data: CheckOptions | None = None
) -> Checked:
    """Read an upload; where it can be used as it is, it becomes a dataset."""
    return await check_draft_now(service, draft_id, data or CheckOptions())


@get("/datasets/uploads/{draft_id:str}/check")
async def check_progress(service: Service, draft_id: FromPath[str]) -> CheckProgress:
    """Return how far the check of an upload is; nothing where none goes on, or is done."""
    return service.uploads.progress(draft_id)


@delete("/datasets/uploads/{draft_id:str}")
async def drop_upload(service: Service, draft_id: FromPath[str]) -> None:
    """Delete an upload that is no dataset yet."""
    await asyncio.to_thread(service.uploads.drafts.discard, draft_id)


@get("/datasets/{dataset_id:int}")
async def show_dataset(service: Service, dataset_id: FromPath[int]) -> DatasetRecord:
    """Return one dataset."""
    return await asyncio.to_thread(service.catalogue.dataset, dataset_id)


@get("/datasets/{dataset_id:int}/rejects")
async def show_rejects(
    service: Service, dataset_id: FromPath[int], at: FromQuery[int] = 0
) -> RejectPage:
    """Return rows that were left out, from `at` on, as the page before says."""
    await asyncio.to_thread(service.catalogue.dataset, dataset_id)
    path = service.paths.dataset(dataset_id) / "rejects.jsonl"
    return await asyncio.to_thread(reject_page, path, at)


@post("/datasets/{dataset_id:int}/reread")
async def reread_dataset(service: Service, dataset_id: FromPath[int]) -> Draft:
    """Make an upload of the files that a dataset came from, to be read in another way."""
    return await asyncio.to_thread(service.uploads.reread, dataset_id)


@get("/datasets/{dataset_id:int}/removal")
async def dataset_removal(service: Service, dataset_id: FromPath[int]) -> Removal:
    """Say what deleting a dataset would free, and what forbids it; nothing is done."""
    return await asyncio.to_thread(service.removals.of_dataset, dataset_id)


@delete("/datasets/{dataset_id:int}", status_code=200)
async def remove_dataset(service: Service, dataset_id: FromPath[int]) -> Removal:
    """Delete a dataset that no job needs any more."""
    return await asyncio.to_thread(service.removals.remove_dataset, dataset_id)


@get("/models/{model_id:str}/removal")
async def model_removal(service: Service, model_id: FromPath[str]) -> Removal:
    """Say what deleting a model would free, and what forbids it; nothing is done."""
    return await asyncio.to_thread(service.removals.of_model, model_id)


@get("/jobs/{job_id:int}/removal")
async def job_removal(service: Service, job_id: FromPath[int]) -> Removal:
    """Say what deleting a job would free, and what forbids it; nothing is done."""
    return await asyncio.to_thread(service.removals.of_job, job_id)


async def check_draft_now(service: Service, draft_id: str, options: CheckOptions) -> Checked:
    """Check a draft in a thread, and tell the pages where it became a dataset."""
    checked = await asyncio.to_thread(service.uploads.check, draft_id, options)
    if checked.dataset is not None:
        service.changes.bump()
    return checked


def dataset_routes() -> list[HTTPRouteHandler]:
    """Return the handlers, for the API's router."""
    return [
        list_datasets,
        upload_dataset,
        begin_upload,
        register_path,
        show_upload,
        send_piece,
        check_upload,
        check_progress,
        drop_upload,
        show_dataset,
        show_rejects,
        reread_dataset,
        dataset_removal,
        remove_dataset,
        model_removal,
        job_removal,
    ]
