"""Deleting a job, a dataset or a model: a page that says first what it frees and what stays."""

import asyncio
from dataclasses import dataclass
from typing import Any

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.plugins.htmx import ClientRedirect
from litestar.response import Template

from slidepack.daemon.removals import Removal
from slidepack.daemon.service import Service
from slidepack.web.access import Access
from slidepack.web.page_session import csrf_of

__all__ = ["RemovalPage", "removal_pages"]

AnyRequest = Request[Any, Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovalPage:
    """The question."""

    csrf_token: str
    removal: Removal
    back: str
    """Address of what is to be deleted, or of its list."""
    post: str
    """Address that deletes it."""


@get("/jobs/{job_id:int}/delete")
async def ask_job(
    request: AnyRequest, service: Service, access: Access, job_id: FromPath[int]
) -> Template:
    """Ask whether a job is to be deleted."""
    removal = await asyncio.to_thread(service.removals.of_job, job_id)
    return _page(request, access, removal, f"/jobs/{job_id}", f"/jobs/{job_id}/delete")


@post("/jobs/{job_id:int}/delete", status_code=200)
async def delete_job(service: Service, job_id: FromPath[int]) -> Response[Any]:
    """Delete a job."""
    await asyncio.to_thread(service.queue.remove, job_id)
    return ClientRedirect("/queue")


@get("/datasets/{dataset_id:int}/delete")
async def ask_dataset(
    request: AnyRequest, service: Service, access: Access, dataset_id: FromPath[int]
) -> Template:
    """Ask whether a dataset is to be deleted."""
    removal = await asyncio.to_thread(service.removals.of_dataset, dataset_id)
    here = f"/datasets/{dataset_id}"
    return _page(request, access, removal, here, f"{here}/delete")


@post("/datasets/{dataset_id:int}/delete", status_code=200)
async def delete_dataset(service: Service, dataset_id: FromPath[int]) -> Response[Any]:
    """Delete a dataset."""
    await asyncio.to_thread(service.removals.remove_dataset, dataset_id)
    return ClientRedirect("/datasets")


@get("/models/{model_id:str}/delete")
async def ask_model(
    request: AnyRequest, service: Service, access: Access, model_id: FromPath[str]
) -> Template:
    """Ask whether a model is to be deleted."""
    removal = await asyncio.to_thread(service.removals.of_model, model_id)
    return _page(request, access, removal, "/models", f"/models/{model_id}/delete")


@post("/models/{model_id:str}/delete", status_code=200)
async def delete_model(service: Service, model_id: FromPath[str]) -> Response[Any]:
    """Delete a model."""
    await asyncio.to_thread(service.queue.forget_model, model_id)
    return ClientRedirect("/models")


def removal_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [ask_job, delete_job, ask_dataset, delete_dataset, ask_model, delete_model]


def _page(
    request: AnyRequest, access: Access, removal: Removal, back: str, address: str
) -> Template:
    page = RemovalPage(
        csrf_token=csrf_of(request, access), removal=removal, back=back, post=address
    )
    return Template("removal.html", context={"page": page})
