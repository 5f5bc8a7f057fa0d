"""An export's place: nothing that is there is touched, nothing half made is ever seen."""

import errno
import os
from pathlib import Path

import pytest
from support.disks import small_disk
from support.exports import export, random_adapter, save_exportable

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export.placing import Place, disk_error, require_room


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _make(made: Path) -> None:
    made.mkdir()
    (made / "file").write_text("whole")


def test_it_appears_when_it_is_committed(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    place = Place(target)
    with place as made:
        _make(made)
        assert not target.exists()
        place.commit()
    assert (target / "file").read_text() == "whole"
    assert _names(target.parent) == ["out"]


def test_an_empty_folder_gives_way(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    place = Place(tmp_path / "out")
    with place as made:
        _make(made)
        place.commit()
    assert _names(tmp_path / "out") == ["file"]


def test_an_empty_folder_stays_where_the_export_fails(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(InterruptedError), Place(tmp_path / "out") as made:
        _make(made)
        raise InterruptedError
    assert _names(tmp_path) == ["out"] and _names(tmp_path / "out") == []


@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_what_is_there_is_left_alone(tmp_path: Path, what: str) -> None:
    target = tmp_path / "out"
    if what == "folder":
        target.mkdir()
        (target / "mine").touch()
    elif what == "file":
        target.write_text("mine")
    else:
        target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(SlidepackError) as caught, Place(target):
        pytest.fail("the place was given")
    assert caught.value.report.code == "DISK-UNWRITABLE"
    assert _names(tmp_path) == ["out"]
    assert target.is_symlink() or target.read_text() == "mine" if what != "folder" else True


def test_a_target_that_fills_meanwhile_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "out"
    place = Place(target)
    with pytest.raises(SlidepackError) as caught, place as made:
        _make(made)
        target.mkdir()
        (target / "theirs").touch()
        place.commit()
    assert caught.value.report.code == "DISK-UNWRITABLE"
    assert _names(target) == ["theirs"] and _names(tmp_path) == ["out"]


def test_leftovers_of_the_dead_go_and_work_of_the_living_stays(tmp_path: Path) -> None:
    dead = tmp_path / ".out.export-dead"
    dead.mkdir()
    (dead / "half").touch()
    other = tmp_path / ".other.export-dead"
    other.mkdir()
    living = Place(tmp_path / "out")
    with living as theirs:
        theirs.mkdir()
        assert not dead.exists()
        second = Place(tmp_path / "out")
        with second as mine:
            assert theirs.exists()
            _make(mine)
            second.commit()
        assert theirs.exists()
    assert _names(tmp_path) == [".other.export-dead", "out"]


def test_what_is_set_aside_has_a_name_that_says_so(tmp_path: Path) -> None:
    for number in (1, 2):
        place = Place(tmp_path / "out")
        with place as made:
            _make(made)
            assert place.set_aside("differs") == tmp_path / f"out.differs-{number}"
    assert _names(tmp_path) == ["out.differs-1", "out.differs-2"]


def test_room_is_asked_of_the_disk_that_will_hold_it(tmp_path: Path) -> None:
    require_room(tmp_path / "not" / "there" / "yet", 1)
    with pytest.raises(SlidepackError) as caught:
        require_room(tmp_path / "out", 1 << 60)
    report = caught.value.report
    assert report.code == "DISK-FULL"
    assert "free" in report.why and f"{(1 << 60) / 1e9:.2f} GB" in report.why


def test_errors_of_the_disk_are_told_apart() -> None:
    full = disk_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x"))
    denied = disk_error(OSError(errno.EACCES, os.strerror(errno.EACCES), "/x"))
    assert (full.report.code, denied.report.code) == ("DISK-FULL", "DISK-UNWRITABLE")


@pytest.mark.parametrize("kind", ["merged", "gguf", "peft"])
def test_a_disk_that_is_too_small_is_seen_first(tmp_path: Path, kind: str) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    result = random_adapter(base, tmp_path / "result")
    with small_disk(tmp_path / "disk", 2) as disk:
        disk.fill(leave=20_000)
        before = disk.free_bytes
        with pytest.raises(SlidepackError) as caught:
            export(result, base, disk.mount / "out", kind)
        assert caught.value.report.code == "DISK-FULL"
        assert "MB free" in caught.value.report.why
        assert _names(disk.mount) == ["filler"] and disk.free_bytes == before


@pytest.mark.parametrize("kind", ["merged", "gguf", "peft"])
def test_a_disk_that_fills_leaves_nothing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    result = random_adapter(base, tmp_path / "result")
    monkeypatch.setattr("slidepack.engine.export.run.require_room", lambda _path, _bytes: None)
    with small_disk(tmp_path / "disk", 2) as disk:
        disk.fill(leave=20_000)
        with pytest.raises(OSError, match="No space left"):
            export(result, base, disk.mount / "out", kind)
        assert _names(disk.mount) == ["filler"]


@pytest.mark.parametrize("kind", ["merged", "gguf", "peft", "lora"])
def test_the_prediction_holds(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = save_exportable(tmp_path / "base", "qwen3")
    result = random_adapter(base, tmp_path / "result")
    asked: list[int] = []
    monkeypatch.setattr(
        "slidepack.engine.export.run.require_room", lambda _path, count: asked.append(count)
    )
    only = kind == "lora"
    done = export(
        result, base, tmp_path / "out", "gguf" if only else kind, adapter_only=only, verify=False
    )
    taken = sum(done.files.values())
    assert taken <= asked[0] <= 1.3 * taken
