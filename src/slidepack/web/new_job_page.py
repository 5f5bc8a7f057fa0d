"""The page of a new job: data, a model that fits, settings, and when it may run."""

import asyncio
import shutil
import time
from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.enums import RequestEncodingType
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, FromPath, FromQuery, QueryParameter
from litestar.response import Template

from slidepack.daemon.first_look import Preview, columns_seen, rows_seen
from slidepack.daemon.planning.devices import whole_device
from slidepack.daemon.preflight import Preflight, preflight
from slidepack.daemon.requests import JobRequest
from slidepack.daemon.service import Service
from slidepack.daemon.uploads import Checked
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.job import LORA_TARGETS
from slidepack.web.access import Access
from slidepack.web.datasets_api import check_draft_now
from slidepack.web.form_values import FormValues, values_of_job
from slidepack.web.job_form import parse_new_job
from slidepack.web.new_job_view import NewJobPage, forecast_of, look_at, time_words
from slidepack.web.page_session import csrf_of
from slidepack.web.sweeps_api import sweeps_of
from slidepack.web.verdict_view import (
    VerdictView,
    options_of,
    preview_of,
    reading_view,
    verdict_view,
)

__all__ = ["new_job_pages"]

AnyRequest = Request[Any, Any, Any]
Form = Annotated[dict[str, Any], Body(media_type=RequestEncodingType.URL_ENCODED)]


@dataclass(frozen=True, kw_only=True, slots=True)
class PreflightView:
    """What a job would come to."""

    found: Preflight
    time: str
    """How long it would take, in words; empty where that is not known."""
    jobs: int
    free_disk_bytes: int


@get("/new")
async def new_job(
    request: AnyRequest,
    service: Service,
    access: Access,
    dataset: FromQuery[int | None] = None,
    draft: FromQuery[str] = "",
    model: FromQuery[str] = "",
    origin: Annotated[int | None, QueryParameter(name="from")] = None,
) -> Template:
    """Show the form; an address may choose the data and the model, or a job to begin with."""
    if origin is None:
        values = FormValues(model=model, dataset=dataset)
    else:
        values = await asyncio.to_thread(values_of_job, service, origin)
    page = await asyncio.to_thread(_page, request, service, access, values, draft)
    return Template("new_job.html", context={"page": page})


@post("/new/look", status_code=200)
async def look(service: Service, data: Form) -> Template:
    """Say what follows from what the form holds now."""
    asked = parse_new_job(data, time.time())
    found = await asyncio.to_thread(look_at, service, asked)
    return Template("parts/new_look.html", context={"look": found})


@post("/new/preflight", status_code=200)
async def preflight_part(service: Service, data: Form) -> Template:
    """Measure the rows with the model's tokenizer, and say what the job would come to."""
    view = await asyncio.to_thread(_preflight, service, data)
    return Template("parts/new_preflight.html", context={"view": view})


@post("/new", status_code=201)
async def start_job(service: Service, data: Form) -> Response[dict[str, Any]]:
    """Queue the job, or the sweep; say where its page is, or what is wrong with which field."""
    asked = parse_new_job(data, time.time())
    error: ErrorReport | None = None
    if not asked.problems and not asked.missing:
        try:
            if asked.grid:
                queued = await asyncio.to_thread(sweeps_of(service).add, asked.sweep())
                return Response({"go": f"/sweeps/{queued.sweep_id}"})
            job = await asyncio.to_thread(service.queue.add, asked.job())
            return Response({"go": f"/jobs/{job.id}"})
        except SlidepackError as refused:
            error = refused.report
            return Response({"error": error, "problems": {}}, status_code=refused.http_status)
    error = SlidepackError(
        "RUN-SPEC-INVALID",
        "The job's settings cannot run.",
        why=asked.missing or "; ".join(asked.problems.values()),
        fix="Check the fields that are marked.",
    ).report
    return Response({"error": error, "problems": asked.problems}, status_code=422)


@post("/new/drafts/{draft_id:str}/check", status_code=200)
async def check(service: Service, draft_id: FromPath[str], data: Form) -> Template:
    """Read an upload as the form says, and show what came of it."""
    checked = await check_draft_now(service, draft_id, options_of(data))
    replaces = data.get("replaces", "")
    old = int(replaces) if replaces.isdecimal() and len(replaces) < 10 else None
    made = checked.dataset
    if made is not None and old is not None and made.id != old:
        await asyncio.to_thread(_drop_unused, service, old)
    return _verdict(verdict_view(checked, old))


