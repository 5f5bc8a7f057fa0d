"""The policy over the API: what decides when training may run, and the user's own pause."""

import asyncio
import time
from typing import Any

import msgspec
from litestar import get, post, put
from litestar.handlers import BaseRouteHandler
from litestar.params import FromQuery

from slidepack.daemon.policy.openings import Opening, next_openings
from slidepack.daemon.policy.pausing import LONGEST_PAUSE_SECONDS
from slidepack.daemon.policy.programs import Program, running_programs
from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.policy.state import PolicyState
from slidepack.daemon.service import Service
from slidepack.engine.contract.errors import SlidepackError

_MOST_OPENINGS = 50


class PauseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to pause; with neither field, until somebody resumes."""

    seconds: float | None = None
    """From now."""
    until: float | None = None
    """Unix time in seconds."""

    def __post_init__(self) -> None:
        """Refuse what says two things, or nothing that can be meant."""
        if self.seconds is not None and self.until is not None:
            raise ValueError("seconds and until are both given; give one")
        if self.seconds is not None and not 0 < self.seconds <= LONGEST_PAUSE_SECONDS:
            raise ValueError(f"seconds is {self.seconds:g}; use more than 0, and at most a year")
        if self.until is not None and self.until - time.time() > LONGEST_PAUSE_SECONDS:
            raise ValueError(f"until is {self.until:g}; use unix seconds within a year from now")


@get("/policy")
async def show_policy(service: Service) -> Policy:
    """Return the policy."""
    return service.policy.policy()


@put("/policy")
async def set_policy(service: Service, data: Policy) -> Policy:
    """Replace the policy; what is left out takes its default."""
    await asyncio.to_thread(service.policy.set_policy, data)
    return service.policy.policy()


@post("/policy", status_code=200)
async def change_policy(service: Service, data: dict[str, Any]) -> Policy:
    """Change the given fields of the policy and leave the others."""
    await asyncio.to_thread(service.policy.change_policy, data)
    return service.policy.policy()


@get("/policy/state")
async def show_policy_state(service: Service) -> PolicyState:
    """Say whether training may run now, and what will change that."""
    return await asyncio.to_thread(service.policy.state, time.time())


@get("/policy/openings")
async def show_openings(service: Service, most: FromQuery[int] = 3) -> tuple[Opening, ...]:
    """Return the next spans in which training may run by the clock, in unix seconds."""
    if not 0 < most <= _MOST_OPENINGS:
        raise SlidepackError(
            "DAEMON-REQUEST-INVALID",
            "So many openings cannot be told.",
            why=f"most is {most}",
            fix=f"Ask for 1 to {_MOST_OPENINGS}.",
        )
    return await asyncio.to_thread(next_openings, service.policy.policy(), time.time(), most)


@get("/policy/programs")
async def show_programs(service: Service) -> tuple[Program, ...]:
    """Return what users run now, for the choice of exclusive applications; the likeliest first."""
    return await asyncio.to_thread(programs_now, service)


@post("/queue/pause", status_code=200)
async def pause_queue(service: Service, data: PauseRequest | None = None) -> PolicyState:
    """Checkpoint what runs and hold the queue; no restart of the daemon ends that."""
    asked = data or PauseRequest()
    until = asked.until if asked.seconds is None else time.time() + asked.seconds
    await asyncio.to_thread(service.policy.pause, until)
    return await asyncio.to_thread(service.policy.state, time.time())


@post("/queue/resume", status_code=200)
async def resume_queue(service: Service) -> PolicyState:
    """End the pause, and the quiet time after a game that is gone; one that runs still holds."""
    await asyncio.to_thread(service.policy.resume)
    return await asyncio.to_thread(service.policy.state, time.time())


def programs_now(service: Service) -> tuple[Program, ...]:
    """Return what users run now; nothing where this system does not list its processes."""
    try:
        return running_programs(
            service.policy.policy(),
            our_pids=service.holders(),
            gpu_pids={p.pid for gpu in service.hardware.report().gpus for p in gpu.processes},
        )
    except OSError:
        # The state says that programs are not seen.
        return ()


def policy_routes() -> list[BaseRouteHandler]:
    """Return the handlers, for the API's router."""
    return [
        show_policy,
        set_policy,
        change_policy,
        show_policy_state,
        show_openings,
        show_programs,
        pause_queue,
        resume_queue,
    ]
