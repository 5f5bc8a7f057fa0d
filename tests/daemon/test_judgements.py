"""Reports of workers in the database: the newest counts, and goes with its job."""

from pathlib import Path

import pytest
from support.reports import made_report
from support.stores import Stores, open_stores, plain_spec

from slidepack.daemon.store.judgements import Judgements
from slidepack.engine.contract.events import Judged


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return open_stores(tmp_path)


def test_the_newest_report_is_kept(stores: Stores) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    assert stores.runlog.judgement(job_id) is None
    first = stores.add_attempt(job_id)
    stores.runlog.ingest(first, [Judged(at=1.0, report=made_report(0, 0))], 10)
    stores.runlog.ingest(first, [Judged(at=2.0, report=made_report(9, 4))], 20)
    assert stores.runlog.judgement(job_id) == made_report(9, 4)
    second = stores.add_attempt(job_id, 2)
    stores.runlog.ingest(second, [Judged(at=3.0, report=made_report(0, 0))], 10)
    assert open_stores(stores.folder).runlog.judgement(job_id) == made_report(0, 0)


def test_a_report_goes_with_its_job(stores: Stores) -> None:
    gone, stays = (stores.jobs.add(plain_spec(), 0.0).id for _ in range(2))
    for job_id in (gone, stays):
        stores.runlog.ingest(
            stores.add_attempt(job_id), [Judged(at=1.0, report=made_report(9, 4))], 10
        )
    stores.runlog.forget(gone)
    assert stores.runlog.judgement(gone) is None
    assert stores.runlog.judgement(stays) == made_report(9, 4)
    assert Judgements(stores.database).of_sweep(1) == {}
