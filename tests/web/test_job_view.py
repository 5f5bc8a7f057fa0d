"""What a job's page draws beside its records."""

import re
import shutil
from pathlib import Path

import msgspec
import pytest
from support.runs import make_run, tiny_spec
from support.stores import Stores, open_stores, plain_spec
from support.tier_runs import make_tier_run

from slidepack.daemon.remaining import Holds, Remaining
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.job import FullMethod
from slidepack.engine.contract.runfolder import write_atomic
from slidepack.web.job_view import (
    drives_of,
    ending_of,
    settings_of,
)

_NOW = 1000.0


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return open_stores(tmp_path)


def _job(stores: Stores, deadline: float | None) -> JobRecord:
    return msgspec.structs.replace(stores.jobs.add(plain_spec(), 0.0), deadline=deadline)


@pytest.mark.parametrize(
    ("deadline", "left", "planned", "verdict"),
    [
        (None, None, 1100.0, None),
        (1500.0, None, None, None),
        (1500.0, None, 1499.0, "holds"),
        (1500.0, None, 1501.0, "missed"),
        (900.0, None, None, "missed"),
        # Its own steps know better than the plan.
        (1500.0, Remaining(seconds=450.0, low=400.0, high=600.0), 1400.0, "at risk"),
        (1500.0, Remaining(seconds=450.0, low=400.0, high=480.0), 1600.0, "holds"),
    ],
)
def test_whether_a_deadline_holds(
    stores: Stores,
    deadline: float | None,
    left: Remaining | None,
    planned: float | None,
    verdict: Holds | None,
) -> None:
    ending = ending_of(_job(stores, deadline), left, planned, _NOW)
    assert (ending.holds, ending.left, ending.planned) == (verdict, left, planned)


def test_an_ended_job_has_no_deadline_to_hold(stores: Stores) -> None:
    job = msgspec.structs.replace(_job(stores, 10.0), state="completed")
    assert ending_of(job, None, None, _NOW).holds is None


def test_every_setting_is_shown_once() -> None:
    lora, full = plain_spec(), msgspec.structs.replace(plain_spec(), method=FullMethod())
    shown = {one.name: one.value for one in settings_of(lora)}
    assert len(shown) == len(settings_of(lora))
    assert (shown["method.kind"], shown["optim.lr"], shown["steps"]) == ("lora", "0.0002", "10")
    assert shown["method.rslora"] == "no"
    assert re.fullmatch(r"q_proj, .*down_proj", shown["method.targets"])
    flat = msgspec.to_builtins(lora)
    assert {name.split(".")[0] for name in shown} == set(flat)
    assert {name for name in shown if name.startswith("eval.")} == {
        f"eval.{name}" for name in flat["eval"]
    }
    assert {one.name for one in settings_of(full)} >= {"method.kind", "method.moments"}


def test_what_is_on_drives_is_told_by_the_newest_plan(stores: Stores, tmp_path: Path) -> None:
    assert drives_of([]) == ""
    job = _job(stores, None)
    spec = tiny_spec(tmp_path / "base", method=FullMethod())
    runs = [make_run(tmp_path / "1", spec), make_tier_run(tmp_path / "2", spec, tmp_path / "drive")]
    plan = runs[1].read_plan()
    assert plan.full is not None
    assert plan.full.nvme is not None
    tier = msgspec.structs.replace(plan.full.nvme, held_bytes=45 << 30, step_write_bytes=30 << 30)
    full = msgspec.structs.replace(plan.full, nvme=tier)
    write_atomic(runs[1].plan, msgspec.json.encode(msgspec.structs.replace(plan, full=full)))
    for number, run in enumerate(runs, 1):
        stores.attempts.add(job.id, number, str(run.root), str(number), 1.0)
    attempts = stores.attempts.of(job.id)
    assert drives_of(attempts) == f"45.0 GiB, 30.0 GiB written a step ({tmp_path / 'drive'})"
    assert drives_of(attempts, "ring: O_DIRECT").endswith(f"({tmp_path / 'drive'}); ring: O_DIRECT")
    assert drives_of(attempts[:1], "ring") == ""
    shutil.rmtree(runs[1].root)
    assert drives_of(attempts) == ""
