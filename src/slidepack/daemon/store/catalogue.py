"""Models and datasets that this machine holds, and the browser sessions."""

import hashlib
import re
from typing import Literal

import msgspec

from slidepack.daemon.store.database import Database
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.data.report import CheckOptions, DataReport, decode_report
from slidepack.engine.importer.contract import ImportProgress, ImportResult

ModelState = Literal["importing", "ready", "failed"]


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One base model."""

    id: str
    name: str
    kind: Literal["folder", "gguf", "hub"]
    source: str
    state: ModelState
    path: str
    content_hash: str
    stamp: str
    architecture: str
    params: int
    bytes: int
    license: str
    revision: str
    stage: str
    """What an import does now."""
    done: int
    total: int
    error: ErrorReport | None
    created_at: float


class DatasetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset, checked and normalised."""

    id: int
    name: str
    """The file's own name, for display only."""
    bytes: int
    source_hash: str
    """sha256 of the file as it came."""
    form: str
    report: DataReport
    created_at: float


class Catalogue:
    """All reads and writes of models and datasets."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def add_model(
        self, name: str, kind: str, source: str, revision: str, now: float
    ) -> ModelRecord:
        """Record a model whose import starts, under a free id made from its name."""
        with self._db.transaction():
            base = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")[:60] or "model"
            taken = {row["id"] for row in self._db.query("SELECT id FROM models")}
            model_id = base
            number = 2
            while model_id in taken:
                model_id = f"{base}-{number}"
                number += 1
            self._db.execute(
                "INSERT INTO models (id, name, kind, source, state, revision, created_at) "
                "VALUES (?, ?, ?, ?, 'importing', ?, ?)",
                model_id,
                name,
                kind,
                source,
                revision,
                now,
            )
        return self.model(model_id)

    def model(self, model_id: str) -> ModelRecord:
        """Return a model.

        Raises:
            SlidepackError: MODEL-NOT-FOUND.
        """
        row = self._db.one("SELECT * FROM models WHERE id = ?", model_id)
        if row is None:
            known = ", ".join(model.id for model in self.models()) or "none yet"
            raise SlidepackError(
                "MODEL-NOT-FOUND",
                f"There is no model called {model_id}.",
                why=f"known: {known}",
                fix="Add it with `slidepack models add`.",
            )
        return _model(row)

    def models(self) -> list[ModelRecord]:
        """Return all models, newest first."""
        rows = self._db.query("SELECT * FROM models ORDER BY created_at DESC")
        return [_model(row) for row in rows]

    def find_model(self, kind: str, source: str, revision: str) -> ModelRecord | None:
        """Return a usable or growing model of the same source, or None."""
        row = self._db.one(
            "SELECT * FROM models WHERE kind = ? AND source = ? AND revision = ? "
            "AND state <> 'failed' ORDER BY created_at DESC LIMIT 1",
            kind,
            source,
            revision,
        )
        return None if row is None else _model(row)

    def model_progress(self, model_id: str, progress: ImportProgress) -> None:
        """Record how far an import is."""
        self._db.execute(
            "UPDATE models SET stage = ?, done = ?, total = ? WHERE id = ?",
            progress.stage,
            progress.done,
            progress.total,
            model_id,
        )

    def model_ready(self, model_id: str, result: ImportResult) -> None:
        """Record a finished import."""
        self._db.execute(
            "UPDATE models SET state = 'ready', path = ?, content_hash = ?, stamp = ?, "
            "architecture = ?, params = ?, bytes = ?, license = ?, revision = ?, stage = '', "
            "error = NULL WHERE id = ?",
            result.path,
            result.content_hash,
            result.stamp,
            result.architecture,
            result.params,
            result.bytes,
            result.license,
            result.revision,
            model_id,
        )

    def model_failed(self, model_id: str, error: ErrorReport) -> None:
        """Record a failed import."""
        self._db.execute(
            "UPDATE models SET state = 'failed', error = ?, stage = '' WHERE id = ?",
            msgspec.json.encode(error).decode(),
            model_id,
        )

    def set_stamp(self, model_id: str, stamp: str) -> None:
        """Record the new change mark of files whose content is the same."""
        self._db.execute("UPDATE models SET stamp = ? WHERE id = ?", stamp, model_id)

    def delete_model(self, model_id: str) -> None:
        """Forget a model."""
        self._db.execute("DELETE FROM models WHERE id = ?", model_id)

    def uses_of_model(self, model_id: str) -> int:
        """Return the number of jobs that still need the model."""
        row = self._db.one(
            "SELECT COUNT(*) AS uses FROM jobs WHERE model_id = ? AND ended_at IS NULL", model_id
        )
        assert row is not None
        return int(row["uses"])

    def reserve_dataset(self, name: str, size: int, source_hash: str, now: float) -> int:
        """Take the next dataset id; `set_dataset_report` completes the row."""
        row = self._db.query(
            "INSERT INTO datasets (name, bytes, source_hash, form, report, created_at) "
            "VALUES (?, ?, ?, '', '', ?) RETURNING id",
            name,
            size,
            source_hash,
            now,
        )[0]
        return int(row["id"])

    def set_dataset_report(self, dataset_id: int, report: DataReport) -> None:
        """Complete a dataset's row; only complete ones are ever shown."""
        self._db.execute(
            "UPDATE datasets SET form = ?, report = ? WHERE id = ?",
            report.family,
            msgspec.json.encode(report).decode(),
            dataset_id,
        )

    def drop_dataset(self, dataset_id: int) -> None:
        """Forget a dataset."""
        self._db.execute("DELETE FROM datasets WHERE id = ?", dataset_id)

    def incomplete_datasets(self) -> list[int]:
        """Return ids whose check never ended, as after a power cut."""
        return [row["id"] for row in self._db.query("SELECT id FROM datasets WHERE report = ''")]

    def dataset(self, dataset_id: int) -> DatasetRecord:
        """Return a dataset.

        Raises:
            SlidepackError: DATA-NOT-FOUND.
        """
        row = self._db.one("SELECT * FROM datasets WHERE id = ? AND report <> ''", dataset_id)
        if row is None:
            raise SlidepackError(
                "DATA-NOT-FOUND",
                f"There is no dataset {dataset_id}.",
                fix="Add the file first.",
            )
        return _dataset(row)

    def find_dataset(
        self, source_hash: str, options: CheckOptions, suffix: str
    ) -> DatasetRecord | None:
        """Return a dataset made of the same bytes, of a like name and read the same way."""
        rows = self._db.query(
            "SELECT * FROM datasets WHERE source_hash = ? AND report <> '' ORDER BY id DESC",
            source_hash,
        )
        for row in rows:
            dataset = _dataset(row)
            if dataset.report.options == options and dataset.name.lower().endswith(suffix):
                return dataset
        return None

    def datasets(self) -> list[DatasetRecord]:
        """Return all datasets, newest first."""
        rows = self._db.query("SELECT * FROM datasets WHERE report <> '' ORDER BY id DESC")
        return [_dataset(row) for row in rows]


