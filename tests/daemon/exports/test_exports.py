"""The daemon's side of exports, over a real database, with stand-ins for the exporter's process."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.exporting import completed_job, open_exports
from support.exports import random_adapter, save_exportable
from support.held import has_ended
from support.stores import Stores
from support.waiting import PATIENCE, wait_until

from slidepack.daemon.exports.exports import Exports
from slidepack.daemon.exports.process import start_export
from slidepack.daemon.exports.record import ExportRecord, ExportWanted
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export.contract import ExportRequest

PEFT = ExportWanted(format="peft")
_DONE = """
mkdir files; printf weights > files/w.bin
echo '{"stage": "writing", "done": 1, "total": 2}'
echo '{"ok": true, "path": "'$PWD'/files", "files": {"w.bin": 7}, "format": "peft",
"verification": null, "notes": ["a note"]}' | tr '\\n' ' '; echo
"""
_HALF = "mkdir -p .files.export-x; printf half > .files.export-x/w.bin\n"
_SAY = 'echo \'{"stage": "writing", "done": 1, "total": 2}\'\n'


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("trained")
    base = save_exportable(root / "base", "llama")
    return base, random_adapter(base, root / "result")


@pytest.fixture
def job(stores: Stores, trained: tuple[Path, Path]) -> int:
    return completed_job(stores, *trained)


@pytest.fixture
def exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a shell script take the exporter's place; it is started as the exporter is."""

    def replace(script: str) -> None:
        program = tmp_path / "exporter"
        program.write_text(f"#!/bin/sh\n{script}")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))

    return replace


def end(exports: Exports, export_id: int) -> ExportRecord:
    def ended() -> ExportRecord | None:
        exports.runner.tick()
        found = exports.get(export_id)
        return found if found.ended else None

    found = wait_until(ended, what="the export ends")
    assert found is not None
    return found


def running(exports: Exports, export_id: int, file: Path) -> psutil.Process:
    """Tick until an exporter has written a file, and return its process."""

    def begun() -> bool:
        exports.runner.tick()
        return file.exists() and exports.get(export_id).stage == "writing"

    wait_until(begun, what="the exporter writes")
    return psutil.Process(int(file.read_text()))


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(SlidepackError) as refused:
        call()
    return refused.value.report.code


