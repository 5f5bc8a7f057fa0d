"""When a checkpoint is due."""

import msgspec
import pytest
from support.runs import tiny_spec

from slidepack.engine.contract.job import JobSpec
from slidepack.engine.worker.pace import CheckpointPace


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    spec = tiny_spec(tmp_path_factory.mktemp("pace"))
    return msgspec.structs.replace(spec, checkpoint_every_steps=0)


def test_ten_minutes_after_the_start_and_after_the_last_one(spec: JobSpec) -> None:
    pace = CheckpointPace(spec, 100.0)
    assert not pace.is_due(699.9, 7, evaluated=False)
    assert pace.is_due(700.0, 7, evaluated=False)
    pace.saved(700.0, 701.0)
    assert not pace.is_due(1300.9, 8, evaluated=False)
    assert pace.is_due(1301.0, 8, evaluated=False)


def test_an_evaluation_brings_one_where_the_last_is_a_minute_old(spec: JobSpec) -> None:
    pace = CheckpointPace(spec, 0.0)
    assert not pace.is_due(59.9, 7, evaluated=True)
    assert pace.is_due(60.0, 7, evaluated=True)


@pytest.mark.parametrize(("evaluated", "due"), [(True, 201.0 * 20), (False, 201.0 * 20)])
def test_no_more_than_a_twentieth_of_the_run_goes_there(
    spec: JobSpec, *, evaluated: bool, due: float
) -> None:
    pace = CheckpointPace(spec, 0.0)
    pace.saved(1000.0, 1201.0)
    assert not pace.is_due(1201.0 + due - 0.1, 7, evaluated=evaluated)
    assert pace.is_due(1201.0 + due, 7, evaluated=evaluated)


@pytest.mark.parametrize(("minutes", "due"), [(0.5, 30.0), (2.0, 60.0)])
def test_a_job_names_its_own_minutes(spec: JobSpec, minutes: float, due: float) -> None:
    pace = CheckpointPace(msgspec.structs.replace(spec, checkpoint_minutes=minutes), 0.0)
    assert not pace.is_due(60.0 * minutes - 0.1, 7, evaluated=False)
    assert pace.is_due(60.0 * minutes, 7, evaluated=False)
    assert not pace.is_due(due - 0.1, 7, evaluated=True)
    assert pace.is_due(due, 7, evaluated=True)


def test_steps_that_are_named_are_obeyed_whatever_the_time(spec: JobSpec) -> None:
    pace = CheckpointPace(msgspec.structs.replace(spec, checkpoint_every_steps=3), 0.0)
    pace.saved(0.0, 100.0)
    due = [step for step in range(1, 10) if pace.is_due(100.0, step, evaluated=False)]
    assert due == [3, 6, 9]
    assert not pace.is_due(1e9, 10, evaluated=True)
