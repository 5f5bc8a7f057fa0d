"""Files of tensors: the library reads them, damage is seen, and no copy is made."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from slidepack.engine.worker.tensor_file import read_tensors, write_tensors

DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.int16,
    torch.int8,
    torch.uint8,
)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _tensors() -> dict[str, Tensor]:
    """Return tensors of every dtype, with any bits, in sizes that fit nothing evenly."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for dtype in DTYPES:
        count = 33 * 7 * dtype.itemsize
        raw = torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8)
        name = str(dtype).removeprefix("torch.")
        tensors[name] = raw.view(dtype).reshape(33, 7)
        tensors[f"{name}, none"] = torch.empty(0, dtype=dtype)
        tensors[f"{name}, one"] = torch.ones((), dtype=dtype)
    tensors["none of a shape"] = torch.empty(3, 0, 2)
    # More than one of the pieces that are handed to the system.
    raw = torch.randint(0, 256, ((33 << 20) + 5,), generator=generator, dtype=torch.uint8)
    tensors["large"] = raw
    return tensors


def _empty_like(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path) -> None:
    tensors, read = _tensors(), _empty_like(_tensors())
    digest = write_tensors(tmp_path / "file", tensors)
    assert read_tensors(tmp_path / "file", read) == digest
    for name, tensor in tensors.items():
        assert torch.equal(_bits(read[name]), _bits(tensor)), name


def test_the_library_reads_it(tmp_path: Path) -> None:
    tensors = _tensors()
    write_tensors(tmp_path / "file", tensors)
    theirs = load_file(tmp_path / "file")
    assert theirs.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (theirs[name].dtype, theirs[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(_bits(theirs[name]), _bits(tensor)), name


def test_no_tensors_are_a_file_too(tmp_path: Path) -> None:
    digest = write_tensors(tmp_path / "file", {})
    assert read_tensors(tmp_path / "file", {}) == digest
    assert load_file(tmp_path / "file") == {}


OTHERS: dict[str, dict[str, Tensor]] = {
    "another name": {"a": torch.ones(4), "c": torch.ones(2)},
    "another order": {"b": torch.ones(2), "a": torch.ones(4)},
    "another shape": {"a": torch.ones(2, 2), "b": torch.ones(2)},
    "another dtype": {"a": torch.ones(4, dtype=torch.bfloat16), "b": torch.ones(2)},
    "fewer": {"a": torch.ones(4)},
    "more": {"a": torch.ones(4), "b": torch.ones(2), "c": torch.ones(1)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_layout_is_refused_and_nothing_is_filled(tmp_path: Path, name: str) -> None:
    write_tensors(tmp_path / "file", {"a": torch.ones(4), "b": torch.ones(2)})
    wanted = _empty_like(OTHERS[name])
    with pytest.raises(ValueError, match="does not hold the tensors"):
        read_tensors(tmp_path / "file", wanted)
    assert not any(tensor.any() for tensor in wanted.values())


CUTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "does not hold"),
    "half a header": (lambda data: data[:20], "does not hold"),
    "the header alone": (lambda data: data[: -6 * 4], "a ends early"),
    "one byte short": (lambda data: data[:-1], "b ends early"),
    "one byte long": (lambda data: data + b"\0", "longer than its tensors"),
    "another file": (lambda data: b"\0" * len(data), "does not hold"),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_file_of_another_length_is_refused(tmp_path: Path, name: str) -> None:
    path, (cut, message) = tmp_path / "file", CUTS[name]
    tensors = {"a": torch.ones(4), "b": torch.ones(2)}
    write_tensors(path, tensors)
    path.write_bytes(cut(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        read_tensors(path, _empty_like(tensors))


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_tensors(tmp_path / "file", {"a": torch.ones(1)})


def test_any_flipped_bit_changes_the_digest_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tensors = {"a": torch.arange(5, dtype=torch.float32), "b": torch.tensor(3, dtype=torch.uint8)}
    digests = {write_tensors(path, tensors)}
    whole = path.read_bytes()
    data_bits = 8 * (5 * 4 + 1)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            digests.add(read_tensors(path, _empty_like(tensors)))
        except ValueError:
            assert bit < 8 * len(whole) - data_bits, "a flipped bit of the header"
    assert len(digests) == 1 + data_bits


_MEASURED = """
import sys
from pathlib import Path
import torch
from slidepack.engine.worker.tensor_file import read_tensors, write_tensors

def peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10

path = Path(sys.argv[1])
tensors = {"a": torch.ones(50_000_000), "b": torch.ones(1000, dtype=torch.int8)}
write_tensors(path, {"a": torch.ones(1)})
before = peak()
digest = write_tensors(path, tensors)
assert read_tensors(path, tensors) == digest
print("grew by", peak() - before, path.stat().st_size)
"""


def test_no_copy_of_a_large_tensor_is_made(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(tmp_path / "file")],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.fullmatch(r"grew by (\d+) (\d+)\n", done.stdout)
    assert found, done.stderr
    grown, size = map(int, found.groups())
    assert size > 200_000_000
    assert grown < 64 << 20
