"""Models and datasets that this machine holds."""

import re
from typing import Literal

import msgspec

from slidepack.daemon.states import TERMINAL
from slidepack.daemon.store.database import Database
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.job import JobSpec
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


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """A job that names a model or a dataset."""

    job_id: int
    name: str
    state: str

    @property
    def ended(self) -> bool:
        """Whether it can never run again."""
        return self.state in TERMINAL


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

    def require_inputs(self, spec: JobSpec) -> None:
        """Refuse a job of which the model or a dataset has been deleted.

        Raises:
            SlidepackError: MODEL-NOT-FOUND or DATA-NOT-FOUND.
        """
        self.model(spec.base.model_id)
        for dataset in (spec.dataset, spec.eval.selection):
            if dataset is not None:
                self.dataset(int(dataset.dataset_id))

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

    def jobs_of_model(self, model_id: str) -> list[Use]:
        """Return the jobs that train or trained the model, the oldest first."""
        return self._uses("model_id = ?", model_id)

    def jobs_by_model(self) -> dict[str, int]:
        """Return how many jobs train or trained each model."""
        # Each half comes from an index that has the models; the table has long specifications.
        halves = (
            f"SELECT model_id, COUNT(*) FROM jobs WHERE ended_at IS {half} GROUP BY model_id"
            for half in ("NULL", "NOT NULL")
        )
        found: dict[str, int] = {}
        for model_id, number in self._db.values(" UNION ALL ".join(halves)):
            found[model_id] = found.get(model_id, 0) + number
        return found

    def jobs_of_dataset(self, dataset_id: int) -> list[Use]:
        """Return the jobs whose specification names the dataset in any part, the oldest first."""
        # What users typed cannot look like this: quotes in it are escaped.
        named = f'"dataset_id":"{dataset_id}"'
        return self._uses("dataset_id = ? OR instr(spec, ?) > 0", dataset_id, named)

    def jobs_by_dataset(self) -> dict[int, list[int]]:
        """Return the jobs that were queued with each dataset to train on, the newest first."""
        found: dict[int, list[int]] = {}
        for row in self._db.query("SELECT id, dataset_id FROM jobs ORDER BY id DESC"):
            found.setdefault(row["dataset_id"], []).append(row["id"])
        return found

    def _uses(self, condition: str, *values: object) -> list[Use]:
        rows = self._db.query(
            f"SELECT id, name, state FROM jobs WHERE {condition} ORDER BY id",
            *values,
        )
        return [Use(job_id=row["id"], name=row["name"], state=row["state"]) for row in rows]

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
        self, source_hash: str, options: CheckOptions, suffix: str, num_files: int = 1
    ) -> DatasetRecord | None:
        """Return a dataset made of the same bytes, of a like name and read the same way."""
        rows = self._db.query(
            "SELECT * FROM datasets WHERE source_hash = ? AND report <> '' ORDER BY id DESC",
            source_hash,
        )
        for row in rows:
            dataset = _dataset(row)
            files = dataset.report.files
            first, many = (files[0].name, len(files)) if files else (dataset.name, 1)
            like = many == num_files and first.lower().endswith(suffix)
            if like and dataset.report.options == options:
                return dataset
        return None

    def datasets(self) -> list[DatasetRecord]:
        """Return all datasets, newest first."""
        rows = self._db.query("SELECT * FROM datasets WHERE report <> '' ORDER BY id DESC")
        return [_dataset(row) for row in rows]


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