def test_an_export_is_made_kept_and_deleted(
    stores: Stores, job: int, exporter: Callable[[str], None]
) -> None:
    # The priority is lowered right after the start.
    exporter('env > environment; until [ "$(nice)" = 19 ]; do sleep 0.01; done\n' + _DONE)
    exports = open_exports(stores, training=True)
    made = exports.add(job, PEFT)
    assert (made.state, exports.add(job, PEFT).id) == ("queued", made.id), "not made twice"
    done = end(exports, made.id)
    home = stores.folder / "exports" / str(made.id)
    assert (done.state, done.files, done.notes) == ("done", {"w.bin": 7}, ["a note"])
    assert done.folder == str(home / "files") and done.bytes >= 7
    request = json.loads((home / "request.json").read_text())
    assert request["target"] == done.folder and request["name"] == "A bot"
    assert request["hand_over"] is False, "the page shows the command; it hands nothing over"
    values = dict(line.split("=", 1) for line in (home / "environment").read_text().splitlines())
    assert values["CUDA_VISIBLE_DEVICES"] == values["HIP_VISIBLE_DEVICES"] == "-1"
    assert values["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 4))

    assert exports.add(job, PEFT).id != made.id, "one that has ended may be made again"
    removed = exports.remove(made.id)
    assert removed.freed_bytes == done.bytes and not home.exists()
    assert code_of(lambda: exports.get(made.id)) == "EXPORT-NOT-FOUND"


def test_one_at_a_time_in_their_order(
    stores: Stores, job: int, tmp_path: Path, exporter: Callable[[str], None]
) -> None:
    exporter(
        f"mkdir {tmp_path}/alone || exit 9\nbasename $PWD >> {tmp_path}/order\n"
        f"{_DONE}\nrmdir {tmp_path}/alone\n"
    )
    exports = open_exports(stores)
    forms = (PEFT, ExportWanted(format="gguf"), ExportWanted(format="gguf", quant="q8_0"))
    ids = [exports.add(job, wanted).id for wanted in forms]
    assert [end(exports, export_id).state for export_id in ids] == ["done"] * 3
    assert (tmp_path / "order").read_text().split() == [str(export_id) for export_id in ids]


def test_a_cancel_stops_the_process_and_leaves_nothing(
    stores: Stores, job: int, tmp_path: Path, exporter: Callable[[str], None]
) -> None:
    exporter(
        f"trap 'exit 130' TERM\n{_HALF}echo $$ > {tmp_path}/pid; {_SAY}"
        "while :; do sleep 0.1; done\n"
    )
    exports = open_exports(stores)
    first, waiting = exports.add(job, PEFT), exports.add(job, ExportWanted(format="merged"))
    process = running(exports, first.id, tmp_path / "pid")
    assert code_of(lambda: exports.remove(first.id)) == "EXPORT-STATE"
    assert exports.cancel(waiting.id).state == "cancelled"
    assert exports.cancel(first.id).cancelling
    assert end(exports, first.id).state == "cancelled"
    assert not process.is_running()
    assert list((stores.folder / "exports").iterdir()) == []
    assert code_of(lambda: exports.cancel(first.id)) == "EXPORT-STATE"
    for export_id in (first.id, waiting.id):
        assert exports.remove(export_id).freed_bytes == 0


@pytest.mark.parametrize(
    ("script", "code", "why"),
    [
        (f"{_HALF}echo oh no >&2; kill -9 $$", "RUN-CRASHED", "signal 9: oh no"),
        (f"{_HALF}exit 3", "RUN-CRASHED", "exit code 3"),
        (
            f'{_HALF}echo \'{{"ok": false, "error": {{"code": "DISK-FULL", "what": "w", '
            '"why": "no room", "fix": "f"}}\'; exit 40',
            "DISK-FULL",
            "no room",
        ),
    ],
)
def test_what_fails_leaves_its_log_and_nothing_half(
    stores: Stores, job: int, exporter: Callable[[str], None], script: str, code: str, why: str
) -> None:
    exporter(script)
    exports = open_exports(stores)
    failed = end(exports, exports.add(job, PEFT).id)
    assert failed.state == "failed" and failed.error is not None
    assert failed.error.code == code and why in failed.error.why
    home = stores.folder / "exports" / str(failed.id)
    assert [path.name for path in home.iterdir()] == ["export.log"]
    assert failed.bytes == (home / "export.log").stat().st_size


def test_one_that_differs_is_kept_as_evidence(
    stores: Stores, job: int, exporter: Callable[[str], None]
) -> None:
    exporter("mkdir files.differs-1; printf 12345 > files.differs-1/w; exit 65")
    exports = open_exports(stores)
    failed = end(exports, exports.add(job, PEFT).id)
    home = stores.folder / "exports" / str(failed.id)
    assert (home / "files.differs-1" / "w").read_text() == "12345" and failed.bytes == 5
    assert exports.remove(failed.id).freed_bytes == 5 and not home.exists()


def test_a_daemon_that_died_ends_its_exporter_and_starts_anew(
    stores: Stores, job: int, tmp_path: Path, exporter: Callable[[str], None]
) -> None:
    exporter(f"{_HALF}echo $$ > {tmp_path}/pid; {_SAY}exec sleep 1000")
    exports = open_exports(stores)
    made = exports.add(job, PEFT)
    orphan = running(exports, made.id, tmp_path / "pid")
    stray = stores.folder / "exports" / "77"
    stray.mkdir()
    again = open_exports(stores)
    again.runner.recover()
    assert has_ended(orphan)
    assert again.get(made.id).state == "queued"
    assert list((stores.folder / "exports").iterdir()) == [], "half folders and strays are gone"
    exporter(_DONE)
    assert end(again, made.id).state == "done"


def test_a_process_that_only_has_the_pid_is_left_alone(stores: Stores, job: int) -> None:
    exports = open_exports(stores)
    made = exports.add(job, PEFT)
    stores.database.execute(
        "UPDATE exports SET state = 'running', nonce = 'of-a-dead-one', starts = 1"
    )
    exports.runner.recover()
    assert exports.get(made.id).state == "queued" and psutil.Process().is_running()


def test_an_export_that_takes_its_daemon_down_each_time_is_given_up(
    stores: Stores, job: int
) -> None:
    exports = open_exports(stores)
    made = exports.add(job, PEFT)
    for starts in (1, 2, 3):
        stores.database.execute("UPDATE exports SET state = 'running', starts = ?", starts)
        exports.runner.recover()
    failed = exports.get(made.id)
    assert failed.state == "failed" and failed.error is not None
    assert "3 times" in failed.error.why


def test_a_stop_lets_the_next_daemon_start_it_anew(
    stores: Stores, job: int, tmp_path: Path, exporter: Callable[[str], None]
) -> None:
    exporter(f"{_HALF}echo $$ > {tmp_path}/pid; {_SAY}exec sleep 1000")
    exports = open_exports(stores)
    made = exports.add(job, PEFT)
    for _ in range(4):
        process = running(exports, made.id, tmp_path / "pid")
        exports.runner.stop()
        assert not process.is_running()
        (tmp_path / "pid").unlink()
        assert exports.get(made.id).state == "queued"
    assert list((stores.folder / "exports").iterdir()) == []
    # Stops are nobody's fault: after all of them, one crash is the first.
    running(exports, made.id, tmp_path / "pid")
    again = open_exports(stores)
    again.runner.recover()
    assert again.get(made.id).state == "queued"


def test_a_told_exporter_that_nobody_cancelled_is_tried_again(
    stores: Stores, job: int, tmp_path: Path, exporter: Callable[[str], None]
) -> None:
    exporter(
        f"test -e {tmp_path}/once && {{ {_DONE} exit 0; }}\ntouch {tmp_path}/once\n"
        'echo \'{"ok": false, "error": {"code": "RUN-INTERRUPTED", "what": "w", "why": "", '
        '"fix": ""}}\'; exit 130'
    )
    exports = open_exports(stores)
    assert end(exports, exports.add(job, PEFT).id).state == "done"


def test_there_must_be_room_before_it_starts(
    stores: Stores, job: int, exporter: Callable[[str], None]
) -> None:
    exporter(_DONE)
    full = open_exports(stores, floor_bytes=1 << 60)
    assert code_of(lambda: full.add(job, PEFT)) == "DISK-FULL"
    assert full.list_exports() == []
    # There was room when it was asked for, and there is none when its turn comes.
    made = open_exports(stores).add(job, PEFT)
    failed = end(full, made.id)
    assert failed.error is not None and failed.error.code == "DISK-FULL"
    assert "kept free" in failed.error.why


def test_what_makes_no_sense_is_refused(
    stores: Stores, job: int, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    exports = open_exports(stores)
    for wanted in (
        ExportWanted(format="merged", adapter_only=True),
        ExportWanted(format="peft", quant="q8_0"),
        ExportWanted(format="gguf", quant="q8_0", adapter_only=True),
        ExportWanted(format="peft", name="n" * 201),
    ):
        assert code_of(lambda: exports.add(job, wanted)) == "EXPORT-INVALID"  # noqa: B023
    assert code_of(lambda: exports.add(99, PEFT)) == "RUN-NOT-FOUND"
    gone = completed_job(stores, trained[0], tmp_path / "gone")
    assert code_of(lambda: exports.add(gone, PEFT)) == "RUN-NO-RESULT"
    assert exports.offers(gone) == []
    homeless = completed_job(stores, tmp_path / "no-base", trained[1])
    peft, *others = exports.offers(homeless)
    assert peft.bytes and [offer.problem.code for offer in others if offer.problem] == [
        "MODEL-NOT-FOUND"
    ] * len(others)


def test_the_real_exporter_ends_when_its_daemon_has_died(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    """Nobody reads its lines any more: it removes what it made, and leaves."""
    home = tmp_path / "home"
    home.mkdir()
    request = ExportRequest(
        result=str(trained[1]), base=str(trained[0]), target=str(home / "files"), format="gguf"
    )
    process = start_export(home, request, "nonce", 1)
    process.close()
    psutil.Process(process.pid).wait(PATIENCE)
    assert process.has_ended() and process.outcome is None
    assert sorted(path.name for path in home.iterdir()) == ["export.log", "request.json"]
    assert "DISK-UNWRITABLE" in (home / "export.log").read_text()
