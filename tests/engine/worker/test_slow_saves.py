"""Who writes a checkpoint to a slow disk shows that it gets on, and never waits for all of it."""

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.full_runs import CPU
from support.runs import make_run, tiny_spec

from slidepack.daemon.supervisor.patience import Patience
from slidepack.engine.contract.job import FullMethod
from slidepack.engine.nvme.ring import RingTransport
from slidepack.engine.sliding.state import StateFormat, TrainState, Unit
from slidepack.engine.sliding.tier_store import TierSetup
from slidepack.engine.worker.full_trainee import FullTrainee, load_full
from slidepack.engine.worker.pulse import Pulse
from slidepack.engine.worker.tensor_file import read_tensors, write_tensors
from slidepack.engine.worker.unit_files import read_units, write_units

_LIMIT = 60.0
_SIZE = 80 << 20


class SlowDisk:
    """A disk that takes what it is given into memory, and is slow when it is waited for."""

    def __init__(self, run_folder: Path, bytes_per_second: float) -> None:
        """Let nobody ask a worker to leave before its clock begins."""
        self.now = 0.0
        self.killed_at: float | None = None
        self.waits: list[int] = []
        """Bytes that each wait was for."""
        self._run_folder = run_folder
        self._rate = bytes_per_second
        self._durable: dict[int, int] = {}
        self._patience = Patience(_LIMIT, lambda: self.now)
        self._beats = itertools.count(1)
        self._look()

    def beat(self) -> None:
        """Tell that a worker gets on, as `Pulse` does."""
        number = next(self._beats)
        (self._run_folder / "pulse").touch()
        os.utime(self._run_folder / "pulse", ns=(number, number))

    def sync(self, descriptor: int) -> None:
        """Take the time that the bytes take which have gathered."""
        found = os.fstat(descriptor)
        waiting = found.st_size - self._durable.get(found.st_ino, 0)
        self._durable[found.st_ino] = found.st_size
        self.waits.append(waiting)
        until = self.now + waiting / self._rate
        while self.now < until and self.killed_at is None:
            self.now = min(self.now + 0.5, until)
            self._look()

    def _look(self) -> None:
        if self._patience.is_over(self._run_folder, self.now) and self.killed_at is None:
            self.killed_at = self.now


@pytest.fixture
def slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], SlowDisk]:
    """Give the files that are written the speed of a disk."""

    def make(bytes_per_second: float) -> SlowDisk:
        disk = SlowDisk(tmp_path, bytes_per_second)
        monkeypatch.setattr(os, "fsync", disk.sync)
        monkeypatch.setattr(os, "fdatasync", disk.sync)
        return disk

    return make


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> int:
    """Wait for the disk after so few bytes that a small file shows it."""
    monkeypatch.setattr("slidepack.engine.sliding.steady_sync._SYNC_BYTES", 16 << 20)
    return 16 << 20


def _writing(run_folder: Path) -> Path:
    folder = run_folder / "checkpoints" / ".step-00000007.tmp"
    folder.mkdir(parents=True)
    return folder


def test_a_unit_that_takes_longer_than_the_limit_is_waited_for(
    tmp_path: Path, slow_disk: Callable[[float], SlowDisk], often: int
) -> None:
    disk = slow_disk(1e6)
    path = _writing(tmp_path) / "unit-00000.safetensors"
    tensors = {"a": torch.arange(_SIZE // 4, dtype=torch.int32).view(torch.uint8)}
    digest = write_tensors(path, tensors, disk.beat)
    assert disk.killed_at is None
    assert disk.now > _LIMIT
    assert sum(disk.waits) == path.stat().st_size
    assert max(disk.waits) <= often + 4096
    read = {"a": torch.zeros_like(tensors["a"])}
    assert read_tensors(path, read) == digest
    assert torch.equal(read["a"], tensors["a"])


def test_a_disk_that_takes_nothing_any_more_is_not_waited_for(
    tmp_path: Path, slow_disk: Callable[[float], SlowDisk], often: int
) -> None:
    disk = slow_disk(1e-3)
    path = _writing(tmp_path) / "unit-00000.safetensors"
    write_tensors(path, {"a": torch.zeros(often, dtype=torch.uint8)}, disk.beat)
    assert disk.killed_at is not None
    assert _LIMIT < disk.killed_at <= _LIMIT + 15.0


UNITS = [Unit("layer 0", 600_000, 600_000), Unit("embedding", 5_000, 5_000)]


def _state(folder: Path) -> TrainState:
    every = frozenset(range(len(UNITS)))
    tier = TierSetup(
        folders=(folder / "one", folder / "two"),
        moments=every,
        master=every,
        transport=RingTransport(threads=2),
        chunk=65_536,
    )
    state = TrainState(UNITS, StateFormat(split=False, moments="fp32"), pin=False, tier=tier)
    for index, unit in enumerate(UNITS):
        state.write(index, 0, torch.arange(unit.elements) + index)
    return state


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that makes no hard links."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("no_links")
def test_a_copy_of_what_is_on_drives_shows_each_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slidepack.engine.sliding.tier_copy._PIECE", 1 << 20)
    monkeypatch.setattr("slidepack.engine.sliding.steady_sync._SYNC_BYTES", 2 << 20)
    waits: list[int] = []
    real = os.fdatasync

    def counted(descriptor: int) -> None:
        waits.append(os.fstat(descriptor).st_size)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", counted)
    state, beats = _state(tmp_path), [0]
    folder = tmp_path / "saved"
    folder.mkdir()

    def beat() -> None:
        beats[0] += 1

    digest = write_units(state, folder, beat)
    copies = sorted(folder.glob("*.state-*"))
    originals = sorted(path for part in ("one", "two") for path in (tmp_path / part).iterdir())
    assert {path.read_bytes() for path in copies} == {path.read_bytes() for path in originals}
    size = sum(path.stat().st_size for path in copies)
    assert beats[0] >= size >> 20
    # The drives' own files are waited for too, once each.
    assert len(waits) >= (size >> 21) + len(originals) - 1
    read_units(state, folder, digest)
    assert torch.equal(state.read(0, 0, 600_000), torch.arange(600_000, dtype=torch.float32))
    state.close()


@pytest.fixture
def trainee(tmp_path: Path) -> Iterator[FullTrainee]:
    """A full fine-tuning with all its state in RAM."""
    spec = tiny_spec(tmp_path, method=FullMethod())
    run = make_run(tmp_path / "run", spec)
    one = load_full(
        Path(spec.base.path),
        run.read_plan(),
        spec.optim,
        CPU,
        lambda *_: None,
        lambda: None,
        lambda *_: None,
        lambda *_: None,
        run,
    )
    yield one
    one.close()


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> list[Pulse]:
    """Every sign that a worker gets on."""
    found: list[Pulse] = []
    monkeypatch.setattr(Pulse, "beat", lambda pulse: found.append(pulse))
    return found


def test_a_checkpoint_from_ram_and_a_result_are_signs(
    tmp_path: Path, beats: list[Pulse], trainee: FullTrainee
) -> None:
    assert trainee.reason
    before, checkpoint = len(beats), tmp_path / "step"
    checkpoint.mkdir()
    trainee.save(checkpoint)
    units = len(list(checkpoint.glob("unit-*.safetensors")))
    assert units > trainee.shape.num_layers
    # The wait for its updates is a sign a unit already.
    assert len(beats) - before >= 3 * units
    before = len(beats)
    trainee.write_result(tmp_path / "result", "tiny")
    assert len(beats) - before == units + len(trainee.shape.tensor_shapes())
