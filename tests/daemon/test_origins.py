"""What queued jobs go on from outlives the job that it was taken from, and not the need for it."""

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.job_folders import Shop
from support.stores import plain_spec

from slidepack.daemon.states import JobState
from slidepack.daemon.supervisor.origins import Origins
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import ContinueRef
from slidepack.engine.contract.runfolder import RunFolder


@pytest.fixture
def origins(shop: Shop) -> Origins:
    return Origins(shop.stores.database, shop.paths.origins)


def _origin(shop: Shop, parent: int, digest: str = "d" * 64, step: int = 1) -> ContinueRef:
    folder = RunFolder(shop.paths.attempt(parent, 1)).checkpoints / f"step-{step:08d}"
    return ContinueRef(
        job=str(parent), path=str(folder), kind="checkpoint", digest=digest, step=1, taken="state"
    )


def _queue(shop: Shop, origin: ContinueRef) -> int:
    spec = msgspec.structs.replace(plain_spec("child"), continues=origin)
    return shop.stores.jobs.add(spec, 1.0).id


def test_a_link_takes_no_room_and_stays_when_its_source_goes(shop: Shop, origins: Origins) -> None:
    parent = shop.job([[True]], "cancelled")
    origin = _origin(shop, parent)
    with shop.stores.database.transaction():
        kept = origins.keep(origin)
        assert origins.keep(origin) == kept, "asked again, it is the same"
        child = _queue(shop, kept)
    source, home = Path(origin.path), Path(kept.path)
    assert home.parent == shop.paths.origins
    for name in ("lane.safetensors", "state.json"):
        assert (source / name).stat().st_ino == (home / name).stat().st_ino
    assert shop.stores.jobs.get(child).continues == parent
    assert shop.stores.jobs.get(parent).continued_by == (child,)
    shop.stores.runlog.forget(parent)
    shop.stores.jobs.remove(parent)
    shop.retention.remove_job_folder(parent)
    shop.retention.work()
    assert not source.exists()
    assert (home / "lane.safetensors").read_bytes() == b"tensors"
    assert shop.stores.jobs.get(child).continues is None


@pytest.mark.parametrize(
    ("state", "stays"),
    [
        ("queued", True),
        ("paused", True),
        ("running", True),
        # These can be tried again.
        ("failed", True),
        ("cancelled", True),
        ("completed", False),
    ],
)
def test_it_stays_as_long_as_a_job_may_begin_with_it(
    shop: Shop, origins: Origins, state: JobState, *, stays: bool
) -> None:
    parent = shop.job([[True]], "cancelled")
    kept = origins.keep(_origin(shop, parent))
    child = _queue(shop, kept)
    shop.stores.add_attempt(child)
    shop.stores.force(child, state)
    shop.clock.now += 61
    shop.retention.work()
    assert Path(kept.path).exists() == stays
    if stays:
        origins.require(kept)
        shop.stores.attempts.end(shop.stores.attempt(child), "failed", 1, 2.0)
        shop.stores.jobs.remove(child)
        shop.clock.now += 61
        shop.retention.work()
    assert list(shop.paths.origins.iterdir()) == []
    with pytest.raises(SlidepackError, match=f"slidepack jobs continue {parent}") as caught:
        origins.require(kept)
    assert caught.value.report.code == "RUN-ORIGIN-BROKEN"


def test_two_jobs_share_it_and_the_last_takes_it_along(shop: Shop, origins: Origins) -> None:
    parent = shop.job([[True]], "cancelled")
    kept = origins.keep(_origin(shop, parent))
    children = [_queue(shop, kept), _queue(shop, origins.keep(_origin(shop, parent)))]
    assert shop.stores.jobs.get(parent).continued_by == tuple(children)
    for child, stays in zip(children, (True, False), strict=True):
        shop.stores.force(child, "completed")
        shop.clock.now += 61
        shop.retention.work()
        assert Path(kept.path).exists() == stays


def test_where_there_are_no_links_it_is_copied(
    shop: Shop, origins: Origins, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    parent = shop.job([[True]], "cancelled")
    origin = _origin(shop, parent)
    kept = Path(origins.keep(origin).path)
    assert (kept / "lane.safetensors").read_bytes() == b"tensors"
    names = (kept / "state.json", Path(origin.path) / "state.json")
    assert names[0].stat().st_ino != names[1].stat().st_ino


def test_what_is_gone_is_said_and_leaves_nothing_half_made(shop: Shop, origins: Origins) -> None:
    parent = shop.job([[True]], "cancelled")
    with pytest.raises(SlidepackError) as caught:
        origins.keep(_origin(shop, parent, step=9))
    assert caught.value.report.code == "RUN-ORIGIN-BROKEN"
    assert f"job {parent}" in caught.value.report.what
    # As after a crash between two links.
    half = shop.paths.origins / ".checkpoint-abc.tmp"
    half.mkdir(exist_ok=True)
    (half / "lane.safetensors").touch()
    shop.clock.now += 61
    shop.retention.work()
    assert list(shop.paths.origins.iterdir()) == []
    kept = origins.keep(_origin(shop, parent))
    assert (Path(kept.path) / "state.json").exists()


def test_a_full_disk_is_told_as_one(
    shop: Shop, origins: Origins, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(SlidepackError) as caught:
        origins.keep(_origin(shop, shop_parent(shop)))
    assert caught.value.report.code == "DISK-FULL"


def shop_parent(shop: Shop) -> int:
    """Return a job with a checkpoint; its folders are there, whatever the disk says now."""
    return shop.stores.jobs.add(plain_spec(), 0.0).id


def _complete(shop: Shop, kind: str) -> int:
    job_id = shop.job([[True, True, True], [True, False]], "completed")
    (Path(shop.stores.jobs.get(job_id).result or "") / kind).mkdir()
    shop.stores.database.execute("UPDATE jobs SET ended_at = ? WHERE id = ?", shop.today, job_id)
    shop.retention.after_end(job_id)
    shop.retention.work()
    return job_id


def test_a_completed_adapters_last_state_stays_for_a_month(shop: Shop) -> None:
    job_id = _complete(shop, "adapter")
    assert shop.left(job_id) == ["2/1"], "the newest that is healthy"
    for days, left in ((29.9, ["2/1"]), (30.1, [])):
        shop.today = (365 + days) * 86_400.0
        shop.clock.now = 100.0 + days * 86_400.0
        shop.retention.work()
        assert shop.left(job_id) == left


def test_of_a_completed_model_only_the_result_stays(shop: Shop) -> None:
    assert shop.left(_complete(shop, "model")) == []
