"""Packs: the workers that train many jobs over one base."""

from pathlib import Path
from typing import Literal

import msgspec

from slidepack.daemon.store.database import Database, Row
from slidepack.engine.contract.errors import ErrorReport
from slidepack.engine.memory import Machine


class PackRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One pack. Its lanes are the attempts with its id."""

    id: int
    device: str
    """`cpu`, or torch's name of the card."""
    model: str
    """What lanes must have in common (`planner.from_engine.model_key`)."""
    folder: str
    nonce: str
    machine: Machine
    """What was free when it started: lanes that join later share it."""
    alone: bool
    """Whether nobody may join: its one job is thought to have taken others down with it."""
    state: Literal["live", "ended"]
    events_offset: int
    ready: bool
    """Whether its base is loaded and a lane has joined."""
    error: ErrorReport | None
    """Why it failed as a whole."""
    started_at: float
    ended_at: float | None


class PackStore:
    """All reads and writes of packs."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def add(
        self,
        *,
        device: str,
        model: str,
        folder: Path,
        nonce: str,
        machine: Machine,
        alone: bool,
        now: float,
    ) -> PackRecord:
        """Record a pack before its worker starts.

        Args:
            device: on which it runs.
            model: what its lanes have in common.
            folder: of the pack.
            nonce: by which its worker is known.
            machine: what is free.
            alone: nobody may join.
            now: unix time in seconds.
        """
        row = self._db.query(
            "INSERT INTO packs (device, model, folder, nonce, machine, alone, started_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id",
            device,
            model,
            str(folder),
            nonce,
            msgspec.json.encode(machine).decode(),
            alone,
            now,
        )[0]
        return self.get(row["id"])

    def get(self, pack_id: int) -> PackRecord:
        """Return a pack that an attempt names."""
        row = self._db.one("SELECT * FROM packs WHERE id = ?", pack_id)
        assert row is not None
        return _pack(row)

    def live(self) -> list[PackRecord]:
        """Return the packs that have not ended, the oldest first."""
        return [_pack(row) for row in self._db.query("SELECT * FROM packs WHERE state = 'live'")]

    def without_lanes(self) -> list[PackRecord]:
        """Return the ended packs whose jobs are all deleted."""
        rows = self._db.query(
            "SELECT * FROM packs WHERE state = 'ended' "
            "AND NOT EXISTS (SELECT 1 FROM attempts WHERE pack_id = packs.id)"
        )
        return [_pack(row) for row in rows]

    def folders(self) -> list[str]:
        """Return the folders of all packs."""
        return [row["folder"] for row in self._db.query("SELECT folder FROM packs")]

    def advance(self, pack_id: int, offset: int) -> None:
        """Record up to which byte its events are stored."""
        self._db.execute("UPDATE packs SET events_offset = ? WHERE id = ?", offset, pack_id)

    def set_ready(self, pack_id: int) -> None:
        """Record that its base is loaded and a lane has joined."""
        self._db.execute("UPDATE packs SET ready = 1 WHERE id = ?", pack_id)

    def set_error(self, pack_id: int, error: ErrorReport) -> None:
        """Record why it failed as a whole."""
        self._db.execute(
            "UPDATE packs SET error = ? WHERE id = ?", msgspec.json.encode(error).decode(), pack_id
        )

    def end(self, pack_id: int, now: float) -> None:
        """Record that its worker is gone."""
        self._db.execute(
            "UPDATE packs SET state = 'ended', ended_at = ? WHERE id = ?", now, pack_id
        )

    def remove(self, pack_id: int) -> None:
        """Take back a pack that never had a worker, and whose attempts are taken back too."""
        self._db.execute("DELETE FROM packs WHERE id = ?", pack_id)


def _pack(row: Row) -> PackRecord:
    values = dict(row)
    values["machine"] = msgspec.json.decode(row["machine"])
    values["error"] = None if row["error"] is None else msgspec.json.decode(row["error"])
    return msgspec.convert(values, PackRecord, strict=False)
