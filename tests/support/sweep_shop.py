"""Sweeps over a real database, with a model and a dataset that need not exist as files."""

from pathlib import Path
from typing import Any, Final

from slidepack.daemon.changes import Changes
from slidepack.daemon.queue import Queue
from slidepack.daemon.states import JobState
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.store.sweeps import SweepStore
from slidepack.daemon.supervisor.origins import Origins
from slidepack.daemon.sweeps.lane import LaneSweeps, sweep_folder
from slidepack.daemon.sweeps.request import SweepRequest
from slidepack.daemon.sweeps.sweeps import Queued, Sweeps
from slidepack.engine.contract.events import Evaluated
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.sweep import LaneSweep
from slidepack.engine.data.report import DataReport
from slidepack.engine.importer.contract import ImportResult
from slidepack.engine.lora.halving import Rungs
from support.job_folders import Shop

NIGHT = 5e8
"""When the next window opens, in unix time."""

_TINY: Final = ImportResult(
    path="/models/tiny",
    content_hash="b" * 64,
    stamp="s",
    architecture="llama",
    params=1,
    bytes=1,
    license="",
    revision="",
)


class SweepShop(Shop):
    """A queue with one model and one dataset, and the sweeps over it."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        stores = self.stores
        self.catalogue = Catalogue(stores.database)
        self.model = self.catalogue.add_model("tiny", "folder", "/models/tiny", "", 1.0).id
        self.catalogue.model_ready(self.model, _TINY)
        self.dataset = self.add_dataset("stones.jsonl")
        self.store = SweepStore(stores.database)
        self.changes = Changes()
        self.queue = Queue(
            stores.database,
            stores.jobs,
            stores.runlog,
            self.retention,
            self.catalogue,
            self.paths,
            self.changes,
            lambda _now: NIGHT,
            Origins(stores.database, self.paths.origins),
            exports_of=lambda _job: [],
        )
        self.sweeps = Sweeps(
            database=stores.database,
            jobs=stores.jobs,
            store=self.store,
            queue=self.queue,
            catalogue=self.catalogue,
            paths=self.paths,
            changes=self.changes,
            tonight=lambda _now: NIGHT,
        )
        self.lanes = LaneSweeps(self.store, self.paths)

    def add_dataset(self, name: str) -> int:
        """Record a dataset."""
        dataset = self.catalogue.reserve_dataset(name, 1, name, 1.0)
        report = DataReport(
            family="chat",
            rows=9,
            accepted=9,
            rejected=0,
            reasons={},
            ignored_columns=(),
            content_hash="c" * 64,
        )
        self.catalogue.set_dataset_report(dataset, report)
        return dataset

    def request(self, **fields: Any) -> SweepRequest:
        """Return a request on the model and the dataset."""
        return SweepRequest(model=self.model, dataset=self.dataset, **fields)

    def add(self, **fields: Any) -> Queued:
        """Queue a sweep."""
        return self.sweeps.add(self.request(**fields))

    def specs(self, queued: Queued) -> list[JobSpec]:
        """Return the specifications of members, as asked for."""
        return [self.stores.jobs.spec(job_id) for job_id in queued.jobs]

    def measure(self, job_id: int, *losses: float | None, test: float | None = None) -> None:
        """Let an attempt at a job measure: the base first, then after each step."""
        if not self.stores.attempts.of(job_id):
            self.stores.attempts.add(job_id, 1, str(self.paths.attempt(job_id, 1)), "n", 1.0)
        events = [_evaluated("selection", step, loss) for step, loss in enumerate(losses)]
        if test is not None:
            events.append(_evaluated("test", len(losses) - 1, test))
        self.stores.runlog.ingest(self.stores.attempt(job_id), events, 1)

    def end(self, job_id: int, state: JobState = "completed") -> None:
        """End a job; a completed one has a result."""
        if state == "completed":
            self.measure(job_id)
            self.paths.attempt(job_id, 1).mkdir(parents=True)
        self.set(job_id, state)

    def judge(self, job_id: int, loss: float) -> bool:
        """Judge a member at the first rung, as its worker does."""
        judged = self.lanes.lane_sweep(job_id)
        assert isinstance(judged, LaneSweep)
        return Rungs.restored(judged.halving, Path(judged.rungs)).judge(str(job_id), 1, loss)

    def folder_of(self, sweep_id: int) -> Path:
        """Return a sweep's folder."""
        return sweep_folder(self.paths, sweep_id)


def _evaluated(split: Any, step: int, loss: float | None) -> Evaluated:
    return Evaluated(at=1.0, step=step, split=split, loss=loss, rows=3, supervised_tokens=9)
