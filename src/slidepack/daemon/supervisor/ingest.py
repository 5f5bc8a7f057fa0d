"""Reads a worker's events file from where the database has it."""

import logging
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.store.attempts import AttemptRecord
from slidepack.daemon.store.runlog import RunLog
from slidepack.engine.contract.events import AnyEvent, decode_event, split_complete_lines
from slidepack.engine.contract.runfolder import RunFolder

logger = logging.getLogger(__name__)

_MAX_BYTES: Final = 4 << 20
"""Read at once; a night's backlog is taken in slices."""


def ingest_events(attempt: AttemptRecord, runlog: RunLog) -> list[AnyEvent]:
    """Store the attempt's new events and return them; call again until nothing comes.

    A line that is no event (torn by a full disk) is skipped and logged with its place.
    """
    folder = RunFolder(Path(attempt.folder))
    try:
        with folder.events.open("rb") as file:
            file.seek(attempt.events_offset)
            data = file.read(_MAX_BYTES)
    except FileNotFoundError:
        return []
    events: list[AnyEvent] = []
    offset = attempt.events_offset
    for line in split_complete_lines(data):
        try:
            events.append(decode_event(line))
        except msgspec.DecodeError as error:
            logger.warning("%s at byte %d: no event: %s", folder.events, offset, error)
        offset += len(line) + 1
    if offset > attempt.events_offset:
        runlog.ingest(attempt, events, offset)
    return events
