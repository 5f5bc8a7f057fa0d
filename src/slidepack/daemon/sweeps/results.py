"""What a sweep found: its members in the order of their held-out loss, and the best of them.

The order is by the newest loss on the selection rows, which is that of the adapter that one gets.
The test rows choose nothing: their loss is told of the best member only, once it is chosen, unless
all members' is asked for, to be reported.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from slidepack.daemon.paths import DataPaths
from slidepack.daemon.states import JobState
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.store.judgements import Judgements
from slidepack.daemon.store.sweeps import Measured, SweepRecord, SweepStore
from slidepack.daemon.sweeps.lane import read_rungs
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.contract.judgement import FigureKind, JudgeReport

__all__ = ["Best", "MemberRow", "Ranking", "SweepResults", "SweepSummary", "SweepTable"]

_SCORES: Final[tuple[FigureKind, ...]] = ("choice", "exact_match_normalised", "token_accuracy")
"""The first that all members have is what they are ranked by."""


Ranking = Literal["selection", "test", "test-score"]
"""By the loss on the selection rows, by that on the test rows, or by what is right of these."""


class TestScore(msgspec.Struct, frozen=True, kw_only=True):
    """What a member gets right of the test rows, by the figure that fits its data."""

    kind: FigureKind
    value: float
    low: float | None
    """Of its 95% interval."""
    high: float | None


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
    test_loss: float | None = None
    """On rows that choose nothing; told where members are ranked by these."""
    test_score: TestScore | None = None
    """How many of these rows it answers rightly; told where members are ranked by these."""


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
    """Always by the selection loss."""
    by: Ranking = "selection"
    note: str = ""
    """What the order says, and what not."""


class SweepResults:
    """Reads sweeps."""

    def __init__(
        self, store: SweepStore, jobs: JobStore, paths: DataPaths, judgements: Judgements
    ) -> None:
        """Bind the stores."""
        self._store = store
        self._judgements = judgements
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

    def show(self, sweep_id: int, now: float, by: Ranking = "selection") -> SweepTable:
        """Return a sweep with its members.

        Args:
            sweep_id: of the sweep.
            now: unix time in seconds.
            by: what members are ranked by.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-FOLDER-BROKEN.
        """
        sweep = self._store.get(sweep_id)
        table = self._table(sweep, now, read_rungs(self._paths, sweep_id).stopped)
        return table if by == "selection" else self._by_test(table, by)

    def _by_test(self, table: SweepTable, by: Ranking) -> SweepTable:
        """Return a sweep with its members ranked by rows that choose nothing."""
        losses = self._store.test_losses(table.sweep.id)
        scores = _test_scores(self._judgements.of_sweep(table.sweep.id))
        members = [
            msgspec.structs.replace(
                row,
                test_loss=losses[row.job_id].loss if row.job_id in losses else None,
                test_score=scores.get(row.job_id),
            )
            for row in table.members
        ]
        order = _order_by_loss if by == "test" else _order_by_score
        measured = sum(
            (row.test_loss if by == "test" else row.test_score) is not None for row in members
        )
        return msgspec.structs.replace(
            table, members=sorted(members, key=order), by=by, note=_note(measured)
        )

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


def _order_by_loss(row: MemberRow) -> tuple[bool, bool, float, int]:
    ended_badly = row.state in ("failed", "cancelled")
    return ended_badly, row.test_loss is None, row.test_loss or 0.0, row.job_id


def _order_by_score(row: MemberRow) -> tuple[bool, bool, float, int]:
    ended_badly = row.state in ("failed", "cancelled")
    score = row.test_score
    return ended_badly, score is None, 0.0 if score is None else -score.value, row.job_id


def _test_scores(reports: Mapping[int, JudgeReport]) -> dict[int, TestScore]:
    """Return each member's score by the first figure that all of them have."""
    tested = {job: one for job, one in reports.items() if one.step and one.split == "test"}
    kind = next(
        (
            kind
            for kind in _SCORES
            if tested and all(one.value(kind, "tuned") is not None for one in tested.values())
        ),
        None,
    )
    if kind is None:
        return {}
    scores = {}
    for job_id, report in tested.items():
        figure = report.figure(kind)
        assert figure is not None
        (tuned,) = (one for one in figure.measured if one.voice == "tuned")
        scores[job_id] = TestScore(kind=kind, value=tuned.value, low=tuned.low, high=tuned.high)
    return scores


def _note(measured: int) -> str:
    if not measured:
        return "No member was measured on test rows; hold some out with test_fraction."
    return (
        "This order is for reporting, not for choosing: the best member is chosen by the selection "
        f"loss. The same test rows were looked at {measured} times here, so the one that comes "
        "first looks better on them than it is."
    )


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
