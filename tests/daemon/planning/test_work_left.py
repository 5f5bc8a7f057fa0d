"""The steps that are planned are those that the worker will count."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stores import Stores, plain_spec

from slidepack.daemon.planning.work_left import expected_rows, steps_in_all, steps_left
from slidepack.engine.contract.job import DatasetRef, EvalSpec, JobSpec
from slidepack.engine.worker.order import total_steps


def _spec(epochs: float, batch: int, **changes: object) -> JobSpec:
    plain = plain_spec()
    return JobSpec(
        name="job",
        base=plain.base,
        dataset=plain.dataset,
        method=plain.method,
        epochs=epochs,
        batch_size=batch,
        **changes,  # type: ignore[arg-type]  # fields of the struct
    )


@given(
    rows=st.integers(1, 5000),
    batch=st.integers(1, 64),
    epochs=st.floats(0.01, 20.0).map(lambda value: round(value, 2)),
)
def test_as_many_steps_as_the_worker_counts(rows: int, batch: int, epochs: float) -> None:
    spec = _spec(epochs, batch)
    assert steps_in_all(spec, rows) == total_steps(spec, rows)


def test_rows_that_are_held_out_are_not_trained() -> None:
    spec = _spec(1.0, 8, eval=EvalSpec(selection_fraction=0.1, test_fraction=0.2))
    assert expected_rows(spec, 1000) == pytest.approx(700)
    own = EvalSpec(selection=DatasetRef(dataset_id="2", path="-", content_hash="-"))
    assert expected_rows(_spec(1.0, 8, eval=own), 1000) == 1000


def test_what_the_worker_has_said_counts(stores: Stores) -> None:
    job = stores.jobs.add(plain_spec(), 0.0)
    spec = _spec(2.0, 8)
    assert steps_left(job, spec, 80.0) == 20
    stores.database.execute("UPDATE jobs SET total_steps = 30, step = 12")
    assert steps_left(stores.jobs.get(job.id), spec, 80.0) == 18


def test_a_job_that_is_about_to_end_still_has_a_step(stores: Stores) -> None:
    job = stores.jobs.add(plain_spec(), 0.0)
    stores.database.execute("UPDATE jobs SET total_steps = 30, step = 30")
    assert steps_left(stores.jobs.get(job.id), _spec(2.0, 8), math.inf) == 1
