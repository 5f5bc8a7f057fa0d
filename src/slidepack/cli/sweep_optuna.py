"""A sweep whose members an Optuna study chooses, as earlier ones end; for scripts of your own too.

study = optuna.create_study()
sweep = SweepStudy(study, plan, connect(), {"model": "tiny", "dataset": 1})
sweep.ask(8)            # queues eight members that the study proposes
sweep.tell()            # tells the study of those that have ended
"""

import importlib
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from slidepack.daemon.sweeps.members import Assignment, axes_of, shown_value
from slidepack.daemon.sweeps.request import SweepPlan
from slidepack.daemon.sweeps.space import WHOLE, Axis
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["Api", "SweepStudy", "make_study", "optimise"]

_POLL_SECONDS: Final = 2.0


class Api(Protocol):
    """The daemon's API, as `slidepack.cli.client.connect` returns it."""

    def get(self, path: str) -> Any:
        """Return the JSON of a GET."""

    def post(self, path: str, body: object = None) -> Any:
        """Return the JSON of a POST."""


class SweepStudy:
    """Ask and tell between an Optuna study and one sweep."""

    def __init__(self, study: Any, plan: SweepPlan, api: Api, target: dict[str, Any]) -> None:
        """Bind both; nothing is queued.

        Args:
            study: of Optuna, that minimises.
            plan: where settings come from, and what all members share.
            api: of the daemon.
            target: model, dataset and what else a sweep's request has beside a plan.

        Raises:
            SlidepackError: RUN-SPEC-INVALID.
        """
        self._study = study
        self._axes = axes_of(plan)
        self._api = api
        shared = msgspec.structs.replace(plan, grid={}, random={})
        self._request = msgspec.to_builtins(shared) | target
        self._states = _optuna().trial.TrialState
        self._open: dict[int, tuple[Any, int]] = {}
        self.sweep_id: int | None = None
        """Of the sweep, once a member is queued."""

    @property
    def running(self) -> int:
        """Trials that were asked for and not told yet."""
        return len(self._open)

    def ask(self, count: int) -> tuple[int, ...]:
        """Queue members that the study proposes, all or none; return their jobs.

        Raises:
            SlidepackError: what the daemon answers; the study takes them for failed.
        """
        trials = [self._study.ask() for _ in range(count)]
        members = [_suggest(trial, self._axes) for trial in trials]
        try:
            queued = self._queue(members)
        except SlidepackError:
            for trial in trials:
                self._study.tell(trial, state=self._states.FAIL)
            raise
        self.sweep_id = queued["sweep_id"]
        jobs = tuple(queued["jobs"])
        for trial, job in zip(trials, jobs, strict=True):
            self._open[trial.number] = trial, job
        return jobs

    def tell(self) -> tuple[int, ...]:
        """Tell the study of the members that have ended; return their jobs.

        One that halving ended early is told as pruned, with the loss that it had.

        Raises:
            SlidepackError: what the daemon answers.
        """
        if not self._open:
            return ()
        rows = {row["job_id"]: row for row in self._api.get(f"/sweeps/{self.sweep_id}")["members"]}
        told = []
        for number, (trial, job) in list(self._open.items()):
            if self._tell_one(trial, rows.get(job)):
                del self._open[number]
                told.append(job)
        return tuple(told)

    def _tell_one(self, trial: Any, row: dict[str, Any] | None) -> bool:
        """Tell of one member; return whether it has ended."""
        if row is None or row["state"] in ("failed", "cancelled"):
            self._study.tell(trial, state=self._states.FAIL)
        elif row["state"] != "completed":
            return False
        elif row["loss"] is None:
            self._study.tell(trial, state=self._states.FAIL)
        elif row["stopped_rung"]:
            trial.report(row["loss"], row["loss_step"])
            self._study.tell(trial, state=self._states.PRUNED)
        else:
            self._study.tell(trial, row["loss"])
        return True

    def _queue(self, members: list[Assignment]) -> Any:
        if self.sweep_id is None:
            return self._api.post("/sweeps", self._request | {"members": members})
        return self._api.post(f"/sweeps/{self.sweep_id}/members", {"members": members})


def optimise(
    sweep: SweepStudy,
    trials: int,
    at_once: int,
    on_told: Callable[[int, int], None],
    wait: Callable[[], None] = lambda: time.sleep(_POLL_SECONDS),
) -> None:
    """Keep so many members queued until the study has seen its trials.

    Args:
        sweep: study and sweep.
        trials: in all.
        at_once: that are queued or run at a time.
        on_told: told how many trials have ended, and of how many, at every change.
        wait: between two looks.

    Raises:
        SlidepackError: what the daemon answers; what is queued stays queued.
    """
    asked = 0
    while asked < trials or sweep.running:
        wanted = min(at_once - sweep.running, trials - asked)
        if wanted > 0:
            asked += len(sweep.ask(wanted))
        wait()
        if sweep.tell():
            on_told(asked - sweep.running, trials)


def make_study(plan: SweepPlan) -> Any:
    """Return a study that minimises, with Optuna's own sampler and the plan's seed.

    Raises:
        SlidepackError: DAEMON-REQUEST-INVALID: Optuna is not installed.
    """
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = plan.random.get("seed", 0)
    sampler = optuna.samplers.TPESampler(seed=seed if isinstance(seed, int) else 0)
    return optuna.create_study(direction="minimize", sampler=sampler)


def _optuna() -> Any:
    # An extra: most people never need it, and it brings a database layer.
    try:
        return importlib.import_module("optuna")
    except ModuleNotFoundError as error:
        raise SlidepackError(
            "DAEMON-REQUEST-INVALID",
            "A study needs Optuna, which is not installed.",
            why=str(error),
            fix="pip install 'slidepack[optuna]'",
        ) from error


def _suggest(trial: Any, axes: dict[str, Axis]) -> Assignment:
    return {name: _suggest_one(trial, name, axis) for name, axis in axes.items()}


def _suggest_one(trial: Any, name: str, axis: Axis) -> Any:
    if axis.choices is not None:
        # Optuna remembers plain values only, and a choice may be a list of linears.
        by_name = {shown_value(value): value for value in axis.choices}
        return by_name[trial.suggest_categorical(name, list(by_name))]
    low, high = axis.log or axis.uniform or (0.0, 0.0)
    log = axis.log is not None
    if name in WHOLE:
        return trial.suggest_int(name, *axis.whole_bounds(), log=log)
    return trial.suggest_float(name, low, high, log=log)
