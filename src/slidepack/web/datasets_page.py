"""The pages of datasets: the list, and everything about one."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery
from litestar.response import Template

from slidepack.daemon.dataset_view import (
    RejectPage,
    RowSample,
    lengths_in_characters,
    reject_page,
    rows_with_model,
)
from slidepack.daemon.first_look import RowSeen, rows_seen
from slidepack.daemon.removals import disk_bytes
from slidepack.daemon.service import Service
from slidepack.daemon.store.catalogue import DatasetRecord, ModelRecord, Use
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.lengths import LengthReport
from slidepack.engine.data.model_report import ModelDataReport
from slidepack.engine.shape import read_shape
from slidepack.web.access import Access
from slidepack.web.page_session import csrf_of

__all__ = ["Bar", "DatasetPage", "DatasetsPage", "dataset_pages", "histogram"]

AnyRequest = Request[Any, Any, Any]

_SHOWN_JOBS = 6
_LONGEST_ROW = 1 << 20
_FEWEST_BARS = 8
"""For which there is room: one bar alone is no wall."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRow:
    """A dataset in the list."""

    dataset: DatasetRecord
    disk_bytes: int
    jobs: tuple[int, ...]
    """That were queued with it, the newest first; the first few."""
    more_jobs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetsPage:
    """The list."""

    csrf_token: str
    rows: list[DatasetRow]
    disk_bytes: int
    """Of all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar of a histogram, in thousandths of its width and height."""

    x: int
    width: int
    y: int
    height: int
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetPage:
    """One dataset."""

    csrf_token: str
    dataset: DatasetRecord
    disk_bytes: int
    uses: list[Use]
    rows: tuple[RowSeen, ...]
    sample: RowSample | None
    """None where its rows cannot be read any more."""
    bars: tuple[Bar, ...]
    rejects: RejectPage
    models: list[ModelRecord]
    """With which its rows can be shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedRows:
    """A dataset's first rows with a model."""

    model: ModelRecord
    measured: ModelDataReport
    sample: RowSample
    bars: tuple[Bar, ...]


@get("/datasets")
async def datasets(request: AnyRequest, service: Service, access: Access) -> Template:
    """Show the list."""
    page = await asyncio.to_thread(_list, request, service, access)
    return Template("datasets.html", context={"page": page})


@get("/datasets/part")
async def datasets_part(request: AnyRequest, service: Service, access: Access) -> Template:
    """Show what of the list changes."""
    page = await asyncio.to_thread(_list, request, service, access)
    return Template("parts/datasets_list.html", context={"page": page})


@get("/datasets/{dataset_id:int}")
async def dataset(
    request: AnyRequest,
    service: Service,
    access: Access,
    dataset_id: FromPath[int],
    at: FromQuery[int] = 0,
) -> Template:
    """Show one dataset; `at` is where the page of its rejects begins."""
    page = await asyncio.to_thread(_one, request, service, access, dataset_id, at)
    return Template("dataset.html", context={"page": page})


@get("/datasets/{dataset_id:int}/rejects")
async def rejects_part(
    request: AnyRequest,
    service: Service,
    access: Access,
    dataset_id: FromPath[int],
    at: FromQuery[int] = 0,
) -> Template:
    """Show a page of the rejects."""
    page = await asyncio.to_thread(_one, request, service, access, dataset_id, at)
    return Template("parts/dataset_rejects.html", context={"page": page})


@get("/datasets/{dataset_id:int}/rendered")
async def rendered_part(
    service: Service,
    dataset_id: FromPath[int],
    model: FromQuery[str],
    max_seq_len: FromQuery[str] = "",
) -> Template:
    """Show the first rows as a model sees them, and their lengths in its tokens."""
    view = await asyncio.to_thread(_rendered, service, dataset_id, model, max_seq_len)
    return Template("parts/dataset_rendered.html", context={"view": view})


def dataset_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [datasets, datasets_part, dataset, rejects_part, rendered_part]


def histogram(lengths: LengthReport, unit: str) -> tuple[Bar, ...]:
    """Return the bars of lengths, each range about twice as long as the one before."""
    most = max((one.rows for one in lengths.bins), default=0)
    if not most:
        return ()
    wide = 1000 // max(_FEWEST_BARS, len(lengths.bins))
    bars = []
    before = 0
    for place, one in enumerate(lengths.bins):
        height = max(12, round(1000 * one.rows / most))
        bars.append(
            Bar(
                x=place * wide + 4,
                width=wide - 8,
                y=1000 - height,
                height=height,
                words=f"{before + 1} to {one.upto} {unit}: {one.rows:,}",
            )
        )
        before = one.upto
    return tuple(bars)


def _list(request: AnyRequest, service: Service, access: Access) -> DatasetsPage:
    jobs = service.catalogue.jobs_by_dataset()
    rows = [
        DatasetRow(
            dataset=one,
            disk_bytes=disk_bytes(service.paths.dataset(one.id)),
            jobs=tuple(jobs.get(one.id, ())[:_SHOWN_JOBS]),
            more_jobs=max(0, len(jobs.get(one.id, ())) - _SHOWN_JOBS),
        )
        for one in service.catalogue.datasets()
    ]
    return DatasetsPage(
        csrf_token=csrf_of(request, access),
        rows=rows,
        disk_bytes=sum(row.disk_bytes for row in rows),
    )


def _one(
    request: AnyRequest, service: Service, access: Access, dataset_id: int, at: int
) -> DatasetPage:
    found = service.catalogue.dataset(dataset_id)
    folder = service.paths.dataset(dataset_id)
    try:
        sample = lengths_in_characters(folder / "rows.jsonl")
    except OSError:
        sample = None
    return DatasetPage(
        csrf_token=csrf_of(request, access),
        dataset=found,
        disk_bytes=disk_bytes(folder),
        uses=service.catalogue.jobs_of_dataset(dataset_id),
        rows=rows_seen(folder / "rows.jsonl"),
        sample=sample,
        bars=histogram(sample.lengths, "characters") if sample else (),
        rejects=reject_page(folder / "rejects.jsonl", at),
        models=[model for model in service.catalogue.models() if model.state == "ready"],
    )


def _rendered(service: Service, dataset_id: int, model_id: str, limit: str) -> RenderedRows:
    found = service.catalogue.dataset(dataset_id)
    model = service.catalogue.model(model_id)
    if model.state != "ready":
        raise SlidepackError(
            "MODEL-NOT-READY",
            f"The model {model.id} cannot be used yet.",
            why=f"it is {model.state}",
            fix="Wait until it is ready.",
        )
    longest = read_shape(Path(model.path)).max_positions
    wanted = int(limit) if limit.isdecimal() and len(limit) < 8 else longest
    path = service.paths.dataset(found.id) / "rows.jsonl"
    try:
        measured, sample = rows_with_model(
            path, Path(model.path), max(1, min(wanted, longest, _LONGEST_ROW))
        )
    except OSError as error:
        raise SlidepackError(
            "DATA-NOT-FOUND",
            f"The rows of dataset {dataset_id} cannot be read.",
            why=f"{path}: {error.strerror}",
            fix="Add the file again.",
        ) from error
    return RenderedRows(
        model=model, measured=measured, sample=sample, bars=histogram(sample.lengths, "tokens")
    )
