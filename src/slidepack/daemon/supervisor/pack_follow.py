"""Follows the packs that run: what they report, who was not told to them, and when they end."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.packs import PackRecord, PackStore
from slidepack.daemon.store.runlog import RunLog
from slidepack.daemon.supervisor.pack_control import is_expected, send
from slidepack.engine.contract.control import ControlCommand
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.events import (
    AnyEvent,
    Failed,
    LaneJoined,
    LaneLeft,
    PhaseChanged,
    StepTimed,
    decode_event,
    split_complete_lines,
)
from slidepack.engine.contract.pack import PackFolder
from slidepack.engine.contract.runfolder import RunFolder

logger = logging.getLogger(__name__)

_MAX_BYTES: Final = 1 << 20


class StepSink(Protocol):
    """Takes what steps took."""

    def record(self, pack: PackRecord, event: StepTimed, now: float) -> None:
        """Take a measurement of a pack."""
        ...

    def began(self, pack: PackRecord, seconds: float, now: float) -> None:
        """Take how long a pack took from its start until its first lane was in it."""
        ...

    def left(self, pack: PackRecord, held_up_seconds: float, now: float) -> None:
        """Take for how long a pack made no step because of a lane that is done."""
        ...


class PackFollower:
    """Owns the packs' side of the supervisor; one thread at a time."""

    def __init__(
        self,
        *,
        database: Database,
        packs: PackStore,
        attempts: AttemptStore,
        runlog: RunLog,
        expect_again: Callable[[PackRecord, AttemptRecord], None],
        steps: StepSink | None = None,
    ) -> None:
        """Bind the stores.

        Args:
            database: for transactions over several stores.
            packs: the packs.
            attempts: their lanes, among others.
            runlog: where the phase of lanes goes that have not begun.
            expect_again: tells a pack of a lane once more.
            steps: told what steps took; None where nobody wants to know.
        """
        self._db = database
        self._packs = packs
        self._attempts = attempts
        self._runlog = runlog
        self._expect_again = expect_again
        self._steps = steps
        self._told: set[tuple[int, int]] = set()
        """Lanes that were asked to leave."""

    def live(self) -> list[PackRecord]:
        """Return the packs that have not ended."""
        return self._packs.live()

    def lanes(self, pack_id: int) -> list[AttemptRecord]:
        """Return the lanes of a pack that have not ended."""
        return self._attempts.live_in_pack(pack_id)

    def is_shared(self, attempt: AttemptRecord) -> bool:
        """Return whether others were in the pack of a lane at any time."""
        if attempt.pack_id is None:
            return False
        jobs = {lane.job_id for lane in self._attempts.of_pack(attempt.pack_id)}
        return len(jobs) > 1

    def is_ready(self, attempt: AttemptRecord) -> bool:
        """Return whether a lane's pack has loaded its base; a worker of its own counts as that."""
        return attempt.pack_id is None or self._packs.get(attempt.pack_id).ready

    def error_of(self, attempt: AttemptRecord) -> ErrorReport | None:
        """Return why a lane's pack failed as a whole; None where it did not."""
        return None if attempt.pack_id is None else self._packs.get(attempt.pack_id).error

    def never_began(self, attempt: AttemptRecord) -> bool:
        """Return whether a lane's pack was over before it took notice of the lane."""
        return attempt.pack_id is not None and not RunFolder(Path(attempt.folder)).events.exists()

    def found_again(self, pack_id: int) -> None:
        """Tell a pack that an earlier daemon started of lanes that it was not told of."""
        pack = self._packs.get(pack_id)
        folder = PackFolder(Path(pack.folder))
        for lane in self.lanes(pack_id):
            try:
                if not is_expected(folder, str(lane.job_id), Path(lane.folder)):
                    self._expect_again(pack, lane)
            except (OSError, SlidepackError) as error:
                # It ends with its pack at the latest, and joins the next one.
                logger.warning("Job %d: its pack could not be told: %s", lane.job_id, error)

    def ask_to_leave(self, attempt: AttemptRecord, why: str) -> None:
        """Tell a lane's pack, once, that the lane is to leave."""
        assert attempt.pack_id is not None
        key = (attempt.job_id, attempt.number)
        if key in self._told:
            return
        command = ControlCommand(
            command_id=f"leave-{attempt.job_id}-{attempt.number}",
            kind="leave",
            lane=str(attempt.job_id),
            reason=why,
        )
        try:
            send(PackFolder(Path(self._packs.get(attempt.pack_id).folder)), command)
        except OSError as error:
            # A full disk: the next tick tries again.
            logger.warning("Job %d: its pack could not be told: %s", attempt.job_id, error)
            return
        self._told.add(key)

    def forget(self, attempt: AttemptRecord) -> None:
        """Drop what is known of a lane that has ended."""
        self._told.discard((attempt.job_id, attempt.number))

    def ingest(self, pack_id: int, now: float) -> bool:
        """Take what a pack has reported since the last time; say whether that is anything."""
        pack = self._packs.get(pack_id)
        try:
            with PackFolder(Path(pack.folder)).events.open("rb") as file:
                file.seek(pack.events_offset)
                data = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return False
        offset, found = pack.events_offset, False
        with self._db.transaction():
            for line in split_complete_lines(data):
                try:
                    self._take(pack, decode_event(line), now)
                except msgspec.DecodeError as error:
                    logger.warning("%s at byte %d: no event: %s", pack.folder, offset, error)
                offset += len(line) + 1
                found = True
            if found:
                self._packs.advance(pack_id, offset)
        return found

    def end(self, pack: PackRecord, now: float) -> None:
        """Record that a pack is over: its worker is gone, and its lanes are settled."""
        self._packs.end(pack.id, now)
        logger.info("The pack on %s has ended.", pack.device)

    def _take_failure(self, pack: PackRecord, lane: str, error: ErrorReport, at: float) -> None:
        """Record the failure of a lane whose own events could not take it."""
        for attempt in self.lanes(pack.id):
            if str(attempt.job_id) == lane:
                failed = Failed(at=at, error=error)
                self._runlog.ingest(attempt, [failed], attempt.events_offset)

    def _take(self, pack: PackRecord, event: AnyEvent, now: float) -> None:
        match event:
            case StepTimed() if self._steps is not None:
                self._steps.record(pack, event, now)
            case LaneLeft(reason="done") if self._steps is not None:
                self._steps.left(pack, event.held_up_seconds, now)
            case LaneLeft() if event.error is not None:
                self._take_failure(pack, event.lane, event.error, event.at)
            case Failed():
                self._packs.set_error(pack.id, event.error)
            case LaneJoined() if not self._packs.get(pack.id).ready:
                self._packs.set_ready(pack.id)
                if self._steps is not None:
                    self._steps.began(pack, event.at - pack.started_at, now)
            case PhaseChanged():
                # Lanes that have not begun say nothing themselves.
                for lane in self.lanes(pack.id):
                    if not RunFolder(Path(lane.folder)).events.exists():
                        self._runlog.set_phase(lane.job_id, event.phase)
            case _:
                pass
