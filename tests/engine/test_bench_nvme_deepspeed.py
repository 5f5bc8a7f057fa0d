"""`bench nvme --deepspeed`: another engine moves every byte of the same files, if it is there."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from slidepack.engine.bench_nvme.deepspeed import AioSettings, DeepSpeed, Swaps
from slidepack.engine.bench_nvme.options import NvmeOptions
from slidepack.engine.bench_nvme.run import bench_nvme
from slidepack.engine.nvme.files import TierFile

_SETTINGS = AioSettings(block_size=1 << 20, queue_depth=8, threads=1)
_SIZE = 5 << 20


class _Handle:
    """Does at once what DeepSpeed's begins, and counts as it does."""

    def __init__(self, settings: AioSettings) -> None:
        assert settings == _SETTINGS
        self.read: list[bytes] = []
        self.locked = 0
        self._done = 0

    def async_pread(self, buffer: Tensor, filename: str, file_offset: int) -> int:
        with Path(filename).open("rb") as file:
            file.seek(file_offset)
            data = file.read(buffer.numel())
        self.read.append(data)
        self._done += len(data) == buffer.numel()
        return 0

    def async_pwrite(self, buffer: Tensor, filename: str, file_offset: int) -> int:
        descriptor = os.open(filename, os.O_WRONLY)
        self._done += os.pwrite(descriptor, buffer.numpy().data, file_offset) == buffer.numel()
        os.close(descriptor)
        return 0

    def new_cpu_locked_tensor(self, num_elem: int, example: Tensor) -> Tensor:
        self.locked += 1
        return torch.empty(num_elem, dtype=example.dtype)

    def free_cpu_locked_tensor(self, tensor: Tensor) -> bool:
        self.locked -= 1
        return True

    def wait(self) -> int:
        done, self._done = self._done, 0
        return done


def _options(*folders: Path) -> NvmeOptions:
    return NvmeOptions(
        folders=folders,
        gigabytes=0.02,
        chunk_megabytes=4,
        rounds=1,
        threads=2,
        transport="",
        device="cpu",
        deepspeed=True,
    )


def test_every_byte_is_written_and_read(tmp_path: Path) -> None:
    handles: list[_Handle] = []

    def make(settings: AioSettings) -> _Handle:
        handles.append(_Handle(settings))
        return handles[-1]

    swaps = Swaps(DeepSpeed("0", make), _SETTINGS, 2 << 20)
    file, other = (TierFile.create([tmp_path / name], _SIZE) for name in ("one", "two"))
    assert swaps.seconds(None, file) > 0
    content = (tmp_path / "one").read_bytes()
    assert all(any(content[at : at + 4096]) for at in range(0, _SIZE, 4096))
    assert swaps.seconds(file, other) > 0
    assert b"".join(handles[0].read) == content
    assert (tmp_path / "two").read_bytes() == content
    # What is not there is no transfer.
    (tmp_path / "one").write_bytes(b"short")
    with pytest.raises(OSError, match="moved less"):
        swaps.seconds(file, None)
    assert [handle.locked for handle in handles] == [1, 1]
    swaps.close()
    assert [handle.locked for handle in handles] == [0, 0]
    file.close()
    other.close()


def test_it_knows_one_drive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one drive"):
        _options(tmp_path / "one", tmp_path / "two")


def test_what_is_not_installed_is_told_and_the_rest_measured(tmp_path: Path) -> None:
    if importlib.util.find_spec("deepspeed"):
        pytest.skip("DeepSpeed is installed here")
    found = bench_nvme(_options(tmp_path))
    assert "deepspeed" in found["deepspeed"]["problem"]
    assert found["both"]["tier_gb_s"] > 0


def test_an_installed_one_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    found = bench_nvme(_options(tmp_path))
    for which in ("defaults", "tuned"):
        for way in ("write", "read", "both"):
            rate = found["deepspeed"][which][way]
            assert rate["tier_times"] == pytest.approx(found[way]["tier_gb_s"] / rate["gb_s"])
