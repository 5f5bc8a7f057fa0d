"""A worker that writes a large checkpoint gets the time for it; one that hangs does not."""

import os
from pathlib import Path

from slidepack.daemon.supervisor.patience import Patience


def test_a_checkpoint_that_grows_is_waited_for(tmp_path: Path) -> None:
    clock = 0.0
    patience = Patience(60.0, lambda: clock)
    assert not patience.is_over(tmp_path, 60.0)
    assert patience.is_over(tmp_path, 61.0), "nothing is being written"
    writing = tmp_path / "checkpoints" / ".step-00000007.tmp"
    writing.mkdir(parents=True)
    for second in range(62, 100):
        clock = float(second)
        (writing / "lane.safetensors").write_bytes(b"x" * second)
        assert not patience.is_over(tmp_path, clock)
    # It hangs.
    clock = 108.9
    assert not patience.is_over(tmp_path, clock)
    clock = 109.1
    assert patience.is_over(tmp_path, clock)


def test_one_that_grows_is_waited_for_however_long_unless_nobody_needs_it(tmp_path: Path) -> None:
    clock = 0.0
    wanted, unwanted = Patience(1.0, lambda: clock), Patience(1.0, lambda: clock)
    writing = tmp_path / ".result.tmp-12"
    writing.mkdir()
    for tenth in range(11, 301):
        clock = tenth / 10
        (writing / "model.safetensors").write_bytes(b"x" * tenth)
        assert not wanted.is_over(tmp_path, clock)
        assert unwanted.is_over(tmp_path, clock, unwanted=True) == (tenth > 100)


def test_what_is_whole_is_not_being_written(tmp_path: Path) -> None:
    whole = tmp_path / "checkpoints" / "step-00000007"
    whole.mkdir(parents=True)
    (whole / "lane.safetensors").write_bytes(b"x")
    assert Patience(1.0, lambda: 0.0).is_over(tmp_path, 1.1)


def _beat(run_folder: Path, number: int) -> None:
    (run_folder / "pulse").touch()
    os.utime(run_folder / "pulse", ns=(number, number))


def test_a_worker_that_gets_on_with_a_long_step_is_waited_for_and_one_that_hangs_is_not(
    tmp_path: Path,
) -> None:
    clock = 0.0
    patience = Patience(60.0, lambda: clock)
    # Longer than ten times the limit, and no two signs further apart than it.
    for second in range(0, 1201, 30):
        clock = float(second)
        if second % 60 == 0:
            _beat(tmp_path, second + 1)
        assert not patience.is_over(tmp_path, clock)
    clock = 1260.0
    assert not patience.is_over(tmp_path, clock)
    clock = 1260.1
    assert patience.is_over(tmp_path, clock)


def test_what_a_worker_showed_before_it_was_asked_to_leave_gives_it_no_time(
    tmp_path: Path,
) -> None:
    clock = 1000.0
    patience = Patience(60.0, lambda: clock)
    _beat(tmp_path, 1)
    assert not patience.is_over(tmp_path, 0.0)
    clock = 1060.1
    assert patience.is_over(tmp_path, 60.1)


def test_a_checkpoint_after_a_long_step_has_its_own_time(tmp_path: Path) -> None:
    clock = 0.0
    patience = Patience(1.0, lambda: clock)
    for second in range(20):
        clock = float(second)
        _beat(tmp_path, second + 1)
        assert not patience.is_over(tmp_path, clock)
    writing = tmp_path / "checkpoints" / ".step-00000007.tmp"
    writing.mkdir(parents=True)
    for second in range(20, 40):
        clock = float(second)
        (writing / "lane.safetensors").write_bytes(b"x" * second)
        assert not patience.is_over(tmp_path, clock)
    clock = 49.1
    assert patience.is_over(tmp_path, clock), "it grows no more"


def test_what_is_unwanted_is_not_waited_for_however_it_gets_on(tmp_path: Path) -> None:
    clock = 0.0
    wanted, unwanted = Patience(60.0, lambda: clock), Patience(60.0, lambda: clock)
    for instant in (0.0, 30.0, 60.0, 60.1):
        clock = instant
        _beat(tmp_path, 1 + int(10 * instant))
        assert not wanted.is_over(tmp_path, clock)
        assert unwanted.is_over(tmp_path, clock, unwanted=True) == (instant > 60.0)
