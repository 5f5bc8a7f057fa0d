"""The sweep routes of the REST API."""

import asyncio

from litestar import Router, delete, get, post
from litestar.di import Provide
from litestar.params import FromPath, FromQuery

from slidepack.daemon.service import Service
from slidepack.daemon.store.sweeps import SweepStore
from slidepack.daemon.sweeps.request import MembersRequest, SweepRequest
from slidepack.daemon.sweeps.results import Best, Ranking, SweepSummary, SweepTable
from slidepack.daemon.sweeps.sweeps import Queued, Sweeps


@get("/")
async def list_sweeps(sweeps: Sweeps) -> list[SweepSummary]:
    """Return all sweeps, newest first."""
    return await asyncio.to_thread(sweeps.list_sweeps)


@post("/")
async def add_sweep(sweeps: Sweeps, data: SweepRequest) -> Queued:
    """Queue every member of a sweep, or none."""
    return await asyncio.to_thread(sweeps.add, data)


@get("/{sweep_id:int}")
async def show_sweep(
    sweeps: Sweeps, sweep_id: FromPath[int], by: FromQuery[Ranking] = "selection"
) -> SweepTable:
    """Return a sweep with its members, the lowest held-out loss first.

    By `test` or `test-score` they are ranked by rows that choose nothing, to be reported.
    """
    return await asyncio.to_thread(sweeps.show, sweep_id, by)


@post("/{sweep_id:int}/members")
async def add_members(sweeps: Sweeps, sweep_id: FromPath[int], data: MembersRequest) -> Queued:
    """Queue more members of a sweep, or none."""
    return await asyncio.to_thread(sweeps.add_members, sweep_id, data)


@get("/{sweep_id:int}/best")
async def best_member(sweeps: Sweeps, sweep_id: FromPath[int]) -> Best:
    """Return the best member."""
    return await asyncio.to_thread(sweeps.best, sweep_id)


@post("/{sweep_id:int}/cancel", status_code=200)
async def cancel_sweep(sweeps: Sweeps, sweep_id: FromPath[int]) -> SweepTable:
    """End all members that have not ended."""
    return await asyncio.to_thread(sweeps.cancel, sweep_id)


@delete("/{sweep_id:int}")
async def remove_sweep(sweeps: Sweeps, sweep_id: FromPath[int]) -> None:
    """Delete a sweep whose members have ended."""
    await asyncio.to_thread(sweeps.remove, sweep_id)


def sweep_router() -> Router:
    """Return the routes below `/sweeps`."""
    return Router(
        path="/sweeps",
        route_handlers=[
            list_sweeps,
            add_sweep,
            show_sweep,
            add_members,
            best_member,
            cancel_sweep,
            remove_sweep,
        ],
        dependencies={"sweeps": Provide(sweeps_of, sync_to_thread=False)},
    )


def sweeps_of(service: Service) -> Sweeps:
    """Return the sweeps of a service; they keep nothing but what is in its database."""
    return Sweeps(
        database=service.database,
        jobs=service.jobs,
        store=SweepStore(service.database),
        queue=service.queue,
        catalogue=service.catalogue,
        paths=service.paths,
        changes=service.changes,
        tonight=service.policy.tonight,
    )
