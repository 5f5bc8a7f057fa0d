"""The events file and the database agree, whatever cut either of them short."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from support.stores import Stores, open_stores, plain_spec
from support.waiting import wait_until

from slidepack.daemon.supervisor.ingest import ingest_events
from slidepack.engine.contract.events import (
    AnyEvent,
    Evaluated,
    Finished,
    Progress,
    Started,
    Warned,
    encode_event,
)


def _progress(step: int, loss: float | None = 1.0) -> Progress:
    return Progress(
        at=float(step),
        step=step,
        total_steps=200,
        loss=loss,
        grad_norm=1.0,
        lr=1e-3,
        tokens=10,
        supervised_tokens=5,
        tokens_per_second=100.0,
        eta_seconds=1.0,
    )


def _started(from_step: int = 0) -> Started:
    return Started(
        at=0.0,
        pid=1,
        device="cpu",
        precision="fp32",
        total_steps=200,
        from_step=from_step,
        train_rows=1,
        eval_rows=1,
        trainable_params=1,
        attention="",
    )


def _steps(stores: Stores, job_id: int) -> list[int]:
    return [row["step"] for row in stores.runlog.progress(job_id)]


def _events(stores: Stores, job_id: int) -> list[str]:
    return [row["body"] for row in stores.runlog.events_after(0, job_id, limit=100_000)]


def _file(stores: Stores, job_id: int, number: int = 1) -> Path:
    return stores.folder / f"{job_id}-{number}" / "events.jsonl"


def test_a_torn_last_line_waits_for_its_rest(stores: Stores) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    stores.add_attempt(job_id)
    assert ingest_events(stores.attempt(job_id), stores.runlog) == [], "no file yet"
    whole = encode_event(_started()) + encode_event(_progress(1))
    path = _file(stores, job_id)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        ingest_events(stores.attempt(job_id), stores.runlog)
        assert len(_events(stores, job_id)) == whole[:cut].count(b"\n")
    assert stores.attempt(job_id).events_offset == len(whole)
    assert _steps(stores, job_id) == [1]


def test_lines_that_are_no_events_are_passed_over(stores: Stores) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    stores.add_attempt(job_id)
    garbage = [b"{", b"", b"\xff\xfe\x00", b'{"type":"nobody-knows","at":1}', b"[1,2]", b"null"]
    lines = [encode_event(_progress(1))]
    for number, junk in enumerate(garbage, start=2):
        lines += [junk + b"\n", encode_event(_progress(number))]
    _file(stores, job_id).write_bytes(b"".join(lines))
    ingest_events(stores.attempt(job_id), stores.runlog)
    assert _steps(stores, job_id) == list(range(1, len(garbage) + 2))
    assert ingest_events(stores.attempt(job_id), stores.runlog) == []


def test_a_step_that_a_later_attempt_repeats_is_in_the_chart_once(stores: Stores) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    for number, steps in ((1, range(1, 6)), (2, range(4, 9))):
        stores.add_attempt(job_id, number)
        lines = [encode_event(_progress(step, loss=float(number))) for step in steps]
        _file(stores, job_id, number).write_bytes(b"".join(lines))
        ingest_events(stores.attempt(job_id, number), stores.runlog)
    series = stores.runlog.progress(job_id)
    assert [(row["step"], row["attempt"]) for row in series] == [
        *((step, 1) for step in range(1, 4)),
        *((step, 2) for step in range(4, 9)),
    ]
    attempts = stores.attempts.of(job_id)
    assert [(a.first_step, a.last_step) for a in attempts] == [(1, 5), (4, 8)]


def test_losses_that_are_no_numbers_are_gaps(stores: Stores) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    stores.add_attempt(job_id)
    line = encode_event(_progress(1)).replace(b'"loss":1.0', b'"loss":null')
    events: list[AnyEvent] = [
        Evaluated(at=1.0, step=1, split="selection", loss=2.5, rows=3, supervised_tokens=9),
        Warned(at=1.0, code="RUN-HIGH-LOSS", message="high"),
        Warned(at=1.0, code="RUN-HIGH-LOSS", message="high"),
        Finished(
            at=2.0,
            steps=1,
            result="/there",
            eval_loss_before=None,
            eval_loss_after=None,
            seconds=1.0,
            tokens_per_second=1.0,
            peak_host_bytes=1,
            peak_device_bytes=0,
        ),
    ]
    _file(stores, job_id).write_bytes(line + b"".join(map(encode_event, events)))
    ingest_events(stores.attempt(job_id), stores.runlog)
    stores.runlog.ingest(stores.attempt(job_id), [_progress(2, None)], 10**6)
    assert [row["loss"] for row in stores.runlog.progress(job_id)][-1] is None
    assert stores.runlog.evaluations(job_id)[0]["loss"] == 2.5
    assert len(stores.runlog.warnings(job_id)) == 1


def test_a_failed_transaction_stores_neither_events_nor_offset(stores: Stores) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    stores.add_attempt(job_id)
    _file(stores, job_id).write_bytes(b"".join(encode_event(_progress(s)) for s in range(1, 50)))
    for failing_at in (1, 7, 49):
        stores.database.execute(
            f"CREATE TEMP TRIGGER cut BEFORE INSERT ON main.progress WHEN NEW.step = {failing_at} "
            "BEGIN SELECT RAISE(ABORT, 'cut'); END"
        )
        try:
            ingest_events(stores.attempt(job_id), stores.runlog)
        except Exception as error:  # noqa: BLE001  # whatever SQLite makes of it
            assert "cut" in str(error)
        else:
            raise AssertionError("the trigger did not fire")
        stores.database.execute("DROP TRIGGER cut")
        assert _events(stores, job_id) == []
        assert stores.attempt(job_id).events_offset == 0
    ingest_events(stores.attempt(job_id), stores.runlog)
    assert _steps(stores, job_id) == list(range(1, 50))


_INGESTER = """
import sys
from pathlib import Path
from support.stores import open_stores
from slidepack.daemon.supervisor.ingest import ingest_events
stores = open_stores(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    ingest_events(stores.attempt(1), stores.runlog)
"""


def test_killed_again_and_again_it_stores_every_event_once(tmp_path: Path) -> None:
    rng = random.Random(7)
    stores = open_stores(tmp_path)
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    stores.add_attempt(job_id)
    path = _file(stores, job_id)
    lines = [encode_event(_progress(step)) for step in range(1, 1501)]
    whole = b"".join(lines)
    written = 0
    for round_ in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", _INGESTER, str(tmp_path)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        assert child.stdout is not None
        child.stdout.readline()
        before = stores.attempt(job_id).events_offset
        goal = len(whole) * (round_ + 1) // 5
        while written < goal:
            end = min(goal, written + rng.randrange(1, 2000))
            with path.open("ab") as file:
                file.write(whole[written:end])
            written = end
        # It dies in the middle of its work: some of the new lines are stored, rarely all.
        wait_until(lambda: stores.attempt(job_id).events_offset > before)  # noqa: B023
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    while ingest_events(stores.attempt(job_id), stores.runlog):
        pass
    assert _events(stores, job_id) == [line.decode().rstrip("\n") for line in lines]
    assert _steps(stores, job_id) == list(range(1, 1501))
