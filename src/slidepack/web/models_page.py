"""The pages of models: what is here, what could be fetched, and what each is and needs."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from litestar import Request, Response, get, post
from litestar.enums import RequestEncodingType
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, FromPath
from litestar.plugins.htmx import ClientRedirect
from litestar.response import Template

from slidepack.daemon.hardware import DeviceNow, Waiting, devices_now
from slidepack.daemon.model_facts import ModelFacts, read_facts
from slidepack.daemon.requests import JobSettings, ModelRequest
from slidepack.daemon.service import Service
from slidepack.daemon.store.catalogue import ModelRecord, Use
from slidepack.daemon.suggestions import SUGGESTIONS
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.access import Access
from slidepack.web.api import add_model_now
from slidepack.web.model_view import (
    FitRow,
    ListedModel,
    Suggested,
    fit_rows,
    listed_models,
    suggested,
)
from slidepack.web.page_parts import leave, require_known
from slidepack.web.page_session import csrf_of

__all__ = ["ModelPage", "ModelsPage", "model_pages"]

AnyRequest = Request[Any, Any, Any]
Form = Annotated[dict[str, str], Body(media_type=RequestEncodingType.URL_ENCODED)]

_PARTS: Final = ("list", "suggestions")
_MODEL_PARTS: Final = ("state", "needs", "jobs")
_MOST_JOBS: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelsPage:
    """The page of all models, or a part of it."""

    csrf_token: str
    device: DeviceNow | None
    """On which models would be trained; None while nothing is known of it."""
    waiting: str
    """Why nothing is known; empty where it is."""
    models: tuple[ListedModel, ...]
    suggestions: tuple[Suggested, ...] = ()
    """Only in their own part: it takes a moment to find out what fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPage:
    """A model's page, or a part of it."""

    csrf_token: str
    model: ModelRecord
    facts: ModelFacts | None
    """None where the model is not ready."""
    device: DeviceNow | None
    waiting: str
    jobs: tuple[Use, ...]
    """The newest that train or trained it."""
    more_jobs: int
    lengths: tuple[int, ...] = ()
    needs: tuple[FitRow, ...] = ()
    """At each of the lengths; only in their own part."""


@get("/models")
async def models(request: AnyRequest, service: Service, access: Access) -> Template:
    """Show the models."""
    page = await asyncio.to_thread(_models, request, service, access)
    return Template("models.html", context={"page": page})


@get("/models-parts/{part:str}")
async def models_part(
    request: AnyRequest, service: Service, access: Access, part: FromPath[str]
) -> Template:
    """Show what of the page changes, or takes a moment."""
    require_known(part, _PARTS)
    page = await asyncio.to_thread(_models, request, service, access, part)
    return Template(f"parts/models_{part}.html", context={"page": page})


@post("/models-parts/add", status_code=200)
async def add_model(request: AnyRequest, service: Service, access: Access, data: Form) -> Template:
    """Bring a model in from the form and show the list."""
    fields = {name: data.get(name, "").strip() for name in ("source", "name", "revision")}
    await asyncio.to_thread(add_model_now, service, ModelRequest(**fields))
    page = await asyncio.to_thread(_models, request, service, access, "list")
    return Template("parts/models_list.html", context={"page": page})


@post("/models/{model_id:str}/again", status_code=200)
async def add_again(service: Service, model_id: FromPath[str]) -> Response[Any]:
    """Bring a model in again whose import failed."""
    added = await asyncio.to_thread(_again, service, model_id)
    return ClientRedirect(f"/models/{added.id}")


@get("/models/{model_id:str}")
async def model(
    request: AnyRequest, service: Service, access: Access, model_id: FromPath[str]
) -> Template:
    """Show a model."""
    page = await asyncio.to_thread(_model, request, service, access, model_id)
    return Template("model.html", context={"page": page})


@get("/models/{model_id:str}/parts/{part:str}")
async def model_part(
    request: AnyRequest,
    service: Service,
    access: Access,
    model_id: FromPath[str],
    part: FromPath[str],
) -> Response[Any]:
    """Show what of the page changes, or takes a moment."""
    require_known(part, _MODEL_PARTS)
    try:
        page = await asyncio.to_thread(_model, request, service, access, model_id, part)
    except SlidepackError as error:
        return leave(error, "/models")
    return Template(f"parts/model_{part}.html", context={"page": page})


def model_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [models, models_part, add_model, add_again, model, model_part]


def _device(service: Service) -> tuple[DeviceNow | None, str]:
    """Return the first device that models are trained on, or why nothing is known of it."""
    report = service.hardware.report()
    found = devices_now(report, whole=True, device=service.settings.device)
    return (None, found.reason) if isinstance(found, Waiting) else (found[0], "")


def _models(request: AnyRequest, service: Service, access: Access, part: str = "") -> ModelsPage:
    device, waiting = _device(service)
    records = service.catalogue.models()
    machine = None if device is None else device.machine
    known = frozenset(record.source for record in records if record.kind == "hub")
    return ModelsPage(
        csrf_token=csrf_of(request, access),
        device=device,
        waiting=waiting,
        models=()
        if part == "suggestions"
        else listed_models(
            records,
            service.fits.of(records, JobSettings(), machine),
            service.catalogue.jobs_by_model(),
            device,
        ),
        suggestions=suggested(SUGGESTIONS, known, service.fits, device)
        if part == "suggestions"
        else (),
    )


def _again(service: Service, model_id: str) -> ModelRecord:
    failed = service.catalogue.model(model_id)
    if failed.state == "failed":
        service.queue.forget_model(model_id)
    return service.imports.add(failed.source, failed.name, failed.revision, time.time())


def _model(
    request: AnyRequest, service: Service, access: Access, model_id: str, part: str = ""
) -> ModelPage:
    record = service.catalogue.model(model_id)
    device, waiting = _device(service)
    facts = None
    if record.state == "ready" and part in ("", "needs"):
        facts = read_facts(Path(record.path))
    lengths: tuple[int, ...] = ()
    needs: tuple[FitRow, ...] = ()
    if part == "needs" and facts is not None and facts.shape is not None and device is not None:
        lengths, needs = fit_rows(record, facts.shape, service.fits, device.machine)
    uses = service.catalogue.jobs_of_model(model_id) if part in ("", "jobs") else []
    return ModelPage(
        csrf_token=csrf_of(request, access),
        model=record,
        facts=facts,
        device=device,
        waiting=waiting,
        jobs=tuple(reversed(uses[-_MOST_JOBS:])),
        more_jobs=max(0, len(uses) - _MOST_JOBS),
        lengths=lengths,
        needs=needs,
    )
