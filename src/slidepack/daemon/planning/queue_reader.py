"""Takes the picture of the queue and the machine that a plan is made from."""

from collections.abc import Callable, Collection
from pathlib import Path

from slidepack.daemon.hardware import Waiting
from slidepack.daemon.planner.tasks import Window
from slidepack.daemon.planning.devices import devices_to_plan
from slidepack.daemon.planning.open_hours import open_hours
from slidepack.daemon.planning.picture import Picture, PlannedDevice, PlannedJob, task_key
from slidepack.daemon.planning.row_tokens import RowSizes
from slidepack.daemon.planning.work_left import expected_rows, steps_in_all, steps_left
from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.states import LIVE
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.store.plan_input import PlanInput, QueueState
from slidepack.daemon.store.row_lengths import RowLengths
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.shape import ModelShape, read_shape

__all__ = ["QueueReader"]


class QueueReader:
    """Reads jobs, datasets, policy and hardware; remembers what never changes.

    One thread at a time may use it, but for `queue`.
    """

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        catalogue: Catalogue,
        report: Callable[[], HardwareReport],
        policy: Callable[[], Policy],
        device: str,
        held: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Bind what is read.

        Args:
            database: of the queue.
            jobs: the queue.
            catalogue: of the datasets.
            report: asks for the hardware.
            policy: asks for the policy.
            device: the setting.
            held: asks for the devices on which chats run.
        """
        self._input = PlanInput(database)
        self._lengths = RowLengths(database)
        self._jobs = jobs
        self._catalogue = catalogue
        self._report = report
        self._policy = policy
        self._device = device
        self._held = held
        self._sizes = RowSizes()
        self._specs: dict[int, JobSpec] = {}
        self._shapes: dict[tuple[str, str], ModelShape] = {}
        self._rows: dict[int, int] = {}

    def queue(self) -> QueueState:
        """Return the queue as it is now. Any thread may ask."""
        return self._input.queue()

    def hours(self, now: float) -> tuple[Window, ...]:
        """Return the policy's windows from `now` (unix seconds) on (`open_hours`)."""
        return open_hours(self._policy(), now)

    def picture(self, now: float) -> Picture:
        """Return the queue and the machine at `now`, in unix seconds.

        A job of which something cannot be read, as its model, is set aside with the reason.
        """
        # First: what changes while the rest is read makes a plan of an old queue of it.
        queue = self._input.queue()
        on = self._input.devices_of_live()
        policy = self._policy()
        devices = devices_to_plan(
            self._report(),
            device=self._device,
            busy=set(on.values()),
            reserved_vram_bytes=int(policy.reserve_vram_mb * 1e6),
            held=self._held(),
        )
        found = [] if isinstance(devices, Waiting) else devices
        # Read one after the other: a job whose worker dies in between is in both.
        both = (*self._jobs.live(), *self._jobs.queued())
        records = list({job.id: job for job in both}.values())
        self._forget_all_but({job.id for job in records})
        states = self._jobs.states_of(earlier for job in records for earlier in job.after)
        jobs: list[PlannedJob] = []
        unplanned: dict[int, str] = {}
        for job in records:
            after = tuple(
                task_key(earlier)
                for earlier in job.after
                if not _is_past(states.get(earlier), job.after_failure)
            )
            try:
                jobs.append(self._planned(job, after, _place(job, on, found)))
            except SlidepackError as error:
                if error.report.code.startswith("DISK-"):
                    # The database itself cannot be read.
                    raise
                unplanned[job.id] = error.report.line()
        return Picture(
            now=now,
            queue=queue,
            jobs=tuple(jobs),
            devices=tuple(found),
            windows=open_hours(policy, now),
            unplanned=unplanned,
            waiting=devices.reason if isinstance(devices, Waiting) else "",
        )

    def planned(
        self, key: str, spec: JobSpec, *, rows: int | None = None, row_tokens: float | None = None
    ) -> PlannedJob:
        """Return a job that is not queued.

        Args:
            key: of its task.
            spec: of it.
            rows: that it trains; None are those of its dataset.
            row_tokens: of a row; None are those of its dataset.

        Raises:
            SlidepackError: those of `read_shape`, or DATA-NOT-FOUND.
        """
        expected, tokens = self._work(spec)
        return PlannedJob(
            key=key,
            spec=spec,
            shape=self._shape(spec),
            steps=steps_in_all(spec, expected if rows is None else rows),
            row_tokens=tokens if row_tokens is None else row_tokens,
        )

    def spec(self, job_id: int) -> JobSpec:
        """Return the specification of a job that exists."""
        return self._specs.get(job_id) or self._jobs.spec(job_id)

    def _planned(self, job: JobRecord, after: tuple[str, ...], place: str) -> PlannedJob:
        spec = self._specs[job.id] = self.spec(job.id)
        if place and job.step:
            self._lengths.learn(job.id, spec, expected_rows(spec, self._accepted(spec)))
        expected, tokens = self._work(spec)
        return PlannedJob(
            key=task_key(job.id),
            spec=spec,
            shape=self._shape(spec),
            steps=steps_left(job, spec, expected),
            row_tokens=tokens,
            priority=job.priority,
            not_before=job.not_before,
            deadline=job.deadline,
            promised=job.promised,
            any_time=job.any_time,
            after=after,
            running_on=place,
            seconds_left=job.eta_seconds if place else None,
        )

    def _work(self, spec: JobSpec) -> tuple[float, float]:
        """Return the rows that a job trains and the tokens of one, as known or as expected."""
        known, accepted = self._lengths.known(spec), self._accepted(spec)
        expected = expected_rows(spec, accepted)
        if known is None:
            return expected, self._sizes.tokens(spec.dataset, accepted)
        return expected * known.kept, known.tokens

    def _accepted(self, spec: JobSpec) -> int:
        number = int(spec.dataset.dataset_id)
        if number not in self._rows:
            self._rows[number] = self._catalogue.dataset(number).report.accepted
        return self._rows[number]

    def _shape(self, spec: JobSpec) -> ModelShape:
        key = (spec.base.path, spec.base.content_hash)
        if key not in self._shapes:
            self._shapes[key] = read_shape(Path(spec.base.path))
        return self._shapes[key]

    def _forget_all_but(self, job_ids: set[int]) -> None:
        for gone in self._specs.keys() - job_ids:
            del self._specs[gone]


def _place(job: JobRecord, on: dict[int, str], devices: list[PlannedDevice]) -> str:
    """Return the device of a job that has a worker; empty where it waits."""
    if job.state not in LIVE or not devices:
        return ""
    return on.get(job.id) or devices[0].key


def _is_past(state: str | None, after_failure: str) -> bool:
    """Return whether a predecessor keeps no job waiting any more."""
    ended = state is None or state == "completed"
    return ended or (after_failure == "run" and state in ("failed", "cancelled"))