class Sessions:
    """Browser sessions; the database holds only hashes of their tokens."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def add(self, token: str, now: float) -> None:
        """Record a new session."""
        self._db.execute("INSERT INTO sessions VALUES (?, ?)", _hash(token), now)

    def known(self, token: str, oldest: float) -> bool:
        """Return whether the token is a session made after `oldest`."""
        return (
            self._db.one(
                "SELECT 1 FROM sessions WHERE token_hash = ? AND created_at >= ?",
                _hash(token),
                oldest,
            )
            is not None
        )

    def expire(self, oldest: float) -> None:
        """Forget sessions made before `oldest`."""
        self._db.execute("DELETE FROM sessions WHERE created_at < ?", oldest)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _model(row: dict[str, object]) -> ModelRecord:
    error = row["error"]
    record = msgspec.convert(row | {"error": None}, ModelRecord)
    if not isinstance(error, str):
        return record
    return msgspec.structs.replace(record, error=msgspec.json.decode(error, type=ErrorReport))


def _dataset(row: dict[str, object]) -> DatasetRecord:
    report = decode_report(str(row["report"]))
    return DatasetRecord(
        id=int(str(row["id"])),
        name=str(row["name"]),
        bytes=int(str(row["bytes"])),
        source_hash=str(row["source_hash"]),
        form=str(row["form"]),
        report=report,
        created_at=float(str(row["created_at"])),
    )
