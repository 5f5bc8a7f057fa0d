"""Continuing an ended job: the route of the REST API, and the form of the job's page."""

import asyncio
from typing import Annotated, Any

from litestar import Response, post
from litestar.enums import RequestEncodingType
from litestar.params import Body, FromPath
from litestar.plugins.htmx import ClientRedirect

from slidepack.daemon.continuing import ContinueRequest
from slidepack.daemon.service import Service
from slidepack.daemon.store.jobs import JobRecord
from slidepack.web.forms import continue_request

Form = Annotated[dict[str, str], Body(media_type=RequestEncodingType.URL_ENCODED)]


@post("/jobs/{job_id:int}/continue")
async def continue_job(
    service: Service, job_id: FromPath[int], data: ContinueRequest | None = None
) -> JobRecord:
    """Queue a job that goes on from what an ended one left."""
    return await asyncio.to_thread(service.continuing.add, job_id, data or ContinueRequest())


@post("/jobs/{job_id:int}/continue", status_code=200, include_in_schema=False)
async def continue_form(service: Service, job_id: FromPath[int], data: Form) -> Response[Any]:
    """Queue a job that goes on, as the form says, and go to its page."""
    request = continue_request(data)
    added = await asyncio.to_thread(service.continuing.add, job_id, request)
    return ClientRedirect(f"/jobs/{added.id}")
