"""What happened at one time, as the bytes that server-sent events carry. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from slidepack.daemon.store.database import Row

CHART_EVENTS: Final = frozenset({"progress", "eval"})
"""Go out under their own names with all that they say; of others only that they came."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Made once, for all who listen."""

    last_id: int
    """Of the newest event that this or an earlier batch holds."""
    shared: bytes
    """For who listens to everything."""
    by_job: dict[int, bytes]
    """For who listens to one job."""
    note: bytes
    """For who wants to know only that something changed."""
    idle: bytes = b""
    """For those whom nothing else concerns."""


def message(*, event: str, data: str, event_id: int | None = None) -> bytes:
    """Return one server-sent event; `data` is one line."""
    named = f"event: {event}\ndata: {data}\n"
    return f"{named}\n".encode() if event_id is None else f"id: {event_id}\n{named}\n".encode()


def make_batch(
    rows: Sequence[Row],
    *,
    last_id: int,
    states: dict[int, str] | None = None,
    jobs: Iterable[int] = (),
    lists: bool = False,
    version: int = 0,
) -> Batch:
    """Return stored events and other changes as bytes.

    Args:
        rows: events in their order.
        last_id: of the newest event so far, where there is none among these.
        states: of the jobs that stand otherwise than before, by id.
        jobs: that changed in other ways.
        lists: whether something changed that no event tells of.
        version: the count of changes.
    """
    told = states or {}
    newest = int(rows[-1]["id"]) if rows else last_id
    by_job: dict[int, list[bytes]] = {}
    shared = []
    touched = {*told, *jobs}
    for row in rows:
        number, kind = int(row["job_id"]), str(row["type"])
        if kind in CHART_EVENTS:
            shared.append(_chart_event(row, number))
            data = str(row["body"])
        else:
            touched.add(number)
            data = msgspec.json.encode(kind).decode()
        name = kind if kind in CHART_EVENTS else "changed"
        by_job.setdefault(number, []).append(
            message(event=name, data=data, event_id=int(row["id"]))
        )
    for number, state in told.items():
        by_job.setdefault(number, []).append(message(event="changed", data=state))
    summary = {"jobs": sorted(touched), "lists": lists or bool(touched)}
    # Last, and with the newest id: who is cut off before it gets everything again.
    shared.append(
        message(event="changed", data=msgspec.json.encode(summary).decode(), event_id=newest)
    )
    return Batch(
        last_id=newest,
        shared=b"".join(shared),
        by_job={number: b"".join(parts) for number, parts in by_job.items()},
        note=message(event="changed", data=str(version)),
    )


def alive(last_id: int) -> Batch:
    """Return what says that nothing happened; scripts see the event, programs a comment."""
    comment = b": alive\n\n"
    return Batch(
        last_id=last_id,
        shared=message(event="alive", data="-"),
        by_job={},
        note=comment,
        idle=comment,
    )


def _chart_event(row: Row, job_id: int) -> bytes:
    fields = str(row["body"]).removeprefix("{")
    return message(
        event=str(row["type"]), data=f'{{"job":{job_id},{fields}', event_id=int(row["id"])
    )