@post("/new/drafts/{draft_id:str}/preview", status_code=200)
async def preview(service: Service, draft_id: FromPath[str], data: Form) -> Template:
    """Show the first rows of an upload as they would be read."""
    found, error = Preview(rows=(), rejects=()), None
    try:
        found = await asyncio.to_thread(preview_of, service, draft_id, options_of(data))
    except SlidepackError as refused:
        # While columns are being chosen this is no failure, but what is still to be done.
        error = refused.report
    return Template("parts/new_preview.html", context={"preview": found, "error": error})


@get("/new/datasets/{dataset_id:int}/verdict")
async def verdict(service: Service, dataset_id: FromPath[int]) -> Template:
    """Show what was found in a dataset that is there."""
    dataset = await asyncio.to_thread(service.catalogue.dataset, dataset_id)
    rows = await asyncio.to_thread(rows_seen, service.paths.dataset(dataset_id) / "rows.jsonl")
    checked = Checked(
        draft=None,
        name=dataset.name,
        report=dataset.report,
        dataset=dataset,
        columns=(),
        rows=rows,
    )
    return _verdict(verdict_view(checked))


@post("/new/datasets/{dataset_id:int}/reread", status_code=200)
async def reread(service: Service, dataset_id: FromPath[int]) -> Template:
    """Offer to read a dataset's file in another way; it is here already."""
    return _verdict(await asyncio.to_thread(_reread, service, dataset_id))


def new_job_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [new_job, look, preflight_part, start_job, check, preview, verdict, reread]


def _page(
    request: AnyRequest,
    service: Service,
    access: Access,
    values: FormValues,
    draft: str,
) -> NewJobPage:
    datasets = service.catalogue.datasets()
    now = time.time()
    tonight = service.policy.tonight(now)
    chosen = {"model": values.model, "method": values.method, "dataset": str(values.dataset or "")}
    asked = parse_new_job(values.texts | chosen, now)
    return NewJobPage(
        csrf_token=csrf_of(request, access),
        datasets=datasets,
        dataset=values.dataset if any(one.id == values.dataset for one in datasets) else None,
        values=values,
        draft=draft,
        defaults=JobRequest(model="", dataset=0),
        targets=LORA_TARGETS,
        tonight=tonight if tonight > now else None,
        look=look_at(service, asked),
    )


def _verdict(view: VerdictView) -> Template:
    return Template("parts/new_verdict.html", context={"view": view})


def _reread(service: Service, dataset_id: int) -> VerdictView:
    dataset = service.catalogue.dataset(dataset_id)
    draft = service.uploads.reread(dataset_id)
    path = service.uploads.drafts.paths(draft.id)[0][1]
    return reading_view(
        dataset,
        draft.id,
        columns_seen(path, dataset.report.options),
        rows_seen(service.paths.dataset(dataset_id) / "rows.jsonl"),
    )


def _drop_unused(service: Service, dataset_id: int) -> None:
    """Take what was read wrongly off the list, unless a job was queued with it."""
    if service.catalogue.jobs_of_dataset(dataset_id):
        return
    try:
        service.removals.remove_dataset(dataset_id)
    except SlidepackError as refused:
        # Another tab that read the same dataset again has taken it off.
        if refused.report.code != "DATA-NOT-FOUND":
            raise


def _preflight(service: Service, data: dict[str, Any]) -> PreflightView:
    asked = parse_new_job(data, time.time())
    if asked.problems or asked.missing:
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The job's settings cannot run.",
            why=asked.missing or "; ".join(asked.problems.values()),
            fix="Check the fields that are marked.",
        )
    found = preflight(
        asked.job(),
        service.catalogue,
        service.paths,
        whole_device(service.hardware.report(), service.settings.device),
        service.hardware.measured_drives,
        service.disk_room,
    )
    members = asked.members()
    return PreflightView(
        found=found,
        time=time_words(forecast_of(service, asked, members)),
        jobs=len(members),
        free_disk_bytes=shutil.disk_usage(service.paths.home).free,
    )
