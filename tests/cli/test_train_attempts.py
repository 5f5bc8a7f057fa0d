"""What earlier attempts of `slidepack train` left goes once nothing will go on from it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from slidepack.cli.train_attempts import Attempts
from slidepack.engine.contract.runfolder import RunFolder


def _checkpoint(folder: RunFolder, step: int, *, healthy: bool = True) -> None:
    path = folder.checkpoints / f"step-{step:08d}"
    path.mkdir(parents=True)
    (path / "state.json").write_text(json.dumps({"step": step, "healthy": healthy}))


def _folders(root: Path, made: Sequence[Sequence[int]]) -> list[RunFolder]:
    folders = []
    for number, steps in enumerate(made, 1):
        folder = RunFolder(root / f"attempt-{number:04d}")
        folder.checkpoints.mkdir(parents=True)
        for step in steps:
            _checkpoint(folder, step)
        folders.append(folder)
    return folders


def _left(folders: Sequence[RunFolder]) -> list[list[int]]:
    return [
        [int(path.name.removeprefix("step-")) for path in reversed(folder.list_checkpoints())]
        for folder in folders
    ]


@pytest.mark.parametrize(
    ("made", "left", "left_complete"),
    [
        ([[10, 11]], [[10, 11]], [[10, 11]]),
        # Without a checkpoint of its own it may need any of them.
        ([[10, 11], [20, 25], []], [[10, 11], [20, 25], []], [[], [25], []]),
        ([[10, 11], [20, 25], [35]], [[], [25], [35]], [[], [], [35]]),
        ([[10, 11], [20, 25], [35, 39]], [[], [], [35, 39]], [[], [], [35, 39]]),
        ([[11], [], [25]], [[11], [], [25]], [[], [], [25]]),
    ],
)
def test_what_no_resume_needs_goes(
    tmp_path: Path,
    made: list[list[int]],
    left: list[list[int]],
    left_complete: list[list[int]],
) -> None:
    for complete, expected in ((False, left), (True, left_complete)):
        folders = _folders(tmp_path / str(complete), made)
        Attempts(tmp_path / str(complete), folders).tidy(complete=complete)
        assert _left(folders) == expected


def test_the_newest_healthy_one_and_what_broken_ones_need_stay(tmp_path: Path) -> None:
    folders = _folders(tmp_path, [[4, 5], [10], []])
    for step in (11, 12):
        _checkpoint(folders[2], step, healthy=False)
    attempts = Attempts(tmp_path, folders)
    attempts.tidy()
    assert _left(folders) == [[], [10], [11, 12]]
    attempts.tidy(complete=True)
    assert _left(folders) == [[], [10], [11, 12]]
    for path in folders[2].list_checkpoints():
        (path / "state.json").write_text("{")
    attempts.tidy()
    assert _left(folders) == [[], [10], [11, 12]]


def test_what_was_half_written_goes_but_not_what_is_being_written(tmp_path: Path) -> None:
    folders = _folders(tmp_path, [[10], [20]])
    for folder in folders:
        (folder.checkpoints / ".step-00000030.tmp").mkdir()
    Attempts(tmp_path, folders).tidy()
    assert [len(list(folder.checkpoints.glob(".*"))) for folder in folders] == [0, 1]


def test_what_the_disk_refuses_stays_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folders = _folders(tmp_path, [[10, 11], [20, 25]])
    for name in ("read_kept", "remains"):
        with monkeypatch.context() as patched:
            patched.setattr(f"slidepack.cli.train_attempts.{name}", _refuse)
            Attempts(tmp_path, folders).tidy()
        assert "the disk does not tell" in caplog.text
        caplog.clear()
    assert _left(folders) == [[], [20, 25]]


def _refuse(*_: object) -> Mapping[str, str]:
    raise OSError(5, "the disk does not tell")
