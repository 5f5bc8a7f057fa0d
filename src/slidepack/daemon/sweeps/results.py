"""What a sweep found: its members in the order of their held-out loss, and the best of them.

The order is by the newest loss on the selection rows, which is that of the adapter that one gets.
The test rows choose nothing: their loss is told of the best member only, once it is chosen.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from slidepack.daemon.paths import DataPaths
from slidepack.daemon.states import JobState
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.store.sweeps import Measured, SweepRecord, SweepStore
from slidepack.daemon.sweeps.lane import read_rungs
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec, LoraMethod

__all__ = ["Best", "MemberRow", "SweepResults", "SweepSummary", "SweepTable"]


class MemberRow(msgspec.Struct, frozen=True, kw_only=True):
    """One member, as it stands."""

    job_id: int
    name: str
    state: JobState
    reason: str
    settings: dict[str, Any]
    """Those in which members differ."""
    step: int
    total_steps: int
    loss: float | None
    """The newest on the selection rows; members are ordered by it."""
    loss_step: int | None
    """The step at which it was measured."""
    lowest_loss: float | None
    """The lowest on the selection rows so far; above it, training went on for too long."""
    stopped_rung: int
    """The rung, from 1, at which it was told to end; 0 where it was not."""
    seconds: float
    """It has run for so long, all attempts together."""
    best: bool
    result: str | None


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The completed member whose adapter has the lowest selection loss."""

    job_id: int
    name: str
    settings: dict[str, Any]
    loss: float
    lowest_loss: float
    test_loss: float | None
    """On rows that chose nothing; None where none are held out for it."""
    adapter: str
    """Folder of the adapter, on the daemon's machine."""


class SweepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep in the list of all."""

    id: int
    name: str
    created_at: float
    members: int
    states: dict[str, int]
    """How many members are in each state."""
    best: Best | None


class SweepTable(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep with its members."""

    sweep: SweepRecord
    differ: tuple[str, ...]
    """Settings in which members differ."""
    members: list[MemberRow]
    """The lowest loss first, then those with none; what failed or was cancelled comes last."""
    best: Best | None


class SweepResults:
    """Reads sweeps."""

    def __init__(self, store: SweepStore, jobs: JobStore, paths: DataPaths) -> None:
        """Bind the stores."""
        self._store = store
        self._jobs = jobs
        self._paths = paths

    def list_sweeps(self, now: float) -> list[SweepSummary]:
        """Return all sweeps, newest first."""
        tables = [self._table(sweep, now, stopped={}) for sweep in self._store.list_sweeps()]
        return [
            SweepSummary(
                id=table.sweep.id,
                name=table.sweep.name,
                created_at=table.sweep.created_at,
                members=len(table.members),
                states=dict(Counter(member.state for member in table.members)),
                best=table.best,
            )
            for table in tables
        ]

    def show(self, sweep_id: int, now: float) -> SweepTable:
        """Return a sweep with its members.

        Args:
            sweep_id: of the sweep.
            now: unix time in seconds.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-FOLDER-BROKEN.
        """
        sweep = self._store.get(sweep_id)
        return self._table(sweep, now, read_rungs(self._paths, sweep_id).stopped)

    def best(self, sweep_id: int, now: float) -> Best:
        """Return the best member.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-NO-RESULT where none is completed yet.
        """
        table = self._table(self._store.get(sweep_id), now, stopped={})
        if table.best is None:
            raise SlidepackError(
                "RUN-NO-RESULT",
                f"Sweep {sweep_id} has no best member yet.",
                why=f"none of its {len(table.members)} members is completed and measured",
                fix=f"`slidepack sweep show {sweep_id}` tells how they stand.",
            )
        return table.best

    def _table(self, sweep: SweepRecord, now: float, stopped: Mapping[str, int]) -> SweepTable:
        sweep_id = sweep.id
        jobs = self._jobs.of_sweep(sweep_id)
        losses = self._store.last_losses(sweep_id)
        lowest = self._store.lowest_losses(sweep_id)
        seconds = self._store.seconds(sweep_id, now)
        differ, settings = _differences(self._store.specs(sweep_id))
        best = _best_of(jobs, losses)
        rows = [
            MemberRow(
                job_id=job.id,
                name=job.name,
                state=job.state,
                reason=job.reason,
                settings=settings[job.id],
                step=job.step,
                total_steps=job.total_steps,
                loss=losses[job.id].loss if job.id in losses else None,
                loss_step=losses[job.id].step if job.id in losses else None,
                lowest_loss=lowest[job.id].loss if job.id in lowest else None,
                stopped_rung=stopped.get(str(job.id), 0),
                seconds=seconds.get(job.id, 0.0),
                best=job is best,
                result=job.result,
            )
            for job in jobs
        ]
        return SweepTable(
            sweep=sweep,
            differ=differ,
            members=sorted(rows, key=_order),
            best=next((self._best(sweep_id, row) for row in rows if row.best), None),
        )

    def _best(self, sweep_id: int, row: MemberRow) -> Best:
        assert row.loss is not None
        assert row.lowest_loss is not None
        test = self._store.test_losses(sweep_id).get(row.job_id)
        return Best(
            job_id=row.job_id,
            name=row.name,
            settings=row.settings,
            loss=row.loss,
            lowest_loss=row.lowest_loss,
            test_loss=None if test is None else test.loss,
            adapter=f"{row.result}/adapter",
        )


def _best_of(jobs: list[JobRecord], losses: Mapping[int, Measured]) -> JobRecord | None:
    able = [job for job in jobs if job.state == "completed" and job.result and job.id in losses]
    return min(able, key=lambda job: (losses[job.id].loss, job.id), default=None)


def _order(row: MemberRow) -> tuple[bool, bool, float, int]:
    ended_badly = row.state in ("failed", "cancelled")
    return ended_badly, row.loss is None, row.loss or 0.0, row.job_id


def _differences(specs: Mapping[int, JobSpec]) -> tuple[tuple[str, ...], dict[int, dict[str, Any]]]:
    """Return the settings in which members differ, and each member's values of them."""
    settings = {job_id: _settings(spec) for job_id, spec in specs.items()}
    everyone = list(settings.values())
    differ = tuple(
        name
        for name in (everyone[0] if everyone else ())
        if len({one[name] for one in everyone}) > 1
    )
    return differ, {
        job_id: {name: one[name] for name in differ} for job_id, one in settings.items()
    }


def _settings(spec: JobSpec) -> dict[str, Any]:
    """Return everything in which members may differ."""
    method = spec.method
    assert isinstance(method, LoraMethod)
    return {
        "lr": spec.optim.lr,
        "rank": method.rank,
        "alpha": method.alpha,
        "dropout": method.dropout,
        "targets": method.targets,
        "rslora": method.rslora,
        "batch_size": spec.batch_size,
        "epochs": spec.epochs,
        "steps": spec.steps,
        "schedule": spec.optim.schedule,
        "warmup_fraction": spec.optim.warmup_fraction,
        "weight_decay": spec.optim.weight_decay,
        "clip_norm": spec.optim.clip_norm,
        "seed": spec.seed,
    }
